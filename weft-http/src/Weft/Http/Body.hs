{-# LANGUAGE OverloadedStrings #-}

-- |
-- Request bodies, read when the application asks for them: with a declared length or chunked (RFC 9112,
-- 6 and 7). One thread reads at a time.
module Weft.Http.Body
  ( Body,
    newBody,
    readBody,
    bodyPersists,
    finishBody,
  )
where

import Control.Exception (throwIO)
import Control.Monad (when)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Unsafe as B
import Data.IORef
import Weft.Http.Parser.Chunked
import Weft.Http.Parser.Head (Framing (..))
import Weft.Http.Settings
import Weft.Http.Timeouts
import Weft.Http.Types
import Weft.Transport

-- | A request's body. Both references are written by the thread that reads it.
data Body = Body
  { bodyClient :: !Client,
    -- | Received bytes that have not been parsed yet.
    bodyHave :: !(IORef ByteString),
    bodyPlace :: !(IORef Place)
  }

data Place
  = -- | The client expects a 100 (Continue) before it sends the rest (RFC 9110, 10.1.1).
    Expected !Place
  | -- | The number of bytes left.
    Remaining !Int
  | InChunks !Decoder
  | Complete
  | Failed !RequestError

-- | A request's body. The arguments say whether the client expects a 100 (Continue), whether the receive of the head
-- filled its buffer, and what was received of the body along with the head.
newBody :: Client -> Bool -> Framing -> Bool -> ByteString -> IO Body
newBody client expects framing fast have = do
  beginBody client fast
  -- A client that sends its body at once does not wait for the 100.
  Body client <$> newIORef have <*> newIORef (if expects && B.null have then Expected place else place)
  where
    place = case framing of
      NoBody -> Complete
      Sized n -> Remaining n
      Chunked -> InChunks newDecoder

-- | The next part of a body, not empty before its end. Throws a 'RequestError', or an 'IOError' if the connection
-- failed or was closed because its client is too slow.
readBody :: Body -> IO ByteString
readBody body = do
  place <- readIORef (bodyPlace body)
  case place of
    Complete -> pure B.empty
    Failed e -> throwIO e
    Remaining n -> do
      bytes <- available body n
      let got = B.length bytes
      if got < n
        then bytes <$ writeIORef (bodyPlace body) (Remaining (n - got))
        else do
          writeIORef (bodyHave body) (if got == n then B.empty else B.unsafeDrop n bytes)
          writeIORef (bodyPlace body) Complete
          pure (B.unsafeTake n bytes)
    InChunks decoder -> available body maxBound >>= chunked body decoder
    Expected next -> do
      state <- responseState client
      when (state == responseNone) $
        sendWithin client (connSendBytes (clientConnection client) noDeadline "HTTP/1.1 100 Continue\r\n\r\n")
      writeIORef (bodyPlace body) next
      readBody body
  where
    client = bodyClient body

chunked :: Body -> Decoder -> ByteString -> IO ByteString
chunked body decoder bytes = case decode (sharedLimits (clientShared (bodyClient body))) decoder bytes of
  Bytes part rest next -> do
    writeIORef (bodyHave body) rest
    part <$ writeIORef (bodyPlace body) (InChunks next)
  More next -> writeIORef (bodyPlace body) (InChunks next) >> available body maxBound >>= chunked body next
  End rest -> do
    writeIORef (bodyHave body) rest
    B.empty <$ writeIORef (bodyPlace body) Complete
  Invalid refusal -> failed body (BodyInvalid refusal)

-- | Take bytes that were received already, or else receive some, at most the given number.
available :: Body -> Int -> IO ByteString
available body expected = do
  have <- readIORef (bodyHave body)
  if B.null have
    then do
      bytes <- receiveBody (bodyClient body) expected
      if B.null bytes then failed body BodyIncomplete else pure bytes
    else have <$ writeIORef (bodyHave body) B.empty

failed :: Body -> RequestError -> IO a
failed body e = writeIORef (bodyPlace body) (Failed e) >> throwIO e

-- | Can the connection continue after a response that is sent now? Not if the client still expects a 100, nor if too
-- much of the body is left to be worth reading.
bodyPersists :: Body -> IO Bool
bodyPersists body = do
  place <- readIORef (bodyPlace body)
  have <- B.length <$> readIORef (bodyHave body)
  pure $ case place of
    Expected _ -> False
    Failed _ -> False
    Remaining n -> maybe True (n - have <=) flush
    InChunks _ -> True
    Complete -> True
  where
    flush = settingsMaximumBodyFlush (sharedSettings (clientShared (bodyClient body)))

-- | Read and discard what the application has not read, up to 'settingsMaximumBodyFlush'. Returns what follows the
-- body, or 'Nothing' if the connection cannot continue.
finishBody :: Body -> IO (Maybe ByteString)
finishBody body = do
  persists <- bodyPersists body
  if persists then go 0 else pure Nothing
  where
    flush = settingsMaximumBodyFlush (sharedSettings (clientShared (bodyClient body)))
    go dropped = do
      place <- readIORef (bodyPlace body)
      case place of
        Complete -> Just <$> readIORef (bodyHave body)
        _
          | maybe False (dropped >) flush -> pure Nothing
          | otherwise -> do
            part <- readBody body
            go (dropped + B.length part)
