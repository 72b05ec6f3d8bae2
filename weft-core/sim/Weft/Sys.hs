{-# LANGUAGE PackageImports #-}
{-# LANGUAGE RankNTypes #-}
{-# LANGUAGE ScopedTypeVariables #-}

-- |
-- The simulated machine: a module with the names and types of the real "Weft.Sys",
-- on which the production source of the core runs in tests. Every operation on
-- shared state is a scheduling point of "Simulation", which chooses the thread that continues, so
-- that a test can run every interleaving. Asynchronous exceptions, masking and the clock are simulated
-- too. Outside of a simulation the operations simply take effect. With 'weakMemory' a read may return an old value, if
-- the memory order that "Simulation.Memory" defines for the primitive operations allows it.
--
-- No behaviour depends on the words of 'newStatistics', so using them is not a scheduling point.
module Weft.Sys
  ( -- * References
    Ref,
    newRef,
    globalRef,
    readRef,
    writeRef,
    swapRef,
    casRef,
    updateRef,

    -- * WordArray
    WordArray,
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
    BoxedArray,
    newBoxedArray,
    newOwnArray,
    sizeBoxedArray,
    readBoxedArray,
    writeBoxedArray,
    casBoxedArray,
    copyBoxedArray,
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
    tryReadMVar,
    modifyMVar,
    modifyMVar_,
    withMVar,

    -- * Threads, capabilities
    ThreadId,
    threadNumbered,
    myThreadId,
    sameThread,
    throwToThread,
    throwAside,
    forkPinned,
    yield,
    threadDelay,
    getNumCapabilities,
    getNumProcessors,
    myCapability,
    forkGeneration,
    userEventsLogged,
    traceUserEvent,
    traceUserEventNumber,

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
    setUncaughtHandler,

    -- * Clock
    now,
  )
where

import "base" Control.Exception (Exception (..), SomeException, throwIO)
import qualified "base" Control.Exception
import Control.Monad (forM_)
import Data.Array.IO (IOArray, IOUArray, getBounds, newArray, readArray, writeArray)
import "base" Data.IORef
import Data.Word (Word8)
import Foreign.Ptr (Ptr)
import Simulation hiding (postpone)
import qualified Simulation
import System.IO.Unsafe (unsafePerformIO)
import System.Mem.StableName (eqStableName, makeStableName)
import Weft.Core.Time (Instant (..))

-- References -----------------------------------------------------------------

-- | A mutable reference (its number in the simulation, its value, and its earlier values), or one that is new in each
-- run.
data Ref a = Ref !(Place a) | RefOfRun !(Global (Place a))

data Place a = Place !Object !(IORef a) !(History a)

instance Eq (Ref a) where
  Ref (Place _ a _) == Ref (Place _ b _) = a == b
  RefOfRun a == RefOfRun b = a == b
  _ == _ = False

newRef :: a -> IO (Ref a)
newRef !a = Ref <$> newPlace a

newPlace :: a -> IO (Place a)
newPlace a = Place <$> newObject <*> newIORef a <*> newHistory

globalRef :: String -> IO a -> Ref a
globalRef name make = RefOfRun (unsafePerformIO (newGlobal name (make >>= newPlace)))
{-# NOINLINE globalRef #-}

place :: Ref a -> IO (Place a)
place (Ref p) = pure p
place (RefOfRun g) = ofThisRun g

readRef :: Ref a -> IO a
readRef ref = do
  Place o r h <- place ref
  touch (Reads o) ("reads reference " <> show o) >> readIORef r >>= readPlainly o h 0

writeRef :: Ref a -> a -> IO ()
writeRef ref a = do
  Place o r h <- place ref
  touch (Writes o) ("writes reference " <> show o)
  readIORef r >>= writePlainly o h 0
  writeIORef r a

swapRef :: Ref a -> a -> IO a
swapRef ref !new = do
  Place o r h <- place ref
  touch (Writes o) ("swaps reference " <> show o)
  old <- readIORef r
  exchange o h 0 old
  old <$ writeIORef r new

-- | Compares heap objects by identity, like the real one.
casRef :: Ref a -> a -> a -> IO Bool
casRef ref old !new = do
  Place o r h <- place ref
  touch (Writes o) ("compares and swaps reference " <> show o)
  found <- readIORef r
  same <- sameHeapObject found old
  same
    <$ if same
      then exchange o h 0 found >> writeIORef r new
      else refuseExchange o >> note "finds another value there"

sameHeapObject :: a -> a -> IO Bool
sameHeapObject a b = eqStableName <$> (makeStableName $! a) <*> (makeStableName $! b)

updateRef :: Ref a -> (a -> a) -> IO a
updateRef ref f = do
  Place o r h <- place ref
  touch (Writes o) ("updates reference " <> show o)
  old <- readIORef r
  exchange o h 0 old
  writeIORef r $! f old
  pure old

-- WordArray ----------------------------------------------------------------------

-- | Shared words. Each word is an object; the first one's number is given, and the others follow.
data Words = Words !Object !Bool !(IOUArray Int Int) !(History Int)

-- | Words, or words that are new in each run.
data WordArray = WordArray !Words | WordsOfRun !(Global Words)

globalWords :: String -> Int -> WordArray
globalWords name n = WordsOfRun (unsafePerformIO (newGlobal name (newWords False n)))
{-# NOINLINE globalWords #-}

inPlace :: WordArray -> (Words -> IO b) -> IO b
inPlace (WordArray ws) f = f ws
inPlace (WordsOfRun g) f = ofThisRun g >>= f

newWordArray :: Int -> IO WordArray
newWordArray n = WordArray <$> newWords (n > manyWords) n

-- | Nor is using longer arrays a scheduling point: the descriptors of a hybrid loop, of which most words belong to its
-- own thread. With them the searches of hybrid loops take up to three times as long.
manyWords :: Int
manyWords = 16

-- | The simulated memory has no cache lines.
newOwnWords :: Int -> IO WordArray
newOwnWords = newWordArray

newStatistics :: Int -> IO WordArray
newStatistics n = WordArray <$> newWords True n

newWords :: Bool -> Int -> IO Words
newWords counts n = do
  o <- newObjects (if counts then 1 else n)
  Words o counts <$> newArray (0, n - 1) 0 <*> newHistory

-- | A scheduling point before an operation on a word, unless the word is a counter.
using :: Words -> Int -> (Object -> Access) -> String -> IO ()
using (Words o counts _ _) i access what
  | counts = pure ()
  | otherwise = touch (access (o + 64 * i)) (what <> " word " <> show o <> "[" <> show i <> "]")

-- | Record an operation on a word in the memory model, unless the word is a counter.
inMemory :: Words -> Int -> (Object -> History Int -> IO ()) -> IO ()
inMemory (Words o counts _ h) i f
  | counts = pure ()
  | otherwise = f (o + 64 * i) h

readWord :: WordArray -> Int -> IO Int
readWord ws i = inPlace ws $ \a -> using a i Reads "reads" >> fetch readAtomically a i

-- | Read a word by the given kind of read.
fetch :: (Object -> History Int -> Int -> Int -> IO Int) -> Words -> Int -> IO Int
fetch how (Words o counts c h) i
  | counts = readArray c i
  | otherwise = readArray c i >>= how (o + 64 * i) h i

-- | Write a word by the given kind of write.
store :: (Object -> History Int -> Int -> Int -> IO ()) -> Words -> Int -> Int -> IO ()
store how a@(Words _ _ c _) i x = do
  old <- readArray c i
  inMemory a i (\o h -> how o h i old)
  writeArray c i x

writeWord :: WordArray -> Int -> Int -> IO ()
writeWord ws i x = inPlace ws $ \a -> using a i Writes ("writes " <> show x <> " to") >> store writeReleasing a i x

addWord :: WordArray -> Int -> Int -> IO Int
addWord ws i x = inPlace ws $ \a@(Words _ _ c _) -> do
  using a i Writes ("adds " <> show x <> " to")
  old <- readArray c i
  old <$ store exchange a i (old + x)

swapWord :: WordArray -> Int -> Int -> IO Int
swapWord ws i x = inPlace ws $ \a@(Words _ _ c _) -> do
  using a i Writes ("swaps " <> show x <> " into")
  readArray c i <* store exchange a i x

casWord :: WordArray -> Int -> Int -> Int -> IO Int
casWord ws i old new = inPlace ws $ \a@(Words _ _ c _) -> do
  using a i Writes ("replaces " <> show old <> " by " <> show new <> " in")
  found <- readArray c i
  found
    <$ if found == old
      then store exchange a i new
      else inMemory a i (\o _ -> refuseExchange o) >> note ("finds " <> show found <> " there")

peekWord :: WordArray -> Int -> IO Int
peekWord ws i = inPlace ws $ \a -> using a i Reads "peeks at" >> fetch readPlainly a i

bumpWord :: WordArray -> Int -> Int -> IO ()
bumpWord c i x = peekWord c i >>= pokeWord c i . (+ x)

pokeWord :: WordArray -> Int -> Int -> IO ()
pokeWord ws i x = inPlace ws $ \a -> using a i Writes ("pokes " <> show x <> " into") >> store writePlainly a i x

-- Arrays ---------------------------------------------------------------------

-- | An array. Each element is an object, as with words.
data BoxedArray a = BoxedArray !Object !(IOArray Int a) !(History a)

newBoxedArray :: Int -> a -> IO (BoxedArray a)
newBoxedArray n a = BoxedArray <$> newObjects n <*> newArray (0, n - 1) a <*> newHistory

newOwnArray :: Int -> a -> IO (BoxedArray a)
newOwnArray = newBoxedArray

sizeBoxedArray :: BoxedArray a -> Int
sizeBoxedArray (BoxedArray _ s _) = unsafePerformIO ((\(_, hi) -> hi + 1) <$> getBounds s)

readBoxedArray :: BoxedArray a -> Int -> IO a
readBoxedArray (BoxedArray o s h) i = do
  touch (Reads (o + 64 * i)) ("reads array " <> show o <> " at " <> show i)
  readArray s i >>= readPlainly (o + 64 * i) h i

writeBoxedArray :: BoxedArray a -> Int -> a -> IO ()
writeBoxedArray (BoxedArray o s h) i a = do
  touch (Writes (o + 64 * i)) ("writes array " <> show o <> " at " <> show i)
  readArray s i >>= writePlainly (o + 64 * i) h i
  writeArray s i a

casBoxedArray :: BoxedArray a -> Int -> a -> a -> IO Bool
casBoxedArray (BoxedArray o s h) i old !new = do
  touch (Writes (o + 64 * i)) ("compares and swaps array " <> show o <> " at " <> show i)
  found <- readArray s i
  same <- sameHeapObject found old
  same
    <$ if same
      then exchange (o + 64 * i) h i found >> writeArray s i new
      else refuseExchange (o + 64 * i) >> note "finds another value there"

copyBoxedArray :: BoxedArray a -> BoxedArray a -> IO ()
copyBoxedArray from to = forM_ [0 .. sizeBoxedArray from - 1] (\i -> readBoxedArray from i >>= writeBoxedArray to i)

-- MVars ------------------------------------------------------------------------

-- | An MVar: its value, and the threads that wait to take or read it. These are served in order of arrival, as by the
-- run-time system: a put hands the value over. Threads that wait to put continue in the order of the schedule.
data MVar a = MVar !Object !(IORef (Maybe a)) !(IORef [Waiter a])

-- | Whether the waiting thread leaves the value there (a read), and where it receives the value.
data Waiter a = Waiter !Bool !(IORef (Maybe a))

instance Eq (MVar a) where
  MVar _ a _ == MVar _ b _ = a == b

newEmptyMVar :: IO (MVar a)
newEmptyMVar = MVar <$> newObject <*> newIORef Nothing <*> newIORef []

newMVar :: a -> IO (MVar a)
newMVar a = MVar <$> newObject <*> newIORef (Just a) <*> newIORef []

isFull :: IORef (Maybe a) -> IO Bool
isFull r = maybe False (const True) <$> readIORef r

takeMVar, readMVar :: MVar a -> IO a
takeMVar v@(MVar o r _) = do
  touch (Writes o) ("takes MVar " <> show o)
  synchronise o
  found <- readIORef r
  maybe (handed False v) (<$ writeIORef r Nothing) found
readMVar v@(MVar o r _) = do
  touch (Reads o) ("reads MVar " <> show o)
  synchronise o
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
  synchronise o
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
  synchronise o
  give v a

tryTakeMVar :: MVar a -> IO (Maybe a)
tryTakeMVar (MVar o r _) = do
  touch (Writes o) ("tries to take MVar " <> show o)
  synchronise o
  readIORef r <* writeIORef r Nothing

tryPutMVar :: MVar a -> a -> IO Bool
tryPutMVar v@(MVar o r _) a = do
  touch (Writes o) ("tries to put MVar " <> show o)
  synchronise o
  full <- isFull r
  if full then pure False else True <$ give v a

isEmptyMVar :: MVar a -> IO Bool
isEmptyMVar (MVar o r _) = do
  touch (Reads o) ("looks whether MVar " <> show o <> " is empty")
  synchronise o
  not <$> isFull r

-- | For programs; the real module has no such function.
tryReadMVar :: MVar a -> IO (Maybe a)
tryReadMVar (MVar o r _) = do
  touch (Reads o) ("looks into MVar " <> show o)
  synchronise o
  readIORef r

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
  deriving (Eq, Ord, Show)

threadNumbered :: Int -> ThreadId
threadNumbered = ThreadId

myThreadId :: IO ThreadId
myThreadId = ThreadId <$> currentThread

sameThread :: ThreadId -> IO Bool
sameThread t = (== t) <$> myThreadId

-- | @throwTo@ of "Control.Concurrent".
throwToThread :: (Exception e) => ThreadId -> e -> IO ()
throwToThread (ThreadId n) = throwTo' n . toException

-- | Throw to a thread without waiting, by a thread of its own.
throwAside :: (Exception e) => ThreadId -> e -> IO ()
throwAside (ThreadId n) = throwSoon n . toException

-- | The capability is not simulated, and the label is ignored.
type OwnRef = Ref

newOwnRef :: a -> IO (OwnRef a)
newOwnRef = newRef

readOwnRef :: OwnRef a -> IO a
readOwnRef = readRef

writeOwnRef :: OwnRef a -> a -> IO ()
writeOwnRef = writeRef

swapOwnRef :: OwnRef a -> a -> IO a
swapOwnRef = swapRef

updateOwnRef :: OwnRef a -> (a -> a) -> IO a
updateOwnRef = updateRef

forkPinned :: Int -> String -> ((forall a. IO a -> IO a) -> IO ()) -> IO ThreadId
forkPinned _ _ body = mask_ (ThreadId <$> spawn (body (withMasking AllIn)))

yield :: IO ()
yield = giveWay

-- | Wait for the given number of microseconds of virtual time.
threadDelay :: Int -> IO ()
threadDelay us = virtualTime >>= \t -> sleepUntil (t + 1000 * fromIntegral us)

getNumCapabilities, getNumProcessors, myCapability :: IO Int
getNumCapabilities = pure 1
getNumProcessors = pure 1
myCapability = pure 0

-- | Processes are not forked, so this is constant. (A value that is global to a process is new in each run:
-- 'globalRef'.)
forkGeneration :: IO Int
forkGeneration = pure 0

-- The event log ------------------------------------------------------------------

userEventsLogged :: IO Bool
userEventsLogged = pure False

traceUserEvent :: Ptr Word8 -> IO ()
traceUserEvent _ = pure ()

traceUserEventNumber :: Ptr Word8 -> Int -> IO ()
traceUserEventNumber _ _ = pure ()

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

catchAll :: IO a -> (SomeException -> IO a) -> IO a
catchAll = catching

postpone :: SomeException -> IO ()
postpone = Simulation.postpone

-- | The handler of a run, by 'setUncaughtHandler'. By default it does nothing.
handleUncaught :: SomeException -> IO ()
handleUncaught e = readRef theHandler >>= ($ e)

setUncaughtHandler :: (SomeException -> IO ()) -> IO ()
setUncaughtHandler = writeRef theHandler

theHandler :: Ref (SomeException -> IO ())
theHandler = globalRef "Weft.Sys.theHandler" (pure (const (pure ())))
{-# NOINLINE theHandler #-}

interruptible :: IO a -> IO a
interruptible act = do
  state <- getMasking
  if state == WhereItBlocks then withMasking AllIn act else act

allowInterrupt :: IO ()
allowInterrupt = interruptible (pure ())

interruptiblyMasked :: IO a -> IO a
interruptiblyMasked act = do
  state <- getMasking
  if state == NoneIn then withMasking WhereItBlocks act else act

attempt :: IO a -> IO (IO a)
attempt act = either throwIO pure <$> tryAll act

-- | The exception or the result of an action.
tryAll :: IO a -> IO (Either SomeException a)
tryAll act = (Right <$> act) `catching` (pure . Left)

-- Clock ------------------------------------------------------------------------

now :: IO Instant
now = Instant <$> virtualTime
