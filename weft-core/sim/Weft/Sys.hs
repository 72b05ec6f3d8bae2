{-# LANGUAGE RankNTypes #-}
{-# LANGUAGE ScopedTypeVariables #-}

-- |
-- The simulated machine: a module with the names and types of the real "Weft.Sys",
-- on which the production source of the core runs in tests. Every operation on
-- shared state is a scheduling point of "Simulation", which decides who goes on, so
-- that a test can run every interleaving there is; asynchronous exceptions, masking and the clock are simulated
-- too. Outside a simulation the operations just happen.
--
-- Arrays of more than 'statistics' words are counters ("Weft.Core.Counters"), which nothing depends on: using them is no
-- scheduling point.
module Weft.Sys
  ( -- * References
    Ref,
    newRef,
    readRef,
    writeRef,
    swapRef,
    casRef,
    updateRef,

    -- * AtomicWords
    AtomicWords,
    newAtomicWords,
    readWord,
    writeWord,
    addWord,
    swapWord,
    casWord,
    peekWord,
    bumpWord,
    pokeWord,

    -- * Arrays of boxed values
    BoxedArray,
    newBoxedArray,
    sizeBoxedArray,
    readBoxedArray,
    writeBoxedArray,
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

    -- * Threads, capabilities
    ThreadId,
    myThreadId,
    sameThread,
    hasEnded,
    throwTo,
    throwAside,
    yield,
    getNumCapabilities,
    myCapability,
    forkGeneration,
    userEventsLogged,
    traceUserEvent,

    -- * Exceptions
    mask,
    mask_,
    uninterruptibleMask_,
    onException,
    finally,
    guarded,
    interruptible,
    interruptiblyMasked,
    attempt,
    tryAll,

    -- * Clock
    now,
  )
where

import Control.Exception (Exception (..), SomeAsyncException (..), SomeException, throwIO)
import qualified Control.Exception
import Control.Monad (forM_)
import Data.Array.IO (IOArray, IOUArray, getBounds, newArray, readArray, writeArray)
import Data.IORef
import Simulation
import System.IO.Unsafe (unsafePerformIO)
import System.Mem.StableName (eqStableName, makeStableName)
import Weft.Core.Time (Instant (..))

-- References -----------------------------------------------------------------

-- | A mutable reference, and its number in the simulation.
data Ref a = Ref !Object !(IORef a)

instance Eq (Ref a) where
  Ref _ a == Ref _ b = a == b

newRef :: a -> IO (Ref a)
newRef a = Ref <$> newObject <*> newIORef a

readRef :: Ref a -> IO a
readRef (Ref o r) = touch (Reads o) ("reads reference " <> show o) >> readIORef r

writeRef :: Ref a -> a -> IO ()
writeRef (Ref o r) a = touch (Writes o) ("writes reference " <> show o) >> writeIORef r a

swapRef :: Ref a -> a -> IO a
swapRef (Ref o r) new = touch (Writes o) ("swaps reference " <> show o) >> readIORef r <* writeIORef r new

-- | Same heap object or not, like the real one.
casRef :: Ref a -> a -> a -> IO Bool
casRef (Ref o r) old new = do
  touch (Writes o) ("compares and swaps reference " <> show o)
  found <- readIORef r
  same <- eqStableName <$> (makeStableName $! found) <*> (makeStableName $! old)
  same <$ if same then writeIORef r new else note "finds another value there"

updateRef :: Ref a -> (a -> a) -> IO a
updateRef (Ref o r) f = do
  touch (Writes o) ("updates reference " <> show o)
  old <- readIORef r
  writeIORef r $! f old
  pure old

-- AtomicWords ----------------------------------------------------------------------

-- | Shared words. Each is an object: the first one's number, and those behind it.
data AtomicWords = AtomicWords !Object !Bool !(IOUArray Int Int)

-- | Longer arrays hold counters.
statistics :: Int
statistics = 16

newAtomicWords :: Int -> IO AtomicWords
newAtomicWords n = do
  o <- newObjects (if n > statistics then 1 else n)
  AtomicWords o (n > statistics) <$> newArray (0, n - 1) 0

-- | Before an operation on a word.
using :: AtomicWords -> Int -> (Object -> Access) -> String -> IO ()
using (AtomicWords o counts _) i access what
  | counts = pure ()
  | otherwise = touch (access (o + 64 * i)) (what <> " word " <> show o <> "[" <> show i <> "]")

readWord :: AtomicWords -> Int -> IO Int
readWord a@(AtomicWords _ _ c) i = using a i Reads "reads" >> readArray c i

writeWord :: AtomicWords -> Int -> Int -> IO ()
writeWord a@(AtomicWords _ _ c) i x = using a i Writes ("writes " <> show x <> " to") >> writeArray c i x

addWord :: AtomicWords -> Int -> Int -> IO Int
addWord a@(AtomicWords _ _ c) i x = do
  using a i Writes ("adds " <> show x <> " to")
  old <- readArray c i
  old <$ writeArray c i (old + x)

swapWord :: AtomicWords -> Int -> Int -> IO Int
swapWord a@(AtomicWords _ _ c) i x = using a i Writes ("swaps " <> show x <> " into") >> readArray c i <* writeArray c i x

casWord :: AtomicWords -> Int -> Int -> Int -> IO Int
casWord a@(AtomicWords _ _ c) i old new = do
  using a i Writes ("replaces " <> show old <> " by " <> show new <> " in")
  found <- readArray c i
  found <$ if found == old then writeArray c i new else note ("finds " <> show found <> " there")

peekWord :: AtomicWords -> Int -> IO Int
peekWord = readWord

bumpWord :: AtomicWords -> Int -> Int -> IO ()
bumpWord c i x = readWord c i >>= writeWord c i . (+ x)

pokeWord :: AtomicWords -> Int -> Int -> IO ()
pokeWord = writeWord

-- Arrays ---------------------------------------------------------------------

-- | An array. Each place is an object, as with words.
data BoxedArray a = BoxedArray !Object !(IOArray Int a)

newBoxedArray :: Int -> a -> IO (BoxedArray a)
newBoxedArray n a = BoxedArray <$> newObjects n <*> newArray (0, n - 1) a

sizeBoxedArray :: BoxedArray a -> Int
sizeBoxedArray (BoxedArray _ s) = unsafePerformIO ((\(_, hi) -> hi + 1) <$> getBounds s)

readBoxedArray :: BoxedArray a -> Int -> IO a
readBoxedArray (BoxedArray o s) i = touch (Reads (o + 64 * i)) ("reads array " <> show o <> " at " <> show i) >> readArray s i

writeBoxedArray :: BoxedArray a -> Int -> a -> IO ()
writeBoxedArray (BoxedArray o s) i a = touch (Writes (o + 64 * i)) ("writes array " <> show o <> " at " <> show i) >> writeArray s i a

copyBoxedArray :: BoxedArray a -> BoxedArray a -> IO ()
copyBoxedArray from to = forM_ [0 .. sizeBoxedArray from - 1] (\i -> readBoxedArray from i >>= writeBoxedArray to i)

-- MVars ------------------------------------------------------------------------

-- | An MVar: what it holds, and the threads that wait to take or read it, which are served first come first served, as by the
-- run-time system: who puts hands the value over. Threads that wait to put go on in the order of the schedule.
data MVar a = MVar !Object !(IORef (Maybe a)) !(IORef [Waiter a])

-- | Does it leave the value there, and where it is handed its own.
data Waiter a = Waiter !Bool !(IORef (Maybe a))

newEmptyMVar :: IO (MVar a)
newEmptyMVar = MVar <$> newObject <*> newIORef Nothing <*> newIORef []

newMVar :: a -> IO (MVar a)
newMVar a = MVar <$> newObject <*> newIORef (Just a) <*> newIORef []

isFull :: IORef (Maybe a) -> IO Bool
isFull r = maybe False (const True) <$> readIORef r

takeMVar, readMVar :: MVar a -> IO a
takeMVar v@(MVar o r _) = do
  touch (Writes o) ("takes MVar " <> show o)
  found <- readIORef r
  maybe (handed False v) (<$ writeIORef r Nothing) found
readMVar v@(MVar o r _) = do
  touch (Reads o) ("reads MVar " <> show o)
  found <- readIORef r
  maybe (handed True v) pure found

-- | Wait to be handed a value.
handed :: Bool -> MVar a -> IO a
handed reads' (MVar o _ waiters) = do
  cell <- newIORef Nothing
  modifyIORef' waiters (<> [Waiter reads' cell])
  let leave = modifyIORef' waiters (filter (\(Waiter _ c) -> c /= cell))
  note ("waits for MVar " <> show o)
  blockOn (isFull cell) (Writes o) ("goes on with MVar " <> show o) `Control.Exception.onException` leave
  readIORef cell >>= maybe (throwIO (userError "takeMVar: nothing to take, and no simulation")) pure

