-- |
-- Sending and receiving: the names, types and exceptions of
-- "Network.Socket.ByteString". Every operation tries the system call first and
-- waits, without holding a buffer, only when the kernel says so; every operation
-- honours the socket's deadline ('Weft.Socket.withDeadline').
--
-- Any thread may use a socket; one thread in each direction is usual. Two threads
-- that send on one stream at the same time may interleave.
--
-- @since 0.1.0
module Weft.Socket.ByteString
  ( -- * Sending
    send,
    sendAll,
    sendAllBuf,
    sendNow,
    sendTo,
    sendAllTo,
    sendMany,
    sendManyMore,
    sendManyNow,
    sendManyTo,
    sendMsg,

    -- * Receiving
    recv,
    recvLarge,
    recvFrom,
    recvMsg,

    -- * Memory
    sendBuf,
    recvBuf,
    sendBufTo,
    recvBufFrom,
  )
where

import Control.Exception (onException)
import Control.Monad (unless, when)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Internal as B (fromForeignPtr, mallocByteString)
import qualified Data.ByteString.Unsafe as B (unsafeDrop)
import Data.Word (Word8)
import Foreign.C.Error (eINVAL)
import Foreign.C.Types (CInt)
import Foreign.ForeignPtr (ForeignPtr, withForeignPtr)
import Foreign.Marshal.Utils (copyBytes)
import Foreign.Ptr (Ptr, castPtr, nullPtr, plusPtr)
import Foreign.Storable (poke)
import GHC.ForeignPtr (unsafeWithForeignPtr)
import Network.Socket (SockAddr)
import Weft.FFI.Socket
import Weft.Socket.Address
import Weft.Socket.Gather
import Weft.Socket.Message
import Weft.Socket.Scratch
import Weft.Socket.Types

-- Sending ----------------------------------------------------------------------------

-- | Send what the kernel takes at once of a string, waiting until it takes some;
-- how many bytes it took.
send :: Socket -> ByteString -> IO Int
send s bs = withBytes bs (sendBuf s)

-- | Send all of a string. When it is cut off, by a deadline or an asynchronous exception, after the
-- kernel took a part, the peer would take whatever is sent next for the rest: every further send on the
-- socket fails with @EPIPE@, saying so. (Sends that return how much was taken leave that to the caller.)
sendAll :: Socket -> ByteString -> IO ()
sendAll s bs = withBytes bs $ \p n ->
  unless (n == 0) $
    -- Masked from the first part on; it is interruptible where it waits.
    operateThen "Weft.Socket.sendBuf" s Writing (sendAttempt p n) $ \sent ->
      unless (sent == n) (sendRest s (p `plusPtr` sent) (n - sent) `onException` cutOff s)

