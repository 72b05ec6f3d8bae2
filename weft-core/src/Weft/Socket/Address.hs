{-# LANGUAGE OverloadedStrings #-}

-- |
-- Socket addresses: in memory, by @network@'s own marshalling; their families; and their text, which has one form
-- in all logs, fields and messages. Any thread may call these functions.
module Weft.Socket.Address
  ( -- * In memory
    withAddress,
    withRoom,
    readAddress,
    readSender,
    addressRoom,

    -- * What they are
    addressFamily,
    unmapped,
    isLoopback,

    -- * Text
    hostText,
    ip6Text,
    hostBytes,
  )
where

import Control.Monad (void)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import qualified Data.ByteString.Internal as B (unsafeCreate)
import qualified Data.ByteString.Unsafe as B (unsafeIndex)
import Data.Word (Word16, Word32, Word8)
import Foreign.C.String (CString)
import Foreign.C.Types (CInt (..))
import Foreign.Marshal.Alloc (alloca, allocaBytes)
import Foreign.Marshal.Utils (fillBytes)
import Foreign.Ptr (Ptr, castPtr, plusPtr)
import Foreign.Storable (peek, poke, pokeByteOff)
import GHC.Arr (Array, listArray, (!))
import Network.Socket (Family (..), HostAddress6, SockAddr (..), hostAddress6ToTuple, hostAddressToTuple, packFamily, tupleToHostAddress)
import Network.Socket.Address (SocketAddress (..))
import System.IO.Error (catchIOError)
import System.IO.Unsafe (unsafePerformIO)
import Weft.FFI.Socket (SockAddrBytes, cGetPeerName)

-- | The size in bytes of the largest address (@struct sockaddr_storage@).
addressRoom :: Int
addressRoom = 128

-- | The family of an address.
addressFamily :: SockAddr -> Family
addressFamily addr = case addr of
  SockAddrInet {} -> AF_INET
  SockAddrInet6 {} -> AF_INET6
  SockAddrUnix {} -> AF_UNIX

-- | An IPv4-mapped address (RFC 4291, 2.5.5.2), at which a socket for both families sees a client of IPv4, as the
-- IPv4 address; any other address unchanged.
unmapped :: SockAddr -> SockAddr
unmapped address = case address of
  SockAddrInet6 port _ host _
    | (0, 0, 0, 0, 0, 0xffff, h, l) <- hostAddress6ToTuple host -> SockAddrInet port (tupleToHostAddress (high h, low h, high l, low l))
  _ -> address
  where
    high, low :: Word16 -> Word8
    high n = fromIntegral (n `quot` 256)
    low = fromIntegral

-- | Whether it is an address of the loopback interface, or of a Unix socket: the peer is on this machine.
isLoopback :: SockAddr -> Bool
isLoopback address = case unmapped address of
  SockAddrInet _ host | (n, _, _, _) <- hostAddressToTuple host -> n == 127
  SockAddrInet6 _ _ host _ -> host == (0, 0, 0, 1)
  SockAddrUnix _ -> True

-- | The IP address without its port: IPv6 as 'ip6Text' has it, IPv4-mapped addresses as IPv4. 'Nothing' for Unix
-- sockets.
hostText :: SockAddr -> Maybe ByteString
hostText address = case unmapped address of
  SockAddrInet _ host | (a, b, c, d) <- hostAddressToTuple host -> Just (dotted (octets ! a) (octets ! b) (octets ! c) (octets ! d))
  SockAddrInet6 _ _ host _ -> Just (ip6Text host)
  SockAddrUnix _ -> Nothing

-- | Four strings with dots between them.
dotted :: ByteString -> ByteString -> ByteString -> ByteString -> ByteString
dotted a b c d = B.unsafeCreate (B.length a + B.length b + B.length c + B.length d + 3) $ \p ->
  void (put p a >>= dot >>= flip put b >>= dot >>= flip put c >>= dot >>= flip put d)
  where
    -- At most three bytes: cheaper than a call of memcpy(3).
    put :: Ptr Word8 -> ByteString -> IO (Ptr Word8)
    put p bytes = go 0
      where
        go i
          | i >= B.length bytes = pure (p `plusPtr` i)
          | otherwise = pokeByteOff p i (B.unsafeIndex bytes i) >> go (i + 1)
    dot :: Ptr Word8 -> IO (Ptr Word8)
    dot p = (p `plusPtr` 1) <$ poke p 46
{-# NOINLINE dotted #-}

-- | The numbers of an IPv4 address as text.
octets :: Array Word8 ByteString
octets = listArray (0, 255) (map (C.pack . show) [0 :: Int .. 255])

-- | The text form of an IPv6 address that RFC 5952 recommends.
ip6Text :: HostAddress6 -> ByteString
ip6Text host = C.takeWhile (/= ']') (C.drop 1 (C.pack (show (SockAddrInet6 0 0 host 0))))

foreign import ccall unsafe "inet_pton"
  cInetPton :: CInt -> CString -> Ptr Word8 -> IO CInt

-- | The bytes of an IP address of that family, in network order, from its text, as inet_pton(3) reads it: @192.0.2.1@,
-- without leading zeros, or any of the forms of RFC 4291, section 2.2.
hostBytes :: Family -> ByteString -> Maybe ByteString
hostBytes family text
  | B.elem 0 text = Nothing
  | otherwise = unsafePerformIO . B.useAsCString text $ \t -> allocaBytes size $ \p -> do
    ok <- cInetPton (packFamily family) t p
    if ok == 1 then Just <$> B.packCStringLen (castPtr p, size) else pure Nothing
  where
    size = if family == AF_INET then 4 else 16

-- | Run an action with an address in memory, and its length.
withAddress :: SockAddr -> (Ptr SockAddrBytes -> Word32 -> IO a) -> IO a
withAddress addr act = allocaBytes (max n addressRoom) $ \p -> do
  pokeSocketAddress p addr
  act p (fromIntegral n)
  where
    n = sizeOfSocketAddress addr

-- | Run an action with memory into which the kernel writes an address and its
-- length.
withRoom :: (Ptr SockAddrBytes -> Ptr Word32 -> IO a) -> IO a
withRoom act = allocaBytes addressRoom $ \p -> alloca $ \len -> do
  fillBytes p 0 addressRoom
  poke len (fromIntegral addressRoom)
  act p len

-- | The address that the kernel has written. Without any bytes it is that of an unnamed Unix
-- socket. Throws if @network@ does not know its family.
readAddress :: Ptr SockAddrBytes -> Ptr Word32 -> IO SockAddr
readAddress p len = do
  n <- peek len
  if n == 0 then pure unnamed else peekSocketAddress (castPtr p)

-- | The address of the sender of received data, or of the peer of an accepted connection: the one that the kernel has
-- written, or, since it writes none for a connected stream, the peer's. Throws nothing, since data would be lost: for a
-- family that @network@ does not know, and for an unnamed sender, it is the address of an unnamed Unix socket.
readSender :: CInt -> Ptr SockAddrBytes -> Ptr Word32 -> IO SockAddr
readSender fd p len = do
  n <- peek len
  if n == 0 then peer else peekSocketAddress (castPtr p) `catchIOError` const peer
  where
    peer = do
      poke len (fromIntegral addressRoom)
      r <- cGetPeerName fd p len
      if r < 0 then pure unnamed else readAddress p len `catchIOError` const (pure unnamed)

unnamed :: SockAddr
unnamed = SockAddrUnix ""