-- | Store a value, or hand it over.
give :: MVar a -> a -> IO ()
give (MVar _ r waiters) a = do
  waiting <- readIORef waiters
  let (readers, others) = (\f -> (filter f waiting, filter (not . f) waiting)) (\(Waiter k _) -> k)
  sequence_ [writeIORef c (Just a) | Waiter _ c <- readers]
  case others of
    Waiter _ c : rest -> writeIORef c (Just a) >> writeIORef waiters rest
    [] -> writeIORef r (Just a) >> writeIORef waiters []

putMVar :: MVar a -> a -> IO ()
putMVar v@(MVar o r _) a = do
  blockOn (not <$> isFull r) (Writes o) ("puts MVar " <> show o)
  give v a

tryTakeMVar :: MVar a -> IO (Maybe a)
tryTakeMVar (MVar o r _) = touch (Writes o) ("tries to take MVar " <> show o) >> readIORef r <* writeIORef r Nothing

tryPutMVar :: MVar a -> a -> IO Bool
tryPutMVar v@(MVar o r _) a = do
  touch (Writes o) ("tries to put MVar " <> show o)
  full <- isFull r
  if full then pure False else True <$ give v a

modifyMVar :: MVar a -> (a -> IO (a, b)) -> IO b
modifyMVar v f = mask $ \restore -> do
  a <- takeMVar v
  (a', b) <- restore (f a) `onException` putMVar v a
  b <$ putMVar v a'

modifyMVar_ :: MVar a -> (a -> IO a) -> IO ()
modifyMVar_ v f = modifyMVar v (fmap (\a -> (a, ())) . f)

withMVar :: MVar a -> (a -> IO b) -> IO b
withMVar v f = modifyMVar v (\a -> (,) a <$> f a)

-- Threads ----------------------------------------------------------------------

-- | A thread's number in its scenario.
newtype ThreadId = ThreadId Int
  deriving (Eq, Show)

myThreadId :: IO ThreadId
myThreadId = ThreadId <$> currentThread

sameThread :: ThreadId -> IO Bool
sameThread t = (== t) <$> myThreadId

hasEnded :: ThreadId -> IO Bool
hasEnded (ThreadId n) = threadEnded n

-- | As that of "Control.Concurrent".
throwTo :: (Exception e) => ThreadId -> e -> IO ()
throwTo (ThreadId n) = throwTo' n . toException

-- | The same, by a thread of its own: without waiting.
throwAside :: (Exception e) => ThreadId -> e -> IO ()
throwAside (ThreadId n) = throwSoon n . toException

yield :: IO ()
yield = giveWay

getNumCapabilities, myCapability, forkGeneration :: IO Int
getNumCapabilities = pure 1
myCapability = pure 0
forkGeneration = pure 0

-- The event log ------------------------------------------------------------------

userEventsLogged :: IO Bool
userEventsLogged = pure False

traceUserEvent :: String -> IO ()
traceUserEvent _ = pure ()

-- Exceptions -------------------------------------------------------------------

mask :: ((forall a. IO a -> IO a) -> IO b) -> IO b
mask act = do
  before <- getMasking
  withMasking (max WhereItBlocks before) (act (withMasking before))

mask_ :: forall a. IO a -> IO a
mask_ act = mask ignoring
  where
    ignoring :: (forall b. IO b -> IO b) -> IO a
    ignoring _ = act

uninterruptibleMask_ :: IO a -> IO a
uninterruptibleMask_ = withMasking NoneIn

onException :: IO a -> IO b -> IO a
onException act handler = act `catching` \e -> handler >> throwIO e

finally :: IO a -> IO b -> IO a
finally act end = mask $ \restore -> do
  a <- restore act `onException` end
  a <$ end

-- | An asynchronous exception is thrown at the thread again.
guarded :: IO () -> IO ()
guarded act =
  act `catching` \e -> case fromException e of
    Just (SomeAsyncException _) -> postpone e
    Nothing -> pure ()

interruptible :: IO a -> IO a
interruptible act = do
  state <- getMasking
  if state == WhereItBlocks then withMasking AllIn act else act

interruptiblyMasked :: IO a -> IO a
interruptiblyMasked act = do
  state <- getMasking
  if state == NoneIn then withMasking WhereItBlocks act else act

attempt :: IO a -> IO (IO a)
attempt act = either throwIO pure <$> tryAll act

-- | What it threw, or its result.
tryAll :: IO a -> IO (Either SomeException a)
tryAll act = (Right <$> act) `catching` (pure . Left)

-- Clock ------------------------------------------------------------------------

now :: IO Instant
now = Instant <$> virtualTime
