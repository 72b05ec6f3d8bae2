-- |
-- Linux's native asynchronous I\/O: io_setup(2), io_submit(2), io_getevents(2). Results are those of the system call,
-- or @-errno@.
module Weft.FFI.Aio
  ( Context,
    openContext,
    closeContext,
    submitTo,
    Submission (..),
    collectFrom,
    waitFor,

    -- * Completions
    Completion,
    completionSize,
    completionName,
    completionResult,
  )
where

import Data.Int (Int64)
import Data.Word (Word32, Word64, Word8)
import Foreign.C.Types (CInt (..))
import Foreign.Marshal.Alloc (alloca)
import Foreign.Ptr (Ptr)
import Foreign.Storable (peek, peekByteOff)
import System.Posix.Types (Fd (..))
import Weft.FFI.File (Op (..))

#include <linux/aio_abi.h>

-- | A context, and the eventfd that its completions signal.
data Context = Context !Word64 !Fd

-- | A context for that many requests, with its eventfd, which the caller closes; or the errno.
openContext :: Int -> IO (Either CInt (Context, Fd))
openContext depth = alloca $ \out -> do
  r <- c_open (fromIntegral depth) out
  if r < 0 then pure (Left (negate r)) else (\c -> Right (Context c (Fd r), Fd r)) <$> peek out

foreign import ccall unsafe "weft_aio_open" c_open :: Word32 -> Ptr Word64 -> IO CInt

-- | End a context. No request may be in progress. Its eventfd stays open.
closeContext :: Context -> IO ()
closeContext (Context c _) = c_close c

foreign import ccall safe "weft_aio_close" c_close :: Word64 -> IO ()

-- | What became of a request.
data Submission
  = Accepted
  | -- | Accepted, and the call took longer than a millisecond.
    AcceptedLate
  | -- | Nothing was submitted.
    Rejected
  deriving (Eq)

-- | Submit a read or write at an offset to a file that bypasses the page cache. The name is that of its completion.
-- Rejected if the context is full, if the file system cannot tell whether it would have to wait, and if the transfer is
-- longer than 1 MiB. A result of @-EAGAIN@ says that the request would have had to wait, and that nothing was done.
-- With 'True' it is 'AcceptedLate' only if the OS thread has blocked, because the disk's queue was full; this takes two
-- further system calls.
submitTo :: Context -> Bool -> Op -> Int -> IO Submission
submitTo (Context c signal) watched (Op code fd off addr len _) name = do
  r <- c_submit c (fromIntegral signal) code fd off addr len (fromIntegral name) (if watched then 1 else 0)
  pure $ case r of
    0 -> Accepted
    1 -> AcceptedLate
    _ -> Rejected

foreign import ccall unsafe "weft_aio_submit"
  c_submit :: Word64 -> CInt -> Word8 -> CInt -> Word64 -> Word64 -> Word32 -> Word64 -> CInt -> IO CInt

-- | @struct io_event@.
data Completion

-- | Its size in bytes.
completionSize :: Int
completionSize = #{size struct io_event}

-- | Take completions, at most that many, without waiting.
collectFrom :: Context -> Int -> Ptr Completion -> IO Int
collectFrom (Context c signal) most out = fromIntegral <$> c_collect c (fromIntegral signal) (fromIntegral most) out

foreign import ccall unsafe "weft_aio_collect" c_collect :: Word64 -> CInt -> Word32 -> Ptr Completion -> IO CInt

-- | Wait for at least one completion, for a second at most, and take at most that many. The OS thread blocks.
waitFor :: Context -> Int -> Ptr Completion -> IO Int
waitFor (Context c _) most out = fromIntegral <$> c_wait c (fromIntegral most) out

foreign import ccall safe "weft_aio_wait" c_wait :: Word64 -> Word32 -> Ptr Completion -> IO CInt

-- | The name of the request.
completionName :: Ptr Completion -> IO Int
completionName p = fromIntegral <$> (#{peek struct io_event, data} p :: IO Word64)

-- | Its result: a number of bytes, or @-errno@.
completionResult :: Ptr Completion -> IO CInt
completionResult p = fromIntegral <$> (#{peek struct io_event, res} p :: IO Int64)
