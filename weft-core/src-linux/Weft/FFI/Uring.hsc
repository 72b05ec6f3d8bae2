-- |
-- Bindings for what readiness needs of io_uring(7): rings, poll requests, cancelling, submitting, completions. The
-- policy is in "Weft.Backend.Uring". All calls return a result or @-errno@.
module Weft.FFI.Uring
  ( -- * Rings
    Uring,
    openUring,
    closeUring,
    isForked,
    uringDescriptor,

    -- * Queueing: one thread at a time
    queueWatch,
    queueCancel,
    cancelNow,
    pauseUring,

    -- * Entering the kernel: any thread
    submitUring,
    lookUring,
    waitUring,
    uringState,
    stateQueued,
    stateOverflown,
    errnoDropped,

    -- * Completions: the owner
    Completion,
    completionSize,
    reapUring,
    peekUserData,
    peekResult,
    peekMore,
    resultCancelled,
    resultBadFd,

    -- * Descriptors
    isOpen,
    presentEvents,
    pollBand,
  )
where

import Control.Monad (void)
import Data.Bits ((.&.))
import Data.Int (Int32, Int64)
import Data.Word (Word32, Word64)
import Foreign.C.Types (CInt (..), CUInt (..))
import Foreign.Marshal.Alloc (alloca)
import Foreign.Ptr (Ptr)
import Foreign.Storable (peek, peekByteOff)

#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <linux/io_uring.h>
#ifndef IORING_CQE_F_MORE
#define IORING_CQE_F_MORE (1U << 1)
#endif

-- | A ring and its memory.
data Uring

-- | A ring with room for this many queued requests and this many unread completions.
openUring :: CUInt -> CUInt -> IO (Either CInt (Ptr Uring))
openUring entries completions = alloca $ \out -> do
  r <- c_open entries completions out
  if r < 0 then pure (Left (negate r)) else Right <$> peek out

foreign import ccall unsafe "weft_uring_open" c_open :: CUInt -> CUInt -> Ptr (Ptr Uring) -> IO CInt

-- | Cancel everything and give the ring back; in a forked child only close the
-- descriptor.
foreign import ccall safe "weft_uring_close" closeUring :: Ptr Uring -> IO ()

-- | Not 0 in a forked child of the process that opened the ring.
foreign import ccall unsafe "weft_uring_is_forked" isForked :: Ptr Uring -> IO CInt

-- | The ring's own descriptor.
foreign import ccall unsafe "weft_uring_descriptor" uringDescriptor :: Ptr Uring -> IO CInt

-- | A poll request: descriptor, event bits, 1 for a multishot one, user data.
-- @-EAGAIN@ when the queue is full.
foreign import ccall unsafe "weft_uring_watch"
  queueWatch :: Ptr Uring -> CInt -> Word32 -> CInt -> Word64 -> IO CInt

-- | Cancel the request with that user data. @-EAGAIN@ when the queue is full. The
-- kernel's answer, if it gives one, has user data of all ones.
foreign import ccall unsafe "weft_uring_cancel" queueCancel :: Ptr Uring -> Word64 -> IO CInt

-- | Cancel the request with that user data, which was submitted, and wait for its
-- end, usually some microseconds. @-EBUSY@ if it has not ended after the given number of microseconds; @-EINVAL@ where
-- the kernel cannot do that.
foreign import ccall unsafe "weft_uring_cancel_now" cancelNow :: Ptr Uring -> Word64 -> CInt -> IO CInt

-- | Sleep for a millisecond, without a capability.
pauseUring :: IO ()
pauseUring = void (c_usleep 1000)

foreign import ccall safe "usleep" c_usleep :: CUInt -> IO CInt

-- | Submit the queued requests.
foreign import ccall unsafe "weft_uring_submit" submitUring :: Ptr Uring -> IO CInt

-- | Submit the queued requests and make overflowed completions visible, without blocking; no
-- system call when there is neither.
foreign import ccall unsafe "weft_uring_look" lookUring :: Ptr Uring -> IO CInt

-- | Submit, and block until there is a completion, for at most this many nanoseconds;
-- a negative number is for ever. May return early.
foreign import ccall safe "weft_uring_wait" waitUring :: Ptr Uring -> Int64 -> IO CInt

-- | Which of 'stateQueued', 'stateOverflown' and others hold. No system call.
foreign import ccall unsafe "weft_uring_state" uringState :: Ptr Uring -> IO CInt

-- | Something is queued and not submitted.
stateQueued :: CInt
stateQueued = 1

-- | The kernel holds completions back for which the ring had no room.
stateOverflown :: CInt
stateOverflown = 2

-- | The errno of io_uring_enter(2) when the kernel has lost completions for lack of memory.
errnoDropped :: CInt
errnoDropped = #{const EBADR}

-- | @struct io_uring_cqe@.
data Completion

completionSize :: Int
completionSize = #{size struct io_uring_cqe}

-- | Move completions into an array of that length. Returns their number.
foreign import ccall unsafe "weft_uring_reap"
  reapUring :: Ptr Uring -> Ptr Completion -> CInt -> IO CInt

-- | The user data of the completion at a position.
peekUserData :: Ptr Completion -> Int -> IO Word64
peekUserData p i = peekByteOff p (i * completionSize + #{offset struct io_uring_cqe, user_data})
{-# INLINE peekUserData #-}

-- | The event bits of a completion, or @-errno@.
peekResult :: Ptr Completion -> Int -> IO Int32
peekResult p i = peekByteOff p (i * completionSize + #{offset struct io_uring_cqe, res})
{-# INLINE peekResult #-}

-- | Whether the request will complete again.
peekMore :: Ptr Completion -> Int -> IO Bool
peekMore p i = do
  flags <- peekByteOff p (i * completionSize + #{offset struct io_uring_cqe, flags})
  pure (flags .&. (#{const IORING_CQE_F_MORE} :: Word32) /= 0)
{-# INLINE peekMore #-}

-- | Results of requests: cancelled, by this process or because the OS thread that submitted the request has exited;
-- and not an open descriptor.
resultCancelled, resultBadFd :: Int32
resultCancelled = -(#{const ECANCELED})
resultBadFd = -(#{const EBADF})

-- | 0 if the descriptor is open, @-errno@ if not.
foreign import ccall unsafe "weft_uring_is_open" isOpen :: CInt -> IO CInt

-- | Which of the events hold now, with errors and hang-ups.
foreign import ccall unsafe "weft_uring_present" presentEvents :: CInt -> Word32 -> IO Word32

-- | Priority band data, an event of poll(2) that only sockets report.
pollBand :: Word32
pollBand = #{const POLLRDBAND}
