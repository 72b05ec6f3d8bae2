-- |
-- The simulated machine: a module with the names and types of the real "Weft.Sys",
-- on which the production source of the core runs in tests. Every operation on
-- shared state is a scheduling point of "Simulation", which decides who goes on, so
-- that a test can run every interleaving there is. Outside a simulation the
-- operations just happen.
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
    yield,
    getNumCapabilities,
    myCapability,
    forkGeneration,
    userEventsLogged,
    traceUserEvent,

    -- * Exceptions
    mask_,
    uninterruptibleMask_,
    onException,
    finally,
    guarded,
    attempt,
  )
where

import Control.Exception (SomeException, finally, mask_, onException, throwIO, try, uninterruptibleMask_)
import Control.Monad (forM_)
import Data.Array.IO (IOArray, IOUArray, getBounds, newArray, readArray, writeArray)
import Data.IORef
import Simulation (blockUntil, point)
import System.IO.Unsafe (unsafePerformIO)
import System.Mem.StableName (eqStableName, makeStableName)

-- References -----------------------------------------------------------------

-- | A mutable reference.
newtype Ref a = Ref (IORef a)
  deriving (Eq)

newRef :: a -> IO (Ref a)
newRef = fmap Ref . newIORef

readRef :: Ref a -> IO a
readRef (Ref r) = point >> readIORef r

writeRef :: Ref a -> a -> IO ()
writeRef (Ref r) a = point >> writeIORef r a

swapRef :: Ref a -> a -> IO a
swapRef (Ref r) new = point >> readIORef r <* writeIORef r new

-- | Same heap object or not, like the real one.
casRef :: Ref a -> a -> a -> IO Bool
casRef (Ref r) old new = do
  point
  found <- readIORef r
  same <- eqStableName <$> (makeStableName $! found) <*> (makeStableName $! old)
  same <$ if same then writeIORef r new else pure ()

updateRef :: Ref a -> (a -> a) -> IO a
updateRef (Ref r) f = do
  point
  old <- readIORef r
  writeIORef r $! f old
  pure old

-- AtomicWords ----------------------------------------------------------------------

-- | Shared words.
newtype AtomicWords = AtomicWords (IOUArray Int Int)

newAtomicWords :: Int -> IO AtomicWords
newAtomicWords n = AtomicWords <$> newArray (0, n - 1) 0

readWord :: AtomicWords -> Int -> IO Int
readWord (AtomicWords c) i = point >> readArray c i

writeWord :: AtomicWords -> Int -> Int -> IO ()
writeWord (AtomicWords c) i x = point >> writeArray c i x

addWord :: AtomicWords -> Int -> Int -> IO Int
addWord (AtomicWords c) i x = do
  point
  old <- readArray c i
  old <$ writeArray c i (old + x)

swapWord :: AtomicWords -> Int -> Int -> IO Int
swapWord (AtomicWords c) i x = point >> readArray c i <* writeArray c i x

casWord :: AtomicWords -> Int -> Int -> Int -> IO Int
casWord (AtomicWords c) i old new = do
  point
  found <- readArray c i
  found <$ if found == old then writeArray c i new else pure ()

peekWord :: AtomicWords -> Int -> IO Int
peekWord = readWord

bumpWord :: AtomicWords -> Int -> Int -> IO ()
bumpWord c i x = readWord c i >>= writeWord c i . (+ x)

pokeWord :: AtomicWords -> Int -> Int -> IO ()
pokeWord = writeWord

-- Arrays ---------------------------------------------------------------------

-- | An array.
newtype BoxedArray a = BoxedArray (IOArray Int a)

newBoxedArray :: Int -> a -> IO (BoxedArray a)
newBoxedArray n a = BoxedArray <$> newArray (0, n - 1) a

sizeBoxedArray :: BoxedArray a -> Int
sizeBoxedArray (BoxedArray s) = unsafePerformIO ((\(_, hi) -> hi + 1) <$> getBounds s)

readBoxedArray :: BoxedArray a -> Int -> IO a
readBoxedArray (BoxedArray s) i = point >> readArray s i

writeBoxedArray :: BoxedArray a -> Int -> a -> IO ()
writeBoxedArray (BoxedArray s) i a = point >> writeArray s i a

copyBoxedArray :: BoxedArray a -> BoxedArray a -> IO ()
copyBoxedArray from to = forM_ [0 .. sizeBoxedArray from - 1] (\i -> readBoxedArray from i >>= writeBoxedArray to i)

-- MVars ------------------------------------------------------------------------

-- | An MVar; threads that wait for one are served in the order that the schedule
-- says, not first come first served.
newtype MVar a = MVar (IORef (Maybe a))

newEmptyMVar :: IO (MVar a)
newEmptyMVar = MVar <$> newIORef Nothing

newMVar :: a -> IO (MVar a)
newMVar a = MVar <$> newIORef (Just a)

isFull :: IORef (Maybe a) -> IO Bool
isFull r = maybe False (const True) <$> readIORef r

takeMVar :: MVar a -> IO a
takeMVar (MVar r) = do
  blockUntil (isFull r)
  found <- readIORef r
  case found of
    Just a -> a <$ writeIORef r Nothing
    Nothing -> throwIO (userError "takeMVar: nothing to take, and no simulation")

putMVar :: MVar a -> a -> IO ()
putMVar (MVar r) a = blockUntil (not <$> isFull r) >> writeIORef r (Just a)

readMVar :: MVar a -> IO a
readMVar v = do
  a <- takeMVar v
  a <$ putMVar v a

tryTakeMVar :: MVar a -> IO (Maybe a)
tryTakeMVar (MVar r) = point >> readIORef r <* writeIORef r Nothing

tryPutMVar :: MVar a -> a -> IO Bool
tryPutMVar (MVar r) a = do
  point
  full <- isFull r
  if full then pure False else True <$ writeIORef r (Just a)

modifyMVar :: MVar a -> (a -> IO (a, b)) -> IO b
modifyMVar v f = do
  a <- takeMVar v
  (a', b) <- f a `onException` putMVar v a
  b <$ putMVar v a'

modifyMVar_ :: MVar a -> (a -> IO a) -> IO ()
modifyMVar_ v f = modifyMVar v (fmap (\a -> (a, ())) . f)

withMVar :: MVar a -> (a -> IO b) -> IO b
withMVar v f = modifyMVar v (\a -> (,) a <$> f a)

-- Threads ----------------------------------------------------------------------

yield :: IO ()
yield = point

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

guarded :: IO () -> IO ()
guarded = id

attempt :: IO a -> IO (IO a)
attempt act = either rethrow pure <$> try act
  where
    rethrow :: SomeException -> IO a
    rethrow = throwIO
