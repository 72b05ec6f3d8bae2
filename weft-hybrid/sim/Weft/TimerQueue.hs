-- |
-- The timers of a loop on the simulated machine: the search queue, whose instants are exact.
module Weft.TimerQueue
  ( newQueue,
  )
where

import Weft.Core.Timer (Queue)
import Weft.Core.Timer.Search (newSearchQueue)

newQueue :: IO Queue
newQueue = newSearchQueue
