-- |
-- The table in which hybrid threads wait for descriptors: two queues for each descriptor, one for each direction. A
-- queue says whether trying may succeed, or holds the threads that wait. So an
-- idle connection takes its thread's continuation and three words here.
--
-- There is one table in a process, in blocks of 64 descriptors that never move. A forked child makes a new
-- one from it, with the descriptors and without the threads.
--
-- A descriptor's word is a use count ("Weft.Core.UseCount"); a new owner of its number moves it from shut to open,
-- with the next generation.
--
-- @
--   queue  NotReady     an attempt got @EAGAIN@; the kernel will report the next change
--          Signalled    trying may succeed; set by the loop that polls, cleared by a thread that tries
--          Waiters      threads wait; one is taken out by the thread that resumes it
-- @
--
-- All moves are compare-and-swaps. A thread clears 'Signalled' before it tries, so no
-- report is lost between its attempt and its wait. A thread that is resumed tries again from the beginning; so no
-- report is lost if it is killed before.
module Weft.Hybrid.DescriptorTable
  ( -- * Descriptors
    Descriptor,
    descriptorFd,
    descriptorGeneration,
    openDescriptor,
    acquire,
    release,
    shut,
    Shut (..),
    isOpen,
    mayHideMore,
    markPiecemeal,
    isPiecemeal,

    -- * Their loops
    readOwner,
    loopOf,
    casOwner,

    -- * Queues
    DescriptorQueue (..),
    Direction (..),
    readQueue,
    casQueue,
    wakeQueue,
    wakeHere,
    leaveQueue,
    joinQueue,

    -- * The loop that polls
    deliver,
    wakeAllQueues,
  )
where

import Control.Monad (forM, forM_, unless, void, when)
import Data.Bits
import System.Posix.Types (Fd)
import Weft.Core.Events
import Weft.Core.Manager (sameManager)
import Weft.Core.Readiness (Direction (..))
import Weft.Core.UseCount hiding (acquire, isOpen, release, shut)
import qualified Weft.Core.UseCount as UseCount
import Weft.FFI.Socket (cClose)
import Weft.Hybrid.Park
import Weft.Hybrid.Trace
import Weft.Sys

-- | An open descriptor, or one that was: its number in the low half, its generation in the
-- high one.
newtype Descriptor = Descriptor Int
  deriving (Eq)

