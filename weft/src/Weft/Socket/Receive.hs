-- |
-- Receiving from sockets: half of "Weft.Socket.ByteString", where it is documented.
module Weft.Socket.Receive
  ( recv,
    recvLarge,
    recvFrom,
    recvBuf,
    recvBufFrom,
  )
where

import Control.Exception (SomeException, throwIO, try)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Internal as B (fromForeignPtr, mallocByteString)
import Data.Word (Word8)
import Foreign.C.Error (eINVAL)
import Foreign.ForeignPtr (ForeignPtr, withForeignPtr)
import Foreign.Marshal.Utils (copyBytes)
import Foreign.Ptr (Ptr, castPtr)
import Foreign.Storable (poke)
import GHC.ForeignPtr (unsafeWithForeignPtr)
import Network.Socket (SockAddr)
import Weft.FFI.Socket
import Weft.Socket.Address
import Weft.Socket.Scratch
import Weft.Socket.Types

-- | Receive the data that has arrived, at most the given number of bytes; wait until there is some. Empty at
-- the end of the stream. Throws @EINVAL@ if the number is not positive. The bytes are copied into a string of
-- their size; for a number above 64 KiB it is 'recvLarge'.
recv :: Socket -> Int -> IO ByteString
recv s n
  | n <= 0 = invalid "Weft.Socket.ByteString.recv"
  | n <= scratchSize = operate "Weft.Socket.ByteString.recv" s Reading $ \fd -> withScratch $ \p -> do
    r <- cRecv fd p (fromIntegral n) 0
    decodeResult r $ \got -> do
      bs <- copyOut p got
      pure (received s n got bs)
  | otherwise = recvLarge s n

-- | 'recv' without a copy, for callers that expect about that number of bytes. Memory for the whole number is allocated
-- for each system call, and kept if at least half of it is used; otherwise the bytes are copied into a string of
-- their size. @HeapOverflow@, as with @network@, if the heap cannot have that much; the socket can still be used.
recvLarge :: Socket -> Int -> IO ByteString
recvLarge s n
  | n <= 0 = invalid "Weft.Socket.ByteString.recvLarge"
  | otherwise = operate "Weft.Socket.ByteString.recvLarge" s Reading allocate >>= either throwIO pure
  where
    -- An operation must not throw, so the exception of memory that cannot be had is a result.
    allocate fd = try (B.mallocByteString n) >>= either (pure . Done . noMemory) (receive fd)
    noMemory e = Left (e :: SomeException)
    receive fd fp = do
      r <- unsafeWithForeignPtr fp (\p -> cRecv fd p (fromIntegral n) 0)
      decodeResult r (\got -> pure $! received s n got . Right $! trimmed fp n got)

-- | The string of the first bytes of a piece of memory, given its size and how many of them are used.
trimmed :: ForeignPtr Word8 -> Int -> Int -> ByteString
trimmed fp n got = if got < n `div` 2 then B.copy whole else whole
  where
    whole = B.fromForeignPtr fp 0 got

-- | Receive into fresh memory of a size. The action returns a result and the number of bytes used. If that is less
-- than half, they are copied into a string of their size.
withLarge :: Int -> (Ptr Word8 -> IO (a, Int)) -> IO (ByteString, a)
withLarge n act = do
  fp <- B.mallocByteString n
  (a, got) <- withForeignPtr fp act
  bs <- pure $! trimmed fp n got
  pure (bs, a)

-- | Copy bytes into a new string.
copyOut :: Ptr Word8 -> Int -> IO ByteString
copyOut _ 0 = pure B.empty
copyOut from n = do
  fp <- B.mallocByteString n
  unsafeWithForeignPtr fp (\to -> copyBytes to from n)
  pure (B.fromForeignPtr fp 0 n)
{-# INLINE copyOut #-}

-- | A TCP stream that returned fewer bytes than there was room for has no more for now. Its end is an exception: it can
-- be read any number of times.
received :: Socket -> Int -> Int -> a -> Attempt a
received s room got a
  | got < room && got > 0 && socketDrains s = Drained a
  | otherwise = Done a
{-# INLINE received #-}

-- | Receive a datagram, truncated to the given number of bytes, and the sender's address. On a connected stream that is
-- the peer's. It is @SockAddrUnix ""@ if the sender has no name, or if @network@ cannot represent the family.
-- Otherwise as 'recv'.
recvFrom :: Socket -> Int -> IO (ByteString, SockAddr)
recvFrom s n
  | n <= 0 = invalid "Weft.Socket.ByteString.recvFrom"
  | n <= scratchSize = withRoom $ \ap alen ->
    operate "Weft.Socket.ByteString.recvFrom" s Reading $ \fd -> withScratch $ \p -> do
      poke alen (fromIntegral addressRoom)
      r <- cRecvFrom fd p (fromIntegral n) 0 ap alen
      decodeResult r $ \got -> do
        bs <- copyOut p got
        addr <- readSender fd ap alen
        pure (Done (bs, addr))
  | otherwise = withLarge n (fmap (\(got, addr) -> (addr, got)) . \p -> recvBufFrom s p n)

-- | 'recv' into memory. Returns the number of bytes, zero at the end of the stream. Throws @EINVAL@ if the number is
-- not positive.
recvBuf :: Socket -> Ptr Word8 -> Int -> IO Int
recvBuf s p n
  | n <= 0 = invalid "Weft.Socket.recvBuf"
  | otherwise = operate "Weft.Socket.recvBuf" s Reading $ \fd -> do
    r <- cRecv fd p (fromIntegral n) 0
    decodeResult r (\got -> pure (received s n got got))

-- | 'recvFrom' into memory. Returns the number of bytes and the sender's address.
recvBufFrom :: Socket -> Ptr a -> Int -> IO (Int, SockAddr)
recvBufFrom s p n
  | n <= 0 = invalid "Weft.Socket.recvBufFrom"
  | otherwise = withRoom $ \ap alen ->
    operate "Weft.Socket.recvBufFrom" s Reading $ \fd -> do
      poke alen (fromIntegral addressRoom)
      r <- cRecvFrom fd (castPtr p) (fromIntegral n) 0 ap alen
      decodeResult r $ \got -> do
        addr <- readSender fd ap alen
        pure (Done (got, addr))

invalid :: String -> IO a
invalid loc = ioError (socketError loc eINVAL)
