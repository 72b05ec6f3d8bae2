{-# LANGUAGE PackageImports #-}

-- |
-- "Data.IORef" of base, of which each operation is a scheduling point. A reference has no number: all are one object, so that the order of any two of their operations counts.
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
  )
where

import "base" Data.IORef (IORef, newIORef)
import qualified "base" Data.IORef as Base
import Simulation
import System.Mem.Weak (Weak)

-- | Far from other numbers.
references :: Object
references = 0x3000000000

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

-- | Nothing is found to be garbage: a finalizer would run in a thread of its own that is none of the simulation's.
mkWeakIORef :: IORef a -> IO () -> IO (Weak (IORef a))
mkWeakIORef r _ = Base.mkWeakIORef r (pure ())
