{-# LANGUAGE LambdaCase #-}
{-# LANGUAGE MagicHash #-}
{-# LANGUAGE OverloadedStrings #-}

-- |
-- Responses of applications, in the applications' threads: they hand over the head and the body in parts, of which at
-- most 'mostUnsent' bytes wait to be sent. A response of up to 'smallBody' bytes, or from a file of up to 'mostUnsent',
-- is handed over at once, and nothing waits; all others return when their last byte was sent.
module Weft.Http2.Response
  ( sendResponse,
    validFields,
    allSent,

    -- * In parts
    Reply,
    newReply,
    untrailed,
    headFieldsOf,
    handOver,
    roomFor,
    ended,
  )
where

import Control.Concurrent.MVar
import Control.Concurrent.QSem
import Control.Exception
import Control.Monad
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Data.ByteString.Builder (Builder)
import Data.ByteString.Builder.Extra (BufferWriter, Next (..), runBuilder)
import qualified Data.ByteString.Char8 as B8
import qualified Data.ByteString.Internal as B (createAndTrim, fromForeignPtr)
import qualified Data.CaseInsensitive as CI
import Data.Char (isDigit)
import Data.IORef
import Data.Int (Int64)
import Data.Maybe (isJust, listToMaybe)
import GHC.Exts (isTrue#, reallyUnsafePtrEquality#)
import GHC.IO.Exception (IOErrorType (EOF))
import Network.HTTP.Types
import Network.Wai
import Network.Wai.Internal (Response (..))
import System.IO.Error (ioeSetFileName, isEOFError, mkIOError)
import System.Posix.Types (Fd (..))
import Weft.Duration (seconds)
import Weft.Http.BodyState (closeBody, finishing, writing)
import Weft.Http.Buffer (bufferMemory, bufferSize, bufferStart, newBuffer, putBuffer, standardSize, takeBuffer, touchBuffer)
import Weft.Http.Parser.Bytes (isName)
import Weft.Http.ReadFile (readFileAt)
import Weft.Http.Settings (ApplicationError (..))
import Weft.Http.Writer (LengthMismatch (..))
import Weft.Http2.Core (Field, Input (AwaitWindow), maySend)
import Weft.Http2.Crew
import Weft.Http2.Data
import Weft.Http2.Engine
import Weft.Http2.Settings
import Weft.Sys (addWord, casWord, newWordArray, readWord)
import Weft.Timer (within)
import Weft.Transport

-- | The largest body in bytes that is handed over without waiting until it is sent. It is a copy, or a string of the
-- heap: the application may free its own memory when it has responded.
smallBody :: Int
smallBody = 16384

-- | Bytes of a response that may wait to be sent while the application goes on.
mostUnsent :: Int
mostUnsent = 32768

-- | The bytes that a stream may have handed over and not sent, when that many streams of the connection make their
-- bodies as they go: an even share of 512 KiB, but half a frame at least. It is also the size of the pieces of files. A
-- stream keeps what it has when others come, so n that begin one after the other keep the sum of their shares: about
-- 1.5 MiB for a hundred.
shareOf :: Int -> Int
shareOf senders = max firstPiece (min mostUnsent (524288 `quot` max 1 senders))

-- | Count as one that makes its body as it goes.
sending :: Http2 -> IO a -> IO a
sending h = bracket_ (addWord (http2Senders h) 0 1) (addWord (http2Senders h) 0 (-1))

-- | The first piece of a large file: many streams may wait for their turn with it.
firstPiece :: Int
firstPiece = 8192

-- | Send a response; throws 'ResponseTwice' if there is one already. If this is interrupted before anything was sent,
-- another response can be given.
sendResponse :: Http2 -> Stream -> Extras -> Request -> Response -> IO ()
sendResponse h s extras request response = do
  trailing <- newTrailing extras
  reply <- newReply h s trailing request response
  respondWith reply request response

-- | A response that is given to a stream.
data Reply = Reply
  { replyHttp2 :: !Http2,
    replyStream :: !Stream,
    replyAnswer :: !Answer,
    replyTrailing :: !Trailing
  }

-- | The reply for a response, which is reported when it was sent. Throws 'ResponseTwice' if there is one already.
newReply :: Http2 -> Stream -> Trailing -> Request -> Response -> IO Reply
newReply h s trailing request response = do
  begun <- isClaimed s
  when begun (throwIO ResponseTwice)
  -- The application has been interrupted; it may have handled the exception.
  cancelled <- isCancelled (streamRun s)
  when cancelled (throwIO StreamCancelled)
  (\answer -> Reply h s answer trailing) <$> newAnswer reported
  where
    reported = http2OnResponse (http2Settings h) request (responseStatus response) (partSize response) `catch` told
    told e = http2OnException (http2Settings h) (Just request) e `catch` \e' -> const (pure ()) (e' :: SomeException)
    partSize = \case
      ResponseFile _ _ _ part -> filePartByteCount <$> part
      _ -> Nothing

respondWith :: Reply -> Request -> Response -> IO ()
respondWith reply@Reply {replyHttp2 = h, replyStream = s} request response = case response of
  ResponseBuilder status fields builder -> sendBuilder status fields builder
  ResponseFile status fields path part -> sendFile status fields path part
  ResponseStream status fields stream
    | bodiless status -> headFieldsOf h status fields >>= \hd -> whole hd []
    | otherwise -> do
      hd <- headFieldsOf h status fields
      declared <- declaredLength fields
      pending <- newIORef (Pending (Just hd) [] 0)
      state <- newWordArray 1
      -- The head goes with the first flush: after an exception before it, another response can be sent.
      let flushing = flush reply declared pending
          write = writing "Weft.Http2" state 0
      (sending h (stream (write . collect pending (flushing False)) (write (flushing False))) >> finishing "Weft.Http2" state 0 (flushing True))
        `onException` closeBody state 0
      ended reply
  ResponseRaw _ other -> respondWith reply request other
  where
    bodiless status = requestMethod request == methodHead || status == noContent204 || status == resetContent205 || status == notModified304
    whole hd bytes = handOver reply (Just hd) bytes True
    sendBuilder status fields builder
      | bodiless status = headFieldsOf h status fields >>= \hd -> whole hd []
      | otherwise = do
        declared <- declaredLength fields
        found <- piecesOf builder
        case found of
          NoPiece -> account declared True 0 >> headFieldsOf h status fields >>= \hd -> whole hd []
          Piece bytes more -> do
            next <- more
            hd <- headFieldsOf h status fields
            sendPiece declared (Just hd) bytes next
            unless (isLast next && B.length bytes <= smallBody) (ended reply)
    -- The body may be lazy: whether it goes on is known before a piece is handed over.
    sendPiece declared hd bytes next = do
      account declared (isLast next) (B.length bytes)
      handOver reply hd [bytes] (isLast next)
      case next of
        NoPiece -> pure ()
        Piece bytes' more -> roomFor reply >> more >>= sendPiece declared Nothing bytes'
    -- The file is read in pieces, of which the next one waits until the client takes what is there.
    sendFile status fields path part = do
      awaitWindow h s
      waits <-
        http2WithFile (http2Settings h) (bracket_ (waitQSem (http2Files h)) (signalQSem (http2Files h))) request status fields path part $ \case
          OtherBody status' fields' builder -> False <$ sendBuilder status' fields' builder
          FileBody status' fields' range@(FileRange _ _ size) -> do
            let sized = if not (null (lengthsOf fields')) then fields' else (hContentLength, B8.pack (show size)) : fields'
            hd <- headFieldsOf h status' sized
            if bodiless status' || size == 0
              then False <$ whole hd []
              else (size > fromIntegral mostUnsent) <$ (sending h (sendPieces firstPiece (Just hd) range) `catch` named path)
      when waits (ended reply)
    -- An end-of-file error here means that the file has become shorter.
    named path e = ioError (if isEOFError e then ioeSetFileName e path else e)
    sendPieces atMost hd (FileRange fd offset size) = do
      most <- (if size > fromIntegral mostUnsent then min atMost else id) . shareOf <$> readWord (http2Senders h) 0
      bytes <- readPiece fd offset (fromIntegral (min size (fromIntegral most)))
      let left = size - fromIntegral (B.length bytes)
      handOver reply hd [bytes] (left == 0)
      when (left > 0) $ roomFor reply >> sendPieces mostUnsent Nothing (FileRange fd (offset + fromIntegral (B.length bytes)) left)

-- | Read up to that many bytes of a file; this may wait for the disk.
readPiece :: Fd -> Int64 -> Int -> IO ByteString
readPiece (Fd fd) offset n = do
  bytes <- B.createAndTrim n (\p -> readFileAt loc fd p n offset)
  when (B.null bytes) (ioError (mkIOError EOF loc Nothing Nothing))
  pure bytes
  where
    loc = "Weft.Http2: read"

-- Builders ---------------------------------------------------------------------------

-- | What a builder makes, one piece after the other. None is empty.
data Pieces = NoPiece | Piece !ByteString (IO Pieces)

isLast :: Pieces -> Bool
isLast = \case
  NoPiece -> True
  Piece _ _ -> False

-- | Run a builder in the capability's buffer. What fills little of it is copied out, and long strings of the builder
-- are pieces themselves: 'Data.ByteString.Builder.toLazyByteString' would allocate 4 KiB for each response.
piecesOf :: Builder -> IO Pieces
piecesOf = piecesFrom 0 . runBuilder

-- | The pieces of the rest, given how many bytes it needs at least.
piecesFrom :: Int -> BufferWriter -> IO Pieces
piecesFrom least writer = do
  buffer <- if least <= standardSize then takeBuffer else newBuffer least
  (n, next) <- writer (bufferStart buffer) (bufferSize buffer)
  touchBuffer buffer
  let written = B.fromForeignPtr (bufferMemory buffer) 0 n
      following = case next of
        Done -> pure NoPiece
        More least' writer' -> piecesFrom least' writer'
        Chunk bytes writer' -> piece bytes (piecesFrom 0 writer')
      piece bytes rest = if B.null bytes then rest else pure (Piece bytes rest)
  if 2 * n > bufferSize buffer
    then piece written following
    else do
      let !bytes = B.copy written
      putBuffer buffer
      piece bytes following

-- Handing over -----------------------------------------------------------------------

-- | Hand over a part; the flag says that it is the last one. The first one has the head; it throws 'ResponseTwice' if
-- another thread has responded.
handOver :: Reply -> Maybe [Field] -> [ByteString] -> Bool -> IO ()
handOver Reply {replyHttp2 = h, replyStream = s, replyAnswer = answer, replyTrailing = trailing} hd bytes final = do
  trailers <- trailersAfter trailing bytes final
  mask_ $ do
    when (isJust hd) $ claimed s answer >>= \first -> unless first (throwIO ResponseTwice)
    when final (completed s)
    let !size = sum (map B.length bytes)
    when (size > 0) (void (addWord (answerWords answer) 1 size))
    give h (Part s answer hd bytes size (if final then Just trailers else Nothing))

-- | What makes the trailers, if there is something.
newtype Trailing = Trailing (Maybe (IORef TrailersMaker))

-- | A response without trailers.
untrailed :: Trailing
untrailed = Trailing Nothing

newTrailing :: Extras -> IO Trailing
newTrailing extras = readIORef (extrasData extras) >>= fmap Trailing . mapM (newIORef . http2dataTrailers)

-- | The trailers behind a part, which matter if it is the last one.
trailersAfter :: Trailing -> [ByteString] -> Bool -> IO [Field]
trailersAfter (Trailing Nothing) _ _ = pure []
trailersAfter (Trailing (Just ref)) bytes final = do
  forM_ bytes $ \piece -> do
    maker <- readIORef ref
    maker (Just piece) >>= \next -> writeIORef ref $ case next of
      NextTrailersMaker maker' -> maker'
      Trailers fields -> constantTrailers fields
  if not final
    then pure []
    else do
      maker <- readIORef ref
      maker Nothing >>= \next -> case next of
        NextTrailersMaker _ -> pure []
        Trailers fields -> either throwIO pure (validFields fields)

-- | Wait until the client's windows are open: a client that takes nothing must not make the server open files.
awaitWindow :: Http2 -> Stream -> IO ()
awaitWindow h s = do
  open <- maySend (streamId s) . sharedCore <$> readMVar (http2Turn h)
  unless open (give h (Tell (AwaitWindow (streamId s))) >> takeMVar (streamOpened s))

-- | Wait until the response may go on: until fewer bytes than the stream's share are handed over and not sent.
roomFor :: Reply -> IO ()
roomFor Reply {replyHttp2 = h, replyStream = s, replyAnswer = answer} = do
  most <- shareOf <$> readWord (http2Senders h) 0
  waitSent s answer ((< most) <$> readWord (answerWords answer) 1)

-- | Wait until all that was handed over was sent, at most for a second: what an application has flushed before it fails
-- is for the client.
allSent :: Stream -> IO ()
allSent s = readIORef (streamAnswer s) >>= mapM_ (within (seconds 1) . go)
  where
    go answer = readWord (answerWords answer) 1 >>= \unsent -> unless (unsent <= 0) (takeMVar (answerSent answer) >> go answer)

-- | Wait until the end was sent.
ended :: Reply -> IO ()
ended Reply {replyStream = s, replyAnswer = answer} = waitSent s answer ((/= 0) <$> readWord (answerWords answer) 2)

-- | Wait for a condition that the flusher makes true. If this is interrupted before anything was sent, the response is
-- taken back.
waitSent :: Stream -> Answer -> IO Bool -> IO ()
waitSent s answer condition = go `onException` withdraw
  where
    go = do
      holds <- condition
      unless holds (takeMVar (answerSent answer) >> go)
    withdraw = do
      found <- casWord (answerWords answer) 0 0 2
      when (found == 0) (unclaimed s)

-- Heads ------------------------------------------------------------------------------

-- | RFC 9113, 8.2: names in lower case, without connection-specific fields. As with HTTP\/1, an invalid length counts
-- as not given, the first of several lengths counts, and there is none with 204 and 205 (RFC 9110, 8.6, 15.3.6). Throws
-- 'ErrorCall' as HTTP\/1 does.
--
-- Many responses of a connection have one list of fields, such as that of a file in the cache. For the list of the
-- response before, which is recognised by its address, the work is not done again.
headFieldsOf :: Http2 -> Status -> ResponseHeaders -> IO [Field]
headFieldsOf h status fields = do
  !more <- http2Fields (http2Settings h)
  found <- readIORef (http2LastHead h)
  case found of
    LastHead code fields' more' made | code == statusCode status, isSame fields fields', isSame more more' -> pure made
    _ -> do
      made <- newHead status fields more
      made <$ writeIORef (http2LastHead h) (LastHead (statusCode status) fields more made)

-- | Whether two lists are the same object; 'False' tells nothing.
isSame :: [a] -> [a] -> Bool
isSame !a !b = isTrue# (reallyUnsafePtrEquality# a b)

newHead :: Status -> ResponseHeaders -> ResponseHeaders -> IO [Field]
newHead status fields more = do
  -- An interim response (1xx) would leave the client waiting for the final one.
  when (statusCode status < 200 || statusCode status > 999) $
    throwIO (ErrorCall "Weft.Http2: a response with a status that is not between 200 and 999")
  let missing = [field | field@(name, _) <- more, not (any ((== name) . fst) fields)]
  sent <- either throwIO pure (validFields (oneLength fields <> missing))
  pure ((":status", B8.pack (show (statusCode status))) : sent)
  where
    oneLength given = case break ((== hContentLength) . fst) given of
      (_, []) -> given
      (before, field@(_, value) : behind)
        | status == noContent204 || status == resetContent205 -> before <> others behind
        | isJust (validLength value) -> before <> (field : others behind)
        | otherwise -> before <> oneLength behind
    others = filter ((/= hContentLength) . fst)

-- | Fields as they are sent: names in lower case, without those of connections.
validFields :: ResponseHeaders -> Either ErrorCall [Field]
validFields fields
  | not (all (isName . fst) sent) = Left (ErrorCall "Weft.Http2: a response field whose name is not a token")
  | not (all (B.all clean . snd) sent) = Left (ErrorCall "Weft.Http2: a response field with a line end or a zero byte")
  | otherwise = Right sent
  where
    sent = [(CI.foldedCase name, value) | (name, value) <- fields, CI.foldedCase name `notElem` ["connection", "keep-alive", "proxy-connection", "te", "transfer-encoding", "upgrade"]]
    clean c = c /= 0 && c /= 10 && c /= 13

-- Lengths ----------------------------------------------------------------------------

-- | The number that a @Content-Length@ declares.
validLength :: ByteString -> Maybe Int
validLength value = case B8.readInt value of
  Just (n, "") | B8.all isDigit value && B.length value <= 18 -> Just n
  _ -> Nothing

-- | The @Content-Length@ that the application has declared, if it has, and the bytes of the body that it has given.
-- Used by the stream's thread.
newtype Declared = Declared (Maybe (Int, IORef Int))

declaredLength :: ResponseHeaders -> IO Declared
declaredLength fields = Declared <$> mapM (\n -> (,) n <$> newIORef 0) (listToMaybe (lengthsOf fields))

-- | The valid lengths that are declared.
lengthsOf :: ResponseHeaders -> [Int]
lengthsOf fields = [n | (name, value) <- fields, name == hContentLength, Just n <- [validLength value]]

-- | The application gives that many more bytes; the flag says whether they are the last ones. Throws if the body does
-- not have its declared length: such a response is malformed (RFC 9113, 8.1.1).
account :: Declared -> Bool -> Int -> IO ()
account (Declared Nothing) _ _ = pure ()
account (Declared (Just (declared, given))) final n = do
  total <- (+ n) <$> readIORef given
  when (total > declared || (final && total /= declared)) (throwIO (LengthMismatch declared total))
  writeIORef given total

-- Streamed bodies --------------------------------------------------------------------

-- | The head, if it was not handed over yet, and data that the application has given and that were not handed over: in
-- reverse order, with their size. Used by the thread that writes ('writing').
data Pending = Pending !(Maybe [Field]) [ByteString] !Int

-- | Add what a builder makes, and flush when that is enough.
collect :: IORef Pending -> IO () -> Builder -> IO ()
collect ref flushing builder = piecesOf builder >>= go
  where
    go NoPiece = pure ()
    go (Piece bytes more) = do
      Pending hd pieces size <- readIORef ref
      writeIORef ref (Pending hd (bytes : pieces) (size + B.length bytes))
      when (size + B.length bytes >= 16384) flushing
      more >>= go

-- | Hand over what is pending, after the head. The flag says whether the body ends. After an exception the response
-- cannot be completed.
flush :: Reply -> Declared -> IORef Pending -> Bool -> IO ()
flush reply declared ref final = do
  Pending hd pieces size <- readIORef ref
  account declared final size
  handOver reply hd (reverse pieces) final
  writeIORef ref (Pending Nothing [] 0)
  unless final (roomFor reply)
