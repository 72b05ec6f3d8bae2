{-# LANGUAGE BangPatterns #-}
{-# LANGUAGE MagicHash #-}
{-# LANGUAGE RankNTypes #-}
{-# LANGUAGE UnboxedTuples #-}

-- |
-- The one door between the core and everything outside it: shared memory,
-- threads, exceptions, capabilities and the clock. The core imports nothing
-- else that has an effect, so the same source also runs on a simulated machine:
-- a module of this name in another source directory (see @weft/sim@).
--
-- This is the real machine. Every operation may be called from any thread.
-- Accesses to 'Cells' and the read-modify-write operations on a 'Ref' are
-- sequentially consistent; plain 'readRef' and 'writeRef' are ordered as GHC
-- orders 'Data.IORef.readIORef' and 'Data.IORef.writeIORef'.
module Weft.Sys
  ( -- * References
    Ref,
    newRef,
    readRef,
    writeRef,
    swapRef,
    casRef,
    updateRef,
    whenGarbage,
    touchRef,

    -- * Cells: unboxed words shared between threads
    Cells,
    newCells,
    readCell,
    writeCell,
    addCell,
    swapCell,
    casCell,
    peekCell,
    bumpCell,
    pokeCell,

    -- * Arrays of boxed values
    Slots,
    newSlots,
    sizeSlots,
    readSlot,
    writeSlot,
    casSlot,
    copySlots,

    -- * Arrays without cards
    Chunk,
    newChunk,
    readChunk,
    writeChunk,
    copyChunk,
    closeChunk,
    reopenChunk,

    -- * Arrays of arrays
    Arrays,
    newArrays,
    chunkAt,
    putChunkAt,
    cellsAt,
    putCellsAt,
    slotsAt,
    putSlotsAt,

    -- * MVars
    MVar,
    newEmptyMVar,
    newMVar,
    takeMVar,
    putMVar,
    readMVar,
    tryTakeMVar,
    tryPutMVar,
    modifyMVar,
    modifyMVar_,
    withMVar,

    -- * Threads, exceptions, capabilities
    ThreadId,
    forkPinned,
    myThreadId,
    myCapability,
    getNumCapabilities,
    yield,
    sameThread,
    hasEnded,
    forkGeneration,

    -- * Exceptions
    mask_,
    uninterruptibleMask_,
    onException,
    finally,
    guarded,
    attempt,

    -- * Clock
    now,
  )
where

import Control.Concurrent
  ( ThreadId,
    forkOnWithUnmask,
    getNumCapabilities,
    myThreadId,
    yield,
  )
import Control.Concurrent.MVar
import Control.Exception (SomeException, catch, finally, mask_, onException, throwIO, try, uninterruptibleMask_)
import Data.Int (Int64)
import Data.Word (Word32)
import Foreign.Storable (peek)
import GHC.Clock (getMonotonicTimeNSec)
import GHC.Conc (ThreadStatus (..), getUncaughtExceptionHandler, labelThread, threadStatus)
import GHC.Exts
import GHC.IO (IO (..))
import Weft.Core.Time (Instant (..))

-- References ---------------------------------------------------------------

-- | A mutable boxed reference.
data Ref a = Ref (MutVar# RealWorld a)

-- | Same reference, not same contents.
instance Eq (Ref a) where
  Ref a == Ref b = isTrue# (sameMutVar# a b)

-- | A reference that holds the value.
newRef :: a -> IO (Ref a)
newRef a = IO $ \s -> case newMutVar# a s of (# s', r #) -> (# s', Ref r #)
{-# INLINE newRef #-}

-- | What it holds.
readRef :: Ref a -> IO a
readRef (Ref r) = IO (readMutVar# r)
{-# INLINE readRef #-}

-- | Replace what it holds.
writeRef :: Ref a -> a -> IO ()
writeRef (Ref r) a = IO $ \s -> (# writeMutVar# r a s, () #)
{-# INLINE writeRef #-}

-- | Replace, and return what was there, in one step.
swapRef :: Ref a -> a -> IO a
swapRef (Ref r) new = IO loop
  where
    loop s = case readMutVar# r s of
      (# s1, old #) -> case casMutVar# r old new s1 of
        (# s2, 0#, _ #) -> (# s2, old #)
        (# s2, _, _ #) -> loop s2
{-# INLINE swapRef #-}

-- | @casRef r old new@ replaces @old@, as a pointer that 'readRef' returned and
-- nobody has evaluated since, by @new@; 'False' when something else was there.
casRef :: Ref a -> a -> a -> IO Bool
casRef (Ref r) old new = IO $ \s -> case casMutVar# r old new s of
  (# s', failed, _ #) -> (# s', isTrue# (failed ==# 0#) #)
{-# INLINE casRef #-}

-- | Apply a function that only builds a constructor around the old value
-- without looking at it. It may run several times and leaves no thunk behind,
-- so nobody can block on a black hole (2010, 8.2). Returns the old value.
updateRef :: Ref a -> (a -> a) -> IO a
updateRef (Ref r) f = IO loop
  where
    loop s = case readMutVar# r s of
      (# s1, old #) ->
        let !new = f old
         in case casMutVar# r old new s1 of
              (# s2, 0#, _ #) -> (# s2, old #)
              (# s2, _, _ #) -> loop s2
{-# INLINE updateRef #-}

-- | Run an action once the reference is garbage. What the action refers to, which may
-- be the reference itself, is alive then.
whenGarbage :: Ref a -> IO () -> IO ()
whenGarbage (Ref r) (IO act) = IO $ \s -> case mkWeak# r () act s of
  (# s', _ #) -> (# s', () #)

-- | The reference is alive up to here.
touchRef :: Ref a -> IO ()
touchRef (Ref r) = IO $ \s -> (# touch# r s, () #)
{-# INLINE touchRef #-}

-- Cells ----------------------------------------------------------------------

-- | A fixed number of machine words, each shared and atomic.
data Cells = Cells (MutableByteArray# RealWorld)

-- | So many cells, all zero.
newCells :: Int -> IO Cells
newCells (I# n) = IO $ \s -> case newByteArray# bytes s of
  (# s1, a #) -> case setByteArray# a 0# bytes 0# s1 of
    s2 -> (# s2, Cells a #)
  where
    !bytes = n *# 8#

-- | Atomic read.
readCell :: Cells -> Int -> IO Int
readCell (Cells a) (I# i) = IO $ \s -> case atomicReadIntArray# a i s of
  (# s', x #) -> (# s', I# x #)
{-# INLINE readCell #-}

-- | Atomic write.
writeCell :: Cells -> Int -> Int -> IO ()
writeCell (Cells a) (I# i) (I# x) = IO $ \s -> (# atomicWriteIntArray# a i x s, () #)
{-# INLINE writeCell #-}

-- | Add and return what was there before.
addCell :: Cells -> Int -> Int -> IO Int
addCell (Cells a) (I# i) (I# x) = IO $ \s -> case fetchAddIntArray# a i x s of
  (# s', old #) -> (# s', I# old #)
{-# INLINE addCell #-}

-- | @casCell c i old new@ replaces @old@ by @new@ and returns what it found:
-- @old@ exactly when it succeeded.
casCell :: Cells -> Int -> Int -> Int -> IO Int
casCell (Cells a) (I# i) (I# old) (I# new) = IO $ \s -> case casIntArray# a i old new s of
  (# s', found #) -> (# s', I# found #)
{-# INLINE casCell #-}

-- | Replace and return what was there, in one step.
swapCell :: Cells -> Int -> Int -> IO Int
swapCell c i new = go =<< readCell c i
  where
    go old = do
      found <- casCell c i old new
      if found == old then pure old else go found
{-# INLINE swapCell #-}

-- | A plain read, for statistics: the value may be slightly old.
peekCell :: Cells -> Int -> IO Int
peekCell (Cells a) (I# i) = IO $ \s -> case readIntArray# a i s of
  (# s', x #) -> (# s', I# x #)
{-# INLINE peekCell #-}

-- | A plain add, for a cell with a single writer.
bumpCell :: Cells -> Int -> Int -> IO ()
bumpCell (Cells a) (I# i) (I# x) = IO $ \s -> case readIntArray# a i s of
  (# s', old #) -> (# writeIntArray# a i (old +# x) s', () #)
{-# INLINE bumpCell #-}

-- | A plain write, for a cell with a single user.
pokeCell :: Cells -> Int -> Int -> IO ()
pokeCell (Cells a) (I# i) (I# x) = IO $ \s -> (# writeIntArray# a i x s, () #)
{-# INLINE pokeCell #-}

-- Arrays ---------------------------------------------------------------------

-- | A mutable array of boxed values.
data Slots a = Slots (MutableArray# RealWorld a)

-- | An array of that size, filled with one value.
newSlots :: Int -> a -> IO (Slots a)
newSlots (I# n) a = IO $ \s -> case newArray# n a s of
  (# s', arr #) -> (# s', Slots arr #)

-- | How many slots.
sizeSlots :: Slots a -> Int
sizeSlots (Slots a) = I# (sizeofMutableArray# a)
{-# INLINE sizeSlots #-}

-- | Read a slot; the index is the caller's care.
readSlot :: Slots a -> Int -> IO a
readSlot (Slots a) (I# i) = IO (readArray# a i)
{-# INLINE readSlot #-}

-- | Write a slot; the index is the caller's care.
writeSlot :: Slots a -> Int -> a -> IO ()
writeSlot (Slots a) (I# i) x = IO $ \s -> (# writeArray# a i x s, () #)
{-# INLINE writeSlot #-}

-- | As 'casRef', on a slot.
casSlot :: Slots a -> Int -> a -> a -> IO Bool
casSlot (Slots a) (I# i) old new = IO $ \s -> case casArray# a i old new s of
  (# s', failed, _ #) -> (# s', isTrue# (failed ==# 0#) #)
{-# INLINE casSlot #-}

-- | Copy all of the first array to the beginning of the second.
copySlots :: Slots a -> Slots a -> IO ()
copySlots (Slots from) (Slots to) = IO $ \s ->
  (# copyMutableArray# from 0# to 0# (sizeofMutableArray# from) s, () #)

-- | A mutable array of boxed values without cards: a write is seven instructions shorter than
-- 'writeSlot', and a minor collection looks through all of it, unless it is closed.
data Chunk a = Chunk (SmallMutableArray# RealWorld a)

-- | One of that size, filled with one value, and open.
newChunk :: Int -> a -> IO (Chunk a)
newChunk (I# n) a = IO $ \s -> case newSmallArray# n a s of (# s', arr #) -> (# s', Chunk arr #)

-- | Read a place; the index is the caller's care.
readChunk :: Chunk a -> Int -> IO a
readChunk (Chunk a) (I# i) = IO (readSmallArray# a i)
{-# INLINE readChunk #-}

-- | Write a place of an open one; the index is the caller's care.
writeChunk :: Chunk a -> Int -> a -> IO ()
writeChunk (Chunk a) (I# i) x = IO $ \s -> (# writeSmallArray# a i x s, () #)
{-# INLINE writeChunk #-}

-- | @copyChunk from to i n@ copies so many places to the same ones of an open chunk; the range is the
-- caller's care.
copyChunk :: Chunk a -> Chunk a -> Int -> Int -> IO ()
copyChunk (Chunk from) (Chunk to) (I# i) (I# n) = IO $ \s ->
  (# copySmallMutableArray# from i to i n s, () #)

-- | It will only be read. Once what it refers to is as old as the chunk, minor collections pass it over.
closeChunk :: Chunk a -> IO ()
closeChunk (Chunk a) = IO $ \s -> case unsafeFreezeSmallArray# a s of (# s', _ #) -> (# s', () #)

-- | It may be written again.
reopenChunk :: Chunk a -> IO ()
reopenChunk (Chunk a) = IO $ \s -> case unsafeThawSmallArray# (unsafeCoerce# a) s of (# s', _ #) -> (# s', () #)

-- | A fixed number of references to 'Chunk', 'Cells' and 'Slots', behind one pointer. To read one, nothing
-- is evaluated. What is at which index, and of what type, is the caller's care.
data Arrays = Arrays (MutableArrayArray# RealWorld)

-- | So many references. Each is to be written before it is read.
newArrays :: Int -> IO Arrays
newArrays (I# n) = IO $ \s -> case newArrayArray# n s of (# s', r #) -> (# s', Arrays r #)

-- | The chunk at that index. (There is no operation for arrays of this kind; to the machine they are
-- pointers like any other.)
chunkAt :: Arrays -> Int -> IO (Chunk a)
chunkAt (Arrays r) (I# i) = IO $ \s -> case readMutableByteArrayArray# r i s of
  (# s', a #) -> (# s', Chunk (unsafeCoerce# a) #)
{-# INLINE chunkAt #-}

-- | Replace it.
putChunkAt :: Arrays -> Int -> Chunk a -> IO ()
putChunkAt (Arrays r) (I# i) (Chunk a) = IO $ \s -> (# writeMutableByteArrayArray# r i (unsafeCoerce# a) s, () #)

-- | The cells at that index.
cellsAt :: Arrays -> Int -> IO Cells
cellsAt (Arrays r) (I# i) = IO $ \s -> case readMutableByteArrayArray# r i s of
  (# s', a #) -> (# s', Cells a #)
{-# INLINE cellsAt #-}

-- | Replace them.
putCellsAt :: Arrays -> Int -> Cells -> IO ()
putCellsAt (Arrays r) (I# i) (Cells a) = IO $ \s -> (# writeMutableByteArrayArray# r i a s, () #)

-- | The array of boxed values at that index.
slotsAt :: Arrays -> Int -> IO (Slots a)
slotsAt (Arrays r) (I# i) = IO $ \s -> case readMutableByteArrayArray# r i s of
  (# s', a #) -> (# s', Slots (unsafeCoerce# a) #)

-- | Replace it.
putSlotsAt :: Arrays -> Int -> Slots a -> IO ()
putSlotsAt (Arrays r) (I# i) (Slots a) = IO $ \s -> (# writeMutableByteArrayArray# r i (unsafeCoerce# a) s, () #)

-- Threads --------------------------------------------------------------------

-- | Start a labelled thread that stays on the capability, with asynchronous
-- exceptions masked; it is given the way to unmask them.
forkPinned :: Int -> String -> ((forall a. IO a -> IO a) -> IO ()) -> IO ThreadId
forkPinned cap label body = do
  t <- mask_ (forkOnWithUnmask cap body)
  labelThread t label
  pure t

-- | The capability that runs the caller at this moment.
myCapability :: IO Int
myCapability = IO $ \s -> case myThreadId# s of
  (# s1, t #) -> case threadStatus# t s1 of
    (# s2, _, cap, _ #) -> (# s2, I# cap #)
{-# INLINE myCapability #-}

-- | How often this process image has been forked since it was started: it
-- differs between a parent and the child that 'System.Posix.forkProcess' made,
-- and costs one memory read.
forkGeneration :: IO Int
forkGeneration = fromIntegral <$> peek c_fork_generation

foreign import ccall unsafe "&weft_fork_generation" c_fork_generation :: Ptr Word32

-- | Is the caller the thread?
sameThread :: ThreadId -> IO Bool
sameThread t = (== t) <$> myThreadId

-- | Has the thread come to its end?
hasEnded :: ThreadId -> IO Bool
hasEnded t = (`elem` [ThreadFinished, ThreadDied]) <$> threadStatus t

-- | Run somebody else's callback: what it throws goes to the program's handler
-- for uncaught exceptions and stops nothing here.
guarded :: IO () -> IO ()
guarded act = act `catch` report
  where
    report :: SomeException -> IO ()
    report e = getUncaughtExceptionHandler >>= ($ e)
{-# INLINE guarded #-}

-- | Run an action now; the result, or the exception, comes out of the action
-- returned.
attempt :: IO a -> IO (IO a)
attempt act = either rethrow pure <$> try act
  where
    rethrow :: SomeException -> IO a
    rethrow = throwIO

-- Clock ----------------------------------------------------------------------

-- | The monotonic clock. It never goes back and ignores changes of the date.
now :: IO Instant
now = Instant . (fromIntegral :: (Integral a) => a -> Int64) <$> getMonotonicTimeNSec
{-# INLINE now #-}
