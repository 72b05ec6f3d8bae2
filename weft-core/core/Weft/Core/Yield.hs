-- |
-- Giving way before blocking. A thread that an event makes ready may make others ready: a reader gives a request to a
-- worker, the worker a response to a writer. These are behind the dispatcher in the capability's run queue. If it blocks
-- in the kernel while a thread is ready, GHC hands the capability to another OS thread, and takes it back at the next
-- event: three futex(2) and two context switches. A yield takes 20 ns if no thread is ready.
module Weft.Core.Yield
  ( yieldToWoken,
  )
where

import Weft.Core.Time (Instant, after, milliseconds)
import Weft.Sys

-- | Let the threads run that the last events have made ready, and those that they make ready in turn, in chains of up to
-- three. Ends early after a millisecond, when the run queue is longer than that: new events must not wait for it
-- repeatedly.
yieldToWoken :: IO ()
yieldToWoken = now >>= go (3 :: Int) . after (milliseconds 1)
  where
    go :: Int -> Instant -> IO ()
    go 1 _ = yield
    go n end = do
      yield
      t <- now
      if t > end then pure () else go (n - 1) end
