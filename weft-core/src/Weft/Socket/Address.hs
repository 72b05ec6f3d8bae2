-- |
-- Socket addresses in memory, by @network@'s own marshalling.
module Weft.Socket.Address
  ( withAddress,
    withRoom,
    readAddress,
    readSender,
    addressRoom,
    addressFamily,
  )
where

import Data.Word (Word32)
import Foreign.C.Types (CInt)
import Foreign.Marshal.Alloc (alloca, allocaBytes)
import Foreign.Marshal.Utils (fillBytes)
import Foreign.Ptr (Ptr, castPtr)
import Foreign.Storable (peek, poke)
import Network.Socket (Family (..), SockAddr (..))
import Network.Socket.Address (SocketAddress (..))
import System.IO.Error (catchIOError)
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
