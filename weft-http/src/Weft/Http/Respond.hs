{-# LANGUAGE OverloadedStrings #-}

-- |
-- Sends WAI responses over HTTP\/1. If head and body fit into a buffer, one system call sends both.
-- If the application has not declared a body's length, the server determines it if the body fits into the buffer.
-- Otherwise the body is chunked or, for an HTTP\/1.0 client, delimited by the end of the connection.
--
-- The application's thread responds. After an exception, 'responseState' tells whether part of the response
-- has been sent to the client.
module Weft.Http.Respond
  ( Exchange (..),
    respond,
  )
where

import Control.Exception (onException, throwIO)
import Control.Monad (unless)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Data.ByteString.Builder (Builder)
import Data.ByteString.Builder.Extra (BufferWriter, Next (..), runBuilder)
import qualified Data.ByteString.Internal as B (fromForeignPtr)
import Data.IORef
import Data.Word (Word8)
import Foreign.Marshal.Utils (moveBytes)
import Foreign.Ptr (Ptr, plusPtr)
import Network.HTTP.Types
import Network.Wai (FilePart (..), Request, StreamingBody)
import Network.Wai.Internal (Response (..), ResponseReceived (..))
import Weft.Http.Body
import Weft.Http.Buffer
import Weft.Http.FileResponse
import Weft.Http.Parser.Head (Head (..), flagClose, flagHead, flagKeepAlive, flagOld, isSet)
import Weft.Http.Render
import Weft.Http.Settings
import Weft.Http.Timeouts
import Weft.Http.Types
import Weft.Http.Writer
import Weft.Transport

-- | A request that is to be answered, and its connection (RFC 9110, 3.4).
data Exchange = Exchange
  { exchangeClient :: !Client,
    -- | The number of the request on its connection.
    exchangeNumber :: !Int,
    exchangeHead :: !Head,
    exchangeBody :: !(Maybe Body),
    -- | The bytes that were received after the head, if there is no body.
    exchangeRest :: !ByteString,
    exchangeRequest :: !Request
  }

-- | Send a response. Throws 'ResponseTwice' if there is a response already.
respond :: Exchange -> Response -> IO ResponseReceived
respond exchange@Exchange {exchangeClient = client} response = do
  first <- isUnclaimed client (exchangeNumber exchange)
  unless first (throwIO ResponseTwice)
  case response of
    ResponseBuilder status fields builder -> respondBuilder exchange status fields builder
    ResponseStream status fields stream -> respondStream exchange status fields stream
    ResponseFile status fields path part -> respondFile exchange status fields path part
    ResponseRaw talk _ -> respondRaw exchange talk
  case settingsLogger (sharedSettings (clientShared client)) of
    Nothing -> pure ResponseReceived
    Just logger -> ResponseReceived <$ logger (exchangeRequest exchange) (statusOf response) (sizeOf response)
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

-- | Whether the connection continues after this response, as far as is known before it is sent.
persists :: Exchange -> Int -> IO Bool
persists Exchange {exchangeClient = client, exchangeHead = h, exchangeBody = body} bits
  | hasBit bitClose bits || isSet flagClose flags = pure False
  | isSet flagOld flags && not (isSet flagKeepAlive flags) = pure False
  | otherwise = do
    final <- isFinal client
    if final then pure False else maybe (pure True) bodyPersists body
  where
    flags = headFlags h

-- | What the head says about the connection.
endingFor :: Head -> Bool -> ConnectionField
endingFor h keep
  | not keep = SayClose
  | isSet flagOld (headFlags h) = SayKeepAlive
  | otherwise = Silent

complete :: Client -> Bool -> IO ()
complete client keep = setResponse client (if keep then responseKeep else responseClose)
{-# INLINE complete #-}

-- | Whether the response has no body, even if the application provides one (RFC 9110, 6.4.1).
bodiless :: Head -> Status -> Bool
bodiless h status = isSet flagHead (headFlags h) || code == 304 || code == 204 || code < 200
  where
    code = statusCode status
{-# INLINE bodiless #-}

-- | 'bodiless', or a body without bytes has to be sent (205; RFC 9110, 15.3.6).
empty :: Head -> Status -> Bool
empty h status = bodiless h status || statusCode status == 205

-- | Whether a length may be declared in a response without a body: not with 204 and 1xx (RFC 9110, 8.6).
mayDeclareLength :: Status -> Bool
mayDeclareLength status = statusCode status >= 200 && statusCode status /= 204
{-# INLINE mayDeclareLength #-}

-- Builders -------------------------------------------------------------------------------

respondBuilder :: Exchange -> Status -> ResponseHeaders -> Builder -> IO ()
respondBuilder exchange@Exchange {exchangeClient = client, exchangeHead = h} status given whole
  | statusCode status == 205 = respondWith (filter ((/= hContentLength) . fst) given) mempty
  | otherwise = respondWith given whole
  where
    respondWith fields builder = do
      let !none = bodiless h status
      Rendered buffer headTo len bits <- renderHead (clientShared client) status fields (not none || mayDeclareLength status)
      keep <- persists exchange bits
      if not none && len < 0
        then undeclared exchange keep buffer headTo bits builder
        else do
          from <- putConnection buffer headTo bits (endingFor h keep) >>= endHead buffer
          if none
            then sendBuffer exchange buffer 0 from
            else do
              (n, next) <- runBody builder (bufferStart buffer `plusPtr` from) (bufferSize buffer - tailRoom - from)
              case next of
                Done | n == len -> sendBuffer exchange buffer 0 (from + n)
                Chunk bytes more | n == 0 && B.length bytes == len && len <= sliceSize -> sendString exchange buffer from bytes more
                _ -> startWriter exchange (Exactly len) buffer from from (from + n) >>= continued next
          complete client keep

-- | Write the empty line; returns the offset of its end.
endHead :: Buffer -> Int -> IO Int
endHead buffer at = (at + 2) <$ putCrlf (bufferStart buffer `plusPtr` at)
{-# INLINE endHead #-}

-- | Respond with a body of undeclared length. The head's fields end at the first offset.
undeclared :: Exchange -> Bool -> Buffer -> Int -> Int -> Builder -> IO ()
undeclared exchange@Exchange {exchangeClient = client, exchangeHead = h} keep buffer headTo bits builder = do
  let p = bufferStart buffer
      from = headTo + connectionRoom + codingRoom
  (n, next) <- runBody builder (p `plusPtr` from) (bufferSize buffer - tailRoom - from)
  case next of
    Done -> do
      at <- putConnection buffer headTo bits (endingFor h keep)
      begin <- lengthBefore p at from n
      sendBuffer exchange buffer begin (from + n - begin)
      complete client keep
    _
      | isSet flagOld (headFlags h) -> do
        -- The connection ends after the body, so the head must say close.
        to <- putConnection buffer headTo bits SayClose >>= endHead buffer
        moveBytes (p `plusPtr` to) (p `plusPtr` from) n
        startWriter exchange UntilClose buffer to to (to + n) >>= continued next
        complete client False
      | otherwise -> do
        at <- putConnection buffer headTo bits (endingFor h keep)
        _ <- putBytes (p `plusPtr` at) codingLine
        startWriter exchange InChunks buffer (at + B.length codingLine) from (from + n) >>= continued next
        complete client keep
{-# NOINLINE undeclared #-}

-- | Run a builder; returns the number of bytes written, and the continuation.
runBody :: Builder -> Ptr Word8 -> Int -> IO (Int, Next)
runBody = runBuilder
{-# NOINLINE runBody #-}

-- | Bytes reserved for the line of 'putConnection'.
connectionRoom :: Int
connectionRoom = 24

-- | Bytes reserved after a head for the framing: a length line, or a coding line and a chunk's size line.
codingRoom :: Int
codingRoom = B.length codingLine + sizeGap

codingLine :: ByteString
codingLine = "Transfer-Encoding: chunked\r\n\r\n"

-- | Write the length of a body in front of it, and move the head in front of that; returns where the head begins.
lengthBefore :: Ptr Word8 -> Int -> Int -> Int -> IO Int
lengthBefore p headTo from n = do
  let digits = decimalDigits n
      at = from - digits - 20
  moveBytes (p `plusPtr` (at - headTo)) p headTo
  q <- putBytes (p `plusPtr` at) "Content-Length: "
  q' <- putDecimal q digits n
  _ <- putBytes q' "\r\n\r\n"
  pure (at - headTo)

-- | Send a whole response from a buffer, starting at an offset, and release the buffer.
sendBuffer :: Exchange -> Buffer -> Int -> Int -> IO ()
sendBuffer Exchange {exchangeClient = client, exchangeNumber = number} buffer from n = do
  claimResponse client number
  sendLast client (connSend (clientConnection client) noDeadline (bufferStart buffer `plusPtr` from) n)
  touchBuffer buffer
  putBuffer buffer
{-# INLINE sendBuffer #-}

-- | The whole body is a string that should not be copied. If nothing follows it, it is sent together with the head in
-- one call, without a writer.
sendString :: Exchange -> Buffer -> Int -> ByteString -> BufferWriter -> IO ()
sendString exchange@Exchange {exchangeClient = client, exchangeNumber = number} buffer from bytes more = do
  (n, next) <- more (bufferStart buffer `plusPtr` from) (bufferSize buffer - tailRoom - from)
  case next of
    Done | n == 0 -> do
      claimResponse client number
      sendLast client (connSendMany (clientConnection client) noDeadline [B.fromForeignPtr (bufferMemory buffer) 0 from, bytes])
      putSentBuffer (clientConnection client) buffer
    _
      | n > 0 -> throwIO (LengthMismatch (B.length bytes) (B.length bytes + n))
      | otherwise -> startWriter exchange (Exactly (B.length bytes)) buffer from from from >>= continued (Chunk bytes (\_ _ -> pure (0, next)))
{-# NOINLINE sendString #-}

-- | A writer of the body, which takes over the buffer that begins with the head: the end of the head, the beginning and
-- the end of the data written so far.
startWriter :: Exchange -> BodyFraming -> Buffer -> Int -> Int -> Int -> IO Writer
startWriter exchange framing buffer headTo from to = do
  w <- newWriter (exchangeClient exchange) (exchangeNumber exchange) framing
  w <$ adopt w buffer headTo from to

-- | The body is longer than the buffer: continue with a writer.
continued :: Next -> Writer -> IO ()
continued after w =
  case after of
    Done -> finishWriter w
    More least more -> writeLast w (needing least more)
    Chunk bytes more -> writeLast w (\_ _ -> pure (0, Chunk bytes more))
  where
    needing :: Int -> BufferWriter -> BufferWriter
    needing least more p room
      | room >= least = more p room
      | otherwise = pure (0, More least more)
{-# NOINLINE continued #-}

-- Streams --------------------------------------------------------------------------------

respondStream :: Exchange -> Status -> ResponseHeaders -> StreamingBody -> IO ()
respondStream exchange@Exchange {exchangeClient = client, exchangeHead = h} status fields stream
  | empty h status = respondBuilder exchange status fields mempty
  | otherwise = do
    Rendered buffer headTo len bits <- renderHead (clientShared client) status fields True
    let old = isSet flagOld (headFlags h)
        framing
          | len >= 0 = Exactly len
          | old = UntilClose
          | otherwise = InChunks
    keep <- (&& not (old && len < 0)) <$> persists exchange {exchangeBody = Nothing} bits
    at <- putConnection buffer headTo bits (endingFor h keep)
    w <- case framing of
      InChunks -> do
        _ <- putBytes (bufferStart buffer `plusPtr` at) codingLine
        let end = at + B.length codingLine
        startWriter exchange framing buffer end (end + sizeGap) (end + sizeGap)
      _ -> endHead buffer at >>= \end -> startWriter exchange framing buffer end end end
    (stream (writeBuilder w) (flushWriter w) >> finishWriter w) `onException` closeWriter w
    complete client keep

-- Files ----------------------------------------------------------------------------------

respondFile :: Exchange -> Status -> ResponseHeaders -> FilePath -> Maybe FilePart -> IO ()
respondFile exchange@Exchange {exchangeClient = client, exchangeHead = h} status fields path part = do
  open <- readIORef (clientFile client)
  case open of
    OpenFile held fd | held == path, Just range <- part, validPart range -> sendPart fd status fields range
    _ -> withFileFor (exchangeRequest exchange) status fields path part fromAnswer
  where
    fromAnswer (FileAnswer status' fields' fd range) = sendPart fd status' fields' range
    fromAnswer (OtherAnswer status' fields' text) = respondBuilder exchange status' fields' text
    sendPart fd status' given range@(FilePart offset count _) = do
      let fields' = rangeFields given range
      if empty h status'
        then respondBuilder exchange status' fields' mempty
        else do
          Rendered buffer headTo _ bits <- renderHead (clientShared client) status' fields' True
          keep <- persists exchange bits
          n <- putConnection buffer headTo bits (endingFor h keep) >>= endHead buffer
          claimResponse client (exchangeNumber exchange)
          sendFileSlices client path (bufferMemory buffer) n (FileRange fd (fromInteger offset) (fromInteger count))
          putSentBuffer (clientConnection client) buffer
          complete client keep

-- Raw ------------------------------------------------------------------------------------

-- | The application takes over the connection, which ends with it. It first receives the bytes that were received after
-- the head: those of the body that it has not read, or else the string.
respondRaw :: Exchange -> (IO ByteString -> (ByteString -> IO ()) -> IO ()) -> IO ()
respondRaw exchange@Exchange {exchangeClient = client} talk = do
  claimResponse client (exchangeNumber exchange)
  first <- newIORef (exchangeRest exchange)
  let received = maybe (readIORef first <* writeIORef first B.empty) takeReceived (exchangeBody exchange)
      receive = do
        bytes <- received
        if B.null bytes
          then rawReceive client (connReceive (clientConnection client) noDeadline 16384)
          else pure bytes
      send bytes = unless (B.null bytes) (rawSend client (connSendBytes (clientConnection client) noDeadline bytes))
  talk receive send
  complete client False
