{-# LANGUAGE ForeignFunctionInterface #-}

-- |
-- Foreign imports for TUN and TAP devices (Linux, Documentation/networking/tuntap.rst).
-- All calls return a result or @-errno@. None blocks: the descriptors are non-blocking, and
-- opening a device only allocates.
--
-- @since 0.1.0
module Weft.Tcp.FFI.Tun
  ( cTunOpen,
    cTunMtu,
    cTunUp,
    cTunRead,
    cTunWriteV,
    cTunClose,
    withVector,
  )
where

import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Unsafe as B
import Data.Word (Word8)
import Foreign.C.String (CString)
import Foreign.C.Types (CInt (..), CSize (..))
import Foreign.Marshal.Alloc (allocaBytes)
import Foreign.Ptr (Ptr, plusPtr)
import Foreign.Storable (poke)
import System.Posix.Types (CSsize (..))

-- | Open a queue of a device. Arguments: the interface's name (a buffer of 16 bytes, read and written), and flags:
-- TAP instead of TUN, offload, more than one queue. Returns a descriptor.
foreign import ccall unsafe "weft_tun_open"
  cTunOpen :: CString -> CInt -> CInt -> CInt -> IO CInt

-- | The MTU in bytes of the interface with that name.
foreign import ccall unsafe "weft_tun_mtu"
  cTunMtu :: CString -> IO CInt

-- | 1 if the interface with that name is up, else 0.
foreign import ccall unsafe "weft_tun_up"
  cTunUp :: CString -> IO CInt

-- | Read a packet into a buffer of the given size (read(2)). Returns the packet's size in bytes.
foreign import ccall unsafe "weft_tun_read"
  cTunRead :: CInt -> Ptr Word8 -> CSize -> IO CSsize

-- | Write a vector with the given number of parts (writev(2)).
foreign import ccall unsafe "weft_tun_writev"
  cTunWriteV :: CInt -> Ptr () -> CInt -> IO CSsize

-- | Close a descriptor (close(2)).
foreign import ccall unsafe "weft_tun_close"
  cTunClose :: CInt -> IO CInt

-- | Pass strings as a @struct iovec@ array, which is valid during the action. writev(2) takes at most 1024 parts
-- (@IOV_MAX@) and refuses more with @EINVAL@: if there are more, the last ones are joined.
withVector :: [ByteString] -> (Ptr () -> CInt -> IO a) -> IO a
withVector parts act = allocaBytes (16 * n) $ \v -> go v v few
  where
    few = case splitAt (maxParts - 1) parts of
      (_, []) -> parts
      (begin, rest) -> begin ++ [B.concat rest]
    n = length few
    maxParts = 1024
    go v _ [] = act v (fromIntegral n)
    go v p (b : bs) = B.unsafeUseAsCStringLen b $ \(q, len) -> do
      poke (p `plusPtr` 0) q
      poke (p `plusPtr` 8) (fromIntegral len :: CSize)
      go v (p `plusPtr` 16) bs
