-- |
-- Reads of files whose bytes are encrypted next, for TLS and HTTP\/2. Any thread.
module Weft.Http.ReadFile
  ( readFileAt,
  )
where

import Data.Int (Int64)
import Data.Word (Word8)
import Foreign.C.Types (CInt (..), CSize (..))
import Foreign.Ptr (Ptr)
import System.Posix.Types (CSsize (..))
import Weft.FFI.Errno (throwIfNegative)
import Weft.FFI.Socket (cReadAt)

-- | Read up to that many bytes, which should be few (64 KiB), of an open file at an offset, into memory. Returns their
-- number, 0 at the end of the file. The string names the operation in errors (@IOError@).
--
-- What the kernel has in its cache is copied by a call during which no other thread of the capability runs, for some
-- microseconds. Only a read that has to wait for the disk is a safe call: in a busy program that gives the capability
-- to another thread of the operating system and takes it back, two changes of context for each piece of a file.
readFileAt :: String -> CInt -> Ptr Word8 -> Int -> Int64 -> IO Int
readFileAt operation fd to n offset = do
  copied <- c_readCached fd to (fromIntegral n) offset
  if copied > 0
    then pure (fromIntegral copied)
    else fromIntegral <$> throwIfNegative operation (cReadAt fd to (fromIntegral n) offset)

foreign import ccall unsafe "weft_read_cached" c_readCached :: CInt -> Ptr Word8 -> CSize -> Int64 -> IO CSsize
