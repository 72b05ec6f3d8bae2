{-# LANGUAGE ForeignFunctionInterface #-}

-- |
-- TUN and TAP devices (Linux, Documentation/networking/tuntap.rst): nothing but the
-- calls' types. All return a result or @-errno@. None blocks: descriptors are
-- non-blocking, and opening only allocates.
--
-- @since 0.1.0
module Weft.Tcp.FFI.Tun
  ( cTunOpen,
    cTunMtu,
    cTunRead,
    cTunWriteV,
    cTunClose,
    withVector,
  )
where

import Data.ByteString (ByteString)
import qualified Data.ByteString.Unsafe as B
import Data.Word (Word8)
import Foreign.C.String (CString)
import Foreign.C.Types (CInt (..), CSize (..))
import Foreign.Marshal.Alloc (allocaBytes)
import Foreign.Ptr (Ptr, plusPtr)
import Foreign.Storable (poke)
import System.Posix.Types (CSsize (..))

-- | Name (a buffer of 16 bytes, read and written), TAP, offload, one of several queues.
foreign import ccall unsafe "weft_tun_open"
  cTunOpen :: CString -> CInt -> CInt -> CInt -> IO CInt

-- | The MTU, in bytes, of the interface of that name.
foreign import ccall unsafe "weft_tun_mtu"
  cTunMtu :: CString -> IO CInt

-- | Read a packet into a buffer of that many bytes (read(2)): its size in bytes.
foreign import ccall unsafe "weft_tun_read"
  cTunRead :: CInt -> Ptr Word8 -> CSize -> IO CSsize

-- | A vector of so many parts (writev(2)).
foreign import ccall unsafe "weft_tun_writev"
  cTunWriteV :: CInt -> Ptr () -> CInt -> IO CSsize

-- | Close a descriptor (close(2)).
foreign import ccall unsafe "weft_tun_close"
  cTunClose :: CInt -> IO CInt

-- | Strings as a @struct iovec@ array, valid during the action.
withVector :: [ByteString] -> (Ptr () -> CInt -> IO a) -> IO a
withVector parts act = allocaBytes (16 * n) $ \v -> go v v parts
  where
    n = length parts
    go v _ [] = act v (fromIntegral n)
    go v p (b : bs) = B.unsafeUseAsCStringLen b $ \(q, len) -> do
      poke (p `plusPtr` 0) q
      poke (p `plusPtr` 8) (fromIntegral len :: CSize)
      go v (p `plusPtr` 16) bs
