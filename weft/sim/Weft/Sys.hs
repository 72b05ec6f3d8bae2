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

    -- * Cells
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
    copySlots,

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

-- Cells ----------------------------------------------------------------------

-- | Shared words.
newtype Cells = Cells (IOUArray Int Int)

newCells :: Int -> IO Cells
newCells n = Cells <$> newArray (0, n - 1) 0

readCell :: Cells -> Int -> IO Int
readCell (Cells c) i = point >> readArray c i

writeCell :: Cells -> Int -> Int -> IO ()
writeCell (Cells c) i x = point >> writeArray c i x

addCell :: Cells -> Int -> Int -> IO Int
addCell (Cells c) i x = do
  point
  old <- readArray c i
  old <$ writeArray c i (old + x)

swapCell :: Cells -> Int -> Int -> IO Int
swapCell (Cells c) i x = point >> readArray c i <* writeArray c i x

casCell :: Cells -> Int -> Int -> Int -> IO Int
casCell (Cells c) i old new = do
  point
  found <- readArray c i
  found <$ if found == old then writeArray c i new else pure ()

peekCell :: Cells -> Int -> IO Int
peekCell = readCell

bumpCell :: Cells -> Int -> Int -> IO ()
bumpCell c i x = readCell c i >>= writeCell c i . (+ x)

pokeCell :: Cells -> Int -> Int -> IO ()
pokeCell = writeCell

-- Arrays ---------------------------------------------------------------------

-- | An array.
newtype Slots a = Slots (IOArray Int a)

newSlots :: Int -> a -> IO (Slots a)
newSlots n a = Slots <$> newArray (0, n - 1) a

sizeSlots :: Slots a -> Int
sizeSlots (Slots s) = unsafePerformIO ((\(_, hi) -> hi + 1) <$> getBounds s)

readSlot :: Slots a -> Int -> IO a
readSlot (Slots s) i = point >> readArray s i

writeSlot :: Slots a -> Int -> a -> IO ()
writeSlot (Slots s) i a = point >> writeArray s i a

copySlots :: Slots a -> Slots a -> IO ()
copySlots from to = forM_ [0 .. sizeSlots from - 1] (\i -> readSlot from i >>= writeSlot to i)

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

-- Exceptions -------------------------------------------------------------------

guarded :: IO () -> IO ()
guarded = id

attempt :: IO a -> IO (IO a)
attempt act = either rethrow pure <$> try act
  where
    rethrow :: SomeException -> IO a
    rethrow = throwIO
