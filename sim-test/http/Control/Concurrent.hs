{-# LANGUAGE RankNTypes #-}

-- |
-- "Control.Concurrent" of base, on the simulated machine.
module Control.Concurrent
  ( ThreadId,
    myThreadId,
    forkIO,
    forkIOWithUnmask,
    forkOn,
    forkOnWithUnmask,
    killThread,
    throwTo,
    yield,
    threadDelay,
    threadCapability,
    getNumCapabilities,
    rtsSupportsBoundThreads,
    module Control.Concurrent.MVar,
  )
where

import Control.Concurrent.MVar
import Control.Exception (AsyncException (ThreadKilled), SomeException, catch, throwTo)
import Control.Monad (void)
import Simulation (Masking (..), spawn, withMasking)
import Weft.Sys (ThreadId, getNumCapabilities, myThreadId, threadDelay, threadNumbered, yield)

-- | An exception that ends a thread is not reported.
forked :: IO () -> IO ThreadId
forked body = threadNumbered <$> spawn (void body `catch` died)
  where
    died :: SomeException -> IO ()
    died _ = pure ()

forkIO :: IO () -> IO ThreadId
forkIO = forked

forkIOWithUnmask :: ((forall a. IO a -> IO a) -> IO ()) -> IO ThreadId
forkIOWithUnmask body = forked (body (withMasking AllIn))

forkOn :: Int -> IO () -> IO ThreadId
forkOn _ = forked

forkOnWithUnmask :: Int -> ((forall a. IO a -> IO a) -> IO ()) -> IO ThreadId
forkOnWithUnmask _ = forkIOWithUnmask

killThread :: ThreadId -> IO ()
killThread t = throwTo t ThreadKilled

rtsSupportsBoundThreads :: Bool
rtsSupportsBoundThreads = True

threadCapability :: ThreadId -> IO (Int, Bool)
threadCapability _ = pure (0, False)
