-- |
-- Socket addresses in memory, by @network@'s own marshalling.
module Weft.Socket.Address
  ( withAddress,
    withRoom,
    readAddress,
    addressRoom,
  )
where

import Data.Word (Word32)
import Foreign.Marshal.Alloc (alloca, allocaBytes)
import Foreign.Marshal.Utils (fillBytes)
import Foreign.Ptr (Ptr, castPtr)
import Foreign.Storable (peek, poke)
import Network.Socket (SockAddr (SockAddrUnix))
import Network.Socket.Address (SocketAddress (..))
import Weft.FFI.Socket (SockAddrBytes)

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

-- | What the kernel put there. An address of no bytes, as a connected stream gives
-- with its data, reads as that of an unnamed Unix socket.
readAddress :: Ptr SockAddrBytes -> Ptr Word32 -> IO SockAddr
readAddress p len = do
  n <- peek len
  if n == 0 then pure (SockAddrUnix "") else peekSocketAddress (castPtr p)
