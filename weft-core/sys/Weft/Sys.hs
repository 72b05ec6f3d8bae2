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
-- This is the real machine. Every operation may be called from any thread. The constructors are for other operations on the same
-- memory, outside of the core: the simulated machine has none of them.
-- Accesses to 'AtomicWords' and the read-modify-write operations on a 'Ref' are
-- sequentially consistent; plain 'readRef' and 'writeRef' are ordered as GHC
-- orders 'Data.IORef.readIORef' and 'Data.IORef.writeIORef'.
module Weft.Sys
  ( -- * References
    Ref (..),
    newRef,
    globalRef,
    readRef,
    writeRef,
    swapRef,
    casRef,
    updateRef,

    -- * AtomicWords: unboxed words shared between threads
    AtomicWords (..),
    newAtomicWords,
    globalWords,
    readWord,
    writeWord,
    addWord,
    swapWord,
    casWord,
    peekWord,
    bumpWord,
    pokeWord,

    -- * Arrays of boxed values
    BoxedArray (..),
    newBoxedArray,
    sizeBoxedArray,
    readBoxedArray,
    writeBoxedArray,
    casBoxedArray,
    copyBoxedArray,

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
    threadDelay,
    sameThread,
    hasEnded,
    forkGeneration,

    -- * Exceptions
    mask_,
    uninterruptibleMask_,
    onException,
    finally,
    guarded,
    interruptible,
    interruptiblyMasked,
    attempt,

    -- * Clock
    now,

    -- * The event log
    userEventsLogged,
    traceUserEvent,
  )
where

import Control.Concurrent
  ( ThreadId,
    forkIOWithUnmask,
    forkOnWithUnmask,
    getNumCapabilities,
    myThreadId,
    threadDelay,
    yield,
  )
import Control.Concurrent.MVar
import Control.Exception
import Control.Monad (unless)
import Data.Int (Int64)
import Data.Word (Word32)
import Foreign.C.String (withCString)
import Foreign.Storable (peek)
import GHC.Clock (getMonotonicTimeNSec)
import GHC.Conc (BlockReason (..), ThreadStatus (..), getUncaughtExceptionHandler, labelThread, threadStatus)
import GHC.Exts
import GHC.IO (IO (..))
import GHC.RTS.Flags (DoTrace (..), TraceFlags (..), getTraceFlags)
import System.IO.Unsafe (unsafePerformIO)
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

