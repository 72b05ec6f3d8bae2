{-# LANGUAGE OverloadedStrings #-}

-- |
-- Sending WAI responses over HTTP\/1. A head and a body that fit into a buffer leave in one system
-- call; the length of a body that the application did not declare is found out if it fits, else the body goes in chunks, or
-- until the end of the connection to a client of HTTP\/1.0.
--
-- The application's thread responds. When something throws, 'responseState' tells whether the client has
-- got a part of the response.
module Weft.Http.Respond
  ( respond,
    ResponseTwice (..),
  )
where

import Control.Exception (Exception, throwIO)
import Control.Monad (unless, when)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Data.ByteString.Builder (Builder)
import Data.ByteString.Builder.Extra (BufferWriter, Next (..), runBuilder)
import qualified Data.ByteString.Internal as B (mallocByteString)
import Data.IORef
import Data.Word (Word8)
import Foreign.ForeignPtr (ForeignPtr, touchForeignPtr)
import Foreign.ForeignPtr.Unsafe (unsafeForeignPtrToPtr)
import Foreign.Marshal.Utils (moveBytes)
import Foreign.Ptr (Ptr, minusPtr, plusPtr)
import GHC.ForeignPtr (unsafeWithForeignPtr)
import Network.HTTP.Types
import Network.Wai (FilePart (..), Request, StreamingBody)
import Network.Wai.Internal (Response (..), ResponseReceived (..))
import Weft.Http.Body
import Weft.Http.Buffer
import Weft.Http.FileResponse
import Weft.Http.Parser.Head (Head (..), flagClose, flagKeepAlive, flagOld, hasFlag)
import Weft.Http.Render
import Weft.Http.Settings
import Weft.Http.Timeouts
import Weft.Http.Types
import Weft.Http.Writer
import Weft.Transport

-- | The application responded a second time.
data ResponseTwice = ResponseTwice
  deriving (Show)

instance Exception ResponseTwice

-- | Send a response: the connection, the request's head, its body if it has one, what was received behind the head, the request.
respond :: Client -> Head -> Maybe Body -> ByteString -> Request -> Response -> IO ResponseReceived
respond client h body rest request response = do
  state <- responseState client
  when (state /= responseNone) (throwIO ResponseTwice)
  case response of
    ResponseBuilder status fields builder -> respondBuilder client h body status fields builder
    ResponseStream status fields stream -> respondStream client h body status fields stream
    ResponseFile status fields path part -> respondFile client h body request status fields path part
    ResponseRaw talk _ -> respondRaw client rest talk
  case settingsLogger (sharedSettings (clientShared client)) of
    Nothing -> pure ResponseReceived
    Just logger -> ResponseReceived <$ logger request (statusOf response) (sizeOf response)
  where
    statusOf r = case r of
      ResponseBuilder s _ _ -> s
      ResponseStream s _ _ -> s
      ResponseFile s _ _ _ -> s
      ResponseRaw _ other -> statusOf other
    sizeOf r = case r of
      ResponseFile _ _ _ part -> filePartByteCount <$> part
      _ -> Nothing

-- Connections ----------------------------------------------------------------------------

-- | Does the connection go on after this response, as far as is known before it is sent?
persists :: Client -> Head -> Maybe Body -> Int -> IO Bool
persists client h body bits
  | hasBit bitClose bits || hasFlag flagClose flags = pure False
  | hasFlag flagOld flags && not (hasFlag flagKeepAlive flags) = pure False
  | otherwise = do
    final <- isFinal client
    if final then pure False else maybe (pure True) bodyPersists body
  where
    flags = headFlags h

-- | What the head says of that.
endingFor :: Head -> Bool -> ConnectionField
endingFor h keep
  | not keep = SayClose
  | hasFlag flagOld (headFlags h) = SayKeepAlive
  | otherwise = Silent

complete :: Client -> Bool -> IO ()
complete client keep = setResponse client (if keep then responseKeep else responseClose)
{-# INLINE complete #-}

-- | Is there no body, whatever the application gives (RFC 9110, 6.4.1)?
bodiless :: Head -> Status -> Bool
bodiless h status = headMethod h == methodHead || code == 304 || code == 204 || code < 200
  where
    code = statusCode status
{-# INLINE bodiless #-}

-- | Does a declared length say something, where there is no body? Not with 204 and 1xx (RFC 9110, 8.6).
lengthMeans :: Status -> Bool
lengthMeans status = statusCode status >= 200 && statusCode status /= 204
{-# INLINE lengthMeans #-}

-- Builders -------------------------------------------------------------------------------

-- | A buffer that has room for a head and something behind it.
workBuffer :: Int -> IO (Maybe Buffer, ForeignPtr Word8, Int)
workBuffer room
  | room <= bufferSize - 1024 = (\b -> (Just b, bufferMemory b, bufferSize)) <$> takeBuffer
  | otherwise = (\m -> (Nothing, m, room + bufferSize)) <$> B.mallocByteString (room + bufferSize)
{-# INLINE workBuffer #-}

giveBack :: Maybe Buffer -> IO ()
giveBack = maybe (pure ()) putBuffer
{-# INLINE giveBack #-}

respondBuilder :: Client -> Head -> Maybe Body -> Status -> ResponseHeaders -> Builder -> IO ()
respondBuilder client h body status fields builder = do
  let found@(Survey _ len bits) = survey fields
  keep <- persists client h body bits
  -- The branches differ in what is written between the head and the body.
  (buffer, memory, size) <- workBuffer (headRoom (clientShared client) status found)
  let p = unsafeForeignPtrToPtr memory
      !ending = endingFor h keep
      !none = bodiless h status
  q <- renderHead (clientShared client) p status fields found ending (if none then lengthMeans status else len >= 0)
  if none
    then do
      end <- putCrlf q
      sendMemory client buffer memory 0 (end `minusPtr` p)
      complete client keep
    else
      if len >= 0
        then do
          from <- (`minusPtr` p) <$> putCrlf q
          (n, next) <- runBody builder (p `plusPtr` from) (size - tailRoom - from)
          case next of
            Done | n == len -> sendMemory client buffer memory 0 (from + n)
            _ -> continued client buffer memory (Exactly len) from from n next
          complete client keep
        else undeclared client h keep (renderHead (clientShared client) p status fields found SayClose False) (Work buffer memory size) (q `minusPtr` p) builder

-- | A buffer of the capability's or memory of one's own, and its size.
data Work = Work !(Maybe Buffer) !(ForeignPtr Word8) !Int

-- | Respond with a body whose length was not declared, behind the head that ends at the offset. The action renders the head
-- again, for a connection that does not go on.
undeclared :: Client -> Head -> Bool -> IO (Ptr Word8) -> Work -> Int -> Builder -> IO ()
undeclared client h keep again (Work buffer memory size) headTo builder = do
  let p = unsafeForeignPtrToPtr memory
      from = headTo + codingRoom
  (n, next) <- runBody builder (p `plusPtr` from) (size - tailRoom - from)
  case next of
    Done -> do
      begin <- lengthBefore p headTo from n
      sendMemory client buffer memory begin (from + n - begin)
      complete client keep
    _
      | hasFlag flagOld (headFlags h) -> do
        -- Until the end of the connection, which the head may not deny.
        q <- if keep then again else pure (p `plusPtr` headTo)
        to <- (`minusPtr` p) <$> putCrlf q
        moveBytes (p `plusPtr` to) (p `plusPtr` from) n
        continued client buffer memory UntilClose to to n next
        complete client False
      | otherwise -> do
        end <- putBytes (p `plusPtr` headTo) codingLine
        continued client buffer memory InChunks (end `minusPtr` p) from n next
        complete client keep
{-# NOINLINE undeclared #-}

-- | Run a builder: how many bytes it made, and how it goes on.
runBody :: Builder -> Ptr Word8 -> Int -> IO (Int, Next)
runBody = runBuilder
{-# NOINLINE runBody #-}

-- | Room behind a head for what says where the body ends: a length line, or a coding line and a chunk's size line.
codingRoom :: Int
codingRoom = B.length codingLine + sizeGap

codingLine :: ByteString
codingLine = "Transfer-Encoding: chunked\r\n\r\n"

-- | Put the length of a body before it, and the head before that: where the head begins then.
lengthBefore :: Ptr Word8 -> Int -> Int -> Int -> IO Int
lengthBefore p headTo from n = do
  let digits = decimalDigits n
      at = from - digits - 20
  moveBytes (p `plusPtr` (at - headTo)) p headTo
  q <- putBytes (p `plusPtr` at) "Content-Length: "
  q' <- putDecimal q digits n
  _ <- putBytes q' "\r\n\r\n"
  pure (at - headTo)

-- | Send a whole response, which is in memory from an offset on, and let go of that.
sendMemory :: Client -> Maybe Buffer -> ForeignPtr Word8 -> Int -> Int -> IO ()
sendMemory client buffer memory from n = do
  setResponse client responseBegun
  sendLast client (connSend (clientConnection client) noDeadline (unsafeForeignPtrToPtr memory `plusPtr` from) n)
  touchForeignPtr memory
  giveBack buffer
{-# NOINLINE sendMemory #-}

-- | The body is longer than the buffer: go on with a writer. The end of the head, the beginning and the number of
-- the data that is there. The buffer is the writer's from here on.
continued :: Client -> Maybe Buffer -> ForeignPtr Word8 -> BodyFraming -> Int -> Int -> Int -> Next -> IO ()
continued client buffer memory framing headTo from n after = do
  w <- newWriter client framing
  case buffer of
    Just b -> adopt w b headTo from (from + n)
    Nothing -> adoptOwn w memory (from + n + tailRoom) headTo from (from + n)
  case after of
    Done -> pure ()
    More least more -> continueWriting w (needing least more)
    Chunk bytes more -> continueWriting w (\_ _ -> pure (0, Chunk bytes more))
  finishWriter w
  where
    needing :: Int -> BufferWriter -> BufferWriter
    needing least more p room
      | room >= least = more p room
      | otherwise = pure (0, More least more)
{-# NOINLINE continued #-}

-- Streams --------------------------------------------------------------------------------

respondStream :: Client -> Head -> Maybe Body -> Status -> ResponseHeaders -> StreamingBody -> IO ()
respondStream client h body status fields stream
  | bodiless h status = respondBuilder client h body status fields mempty
  | otherwise = do
    let found@(Survey _ len bits) = survey fields
        shared = clientShared client
        old = hasFlag flagOld (headFlags h)
        framing
          | len >= 0 = Exactly len
          | old = UntilClose
          | otherwise = InChunks
    keep <- (&& not (old && len < 0)) <$> persists client h Nothing bits
    (buffer, memory, size) <- workBuffer (headRoom shared status found)
    w <- newWriter client framing
    unsafeWithForeignPtr memory $ \p -> do
      q <- renderHead shared p status fields found (endingFor h keep) True
      end <- case framing of
        InChunks -> putBytes q codingLine
        _ -> putCrlf q
      let headTo = end `minusPtr` p
          from = case framing of
            InChunks -> headTo + sizeGap
            _ -> headTo
      case buffer of
        Just b -> adopt w b headTo from from
        Nothing -> adoptOwn w memory size headTo from from
    stream (writeBuilder w) (flushWriter w)
    finishWriter w
    complete client keep

-- Files ----------------------------------------------------------------------------------

respondFile :: Client -> Head -> Maybe Body -> Request -> Status -> ResponseHeaders -> FilePath -> Maybe FilePart -> IO ()
respondFile client h body request status fields path part = do
  open <- readIORef (clientFile client)
  case open of
    OpenFile held fd | held == path, Just range <- part -> sendPart fd status fields range
    _ -> withFileFor request status fields path part fromAnswer
  where
    fromAnswer (FileAnswer status' fields' fd range) = sendPart fd status' fields' range
    fromAnswer (OtherAnswer status' fields' text) = respondBuilder client h body status' fields' text
    sendPart fd status' given range@(FilePart offset count _) = do
      let fields' = rangeFields given range
          found@(Survey _ _ bits) = survey fields'
          shared = clientShared client
      keep <- persists client h body bits
      if bodiless h status'
        then respondBuilder client h body status' fields' mempty
        else do
          (buffer, memory, _) <- workBuffer (headRoom shared status' found)
          n <- unsafeWithForeignPtr memory $ \p -> do
            q <- renderHead shared p status' fields' found (endingFor h keep) True
            end <- putCrlf q
            pure (end `minusPtr` p)
          setResponse client responseBegun
          sendFileSlices client path memory n (FileRange fd (fromInteger offset) (fromInteger count))
          giveBack buffer
          complete client keep

-- Raw ------------------------------------------------------------------------------------

-- | The connection is the application's, and ends with it. First it receives what came behind the head.
respondRaw :: Client -> ByteString -> (IO ByteString -> (ByteString -> IO ()) -> IO ()) -> IO ()
respondRaw client rest talk = do
  setResponse client responseBegun
  first <- newIORef rest
  let receive = do
        bytes <- readIORef first
        if B.null bytes
          then rawWithin client (connReceive (clientConnection client) noDeadline 16384)
          else bytes <$ writeIORef first B.empty
      send bytes = unless (B.null bytes) (rawWithin client (connSendBytes (clientConnection client) noDeadline bytes))
  talk receive send
  complete client False
