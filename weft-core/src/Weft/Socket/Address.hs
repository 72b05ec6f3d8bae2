-- |
-- Socket addresses in memory, by @network@'s own marshalling.
module Weft.Socket.Address
  ( withAddress,
    withRoom,
    readAddress,
    readSender,
    addressRoom,
  )
where

import Data.Word (Word32)
import Foreign.C.Types (CInt)
import Foreign.Marshal.Alloc (alloca, allocaBytes)
import Foreign.Marshal.Utils (fillBytes)
import Foreign.Ptr (Ptr, castPtr)
import Foreign.Storable (peek, poke)
import Network.Socket (SockAddr (SockAddrUnix))
import Network.Socket.Address (SocketAddress (..))
import System.IO.Error (catchIOError)
import Weft.FFI.Socket (SockAddrBytes, cGetPeerName)

-- | Bytes that any address fits in (@struct sockaddr_storage@).
addressRoom :: Int
addressRoom = 128

-- | An address in memory, and its length.
withAddress :: SockAddr -> (Ptr SockAddrBytes -> Word32 -> IO a) -> IO a
withAddress addr act = allocaBytes (max n addressRoom) $ \p -> do
  pokeSocketAddress p addr
  act p (fromIntegral n)
  where
    n = sizeOfSocketAddress addr

-- | Room for the kernel to put an address in; the action gets where the bytes go
-- and where their number goes.
withRoom :: (Ptr SockAddrBytes -> Ptr Word32 -> IO a) -> IO a
withRoom act = allocaBytes addressRoom $ \p -> alloca $ \len -> do
  fillBytes p 0 addressRoom
  poke len (fromIntegral addressRoom)
  act p len

-- | What the kernel put there. An address of no bytes reads as that of an unnamed Unix
-- socket. Throws for a family that @network@ does not know.
readAddress :: Ptr SockAddrBytes -> Ptr Word32 -> IO SockAddr
readAddress p len = do
  n <- peek len
  if n == 0 then pure unnamed else peekSocketAddress (castPtr p)

-- | Who sent what a socket has received, or has connected: what the kernel put there, or, as connected
-- streams give none with their data, the peer's. Throws nothing, as data would be lost: for a family that
-- @network@ does not know, and for an unnamed sender, it is the address of an unnamed Unix socket.
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
