{-# LANGUAGE InterruptibleFFI #-}

-- |
-- Operations on files in the form that io_uring(7) has, and three ways
-- to carry one out: at once if it need not wait, by a call that blocks, and by a
-- ring with an OS thread of its own. Results are those of the system call, or @-errno@.
module Weft.FFI.File
  ( -- * Operations
    Op (..),
    opRead,
    opWrite,
    opReadParts,
    opWriteParts,
    opSync,
    opSyncData,
    opAllocate,
    opOpen,
    opStat,
    opNames,
    opStats,
    isWrite,
    isCall,
    Waiting (..),
    waitingOf,
    withoutTry,

    -- * Carrying one out
    tryOp,
    mostAtOnce,
    runOp,
    errAgain,
    errCancelled,
    errInterrupted,

    -- * Rings
    CRing,
    openRing,
    stopRing,
    freeRing,
    ringGeneration,
    submitRing,
    wakeRing,
    cancelRing,
    collectRing,
    awaitRing,
    ringCounter,
    counterSubmitted,
    counterEntered,
    counterSignalled,
    counterRung,
    counterCancels,
  )
where

import Data.Int (Int32, Int64)
import Data.Word (Word32, Word64, Word8)
import Foreign.C.Types (CInt (..))
import Foreign.Marshal.Alloc (alloca)
import Foreign.Ptr (Ptr, WordPtr (..), ptrToWordPtr)
import Foreign.StablePtr (StablePtr)
import Foreign.Storable (peek)
import GHC.Conc (PrimMVar)
import System.Posix.Types (Fd (..))
import Weft.FFI.RingEntries (ringEntries)

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>

-- | The members of @struct io_uring_sqe@ that operations on files use.
data Op = Op
  { opCode :: !Word8,
    opFd :: !CInt,
    opOff :: !Word64,
    opAddr :: !Word64,
    opLen :: !Word32,
    opFlags :: !Word32
  }

address :: Ptr a -> Word64
address p = let WordPtr w = ptrToWordPtr p in fromIntegral w

-- | Read into memory, from an offset; -1 is the file's own position.
opRead :: Fd -> Int64 -> Ptr a -> Int -> Op
opRead (Fd fd) off p n = Op #{const IORING_OP_READ} fd (fromIntegral off) (address p) (fromIntegral n) 0

-- | Write from memory, in the same way.
opWrite :: Fd -> Int64 -> Ptr a -> Int -> Op
opWrite (Fd fd) off p n = Op #{const IORING_OP_WRITE} fd (fromIntegral off) (address p) (fromIntegral n) 0

-- | Read into, and write from, an array of this many @struct iovec@.
opReadParts, opWriteParts :: Fd -> Int64 -> Ptr a -> Int -> Op
opReadParts (Fd fd) off p n = Op #{const IORING_OP_READV} fd (fromIntegral off) (address p) (fromIntegral n) 0
opWriteParts (Fd fd) off p n = Op #{const IORING_OP_WRITEV} fd (fromIntegral off) (address p) (fromIntegral n) 0

-- | fsync(2) and fdatasync(2).
opSync, opSyncData :: Fd -> Op
opSync (Fd fd) = Op #{const IORING_OP_FSYNC} fd 0 0 0 0
opSyncData (Fd fd) = Op #{const IORING_OP_FSYNC} fd 0 0 0 #{const IORING_FSYNC_DATASYNC}

-- | fallocate(2): mode, offset, length.
opAllocate :: Fd -> Word32 -> Int64 -> Int64 -> Op
opAllocate (Fd fd) mode off len = Op #{const IORING_OP_FALLOCATE} fd (fromIntegral off) (fromIntegral len) mode 0

-- | openat2(2): directory, path, @struct open_how@.
opOpen :: Fd -> Ptr a -> Ptr b -> Op
opOpen (Fd fd) path how = Op #{const IORING_OP_OPENAT2} fd (address how) (address path) 24 0

-- | statx(2): directory, path, flags, mask, @struct statx@.
opStat :: Fd -> Ptr a -> Word32 -> Word32 -> Ptr b -> Op
opStat (Fd fd) path flags mask out = Op #{const IORING_OP_STATX} fd (address out) (address path) mask flags

-- | getdents64(2) into memory of this many bytes. With 'True' it begins at the first name, with 'False' where the
-- last call ended.
opNames :: Fd -> Bool -> Ptr a -> Int -> Op
opNames (Fd fd) first p n = Op callNames fd (if first then 0 else 1) (address p) (fromIntegral n) 0

-- | statx(2) for each name in the bytes that 'opNames' gave, into an array of @struct statx@ (@readEntryStatus@ of
-- "Weft.File.Attributes").
opStats :: Fd -> Ptr a -> Int -> Ptr b -> Op
opStats (Fd fd) names n out = Op callStats fd (address out) (address names) (fromIntegral n) 0

-- | Whether io_uring has no such operation.
isCall :: Op -> Bool
isCall op = opCode op == callNames || opCode op == callStats

-- | Whether an operation may wait for another process, such as one that opens the other end of a named pipe.
data Waiting = WaitsForNobody | MayWait | Unknown
  deriving (Eq)

-- | As in @file.h@, of an open; other operations count as 'WaitsForNobody'.
waitingOf :: Op -> IO Waiting
waitingOf op
  | opCode op /= #{const IORING_OP_OPENAT2} = pure WaitsForNobody
  | otherwise = do
    found <- c_open_waits (opFd op) (opOff op) (opAddr op)
    pure $ case found of
      0 -> WaitsForNobody
      1 -> MayWait
      _ -> Unknown

-- | The open, for a ring that does not try it with @O_NONBLOCK@ first. (@WEFT_OPEN_ASYNC@ of @file.h@.)
withoutTry :: Op -> Op
withoutTry op = op {opFlags = 1}

foreign import ccall unsafe "weft_file_open_waits"
  c_open_waits :: CInt -> Word64 -> Word64 -> IO CInt

-- | As in @file.h@.
callNames, callStats :: Word8
callNames = 255
callStats = 254

-- | Whether it writes from memory.
isWrite :: Op -> Bool
isWrite op = opCode op `elem` [#{const IORING_OP_WRITE}, #{const IORING_OP_WRITEV}]

-- | The result of 'tryOp' if it would have to wait.
errAgain :: CInt
errAgain = -(#{const EAGAIN})

-- | The result of a request that was cancelled.
errCancelled :: CInt
errCancelled = -(#{const ECANCELED})

-- | The result of a call that a signal ended.
errInterrupted :: CInt
errInterrupted = -(#{const EINTR})

-- | Carry it out unless it has to wait for a disk. Of a read or write of more than 'mostAtOnce' only so much is done:
-- no other thread of the capability runs meanwhile, and no collection can begin.
tryOp :: Op -> IO CInt
tryOp (Op code fd off addr len flags) = c_try code fd off addr len flags
{-# INLINE tryOp #-}

-- | 1 MiB, as in @file.c@.
mostAtOnce :: Int
mostAtOnce = 1048576

foreign import ccall unsafe "weft_file_try"
  c_try :: Word8 -> CInt -> Word64 -> Word64 -> Word32 -> Word32 -> IO CInt

-- | Carry it out; the OS thread blocks, other Haskell threads run. An asynchronous
-- exception makes it return 'errInterrupted', where the kernel waits interruptibly.
runOp :: Op -> IO CInt
runOp (Op code fd off addr len flags) = c_run code fd off addr len flags
{-# INLINE runOp #-}

foreign import ccall interruptible "weft_file_run"
  c_run :: Word8 -> CInt -> Word64 -> Word64 -> Word32 -> Word32 -> IO CInt

-- | A ring, its owner, its slots.
data CRing

-- | Open a ring with this many slots, for a reader on that capability. Its queues have as many entries as it can use,
-- or as 'ringEntries' says.
openRing :: Int -> Int -> IO (Either CInt (Ptr CRing))
openRing depth cap = alloca $ \out -> do
  entries <- ringEntries
  r <- c_open (fromIntegral depth) (fromIntegral cap) (maybe 0 fromIntegral entries) out
  if r < 0 then pure (Left (negate r)) else Right <$> peek out

foreign import ccall safe "weft_file_ring_open" c_open :: Word32 -> CInt -> Word32 -> Ptr (Ptr CRing) -> IO CInt

-- | Cancel all requests, wait until they have completed, and end the owner. Their completions may still be collected.
foreign import ccall safe "weft_file_ring_stop" stopRing :: Ptr CRing -> IO ()

-- | Give its memory back; after 'stopRing', or in a forked child.
foreign import ccall unsafe "weft_file_ring_free" freeRing :: Ptr CRing -> IO ()

-- | The generation of the next request in a slot.
foreign import ccall unsafe "weft_file_ring_generation" ringGeneration :: Ptr CRing -> Word32 -> IO Word32

-- | Submit a request in a slot that the caller has taken.
submitRing :: Ptr CRing -> Word32 -> Op -> IO ()
submitRing ring slot (Op code fd off addr len flags) = c_submit ring slot code fd off addr len flags
{-# INLINE submitRing #-}

foreign import ccall unsafe "weft_file_ring_submit"
  c_submit :: Ptr CRing -> Word32 -> Word8 -> CInt -> Word64 -> Word64 -> Word32 -> Word32 -> IO ()

-- | After the completions of 'collectRing' were delivered: wake the owner for requests that were
-- submitted meanwhile; until then it is not woken.
foreign import ccall unsafe "weft_file_ring_wake" wakeRing :: Ptr CRing -> IO ()

-- | Ask for the early end of the request in a slot, by its generation.
foreign import ccall unsafe "weft_file_ring_cancel" cancelRing :: Ptr CRing -> Word32 -> Word32 -> IO ()

-- | Take completions, as pairs of slot and result: at most this many into the second
-- array. The first array keeps the position in the list between calls.
foreign import ccall unsafe "weft_file_ring_collect"
  collectRing :: Ptr CRing -> Ptr Word32 -> Ptr Int32 -> CInt -> IO CInt

-- | Fill the MVar when there is a completion. If there is one already, return the pointer instead.
foreign import ccall unsafe "weft_file_ring_await"
  awaitRing :: Ptr CRing -> StablePtr PrimMVar -> IO (StablePtr PrimMVar)

-- | Read one of the counters below.
foreign import ccall unsafe "weft_file_ring_counter" ringCounter :: Ptr CRing -> CInt -> IO Word64

-- | Requests; calls of the kernel by the owner; signals to the owner; signals to
-- the reader; cancellations.
counterSubmitted, counterEntered, counterSignalled, counterRung, counterCancels :: CInt
counterSubmitted = 0
counterEntered = 1
counterSignalled = 2
counterRung = 3
counterCancels = 4
