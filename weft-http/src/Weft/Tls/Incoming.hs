-- |
-- The direction of a TLS session in which bytes arrive. The library asks for a number of bytes at a time: a record's
-- header, then its body. It gets the first byte of a record only when the whole record has arrived, so that a deadline
-- or an exception finds it between two records.
module Weft.Tls.Incoming
  ( Incoming,
    newIncoming,
    receiveUntil,
    allowUnfinished,
    awaitRecord,
    takeBytes,
    StreamEnd (..),
    streamEnd,
  )
where

import Control.Exception (mask_)
import Control.Monad (when)
import Data.Bits (shiftL, (.|.))
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Data.IORef
import GHC.IO (unsafeUnmask)
import Weft.Transport

-- | The state of that direction. Written by the thread that receives.
data Incoming = Incoming
  { incomingFrom :: !Connection,
    -- | Received bytes that the library has not taken yet.
    incomingBytes :: !(IORef ByteString),
    -- | How many bytes of the record that it has begun to take are left.
    incomingRest :: !(IORef Int),
    -- | How many bytes it may still take before it has to complete the handshake or return application data.
    incomingAllowed :: !(IORef Int),
    -- | Whether the stream ended before it got what it asked for.
    incomingEnd :: !(IORef StreamEnd),
    -- | The deadline of the current operation.
    incomingBy :: !(IORef Instant)
  }

-- | From that connection. The deadline holds until 'receiveUntil' sets another one.
newIncoming :: Connection -> Instant -> IO Incoming
newIncoming from deadline =
  Incoming from <$> newIORef B.empty <*> newIORef 0 <*> newIORef unfinishedSize <*> newIORef NotShort <*> newIORef deadline

-- | Set the deadline.
receiveUntil :: Incoming -> Instant -> IO ()
receiveUntil i = writeIORef (incomingBy i)

-- | Allow the next 128 KiB without application data.
allowUnfinished :: Incoming -> IO ()
allowUnfinished i = writeIORef (incomingAllowed i) unfinishedSize

-- | The most bytes of a handshake from one side, and of records after it that contain no application data: 128 KiB. The
-- length in a handshake message allows 16 MiB, which the library would keep in memory. A certificate chain fits.
unfinishedSize :: Int
unfinishedSize = 131072

-- | Whether the stream ended before the library got what it asked for.
data StreamEnd = NotShort | BetweenRecords | InRecord
  deriving (Eq)

-- | How it ended, as far as the library has taken bytes.
streamEnd :: Incoming -> IO StreamEnd
streamEnd i = readIORef (incomingEnd i)

-- | Take the given number of bytes, fewer only at the end of the stream. If it throws, the received bytes stay. The
-- argument makes the error for a peer that sends more than 'allowUnfinished' allows.
takeBytes :: (String -> IOError) -> Incoming -> Int -> IO ByteString
takeBytes failure i n = do
  begun <- readIORef (incomingRest i)
  when (begun == 0) (awaitRecord i >>= writeIORef (incomingRest i) . snd)
  have <- awaitBytes i n
  let bytes = B.take n have
  allowed <- subtract (B.length bytes) <$> readIORef (incomingAllowed i)
  when (allowed < 0) (ioError (failure ("a handshake of more than " <> show unfinishedSize <> " bytes")))
  writeIORef (incomingAllowed i) allowed
  writeIORef (incomingBytes i) (B.drop n have)
  modifyIORef' (incomingRest i) (max 0 . subtract (B.length bytes))
  when (B.length bytes < n) $
    modifyIORef' (incomingEnd i) (\end -> if begun > 0 || not (B.null bytes) then InRecord else if end == NotShort then BetweenRecords else end)
  pure bytes

-- | Receive until there is a whole record, or the stream ends. Returns whether the record is whole, and how many bytes
-- were awaited. Of what cannot be a record the library gets the header, and refuses it: the type is unknown, or the length
-- is too large (RFC 8446, 5.2; RFC 5246, 6.2.3).
awaitRecord :: Incoming -> IO (Bool, Int)
awaitRecord i = do
  start <- awaitBytes i headerSize
  if B.length start < headerSize
    then pure (False, B.length start)
    else do
      let body = fromIntegral (B.index start 3) `shiftL` 8 .|. fromIntegral (B.index start 4)
          isRecord = B.head start >= 20 && B.head start <= 24 && body <= largestBody
          size = if isRecord then headerSize + body else headerSize
      have <- awaitBytes i size
      pure (B.length have >= size, size)

-- | Receive until the given number of bytes are there, or the stream ends. Returns what is there, which stays.
awaitBytes :: Incoming -> Int -> IO ByteString
awaitBytes i n = do
  have <- readIORef (incomingBytes i)
  if B.length have >= n
    then pure have
    else do
      deadline <- readIORef (incomingBy i)
      -- Masked, so that received bytes are not lost. Waiting is interruptible, also within 'uninterruptibleMask_'.
      more <- unsafeUnmask . mask_ $ do
        more <- connReceive (incomingFrom i) deadline 32768
        more <$ writeIORef (incomingBytes i) (have <> more)
      if B.null more then pure have else awaitBytes i n

-- | The size of a record's header: RFC 8446, 5.1.
headerSize :: Int
headerSize = 5

-- | The most bytes of a protected record's body: RFC 5246, 6.2.3. (RFC 8446, 5.2 allows less; the library knows the
-- version.)
largestBody :: Int
largestBody = 16384 + 2048
