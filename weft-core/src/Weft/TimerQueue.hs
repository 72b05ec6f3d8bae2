-- |
-- The timer queue of a manager. The suites on simulated machines have another module of this name, whose queue is
-- exact.
module Weft.TimerQueue
  ( newQueue,
  )
where

import Weft.Core.Timer (Queue)
import Weft.Core.Timer.Wheel (newWheel)
import Weft.Sys (now)

-- | An empty queue.
newQueue :: IO Queue
newQueue = newWheel =<< now
