-- |
-- Sending on sockets: half of "Weft.Socket.ByteString", where it is documented.
module Weft.Socket.Send
  ( send,
    sendAll,
    sendAllBuf,
    sendNow,
    sendTo,
    sendAllTo,
    sendMany,
    sendManyMore,
    sendManyNow,
    sendManyTo,
    sendBuf,
    sendBufTo,
  )
where

import Control.Exception (onException)
import Control.Monad (unless, when)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Unsafe as B (unsafeDrop)
import Data.Word (Word8)
import Foreign.C.Types (CInt)
import Foreign.Ptr (Ptr, castPtr, nullPtr, plusPtr)
import Network.Socket (SockAddr)
import System.Posix.Types (CSsize)
import Weft.FFI.Socket
import Weft.Socket.Address
import Weft.Socket.Datagram
import Weft.Socket.Gather
import Weft.Socket.Pieces
import Weft.Socket.Types

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
{-# NOINLINE sendBuf #-}

-- | 'sendTo' from memory. Returns the number of bytes taken.
sendBufTo :: Socket -> Ptr a -> Int -> SockAddr -> IO Int
sendBufTo s p n addr = withAddress addr $ \ap alen ->
  operateTo "Weft.Socket.sendBufTo" s addr $ \fd -> do
    r <- cSendTo fd (castPtr p) (fromIntegral n) ap alen
    decodeResult r (pure . Done)
