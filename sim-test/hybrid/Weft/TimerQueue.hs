-- |
-- The timers of a loop on the simulated machine: the search queue, whose instants are exact.
module Weft.TimerQueue
  ( newQueue,
  )
where

import SearchQueue (newSearchQueue)
import Weft.Core.Timer (Queue)

newQueue :: IO Queue
newQueue = newSearchQueue