sendAttempt :: Ptr Word8 -> Int -> CInt -> IO (Attempt Int)
sendAttempt p n fd = do
  r <- cSend fd p (fromIntegral n) 0
  answer r (\sent -> pure (if sent < n then Drained sent else Done sent))
{-# INLINE sendAttempt #-}

sendRest :: Socket -> Ptr Word8 -> Int -> IO ()
sendRest s p n = do
  sent <- sendBuf s p n
  unless (sent == n) (sendRest s (p `plusPtr` sent) (n - sent))
{-# NOINLINE sendRest #-}

-- | 'sendAll' from memory. (For those who would inline 'sendBuf': knowing the parts of the socket, they would capture them one
-- by one in each closure. Measured on GHC 9.0.2: 190 bytes more for each call.)
sendAllBuf :: Socket -> Ptr Word8 -> Int -> IO ()
sendAllBuf s = go
  where
    go p n = unless (n <= 0) $ do
      sent <- sendBuf s p n
      go (p `plusPtr` sent) (n - sent)

-- | Send what the kernel takes at once of a string, without waiting: how many bytes, zero if it
-- takes none, or why it failed. Throws nothing, and pays for no waiting: what is left, as a rule
-- nothing, is another operation's.
sendNow :: Socket -> ByteString -> IO (Either IOError Int)
sendNow s bs = withBytes bs $ \p n ->
  if n == 0 then pure (Right 0) else attempted "Weft.Socket.ByteString.sendNow" s (\fd -> cSend fd p (fromIntegral n) 0)

-- | Send strings one after the other, gathered into as few system calls as
-- possible. Cut off after a part of them, it leaves the socket as 'sendAll' does.
sendMany :: Socket -> [ByteString] -> IO ()
sendMany s = sendGathered "Weft.Socket.ByteString.sendMany" s (cutOff s) (\fd iov n -> cSendV fd iov n nullPtr 0)

-- | 'sendMany' of what is to be followed by more at once: the kernel may keep it until then, so that the
-- two are one packet (@MSG_MORE@, send(2); as 'sendMany' where a system has no such flag).
sendManyMore :: Socket -> [ByteString] -> IO ()
sendManyMore s = sendGathered "Weft.Socket.ByteString.sendManyMore" s (cutOff s) cSendVMore

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
  sendGathered "Weft.Socket.ByteString.sendManyTo" s (pure ()) (\fd iov count -> cSendV fd iov count p n) chunks

-- | Send from memory; how many bytes the kernel took.
sendBuf :: Socket -> Ptr Word8 -> Int -> IO Int
sendBuf s p n = operate "Weft.Socket.sendBuf" s Writing (sendAttempt p n)
{-# INLINE sendBuf #-}

-- | Send from memory to an address.
sendBufTo :: Socket -> Ptr a -> Int -> SockAddr -> IO Int
sendBufTo s p n addr = withAddress addr $ \ap alen ->
  operate "Weft.Socket.sendBufTo" s Writing $ \fd -> do
    r <- cSendTo fd (castPtr p) (fromIntegral n) ap alen
    answer r (pure . Done)

-- Receiving --------------------------------------------------------------------------

-- | Receive the bytes that are there, at most the number given, waiting until there are some. Empty at
-- the end of the stream. Throws @EINVAL@ for a number that is not positive. Up to 64 KiB what
-- came is copied to a string of its size; for more it is 'recvLarge'.
recv :: Socket -> Int -> IO ByteString
recv s n
  | n <= 0 = invalid "Weft.Socket.ByteString.recv"
  | n <= scratchSize = operate "Weft.Socket.ByteString.recv" s Reading $ \fd -> withScratch $ \p -> do
    r <- cRecv fd p (fromIntegral n) 0
    answer r $ \got -> do
      bs <- copyOut p got
      pure (received s n got bs)
  | otherwise = recvLarge s n

-- | 'recv' without a copy, for those who know that about so many bytes come: into memory for the whole number, which is taken
-- when there is something to receive. What is used by less than half is copied to a string of its size.
recvLarge :: Socket -> Int -> IO ByteString
recvLarge s n
  | n <= 0 = invalid "Weft.Socket.ByteString.recvLarge"
  | otherwise = operate "Weft.Socket.ByteString.recvLarge" s Reading $ \fd -> do
    fp <- B.mallocByteString n
    r <- unsafeWithForeignPtr fp (\p -> cRecv fd p (fromIntegral n) 0)
    answer r (\got -> pure $! received s n got $! trimmed fp n got)

-- | So many bytes of memory of a size.
trimmed :: ForeignPtr Word8 -> Int -> Int -> ByteString
trimmed fp n got = if got < n `div` 2 then B.copy whole else whole
  where
    whole = B.fromForeignPtr fp 0 got

-- | Room for more than a scratch buffer holds; the action gives, behind another result, how many bytes
-- of it are used. What is used by less than half is copied to a string of its size.
withLarge :: Int -> (Ptr Word8 -> IO (a, Int)) -> IO (ByteString, a)
withLarge n act = do
  fp <- B.mallocByteString n
  (a, got) <- withForeignPtr fp act
  bs <- pure $! trimmed fp n got
  pure (bs, a)

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

-- | Receive a datagram, cut off at the number of bytes given, and the sender's address: on a connected stream the peer; where
-- the sender has no name, or one of a family that @network@ has no form for, @SockAddrUnix ""@. Otherwise as
-- 'recv'.
recvFrom :: Socket -> Int -> IO (ByteString, SockAddr)
recvFrom s n
  | n <= 0 = invalid "Weft.Socket.ByteString.recvFrom"
  | n <= scratchSize = withRoom $ \ap alen ->
    operate "Weft.Socket.ByteString.recvFrom" s Reading $ \fd -> withScratch $ \p -> do
      poke alen (fromIntegral addressRoom)
      r <- cRecvFrom fd p (fromIntegral n) 0 ap alen
      answer r $ \got -> do
        bs <- copyOut p got
        addr <- readSender fd ap alen
        pure (Done (bs, addr))
  | otherwise = withLarge n (fmap (\(got, addr) -> (addr, got)) . \p -> recvBufFrom s p n)

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
        addr <- readSender fd ap alen
        pure (Done (got, addr))

invalid :: String -> IO a
invalid loc = ioError (socketError loc eINVAL)
