-- | How long after its event a thread runs: from the moment at which the manager receives an event to the moment at
-- which the thread that waited for it goes on. It is measured for the events of one batch in 'period', since reading
-- the clock for each would cost more than delivering the event.
--
-- The manager gives the events of such a batch a stamp, the instant of the batch's first event, which travels with
-- the event: in the descriptor's token ("Weft.Core.Readiness"), or with the events that a waiting thread is given.
-- So a thread that is late, or was moved to another capability, is counted with all of its delay.
module Weft.Core.Latency
  ( Latency,
    newLatency,
    latencyHistogram,

    -- * The manager
    stampEvent,
    endBatch,

    -- * Threads
    presentStamp,
    noteRunning,
  )
where

import Control.Monad (when)
import Weft.Core.Events (Stamp, unstamped)
import Weft.Core.Histogram
import Weft.Core.Time (Duration (..), Instant (..))
import Weft.Sys

-- | The latencies of one manager.
data Latency = Latency
  { -- | In 'wordStamp' the stamp of the present batch: 'unstamped' for none, 'asArmed' until the first event of a
    -- batch that is measured, and then that instant in nanoseconds. In 'wordLeft' the batches to pass over before the
    -- next that is measured. Both are written by the runner; a thread whose callback it calls may read the first.
    latencyWords :: !WordArray,
    -- | The measured latencies. The woken threads add to it.
    latencyHistogram :: !Histogram
  }

asArmed, wordStamp, wordLeft, period :: Int
asArmed = -1
wordStamp = 0
wordLeft = 1
period = 64

-- | No measurements yet. The first batch will be measured.
newLatency :: IO Latency
newLatency = do
  w <- newOwnWords 2
  writeWord w wordStamp asArmed
  Latency w <$> newHistogram

-- | The stamp for an event that is delivered now. Only for the runner.
stampEvent :: Latency -> IO Stamp
stampEvent l = do
  stamp <- peekWord (latencyWords l) wordStamp
  if stamp >= 0 then pure stamp else first l
{-# INLINE stampEvent #-}

first :: Latency -> IO Stamp
first l = do
  Instant t <- now
  let stamp = max 1 (fromIntegral t)
  stamp <$ pokeWord (latencyWords l) wordStamp stamp
{-# NOINLINE first #-}

-- | To be called after each poll that found events. Only for the runner.
endBatch :: Latency -> IO ()
endBatch l = do
  left <- peekWord (latencyWords l) wordLeft
  if left > 0
    then do
      pokeWord (latencyWords l) wordLeft (left - 1)
      -- There is a stamp to remove only after a batch that was measured.
      when (left == period - 1) (pokeWord (latencyWords l) wordStamp unstamped)
    else do
      pokeWord (latencyWords l) wordLeft (period - 1)
      pokeWord (latencyWords l) wordStamp asArmed
{-# INLINE endBatch #-}

-- | The stamp of the batch that is being delivered, in a callback.
presentStamp :: Latency -> IO Stamp
presentStamp l = max unstamped <$> peekWord (latencyWords l) wordStamp
{-# INLINE presentStamp #-}

-- | To be called when a thread that waited for an event with that stamp runs again: count its latency.
noteRunning :: Latency -> Stamp -> IO ()
noteRunning l stamp = do
  Instant t <- now
  observeShared (latencyHistogram l) (Duration (max 0 (t - fromIntegral stamp)))
{-# NOINLINE noteRunning #-}
