{-# LANGUAGE PackageImports #-}

-- |
-- "Data.IORef" of base, with each operation as a scheduling point. All references count as a single object, so no two
-- operations are independent.
module Data.IORef
  ( IORef,
    newIORef,
    readIORef,
    writeIORef,
    modifyIORef,
    modifyIORef',
    atomicModifyIORef,
    atomicModifyIORef',
    atomicWriteIORef,
    mkWeakIORef,

    -- * Faults
    roomForReferences,
  )
where

import "base" Control.Exception (AsyncException (HeapOverflow), throwIO)
import Control.Monad (when)
import "base" Data.IORef (IORef)
import qualified "base" Data.IORef as Base
import Simulation
import System.IO.Unsafe (unsafePerformIO)
import System.Mem.Weak (Weak)

-- | A number that no other object has.
references :: Object
references = 0x3000000000

-- | How many references there is room for; negative if that is no matter.
room :: IORef Int
room = unsafePerformIO (Base.newIORef (-1))
{-# NOINLINE room #-}

-- | In the action so many references can be made, and the next one fails for lack of memory.
roomForReferences :: Int -> IO a -> IO a
roomForReferences n act = Base.writeIORef room n *> act <* Base.writeIORef room (-1)

newIORef :: a -> IO (IORef a)
newIORef a = do
  n <- Base.readIORef room
  Base.writeIORef room (n - 1)
  when (n == 0) (throwIO HeapOverflow)
  Base.newIORef a

readIORef :: IORef a -> IO a
readIORef r = touch (Reads references) "reads an IORef" >> Base.readIORef r

writeIORef :: IORef a -> a -> IO ()
writeIORef r a = touch (Writes references) "writes an IORef" >> Base.writeIORef r a

modifyIORef, modifyIORef' :: IORef a -> (a -> a) -> IO ()
modifyIORef r f = readIORef r >>= writeIORef r . f
modifyIORef' r f = readIORef r >>= \a -> let b = f a in b `seq` writeIORef r b

atomicModifyIORef, atomicModifyIORef' :: IORef a -> (a -> (a, b)) -> IO b
atomicModifyIORef r f = touch (Writes references) "modifies an IORef" >> Base.atomicModifyIORef r f
atomicModifyIORef' r f = touch (Writes references) "modifies an IORef" >> Base.atomicModifyIORef' r f

atomicWriteIORef :: IORef a -> a -> IO ()
atomicWriteIORef = writeIORef

-- | Never runs the finalizer, which would run in a thread outside of the simulation.
mkWeakIORef :: IORef a -> IO () -> IO (Weak (IORef a))
mkWeakIORef r _ = Base.mkWeakIORef r (pure ())