-- | The number of a descriptor.
descriptorFd :: Descriptor -> Fd
descriptorFd (Descriptor d) = fromIntegral (d .&. 0xffffffff)
{-# INLINE descriptorFd #-}

-- | The generation of a descriptor.
descriptorGeneration :: Descriptor -> Int
descriptorGeneration (Descriptor d) = d `unsafeShiftR` 32
{-# INLINE descriptorGeneration #-}

describe :: Fd -> Int -> Descriptor
describe fd gen = Descriptor ((gen `unsafeShiftL` 32) .|. fromIntegral fd)
{-# INLINE describe #-}

instance Show Descriptor where
  show d = "<descriptor " <> show (descriptorFd d) <> ">"

-- | The queue of a direction. A thread that waits has a number, by which it is taken out
-- again (0 if it never is), and a trace that tries again.
data DescriptorQueue
  = NotReady
  | Signalled
  | Waiters !Int {-# UNPACK #-} !Waiter Trace DescriptorQueue

-- | 64 descriptors.
data Block = Block
  { blockWords :: !WordArray,
    blockQueues :: !(BoxedArray DescriptorQueue),
    blockOwners :: !(BoxedArray Owner)
  }

-- The table ---------------------------------------------------------------------------

-- | The table of one process image: its 'forkGeneration', a lock, and the blocks, by the upper bits of the
-- descriptor.
data Table = Table !Int !(MVar ()) !(BoxedArray (Maybe Block))

-- | Any thread reads it. It is replaced under the lock by one with a larger array; blocks are put in under the
-- lock. In a forked child the first thread that needs it replaces it by compare-and-swap ('inherit').
table :: Ref Table
table = globalRef "Weft.Hybrid.DescriptorTable.table" (Table <$> forkGeneration <*> newMVar () <*> newBoxedArray 16 Nothing)
{-# NOINLINE table #-}

currentTable :: IO Table
currentTable = do
  t@(Table made _ _) <- readRef table
  generation <- forkGeneration
  if made == generation then pure t else inherit generation >> currentTable
{-# INLINE currentTable #-}

-- | In a forked child: the parent's descriptors, which are open here too, without the parent's threads. Those
-- do not run here; what was shut while one of them was inside is closed now.
inherit :: Int -> IO ()
inherit generation = do
  old <- readRef table
  let Table _ _ blocks = old
  blocks' <- newBoxedArray (sizeBoxedArray blocks) Nothing
  doomed <- forM [0 .. sizeBoxedArray blocks - 1] $ \i -> do
    found <- readBoxedArray blocks i
    case found of
      Nothing -> pure []
      Just b -> do
        b' <- emptyBlock
        writeBoxedArray blocks' i (Just b')
        concat <$> forM [0 .. blockSize - 1] (\j -> copy b b' j (i * blockSize + j))
  lock <- newMVar ()
  let !new = Table generation lock blocks'
  ours <- casRef table old new
  when ours (mapM_ cClose (concat doomed))
  where
    copy b b' j fd = do
      w <- readWord (blockWords b) j
      let (w', left) = inheritedWord w
      writeWord (blockWords b') j w'
      mapM_ (\k -> writeBoxedArray (blockQueues b') k Signalled) [2 * j, 2 * j + 1]
      pure [fromIntegral fd | left]
{-# NOINLINE inherit #-}

blockBits, blockSize :: Int
blockBits = 6
blockSize = 64

blockOf :: Descriptor -> IO Block
blockOf d = do
  Table _ _ blocks <- currentTable
  let i = fromIntegral (descriptorFd d) `unsafeShiftR` blockBits
  found <- if i < sizeBoxedArray blocks then readBoxedArray blocks i else pure Nothing
  maybe (newBlock i) pure found
{-# INLINE blockOf #-}

newBlock :: Int -> IO Block
newBlock i = do
  Table generation lock _ <- currentTable
  withMVar lock $ \() -> do
    Table _ _ blocks <- readRef table
    when (i >= sizeBoxedArray blocks) $ do
      bigger <- newBoxedArray (max (i + 1) (2 * sizeBoxedArray blocks)) Nothing
      copyBoxedArray blocks bigger
      writeRef table $! Table generation lock bigger
    Table _ _ blocks' <- readRef table
    found <- readBoxedArray blocks' i
    case found of
      Just b -> pure b
      Nothing -> do
        b <- emptyBlock
        b <$ writeBoxedArray blocks' i (Just b)

emptyBlock :: IO Block
emptyBlock = do
  b <- Block <$> newWordArray blockSize <*> newBoxedArray (2 * blockSize) NotReady <*> newBoxedArray blockSize Nobody
  b <$ forM_ [0 .. blockSize - 1] (\j -> pokeWord (blockWords b) j shutWord)

slotOf :: Descriptor -> Int
slotOf d = fromIntegral (descriptorFd d) .&. (blockSize - 1)
{-# INLINE slotOf #-}

-- Words -------------------------------------------------------------------------------

-- | The flag of 'mayHideMore'.
flagHides :: Int
flagHides = ownerFlag 0

-- | The flag of 'isPiecemeal'.
flagPiecemeal :: Int
flagPiecemeal = ownerFlag 1

useCount :: Block -> Descriptor -> UseCount
useCount b d = UseCount (blockWords b) (slotOf d) (descriptorGeneration d)
{-# INLINE useCount #-}

-- | Take ownership of a descriptor that the kernel has just given to the caller. 'True' if a read or
-- a write of less than was asked for means that nothing is left, as with TCP streams.
openDescriptor :: Bool -> Fd -> IO Descriptor
openDescriptor stream fd = do
  b <- blockOf d0
  w <- readWord (blockWords b) i
  let gen = (wordGeneration w + 1) .&. 0x3fffffff
  writeBoxedArray (blockOwners b) i Nobody
  mapM_ (ajar b) [2 * i, 2 * i + 1]
  writeWord (blockWords b) i (openWord gen (if stream then 0 else flagHides))
  pure (describe fd gen)
  where
    d0 = describe fd 0
    i = slotOf d0
    -- A thread that waited for the number's earlier owner may still be in the queue, about to notice that it was
    -- closed. It is left there; it makes all threads try again.
    ajar b j = do
      queue <- readBoxedArray (blockQueues b) j
      case queue of
        NotReady -> casBoxedArray (blockQueues b) j queue Signalled >>= \ok -> unless ok (ajar b j)
        _ -> pure ()

-- | To be called before a system call with it. 'False' if it is shut.
acquire :: Descriptor -> IO Bool
acquire d = blockOf d >>= \b -> UseCount.acquire (useCount b d)
{-# INLINE acquire #-}

-- | To be called after the system call. 'True' if it was shut meanwhile and the caller was the last user: it has to
-- close the number.
release :: Descriptor -> IO Bool
release d = blockOf d >>= \b -> UseCount.release (useCount b d)
{-# INLINE release #-}

-- | Forbid further use.
shut :: Descriptor -> IO Shut
shut d = blockOf d >>= \b -> UseCount.shut (useCount b d)

-- | Whether it has not been closed.
isOpen :: Descriptor -> IO Bool
isOpen d = blockOf d >>= \b -> UseCount.isOpen (useCount b d)

-- | Whether a short read does not mean that nothing is left, because the kernel has reported
-- the end of the stream, an error, or urgent data.
mayHideMore :: Descriptor -> IO Bool
mayHideMore d = do
  b <- blockOf d
  hasFlags (useCount b d) flagHides
{-# INLINE mayHideMore #-}

-- | Note that a read of less than was asked for does not mean that nothing is left, although the kernel has reported
-- nothing: a terminal gives one line at a time.
markPiecemeal :: Descriptor -> IO ()
markPiecemeal d = blockOf d >>= \b -> void (setFlags (useCount b d) flagPiecemeal)

-- | Whether 'markPiecemeal' was called.
isPiecemeal :: Descriptor -> IO Bool
isPiecemeal d = blockOf d >>= \b -> hasFlags (useCount b d) flagPiecemeal

-- Owners ------------------------------------------------------------------------------

-- | The loop whose manager reports its events.
readOwner :: Descriptor -> IO Owner
readOwner d = blockOf d >>= \b -> readBoxedArray (blockOwners b) (slotOf d)
{-# INLINE readOwner #-}

-- | The owner's loop, or the one that is going to be the owner.
loopOf :: Owner -> Maybe Loop
loopOf Nobody = Nothing
loopOf (Owner l) = Just l
loopOf (Moving l) = Just l

-- | Change the owner, if it is still what 'readOwner' returned.
casOwner :: Descriptor -> Owner -> Owner -> IO Bool
casOwner d !old !new = blockOf d >>= \b -> casBoxedArray (blockOwners b) (slotOf d) old new

-- Queues ------------------------------------------------------------------------------

queueIndex :: Descriptor -> Direction -> Int
queueIndex d Reading = 2 * slotOf d
queueIndex d Writing = 2 * slotOf d + 1
{-# INLINE queueIndex #-}

-- | The queue of a direction.
readQueue :: Descriptor -> Direction -> IO DescriptorQueue
readQueue d dir = blockOf d >>= \b -> readBoxedArray (blockQueues b) (queueIndex d dir)
{-# INLINE readQueue #-}

-- | Change the queue, if it is still what 'readQueue' returned. Both have to be evaluated.
casQueue :: Descriptor -> Direction -> DescriptorQueue -> DescriptorQueue -> IO Bool
casQueue d dir old new = blockOf d >>= \b -> casBoxedArray (blockQueues b) (queueIndex d dir) old new
{-# INLINE casQueue #-}

-- | Mark a direction as signalled, and resume all threads that wait for it, in order: those of the loop's scheduler in
-- the given place of the loop, others on their own scheduler's loops. (Usually that is one. A thread that finds nothing
-- left waits again.)
wakeQueue :: Loop -> (Loop -> Place) -> Descriptor -> Direction -> IO ()
wakeQueue l place d dir = go
  where
    go = do
      queue <- readQueue d dir
      case queue of
        Signalled -> pure ()
        _ -> do
          ok <- casQueue d dir queue Signalled
          if ok then each queue else go
    each (Waiters _ w t rest) = do
      home <- homePlace l (place l) w
      resume home w (\() -> t)
      each rest
    each _ = pure ()
{-# INLINE wakeQueue #-}

-- | 'wakeQueue' on the loop of the calling thread. (Not inlined: it is large, and what is called often finds the
-- direction signalled.)
wakeHere :: Loop -> Descriptor -> Direction -> IO ()
wakeHere l = wakeQueue l onLoop
{-# NOINLINE wakeHere #-}

-- | Put a thread at the end of a queue. 'False' if the queue is signalled.
joinQueue :: Descriptor -> Direction -> Int -> Trace -> Waiter -> IO Bool
joinQueue d dir n t w = go
  where
    go = do
      queue <- readQueue d dir
      case queue of
        Signalled -> pure False
        _ -> do
          let !queue' = append queue
          casQueue d dir queue queue' >>= \ok -> if ok then pure True else go
    append (Waiters m v u rest) = let !rest' = append rest in Waiters m v u rest'
    append _ = Waiters n w t NotReady

-- | Take the thread with that number out of a queue. 'False' if it is not there.
leaveQueue :: Descriptor -> Direction -> Int -> IO Bool
leaveQueue d dir n = do
  queue <- readQueue d dir
  case without' queue of
    Nothing -> pure False
    Just !queue' -> casQueue d dir queue queue' >>= \ok -> if ok then pure True else leaveQueue d dir n
  where
    without' (Waiters m w t rest)
      | m == n = Just rest
      | otherwise = (\ !rest' -> Waiters m w t rest') <$> without' rest
    without' _ = Nothing

-- The loop that polls -------------------------------------------------------------------

-- | Handle events that the kernel has reported. For 'Weft.Core.Manager.setExternalHandler'.
deliver :: Loop -> Token -> Events -> IO ()
deliver l tok evs = do
  b <- blockOf d
  w <- readWord (blockWords b) (slotOf d)
  when (wordGeneration w == descriptorGeneration d) $ do
    when (hides && w .&. flagHides == 0) (void (setFlags (useCount b d) flagHides))
    when (evs `overlaps` evtRead) (wakeHere l d Reading)
    when (evs `overlaps` evtWrite) (wakeHere l d Writing)
  where
    d = describe (tokenFd tok) (tokenGeneration tok)
    hides = evs `overlaps` (evtPeerClosed <> evtHangup <> evtUrgent)

-- | For the end of a loop: make all threads try again that wait for descriptors which the loop owns, or for which a
-- thread of its scheduler waits. Threads of other schedulers go on there. O(descriptors).
wakeAllQueues :: Loop -> IO ()
wakeAllQueues l = do
  Table _ _ blocks <- currentTable
  forM_ [0 .. sizeBoxedArray blocks - 1] $ \i -> readBoxedArray blocks i >>= mapM_ (each i)
  where
    each i b = forM_ [0 .. blockSize - 1] $ \j -> do
      owner <- readBoxedArray (blockOwners b) j
      w <- readWord (blockWords b) j
      waiting <- mapM (readBoxedArray (blockQueues b)) [2 * j, 2 * j + 1]
      let d = describe (fromIntegral (i * blockSize + j)) (wordGeneration w)
          owned = any ((`sameManager` loopManager l) . loopManager) (loopOf owner)
      when (owned || any (hasWaiterOf l) waiting) (mapM_ (wakeHere l d) [Reading, Writing])
    hasWaiterOf l' queue = case queue of
      Waiters _ w _ rest -> isHome l' w || hasWaiterOf l' rest
      _ -> False
