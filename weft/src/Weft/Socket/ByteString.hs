-- |
-- Sending and receiving: the names, types and exceptions of
-- "Network.Socket.ByteString". Every operation tries the system call first and
-- waits, without holding a buffer, only when the kernel says so; every operation
-- honours the socket's deadline ('Weft.Socket.withDeadline').
--
-- Any thread may use a socket; one thread in each direction is usual. Two threads
-- that send on one stream at the same time may interleave.
module Weft.Socket.ByteString
  ( -- * Sending
    send,
    sendAll,
    sendNow,
    sendTo,
    sendAllTo,
    sendMany,
    sendManyNow,
    sendManyTo,
    sendMsg,

    -- * Receiving
    recv,
    recvFrom,
    recvMsg,

    -- * Memory
    sendBuf,
    recvBuf,
    sendBufTo,
    recvBufFrom,
  )
where

import Control.Monad (unless, when)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Internal as B (fromForeignPtr, mallocByteString)
import qualified Data.ByteString.Unsafe as B (unsafeDrop)
import Data.Word (Word32, Word8)
import Foreign.C.Error (eINVAL)
import Foreign.Marshal.Utils (copyBytes)
import Foreign.Ptr (Ptr, castPtr, nullPtr, plusPtr)
import Foreign.Storable (poke)
import GHC.ForeignPtr (unsafeWithForeignPtr)
import Network.Socket (SockAddr)
import Weft.FFI.Socket
import Weft.Socket.Address
import Weft.Socket.Message
import Weft.Socket.Scratch
import Weft.Socket.Types

-- Sending ----------------------------------------------------------------------------

-- | Send what the kernel takes at once of a string, waiting until it takes some;
-- how many bytes it took.
send :: Socket -> ByteString -> IO Int
send s bs = withBytes bs (sendBuf s)

-- | Send all of a string. When it throws, the peer has got a part, and the
-- connection is good for nothing but closing.
sendAll :: Socket -> ByteString -> IO ()
sendAll s bs = withBytes bs go
  where
    go p n = unless (n == 0) $ do
      sent <- sendBuf s p n
      go (p `plusPtr` sent) (n - sent)

-- | Send what the kernel takes at once of a string, without waiting: how many bytes, zero if it
-- takes none, or why it failed. Throws nothing, and pays for no waiting: what is left, as a rule
-- nothing, is another operation's.
sendNow :: Socket -> ByteString -> IO (Either IOError Int)
sendNow s bs = withBytes bs $ \p n ->
  if n == 0 then pure (Right 0) else attempted "Weft.Socket.ByteString.sendNow" s (\fd -> cSend fd p (fromIntegral n) 0)

-- | Send strings one after the other, gathered into as few system calls as
-- possible.
sendMany :: Socket -> [ByteString] -> IO ()
sendMany s = sendGathered "Weft.Socket.ByteString.sendMany" s nullPtr 0

-- | 'sendNow' for strings one after the other, at most 1024 of them.
sendManyNow :: Socket -> [ByteString] -> IO (Either IOError Int)
sendManyNow s chunks = withPieces chunks $ \iov count ->
  attempted "Weft.Socket.ByteString.sendManyNow" s (\fd -> cSendV fd iov count nullPtr 0)

-- | Send a datagram; how many bytes it had.
sendTo :: Socket -> ByteString -> SockAddr -> IO Int
sendTo s bs addr = withBytes bs (\p n -> sendBufTo s p n addr)

-- | Send all of a string to an address.
sendAllTo :: Socket -> ByteString -> SockAddr -> IO ()
sendAllTo s bs addr = do
  n <- sendTo s bs addr
  when (n < B.length bs) (sendAllTo s (B.unsafeDrop n bs) addr)

-- | Send strings as one datagram to an address.
sendManyTo :: Socket -> [ByteString] -> SockAddr -> IO ()
sendManyTo s chunks addr = withAddress addr $ \p n ->
  sendGathered "Weft.Socket.ByteString.sendManyTo" s p n chunks

-- | The kernel takes so many pieces in one call (@IOV_MAX@ on Linux).
maxPieces :: Int
maxPieces = 1024

sendGathered :: String -> Socket -> Ptr SockAddrBytes -> Word32 -> [ByteString] -> IO ()
sendGathered loc s addr alen = go . filter (not . B.null)
  where
    go [] = pure ()
    go chunks = do
      let (batch, rest) = splitAt maxPieces chunks
          size = sum (map B.length batch)
      sent <- withPieces batch $ \iov count ->
        operate loc s Writing $ \fd -> do
          r <- cSendV fd iov count addr alen
          answer r (\n -> pure (if n < size then Drained n else Done n))
      go (dropBytes sent batch <> rest)

