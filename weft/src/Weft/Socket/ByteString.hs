-- |
-- Sending and receiving: the names, types and exceptions of
-- "Network.Socket.ByteString". Every operation tries the system call first. It waits, without holding a
-- buffer, only if that says @EAGAIN@, and until the socket's deadline ('Weft.Socket.withDeadline').
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

import Control.Exception (SomeException, onException, throwIO, try)
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
import System.Posix.Types (CSsize)
import Weft.FFI.Socket
import Weft.Socket.Address
import Weft.Socket.Datagram
import Weft.Socket.Gather
import Weft.Socket.Message
import Weft.Socket.Pieces
import Weft.Socket.Scratch
import Weft.Socket.Types

-- Sending ----------------------------------------------------------------------------

-- | Send a string, or as much of it as the kernel takes at once; wait until it takes some.
-- Returns the number of bytes taken.
send :: Socket -> ByteString -> IO Int
send s bs = withBytes bs (sendBuf s)

-- | Send all of a string. If a deadline or an asynchronous exception cuts it off after the kernel has taken a part, the
-- peer would mistake whatever is sent next for the rest. So every further send on the socket then fails with @EPIPE@
-- and a message that says why. (Operations that return the number of bytes taken leave that to the caller.)
sendAll :: Socket -> ByteString -> IO ()
sendAll = sendWhole "Weft.Socket.sendBuf"

-- | 'sendAll', with a name for errors.
sendWhole :: String -> Socket -> ByteString -> IO ()
sendWhole loc s bs = withBytes bs $ \p n ->
  unless (n == 0) $
    -- Masked from the first part on; it is interruptible where it waits.
    operateThen loc s Writing (sendAttempt p n) $ \sent ->
      unless (sent == n) (sendRest s (p `plusPtr` sent) (n - sent) `onException` cutOff s)

