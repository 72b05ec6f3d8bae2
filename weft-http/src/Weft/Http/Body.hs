{-# LANGUAGE OverloadedStrings #-}

-- |
-- Request bodies, read when the application asks for them: with a declared length or chunked (RFC 9112,
-- 6 and 7). One thread reads at a time. Once the application has returned, what it has not read is the connection's.
module Weft.Http.Body
  ( Body,
    newBody,
    readBody,
    bodyPersists,
    takeReceived,
    finishBody,
  )
where

import Control.Exception (mask_, onException, throwIO)
import Control.Monad (void, when)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Unsafe as B
import Data.IORef
import Weft.Http.Parser.Chunked
import Weft.Http.Parser.Head (Framing (..))
import Weft.Http.Settings
import Weft.Http.Timeouts
import Weft.Http.Types
import Weft.Sys (Ref, newRef, readRef, swapRef, updateRef, writeRef)
import Weft.Transport

-- | A request's body.
data Body = Body
  { bodyClient :: !Client,
    -- | Received bytes that have not been parsed yet. Only the thread that put 'Reading' into 'bodyPlace' uses it.
    bodyHave :: !(IORef ByteString),
    -- | A thread that reads the body swaps 'Reading' for what it finds here, and puts a place back afterwards. At the
    -- end the connection's own thread swaps in 'Over', which stays. So only one thread at a time has the body.
    bodyPlace :: !(Ref Place)
  }

data Place
  = -- | The client expects a 100 (Continue) before it sends the rest (RFC 9110, 10.1.1).
    Expected !Place
  | -- | The number of bytes left.
    Remaining !Int
  | InChunks !Decoder
  | Complete
  | Failed !RequestError
  | -- | A thread is reading.
    Reading
  | -- | The application has returned. A thread that it left behind gets nothing more.
    Over

-- | A request's body. The arguments say whether the client expects a 100 (Continue), whether the receive of the head
-- filled its buffer, and what was received of the body along with the head.
newBody :: Client -> Bool -> Framing -> Bool -> ByteString -> IO Body
newBody client expects framing fast have = do
  beginBody client fast
  -- A client that sends its body at once does not wait for the 100.
  Body client <$> newIORef have <*> newRef (if expects && B.null have then Expected place else place)
  where
    place = case framing of
      NoBody -> Complete
      Sized n -> Remaining n
      Chunked -> InChunks newDecoder

-- | The next part of a body, not empty before its end, and empty after the application has returned. Throws a
-- 'RequestError', or an 'IOError' if the connection failed, if it was closed because its client is too slow, or if
-- another thread is reading the body.
--
-- Masked, so that an exception from another thread, such as that of a timeout, arrives only while this waits for bytes.
-- The application may then continue to read, or respond. The place is the one behind all bytes that were received.
readBody :: Body -> IO ByteString
readBody body = mask_ $ do
  place <- swapRef (bodyPlace body) Reading
  case place of
    Reading -> ioError (userError "Weft.Http: two threads read the body of a request at the same time")
    Over -> B.empty <$ writeRef (bodyPlace body) Over
    _ -> continue place
  where
    continue place = do
      (part, after) <- advance body place `onException` restore body place
      case (part, after) of
        (Right "", InChunks _) -> continue after
        (Right "", Remaining _) -> continue after
        _ -> restore body after >> either throwIO pure part

-- | Take a step from this place, which waits for bytes at most once: the next part, or why there is none, and the place
-- behind it. Before the end the part is empty if the step sent a 100 (Continue) or received only framing.
advance :: Body -> Place -> IO (Either RequestError ByteString, Place)
advance body place = case place of
  Remaining n ->
    received n $ \bytes -> do
      let got = B.length bytes
      if got < n
        then pure (Right bytes, Remaining (n - got))
        else do
          writeIORef (bodyHave body) (if got == n then B.empty else B.unsafeDrop n bytes)
          pure (Right (B.unsafeTake n bytes), Complete)
  InChunks decoder -> received maxBound (chunked decoder)
  Expected next -> do
    state <- responseState client
    when (state == responseNone) $
      sendWithin client (connSendBytes (clientConnection client) noDeadline "HTTP/1.1 100 Continue\r\n\r\n")
    pure (Right B.empty, next)
  Failed e -> failed e
  _ -> pure (Right B.empty, place)
  where
    client = bodyClient body
    failed e = pure (Left e, Failed e)
    received expected continue = do
      bytes <- available body expected
      if B.null bytes then failed BodyIncomplete else continue bytes
    chunked decoder bytes = case decode (sharedLimits (clientShared client)) decoder bytes of
      Bytes part rest next -> do
        writeIORef (bodyHave body) rest
        pure (Right part, InChunks next)
      More next -> pure (Right B.empty, InChunks next)
      End rest -> do
        writeIORef (bodyHave body) rest
        pure (Right B.empty, Complete)
      Invalid refusal -> failed (BodyInvalid refusal)

-- | Take bytes that were received already, or else receive some, at most the given number. Empty at the end of the
-- stream.
available :: Body -> Int -> IO ByteString
available body expected = do
  have <- readIORef (bodyHave body)
  if B.null have then receiveBody (bodyClient body) expected else have <$ writeIORef (bodyHave body) B.empty

-- | Take the bytes that were received and that nobody has read, as they came, for an application that takes over the
-- connection: what is left of the body, with its framing, and what follows it. Empty while another thread reads the
-- body.
takeReceived :: Body -> IO ByteString
takeReceived body = mask_ $ do
  place <- swapRef (bodyPlace body) Reading
  case place of
    Reading -> pure B.empty
    Over -> B.empty <$ writeRef (bodyPlace body) Over
    _ -> do
      have <- readIORef (bodyHave body)
      writeIORef (bodyHave body) B.empty
      have <$ restore body place

-- | Put a place back. 'Over', if the connection's thread has put it there in the meantime, stays.
restore :: Body -> Place -> IO ()
restore body place = void . updateRef (bodyPlace body) $ \now -> case now of
  Over -> Over
  _ -> place

-- | Can the connection continue after a response whose head is sent now? Not if the client still expects a 100, if too
-- much of the body is left to be worth reading, if the end of its chunks has not been received, since it may be far
-- away, nor if another thread is reading the body, which may leave any amount of it. The head then says so (RFC 9112,
-- 9.6), as a client that is not told loses the request that it sends next.
bodyPersists :: Body -> IO Bool
bodyPersists body = do
  place <- readRef (bodyPlace body)
  case (place, flushOf body) of
    (Reading, _) -> pure False
    (InChunks decoder, Just most) -> endsWithin most decoder <$> readIORef (bodyHave body)
    _ -> persistsAt body place
  where
    endsWithin most decoder bytes = case decode (sharedLimits (clientShared (bodyClient body))) decoder bytes of
      Bytes part rest next -> B.length part <= most && endsWithin (most - B.length part) next rest
      End _ -> True
      _ -> False

-- | Can the connection continue, once the application has returned?
persistsAt :: Body -> Place -> IO Bool
persistsAt body place = case place of
  Expected _ -> pure False
  Failed _ -> pure False
  Remaining n -> (\have -> maybe True (n - B.length have <=) (flushOf body)) <$> readIORef (bodyHave body)
  _ -> pure True

-- | Read and discard what the application has not read, up to 'settingsMaximumBodyFlush'. Returns what follows the
-- body, or 'Nothing' if the connection cannot continue: also if the application has left a thread behind that is
-- reading at this moment. Called once, when the application has returned.
finishBody :: Body -> IO (Maybe ByteString)
finishBody body = do
  place <- swapRef (bodyPlace body) Over
  persists <- persistsAt body place
  if persists then go 0 place else pure Nothing
  where
    go dropped place = case place of
      Complete -> Just <$> readIORef (bodyHave body)
      Reading -> pure Nothing
      _
        | maybe False (dropped >) (flushOf body) -> pure Nothing
        | otherwise -> do
          (part, after) <- advance body place
          either (const (pure Nothing)) (\bytes -> go (dropped + B.length bytes) after) part

flushOf :: Body -> Maybe Int
flushOf = settingsMaximumBodyFlush . sharedSettings . clientShared . bodyClient