dropBytes :: Int -> [ByteString] -> [ByteString]
dropBytes _ [] = []
dropBytes n (c : cs)
  | n >= B.length c = dropBytes (n - B.length c) cs
  | otherwise = B.unsafeDrop n c : cs

-- | Send from memory; how many bytes the kernel took.
sendBuf :: Socket -> Ptr Word8 -> Int -> IO Int
sendBuf s p n = operate "Weft.Socket.sendBuf" s Writing $ \fd -> do
  r <- cSend fd p (fromIntegral n) 0
  answer r (\sent -> pure (if sent < n then Drained sent else Done sent))
{-# INLINE sendBuf #-}

-- | Send from memory to an address.
sendBufTo :: Socket -> Ptr a -> Int -> SockAddr -> IO Int
sendBufTo s p n addr = withAddress addr $ \ap alen ->
  operate "Weft.Socket.sendBufTo" s Writing $ \fd -> do
    r <- cSendTo fd (castPtr p) (fromIntegral n) ap alen
    answer r (pure . Done)

-- Receiving --------------------------------------------------------------------------

-- | Receive what there is, at most so many bytes (and at most 64 KiB), waiting
-- until there is some. Empty at the end of the stream. Throws for a negative
-- number.
recv :: Socket -> Int -> IO ByteString
recv s n
  | n < 0 = invalid "Weft.Socket.ByteString.recv"
  | otherwise = operate "Weft.Socket.ByteString.recv" s Reading $ \fd -> withScratch $ \p -> do
    let room = min n scratchSize
    r <- cRecv fd p (fromIntegral room) 0
    answer r $ \got -> do
      bs <- copyOut p got
      pure (received s room got bs)

-- | A string of its own for so many bytes.
copyOut :: Ptr Word8 -> Int -> IO ByteString
copyOut _ 0 = pure B.empty
copyOut from n = do
  fp <- B.mallocByteString n
  unsafeWithForeignPtr fp (\to -> copyBytes to from n)
  pure (B.fromForeignPtr fp 0 n)
{-# INLINE copyOut #-}

-- | A stream that gave less than there was room for has no more, except that its
-- end can be read again and again.
received :: Socket -> Int -> Int -> a -> Attempt a
received s room got a
  | got < room && got > 0 && socketDrains s = Drained a
  | otherwise = Done a
{-# INLINE received #-}

-- | Receive a datagram, at most so many bytes of it (and at most 64 KiB), and who
-- sent it.
recvFrom :: Socket -> Int -> IO (ByteString, SockAddr)
recvFrom s n
  | n < 0 = invalid "Weft.Socket.ByteString.recvFrom"
  | otherwise = withRoom $ \ap alen ->
    operate "Weft.Socket.ByteString.recvFrom" s Reading $ \fd -> withScratch $ \p -> do
      poke alen (fromIntegral addressRoom)
      r <- cRecvFrom fd p (fromIntegral (min n scratchSize)) 0 ap alen
      answer r $ \got -> do
        bs <- copyOut p got
        addr <- readAddress ap alen
        pure (Done (bs, addr))

-- | Receive into memory, waiting until there is something; how many bytes, zero at
-- the end of the stream. Throws for a number that is not positive.
recvBuf :: Socket -> Ptr Word8 -> Int -> IO Int
recvBuf s p n
  | n <= 0 = invalid "Weft.Socket.recvBuf"
  | otherwise = operate "Weft.Socket.recvBuf" s Reading $ \fd -> do
    r <- cRecv fd p (fromIntegral n) 0
    answer r (\got -> pure (received s n got got))

-- | Receive a datagram into memory.
recvBufFrom :: Socket -> Ptr a -> Int -> IO (Int, SockAddr)
recvBufFrom s p n
  | n <= 0 = invalid "Weft.Socket.recvBufFrom"
  | otherwise = withRoom $ \ap alen ->
    operate "Weft.Socket.recvBufFrom" s Reading $ \fd -> do
      poke alen (fromIntegral addressRoom)
      r <- cRecvFrom fd (castPtr p) (fromIntegral n) 0 ap alen
      answer r $ \got -> do
        addr <- readAddress ap alen
        pure (Done (got, addr))

invalid :: String -> IO a
invalid loc = ioError (socketError loc eINVAL)