sendAttempt :: Ptr Word8 -> Int -> CInt -> IO (Attempt Int)
sendAttempt p n fd = do
  r <- cSend fd p (fromIntegral n) 0
  decodeResult r (\sent -> pure (if sent < n then Drained sent else Done sent))
{-# INLINE sendAttempt #-}

sendRest :: Socket -> Ptr Word8 -> Int -> IO ()
sendRest s p n = do
  sent <- sendBuf s p n
  unless (sent == n) (sendRest s (p `plusPtr` sent) (n - sent))
{-# NOINLINE sendRest #-}

-- | Send all of a piece of memory. Unlike 'sendAll', it does not make later sends fail if it is cut off.
--
-- (Not inlined: code that inlines 'sendBuf' captures the fields of the socket one by one in each closure.)
sendAllBuf :: Socket -> Ptr Word8 -> Int -> IO ()
sendAllBuf s = go
  where
    go p n = unless (n <= 0) $ do
      sent <- sendBuf s p n
      go (p `plusPtr` sent) (n - sent)

-- | Send a string, or as much of it as the kernel takes at once, without waiting. Returns the number of bytes taken,
-- zero if the send buffer is full, or the error. Throws nothing.
sendNow :: Socket -> ByteString -> IO (Either IOError Int)
sendNow s bs = withBytes bs $ \p n ->
  if n == 0 then pure (Right 0) else attempted "Weft.Socket.ByteString.sendNow" s (\fd -> cSend fd p (fromIntegral n) 0)

-- | Send strings one after the other, gathered into as few system calls as
-- possible. On a socket of datagrams or sequential packets they are one message, however many they are. If it is cut
-- off after a part, further sends fail, as with 'sendAll'.
sendMany :: Socket -> [ByteString] -> IO ()
sendMany s strings = case strings of
  -- A head, or a head and a body: without the array of pieces, which takes 1 KB.
  [a] | not (B.null a) -> sendWhole manyName s a
  [a, b] | not (B.null a), not (B.null b) -> sendTwo s a b
  _ -> sendGathered manyName s (cutOff s) sendPieces strings

sendTwo :: Socket -> ByteString -> ByteString -> IO ()
sendTwo s a b = withBytes a $ \p n -> withBytes b $ \q m -> do
  let attempt fd = do
        r <- cSendTwo fd p (fromIntegral n) q (fromIntegral m)
        decodeResult r (\sent -> pure (if sent < n + m then Drained sent else Done sent))
  operateThen manyName s Writing attempt $ \sent ->
    unless (sent == n + m) ((betweenParts manyName s >> rest (n - sent)) `onException` cutOff s)
  where
    -- The argument is what is left of the first string, or negative.
    rest left
      | left > 0 = others [B.unsafeDrop (B.length a - left) a, b]
      | otherwise = others [B.unsafeDrop (negate left) b]
    others = sendGathered manyName s (pure ()) sendPieces

sendPieces :: CInt -> Ptr IoVec -> CInt -> IO CSsize
sendPieces fd iov n = cSendV fd iov n nullPtr 0

manyName :: String
manyName = "Weft.Socket.ByteString.sendMany"

-- | 'sendMany' for data that more data follows at once: the kernel may hold it back, so that both
-- go into one packet (@MSG_MORE@, send(2)). On systems without that flag it is 'sendMany'.
sendManyMore :: Socket -> [ByteString] -> IO ()
sendManyMore s = sendGathered "Weft.Socket.ByteString.sendManyMore" s (cutOff s) cSendVMore

-- | 'sendNow' for strings one after the other, at most 1024 of them.
sendManyNow :: Socket -> [ByteString] -> IO (Either IOError Int)
sendManyNow s chunks = withPieces chunks $ \iov count ->
  attempted "Weft.Socket.ByteString.sendManyNow" s (\fd -> cSendV fd iov count nullPtr 0)

-- | Send a datagram. Returns the number of bytes taken. (If a Unix socket at the address has no room, it is tried again
-- up to 10 ms after it has.)
sendTo :: Socket -> ByteString -> SockAddr -> IO Int
sendTo s bs addr = withBytes bs (\p n -> sendBufTo s p n addr)

-- | Send all of a string to an address.
sendAllTo :: Socket -> ByteString -> SockAddr -> IO ()
sendAllTo s bs addr = do
  n <- sendTo s bs addr
  when (n < B.length bs) (sendAllTo s (B.unsafeDrop n bs) addr)

-- | Send strings as one datagram to an address. It is empty if all of them are; no strings are no datagram.
sendManyTo :: Socket -> [ByteString] -> SockAddr -> IO ()
sendManyTo _ [] _ = pure ()
sendManyTo s chunks addr
  | null (drop maxPieces chunks) = do
    sent <- withPieces chunks $ \iov count -> withAddress addr $ \p n ->
      operateTo "Weft.Socket.ByteString.sendManyTo" s addr $ \fd -> do
        r <- cSendV fd iov count p n
        decodeResult r (pure . Done)
    sendManyTo s (dropBytes sent chunks) addr
  -- Each call is a datagram, and takes a limited number of pieces.
  | otherwise = sendAllTo s (B.concat chunks) addr

-- | 'send' from memory. Returns the number of bytes taken.
sendBuf :: Socket -> Ptr Word8 -> Int -> IO Int
sendBuf s p n = operate "Weft.Socket.sendBuf" s Writing (sendAttempt p n)
{-# INLINE sendBuf #-}

-- | 'sendTo' from memory. Returns the number of bytes taken.
sendBufTo :: Socket -> Ptr a -> Int -> SockAddr -> IO Int
sendBufTo s p n addr = withAddress addr $ \ap alen ->
  operateTo "Weft.Socket.sendBufTo" s addr $ \fd -> do
    r <- cSendTo fd (castPtr p) (fromIntegral n) ap alen
    decodeResult r (pure . Done)

-- Receiving --------------------------------------------------------------------------

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
