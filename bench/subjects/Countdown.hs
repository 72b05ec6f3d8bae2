{-# LANGUAGE MagicHash #-}
{-# LANGUAGE UnboxedTuples #-}

-- |
-- Description : Waiting for many threads to end
--
-- One machine word that every thread decrements by one atomic instruction, as Go's WaitGroup does. The thread that
-- decrements it to zero wakes the waiting one. It takes some 20 ns a thread when two cores contend for it, and a
-- thread with its timer takes a microsecond and more. With an MVar or an STM variable the benchmark would measure
-- that instead of the timers.
module Countdown
  ( Countdown,
    newCountdown,
    arrive,
    await,
  )
where

import Control.Concurrent.MVar (MVar, newEmptyMVar, putMVar, readMVar)
import Control.Monad (when)
import GHC.Exts
import GHC.IO (IO (..))

-- | The number of threads that have not finished.
data Countdown = Countdown (MutableByteArray# RealWorld) !(MVar ())

-- | A countdown from this many threads; at least one.
newCountdown :: Int -> IO Countdown
newCountdown (I# n) = do
  done <- newEmptyMVar
  IO $ \s -> case newByteArray# 8# s of
    (# s1, cell #) -> case writeIntArray# cell 0# n s1 of
      s2 -> (# s2, Countdown cell done #)

-- | One has arrived.
arrive :: Countdown -> IO ()
arrive (Countdown cell done) = do
  before <- IO $ \s -> case fetchAddIntArray# cell 0# -1# s of
    (# s', old #) -> (# s', I# old #)
  when (before == 1) (putMVar done ())
{-# INLINE arrive #-}

-- | Block until all have arrived.
await :: Countdown -> IO ()
await (Countdown _ done) = readMVar done
