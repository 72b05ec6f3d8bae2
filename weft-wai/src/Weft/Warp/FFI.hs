-- |
-- The two system calls that serving needs beside those of "Weft.Socket". No
-- policy here.
module Weft.Warp.FFI
  ( readAt,
    hasUnread,
  )
where

import Data.Int (Int64)
import Data.Word (Word8)
import Foreign.C.Error (throwErrnoIfMinus1Retry)
import Foreign.C.Types (CInt (..), CSize (..))
import Foreign.Marshal.Alloc (allocaBytes)
import Foreign.Ptr (Ptr)
import System.Posix.Types (COff (..), CSsize (..), Fd (..))
import Weft.Socket (Socket, withFdSocket)

-- | Read from an offset of a file into memory: how many bytes came, zero at its
-- end. Other threads of the capability run while the kernel waits for the disk.
readAt :: Fd -> Ptr Word8 -> Int -> Int64 -> IO Int
readAt fd p count offset =
  fromIntegral <$> throwErrnoIfMinus1Retry "pread" (cPRead fd p (fromIntegral count) (fromIntegral offset))

-- | Has the kernel bytes for an open socket that nobody has read? Then closing it
-- resets the connection, and the peer may lose what was sent last.
hasUnread :: Socket -> IO Bool
hasUnread sock = withFdSocket sock $ \fd -> allocaBytes 1 $ \p -> (> 0) <$> cRecv fd p 1 peek
  where
    -- MSG_PEEK, the same number everywhere.
    peek = 2

foreign import ccall safe "pread"
  cPRead :: Fd -> Ptr Word8 -> CSize -> COff -> IO CSsize

-- The descriptors of "Weft.Socket" do not block.
foreign import ccall unsafe "recv"
  cRecv :: CInt -> Ptr Word8 -> CSize -> CInt -> IO CSsize