-- | A reference of the whole process, made when it is first used, with what the action returns. For definitions at top level, which must
-- be @NOINLINE@. The name is the definition's, with its module's, and tells it from all others: the simulated machine gives
-- each run a reference of its own.
globalRef :: String -> IO a -> Ref a
globalRef _ make = unsafePerformIO (make >>= newRef)
{-# NOINLINE globalRef #-}

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

-- AtomicWords ----------------------------------------------------------------------

-- | A fixed number of machine words, each shared and atomic.
data AtomicWords = AtomicWords (MutableByteArray# RealWorld)

-- | So many words, all zero.
newAtomicWords :: Int -> IO AtomicWords
newAtomicWords (I# n) = IO $ \s -> case newByteArray# bytes s of
  (# s1, a #) -> case setByteArray# a 0# bytes 0# s1 of
    s2 -> (# s2, AtomicWords a #)
  where
    !bytes = n *# 8#

-- | Words of the whole process, as with 'globalRef'.
globalWords :: String -> Int -> AtomicWords
globalWords _ n = unsafePerformIO (newAtomicWords n)
{-# NOINLINE globalWords #-}

-- | Atomic read.
readWord :: AtomicWords -> Int -> IO Int
readWord (AtomicWords a) (I# i) = IO $ \s -> case atomicReadIntArray# a i s of
  (# s', x #) -> (# s', I# x #)
{-# INLINE readWord #-}

-- | Atomic write.
writeWord :: AtomicWords -> Int -> Int -> IO ()
writeWord (AtomicWords a) (I# i) (I# x) = IO $ \s -> (# atomicWriteIntArray# a i x s, () #)
{-# INLINE writeWord #-}

-- | Add and return what was there before.
addWord :: AtomicWords -> Int -> Int -> IO Int
addWord (AtomicWords a) (I# i) (I# x) = IO $ \s -> case fetchAddIntArray# a i x s of
  (# s', old #) -> (# s', I# old #)
{-# INLINE addWord #-}

-- | @casWord c i old new@ replaces @old@ by @new@ and returns what it found:
-- @old@ exactly when it succeeded.
casWord :: AtomicWords -> Int -> Int -> Int -> IO Int
casWord (AtomicWords a) (I# i) (I# old) (I# new) = IO $ \s -> case casIntArray# a i old new s of
  (# s', found #) -> (# s', I# found #)
{-# INLINE casWord #-}

-- | Replace and return what was there, in one step.
swapWord :: AtomicWords -> Int -> Int -> IO Int
swapWord c i new = go =<< readWord c i
  where
    go old = do
      found <- casWord c i old new
      if found == old then pure old else go found
{-# INLINE swapWord #-}

-- | A plain read, for statistics: the value may be slightly old.
peekWord :: AtomicWords -> Int -> IO Int
peekWord (AtomicWords a) (I# i) = IO $ \s -> case readIntArray# a i s of
  (# s', x #) -> (# s', I# x #)
{-# INLINE peekWord #-}

-- | A plain add, for a word with a single writer.
bumpWord :: AtomicWords -> Int -> Int -> IO ()
bumpWord (AtomicWords a) (I# i) (I# x) = IO $ \s -> case readIntArray# a i s of
  (# s', old #) -> (# writeIntArray# a i (old +# x) s', () #)
{-# INLINE bumpWord #-}

-- | A plain write, for a word with a single user.
pokeWord :: AtomicWords -> Int -> Int -> IO ()
pokeWord (AtomicWords a) (I# i) (I# x) = IO $ \s -> (# writeIntArray# a i x s, () #)
{-# INLINE pokeWord #-}

-- Arrays ---------------------------------------------------------------------

-- | A mutable array of boxed values.
data BoxedArray a = BoxedArray (MutableArray# RealWorld a)

-- | An array of that size, filled with one value.
newBoxedArray :: Int -> a -> IO (BoxedArray a)
newBoxedArray (I# n) a = IO $ \s -> case newArray# n a s of
  (# s', arr #) -> (# s', BoxedArray arr #)

-- | How many slots.
sizeBoxedArray :: BoxedArray a -> Int
sizeBoxedArray (BoxedArray a) = I# (sizeofMutableArray# a)
{-# INLINE sizeBoxedArray #-}

-- | Read a slot; the index is the caller's care.
readBoxedArray :: BoxedArray a -> Int -> IO a
readBoxedArray (BoxedArray a) (I# i) = IO (readArray# a i)
{-# INLINE readBoxedArray #-}

-- | Write a slot; the index is the caller's care.
writeBoxedArray :: BoxedArray a -> Int -> a -> IO ()
writeBoxedArray (BoxedArray a) (I# i) x = IO $ \s -> (# writeArray# a i x s, () #)
{-# INLINE writeBoxedArray #-}

-- | As 'casRef', on a slot.
casBoxedArray :: BoxedArray a -> Int -> a -> a -> IO Bool
casBoxedArray (BoxedArray a) (I# i) old new = IO $ \s -> case casArray# a i old new s of
  (# s', failed, _ #) -> (# s', isTrue# (failed ==# 0#) #)
{-# INLINE casBoxedArray #-}

-- | Copy all of the first array to the beginning of the second.
copyBoxedArray :: BoxedArray a -> BoxedArray a -> IO ()
copyBoxedArray (BoxedArray from) (BoxedArray to) = IO $ \s ->
  (# copyMutableArray# from 0# to 0# (sizeofMutableArray# from) s, () #)

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

-- | Does this program write user events into an event log (@+RTS -l@)?
userEventsLogged :: IO Bool
userEventsLogged = do
  flags <- getTraceFlags
  pure $ case tracing flags of
    TraceEventLog -> user flags
    _ -> False

-- | Write a user event. Costs little when there is no log, but building its text does.
traceUserEvent :: String -> IO ()
traceUserEvent text = withCString text $ \(Ptr p) -> IO $ \s -> (# traceEvent# p s, () #)

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
-- for uncaught exceptions and stops nothing here. An asynchronous exception
-- ('SomeAsyncException') is meant for the calling thread, not for the callback: it is
-- thrown at the thread again, and so arrives when exceptions are next let in.
guarded :: IO () -> IO ()
guarded act = act `catch` report
  where
    report :: SomeException -> IO ()
    report e = case fromException e of
      Just (SomeAsyncException _) -> throwAgain e
      Nothing -> getUncaughtExceptionHandler >>= ($ e)
{-# INLINE guarded #-}

-- | Another thread throws, and blocks until the caller takes it. When this returns the exception
-- is pending: the caller may block in the kernel next, where it would not be told.
throwAgain :: SomeException -> IO ()
throwAgain e = do
  self <- myThreadId
  t <- forkIOWithUnmask (\unmask -> unmask (throwTo self e))
  labelThread t "weft exception put off"
  let untilPending = do
        status <- threadStatus t
        unless (status `elem` [ThreadBlocked BlockedOnException, ThreadFinished, ThreadDied]) (yield >> untilPending)
  untilPending
  -- A thrower on another capability has sent a message, which this one reads when it next schedules.
  yield
{-# NOINLINE throwAgain #-}

-- | Run an action masked, but interruptible where it blocks, also where the caller cannot
-- be interrupted at all.
interruptiblyMasked :: IO a -> IO a
interruptiblyMasked act@(IO io) = do
  state <- getMaskingState
  if state == MaskedUninterruptible then IO (maskAsyncExceptions# io) else act

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
