-- | io_uring(7) of the simulated machine ("Kernel"), under the names of the real module. (The suffix is that of the
-- real one, which Cabal would take otherwise.) A pointer to a ring is the ring's descriptor.
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

import Control.Monad (void, zipWithM_)
import Data.Bits ((.|.))
import Data.Int (Int32, Int64)
import Data.Word (Word32, Word64)
import Foreign.C.Types (CInt, CUInt)
import Foreign.Ptr (Ptr, minusPtr, nullPtr, plusPtr)
import Foreign.Storable (peekByteOff, pokeByteOff)
import Kernel
import KernelRing (Submission (..))
import qualified KernelRing
import Simulation (giveWay, point)

data Uring

number :: Ptr Uring -> Int
number u = u `minusPtr` nullPtr

-- | Open a ring. The sizes of both queues are rounded up to a power of two.
openUring :: CUInt -> CUInt -> IO (Either CInt (Ptr Uring))
openUring entries completions = Right . (nullPtr `plusPtr`) <$> newUring (powerOf entries) (powerOf completions)
  where
    powerOf n = head' [p | p <- iterate (* 2) 1, p >= fromIntegral n]
    head' = foldr const 0

closeUring :: Ptr Uring -> IO ()
closeUring = void . closeNumber . number

isForked :: Ptr Uring -> IO CInt
isForked _ = pure 0

uringDescriptor :: Ptr Uring -> IO CInt
uringDescriptor = pure . fromIntegral . number

queueWatch :: Ptr Uring -> CInt -> Word32 -> CInt -> Word64 -> IO CInt
queueWatch u fd bits stays name =
  fromIntegral <$> uringQueue (number u) (Watch (fromIntegral fd) bits (stays /= 0) (fromIntegral name))

queueCancel :: Ptr Uring -> Word64 -> IO CInt
queueCancel u name = fromIntegral <$> uringQueue (number u) (Cancel (fromIntegral name))

cancelNow :: Ptr Uring -> Word64 -> CInt -> IO CInt
cancelNow u name _ = fromIntegral <$> uringCancelNow (number u) (fromIntegral name)

pauseUring :: IO ()
pauseUring = giveWay

-- | Submit the queued entries. As in the real module, there is no system call if nothing is queued.
submitUring :: Ptr Uring -> IO CInt
submitUring u = do
  (queued, _, _, _) <- uringHas (number u)
  if queued then fromIntegral <$> uringEnter (number u) False else pure 0

lookUring :: Ptr Uring -> IO CInt
lookUring u = do
  s <- uringState u
  if s `elem` [0, completedOnly] then pure s else fromIntegral <$> uringEnter (number u) True

waitUring :: Ptr Uring -> Int64 -> IO CInt
waitUring u ns = do
  s <- uringState u
  if s == completedOnly then pure s else fromIntegral <$> uringWait (number u) ns

uringState :: Ptr Uring -> IO CInt
uringState u = do
  (queued, held, done, news) <- uringHas (number u)
  pure (flag queued stateQueued .|. flag held stateOverflown .|. flag done completedOnly .|. flag news 8)
  where
    flag b f = if b then f else 0

stateQueued, stateOverflown, completedOnly :: CInt
stateQueued = 1
stateOverflown = 2
completedOnly = 4

-- | The model kernel loses no completions.
errnoDropped :: CInt
errnoDropped = 53

data Completion

completionSize :: Int
completionSize = 16

reapUring :: Ptr Uring -> Ptr Completion -> CInt -> IO CInt
reapUring u p n = do
  taken <- uringReap (number u) (fromIntegral n)
  zipWithM_ store [0 ..] taken
  pure (fromIntegral (length taken))
  where
    store i (KernelRing.Completion name result more) = do
      pokeByteOff p (i * completionSize) (fromIntegral name :: Word64)
      pokeByteOff p (i * completionSize + 8) (fromIntegral result :: Int32)
      pokeByteOff p (i * completionSize + 12) (if more then 1 else 0 :: Word32)

peekUserData :: Ptr Completion -> Int -> IO Word64
peekUserData p i = peekByteOff p (i * completionSize)

peekResult :: Ptr Completion -> Int -> IO Int32
peekResult p i = peekByteOff p (i * completionSize + 8)

peekMore :: Ptr Completion -> Int -> IO Bool
peekMore p i = (/= (0 :: Word32)) <$> peekByteOff p (i * completionSize + 12)

resultCancelled, resultBadFd :: Int32
resultCancelled = -125
resultBadFd = -9

isOpen :: CInt -> IO CInt
isOpen fd = do
  point
  open <- isOpenNumber (fromIntegral fd)
  pure (if open then 0 else -9)

presentEvents :: CInt -> Word32 -> IO Word32
presentEvents fd = presentBits (fromIntegral fd)

pollBand :: Word32
pollBand = 0x80
