{-# LANGUAGE BangPatterns #-}
{-# LANGUAGE CPP #-}
{-# LANGUAGE MagicHash #-}
{-# LANGUAGE RankNTypes #-}
{-# LANGUAGE UnboxedTuples #-}

-- |
-- The core's only interface to everything outside it: shared memory,
-- threads, exceptions, capabilities and the clock. The core imports nothing
-- else that has an effect. Its source therefore also runs on a simulated machine:
-- a module with this name in another source directory (@weft-core\/sim@).
--
-- This module is the real machine. Any thread may call any operation. The constructors are exported for further
-- operations on the same memory outside of the core; the simulated machine does not have them.
-- Accesses to 'WordArray' and the read-modify-write operations on a 'Ref' are
-- sequentially consistent. Plain 'readRef' and 'writeRef' are ordered as GHC
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

    -- * WordArray: unboxed words shared between threads
    WordArray (..),
    newWordArray,
    newOwnWords,
    newStatistics,
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
    newOwnArray,
    sizeBoxedArray,
    readBoxedArray,
    writeBoxedArray,
    casBoxedArray,
    copyBoxedArray,

    -- * References on cache lines of their own
    OwnRef,
    newOwnRef,
    readOwnRef,
    writeOwnRef,
    swapOwnRef,
    updateOwnRef,

    -- * MVars
    MVar,
    newEmptyMVar,
    newMVar,
    takeMVar,
    putMVar,
    readMVar,
    tryTakeMVar,
    tryPutMVar,
    isEmptyMVar,
    modifyMVar,
    modifyMVar_,
    withMVar,

    -- * Threads, exceptions, capabilities
    ThreadId,
    forkPinned,
    myThreadId,
    myCapability,
    getNumCapabilities,
    getNumProcessors,
    yield,
    threadDelay,
    sameThread,
    forkGeneration,

    -- * Exceptions
    mask_,
    allowInterrupt,
    uninterruptibleMask_,
    onException,
    finally,
    catchAll,
    tryAll,
    attempt,
    interruptible,
    interruptiblyMasked,
    postpone,
    handleUncaught,

    -- * Clock
    now,

    -- * The event log
    userEventsLogged,
    traceUserEvent,
    traceUserEventNumber,
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
import Data.Word (Word32, Word8)
import Foreign.Marshal.Alloc (allocaBytes)
import Foreign.Storable (peek, peekByteOff, pokeByteOff)
import GHC.Clock (getMonotonicTimeNSec)
import GHC.Conc (BlockReason (..), ThreadStatus (..), getNumProcessors, getUncaughtExceptionHandler, labelThread, threadStatus)
import GHC.Exts
import GHC.IO (IO (..))
import GHC.RTS.Flags (DoTrace (..), TraceFlags (..), getTraceFlags)
import System.IO.Unsafe (unsafePerformIO)
import Weft.Core.Time (Instant (..))

-- References ---------------------------------------------------------------

-- | A mutable boxed reference.
data Ref a = Ref (MutVar# RealWorld a)

-- | Equality of references, not of contents.
instance Eq (Ref a) where
  Ref a == Ref b = isTrue# (sameMutVar# a b)

-- | A value, evaluated, with the pointer that whoever evaluates it again gets.
--
-- From GHC 9.4 on a bang does not do that for a constructor with strict fields: GHC takes it for a value and leaves the
-- bang out; then, if it is built of parts that are not known to be evaluated, tag inference makes a thunk of it. With a
-- thunk in a reference a compare-and-swap, which compares with the value's pointer, fails for ever (see 'casRef'). So
-- there this is a call.
evaluated :: a -> (# a #)
evaluated !a = (# a #)
#if __GLASGOW_HASKELL__ >= 904
{-# NOINLINE evaluated #-}
#else
{-# INLINE evaluated #-}
#endif

-- | A new reference with an initial value, which is evaluated.
newRef :: a -> IO (Ref a)
newRef a = IO $ \s -> case evaluated a of (# a' #) -> case newMutVar# a' s of (# s', r #) -> (# s', Ref r #)
{-# INLINE newRef #-}

-- | A reference that is global to the process. Its first use creates it, with the result of the action. For top-level
-- definitions, which must be @NOINLINE@. The name must be unique; use the qualified name of the definition. The
-- simulated machine gives each run a reference of its own.
globalRef :: String -> IO a -> Ref a
globalRef _ make = unsafePerformIO (make >>= newRef)
{-# NOINLINE globalRef #-}

-- | Read the value.
readRef :: Ref a -> IO a
readRef (Ref r) = IO (readMutVar# r)
{-# INLINE readRef #-}

-- | Replace the value, which is not evaluated.
writeRef :: Ref a -> a -> IO ()
writeRef (Ref r) a = IO $ \s -> (# writeMutVar# r a s, () #)
{-# INLINE writeRef #-}

-- | Evaluate a value, replace the old one by it and return the old one, atomically.
swapRef :: Ref a -> a -> IO a
swapRef (Ref r) a = IO $ \s0 -> case evaluated a of
  (# new #) ->
    let loop s = case readMutVar# r s of
          (# s1, old #) -> case casMutVar# r old new s1 of
            (# s2, 0#, _ #) -> (# s2, old #)
            (# s2, _, _ #) -> loop s2
     in loop s0
{-# INLINE swapRef #-}

-- | @casRef r old new@ replaces @old@ by @new@ and returns 'True'; 'False' if the reference holds another pointer.
-- @old@ is compared as a pointer: it must be what 'readRef' returned. A reader evaluates that, and may then hold the
-- value's pointer, so everything in the reference must be evaluated: once a thunk in the old generation has been
-- evaluated, its pointer differs from that of its value until the next major collection. All operations here evaluate
-- what they store, but for 'writeRef'.
casRef :: Ref a -> a -> a -> IO Bool
casRef (Ref r) old a = IO $ \s -> case evaluated a of
  (# new #) -> case casMutVar# r old new s of
    (# s', failed, _ #) -> (# s', isTrue# (failed ==# 0#) #)
{-# INLINE casRef #-}

-- | Apply a function that builds a constructor around the old value
-- without evaluating it. The function may run several times. It leaves no thunk behind,
-- so no thread can block on a black hole (O'Sullivan and Tibell 2010, 8.2). Returns the old value.
updateRef :: Ref a -> (a -> a) -> IO a
updateRef (Ref r) f = IO loop
  where
    loop s = case readMutVar# r s of
      (# s1, old #) -> case evaluated (f old) of
        (# new #) -> case casMutVar# r old new s1 of
          (# s2, 0#, _ #) -> (# s2, old #)
          (# s2, _, _ #) -> loop s2
{-# INLINE updateRef #-}

-- WordArray ----------------------------------------------------------------------

-- | A fixed number of machine words with atomic operations.
data WordArray = WordArray (MutableByteArray# RealWorld)

-- | The given number of words, all zero.
newWordArray :: Int -> IO WordArray
newWordArray (I# n) = IO $ \s -> case newByteArray# bytes s of
  (# s1, a #) -> case setByteArray# a 0# bytes 0# s1 of
    s2 -> (# s2, WordArray a #)
  where
    !bytes = n *# 8#

-- | Words that share no cache line with anything else, for those that one capability writes often: otherwise each write
-- takes the line from the cores that use its other words. They are pinned, since a collection would put them
-- beside what another capability writes. Processors fetch lines in pairs, so this is the unit.
newOwnWords :: Int -> IO WordArray
newOwnWords (I# n) = IO $ \s -> case newAlignedPinnedByteArray# bytes linePair s of
  (# s1, a #) -> case setByteArray# a 0# bytes 0# s1 of
    s2 -> (# s2, WordArray a #)
  where
    !linePair = 128#
    !bytes = ((n *# 8# +# linePair -# 1#) `quotInt#` linePair) *# linePair

-- | 'newOwnWords' for numbers that no code depends on: the simulated machine runs accesses to them in one order only.
newStatistics :: Int -> IO WordArray
newStatistics = newOwnWords

-- | Words that are global to the process, like 'globalRef'.
globalWords :: String -> Int -> WordArray
globalWords _ n = unsafePerformIO (newWordArray n)
{-# NOINLINE globalWords #-}

-- | Atomic read.
readWord :: WordArray -> Int -> IO Int
readWord (WordArray a) (I# i) = IO $ \s -> case atomicReadIntArray# a i s of
  (# s', x #) -> (# s', I# x #)
{-# INLINE readWord #-}

-- | Atomic write.
writeWord :: WordArray -> Int -> Int -> IO ()
writeWord (WordArray a) (I# i) (I# x) = IO $ \s -> (# atomicWriteIntArray# a i x s, () #)
{-# INLINE writeWord #-}

-- | Add, and return the old value.
addWord :: WordArray -> Int -> Int -> IO Int
addWord (WordArray a) (I# i) (I# x) = IO $ \s -> case fetchAddIntArray# a i x s of
  (# s', old #) -> (# s', I# old #)
{-# INLINE addWord #-}

-- | @casWord c i old new@ replaces @old@ by @new@ and returns the value found,
-- which is @old@ exactly if it succeeded.
casWord :: WordArray -> Int -> Int -> Int -> IO Int
casWord (WordArray a) (I# i) (I# old) (I# new) = IO $ \s -> case casIntArray# a i old new s of
  (# s', found #) -> (# s', I# found #)
{-# INLINE casWord #-}

-- | Replace, and return the old value, atomically.
swapWord :: WordArray -> Int -> Int -> IO Int
swapWord c i new = go =<< readWord c i
  where
    go old = do
      found <- casWord c i old new
      if found == old then pure old else go found
{-# INLINE swapWord #-}

-- | A plain read, for statistics; the value may be slightly out of date.
peekWord :: WordArray -> Int -> IO Int
peekWord (WordArray a) (I# i) = IO $ \s -> case readIntArray# a i s of
  (# s', x #) -> (# s', I# x #)
{-# INLINE peekWord #-}

-- | A plain add, for a word with a single writer.
bumpWord :: WordArray -> Int -> Int -> IO ()
bumpWord (WordArray a) (I# i) (I# x) = IO $ \s -> case readIntArray# a i s of
  (# s', old #) -> (# writeIntArray# a i (old +# x) s', () #)
{-# INLINE bumpWord #-}

-- | A plain write, for a word with a single user.
pokeWord :: WordArray -> Int -> Int -> IO ()
pokeWord (WordArray a) (I# i) (I# x) = IO $ \s -> (# writeIntArray# a i x s, () #)
{-# INLINE pokeWord #-}

-- Arrays ---------------------------------------------------------------------

-- | A mutable array of boxed values.
data BoxedArray a = BoxedArray (MutableArray# RealWorld a)

-- | An array of the given size, filled with one value.
newBoxedArray :: Int -> a -> IO (BoxedArray a)
newBoxedArray (I# n) a = IO $ \s -> case newArray# n a s of
  (# s', arr #) -> (# s', BoxedArray arr #)

-- | 'newBoxedArray' for one that all capabilities read on the way of each request, and that is hardly written: it
-- shares no cache line with anything else, such as the end of a thread's descriptor, which is written each time the
-- thread stops. It has 448 elements at least: objects of more than GHC's LARGE_OBJECT_THRESHOLD, 3276 bytes, get blocks
-- of their own.
newOwnArray :: Int -> a -> IO (BoxedArray a)
newOwnArray n = newBoxedArray (max 448 n)

-- | The number of elements.
sizeBoxedArray :: BoxedArray a -> Int
sizeBoxedArray (BoxedArray a) = I# (sizeofMutableArray# a)
{-# INLINE sizeBoxedArray #-}

-- | Read an element. The index is not checked.
readBoxedArray :: BoxedArray a -> Int -> IO a
readBoxedArray (BoxedArray a) (I# i) = IO (readArray# a i)
{-# INLINE readBoxedArray #-}

-- | Write an element. The index is not checked.
writeBoxedArray :: BoxedArray a -> Int -> a -> IO ()
writeBoxedArray (BoxedArray a) (I# i) x = IO $ \s -> (# writeArray# a i x s, () #)
{-# INLINE writeBoxedArray #-}

-- | 'casRef' for an element.
casBoxedArray :: BoxedArray a -> Int -> a -> a -> IO Bool
casBoxedArray (BoxedArray a) (I# i) old b = IO $ \s -> case evaluated b of
  (# new #) -> case casArray# a i old new s of
    (# s', failed, _ #) -> (# s', isTrue# (failed ==# 0#) #)
{-# INLINE casBoxedArray #-}

-- | Copy all of the first array to the beginning of the second.
copyBoxedArray :: BoxedArray a -> BoxedArray a -> IO ()
copyBoxedArray (BoxedArray from) (BoxedArray to) = IO $ \s ->
  (# copyMutableArray# from 0# to 0# (sizeofMutableArray# from) s, () #)

-- References on cache lines of their own -------------------------------------------

-- | 'newOwnWords' for a boxed value: a reference that shares no cache line with anything else.
--
-- Objects of this size get whole blocks of the heap, 4 KiB, and are never moved. A small object cannot be kept apart:
-- each write to a reference also writes the object's header, and a collection decides what lies before that.
newtype OwnRef a = OwnRef (BoxedArray a)

-- | A new reference with an initial value, which is evaluated, and which it keeps alive. Takes 4 KiB.
newOwnRef :: a -> IO (OwnRef a)
newOwnRef a = case evaluated a of (# a' #) -> OwnRef <$> newOwnArray 1 a'

-- | Read the value.
readOwnRef :: OwnRef a -> IO a
readOwnRef (OwnRef arr) = readBoxedArray arr 0
{-# INLINE readOwnRef #-}

-- | Replace the value, which is not evaluated.
writeOwnRef :: OwnRef a -> a -> IO ()
writeOwnRef (OwnRef arr) = writeBoxedArray arr 0
{-# INLINE writeOwnRef #-}

-- | Evaluate a value, replace the old one by it and return the old one, atomically.
swapOwnRef :: OwnRef a -> a -> IO a
swapOwnRef (OwnRef (BoxedArray arr)) a = IO $ \s0 -> case evaluated a of
  (# new #) ->
    let loop s = case readArray# arr 0# s of
          (# s1, old #) -> case casArray# arr 0# old new s1 of
            (# s2, 0#, _ #) -> (# s2, old #)
            (# s2, _, _ #) -> loop s2
     in loop s0
{-# INLINE swapOwnRef #-}

-- | 'updateRef': apply a function to the value, and return the old one. The result is evaluated, and written even if it
-- is the old value.
updateOwnRef :: OwnRef a -> (a -> a) -> IO a
updateOwnRef (OwnRef (BoxedArray arr)) f = IO loop
  where
    loop s = case readArray# arr 0# s of
      (# s1, old #) -> case evaluated (f old) of
        (# new #) -> case casArray# arr 0# old new s1 of
          (# s2, 0#, _ #) -> (# s2, old #)
          (# s2, _, _ #) -> loop s2
{-# INLINE updateOwnRef #-}

-- Threads --------------------------------------------------------------------

-- | Start a labelled thread that is bound to a capability, with asynchronous
-- exceptions masked. Its action gets the function that unmasks them.
forkPinned :: Int -> String -> ((forall a. IO a -> IO a) -> IO ()) -> IO ThreadId
forkPinned cap label body = do
  t <- mask_ (forkOnWithUnmask cap body)
  labelThread t label
  pure t

-- | The capability that is running the caller.
myCapability :: IO Int
myCapability = IO $ \s -> case myThreadId# s of
  (# s1, t #) -> case threadStatus# t s1 of
    (# s2, _, cap, _ #) -> (# s2, I# cap #)
{-# INLINE myCapability #-}

-- | Whether this program writes user events into an event log (@+RTS -l@).
userEventsLogged :: IO Bool
userEventsLogged = do
  flags <- getTraceFlags
  pure $ case tracing flags of
    TraceEventLog -> user flags
    _ -> False

-- | Write a user event: a C string.
traceUserEvent :: Ptr Word8 -> IO ()
traceUserEvent (Ptr p) = IO $ \s -> (# traceEvent# p s, () #)

-- | Write a user event: a C string of at most 40 bytes, and a number behind it.
--
-- The bytes are written here: a string of Haskell's, converted for C, costs ten times as much as the event itself.
traceUserEventNumber :: Ptr Word8 -> Int -> IO ()
traceUserEventNumber text n = allocaBytes 64 $ \out -> do
  let copy i = do
        byte <- peekByteOff text i :: IO Word8
        if byte == 0 then pure i else pokeByteOff out i byte >> copy (i + 1)
      -- The digits of a number that is not positive, since the smallest one has no opposite.
      digits at m = do
        let (tens, unit) = m `quotRem` 10
        behind <- if tens == 0 then pure at else digits at tens
        pokeByteOff out behind (fromIntegral (48 - unit) :: Word8)
        pure (behind + 1)
  begin <- copy 0
  first <- if n < 0 then (begin + 1) <$ pokeByteOff out begin (45 :: Word8) else pure begin
  end <- digits first (if n < 0 then n else negate n)
  pokeByteOff out end (0 :: Word8)
  traceUserEvent out

-- | How often this process image has been forked since the program started. It
-- differs between a parent and a child that 'System.Posix.forkProcess' made,
-- and costs one memory read.
forkGeneration :: IO Int
forkGeneration = fromIntegral <$> peek c_fork_generation

foreign import ccall unsafe "&weft_fork_generation" c_fork_generation :: Ptr Word32

-- | Whether the caller is the given thread.
sameThread :: ThreadId -> IO Bool
sameThread t = (== t) <$> myThreadId

-- | Run an action, and the handler with any exception of it, masked.
catchAll :: IO a -> (SomeException -> IO a) -> IO a
catchAll = catch
{-# INLINE catchAll #-}

-- | The exception or the result of an action.
tryAll :: IO a -> IO (Either SomeException a)
tryAll = try

-- | Run an action now. The action returned gives its result or rethrows its
-- exception.
attempt :: IO a -> IO (IO a)
attempt act = either throwIO pure <$> tryAll act

-- | Throw an exception to the caller from another thread, and block until it has arrived. When this returns, the
-- exception is pending, and is raised when exceptions are next unmasked. That matters since the caller may block in the
-- kernel next, where an exception does not reach it.
postpone :: SomeException -> IO ()
postpone e = do
  self <- myThreadId
  t <- forkIOWithUnmask (\unmask -> unmask (throwTo self e))
  labelThread t "weft exception put off"
  let untilPending = do
        status <- threadStatus t
        unless (status `elem` [ThreadBlocked BlockedOnException, ThreadFinished, ThreadDied]) (yield >> untilPending)
  untilPending
  -- If the throwing thread is on another capability, it has sent a message, which this capability reads when it next
  -- schedules.
  yield
{-# NOINLINE postpone #-}

-- | Run the program's handler for uncaught exceptions on the calling thread. It may throw and block.
handleUncaught :: SomeException -> IO ()
handleUncaught e = getUncaughtExceptionHandler >>= ($ e)

-- | Run an action masked but interruptible where it blocks, even if the caller is in the
-- uninterruptible state.
interruptiblyMasked :: IO a -> IO a
interruptiblyMasked act@(IO io) = do
  state <- getMaskingState
  if state == MaskedUninterruptible then IO (maskAsyncExceptions# io) else act

-- Clock ----------------------------------------------------------------------

-- | The monotonic clock. It never goes back, and is not affected by changes of the date.
now :: IO Instant
now = Instant . (fromIntegral :: (Integral a) => a -> Int64) <$> getMonotonicTimeNSec
{-# INLINE now #-}
