-- |
-- Labels of threads that have an identity, and the reports of their deadlocks ("Weft.Hybrid.Thread"). Any thread may
-- call this.
module Weft.Hybrid.Labels
  ( labelled,
  )
where

import Control.Exception (BlockedIndefinitelyOnMVar (..), toException)
import Control.Monad (when)
import Weft.Core.Boundary (contained)
import Weft.Hybrid.Park
import Weft.Hybrid.Trace
import Weft.Hybrid.Weak (whenGarbage)
import Weft.Sys

-- | Label a thread. From its first label on its deadlock is reported.
labelled :: Thread -> String -> IO ()
labelled t name = do
  before <- readRef (threadLabel t)
  writeRef (threadLabel t) name
  when (null before && not (null name)) (reportDeadlock t)

-- | Report the thread when the reference to its state is garbage: everything that can wake the thread refers to it, and
-- so does the thread's own context.
reportDeadlock :: Thread -> IO ()
reportDeadlock t = whenGarbage (threadState t) $ do
  state <- readRef (threadState t)
  stopped <- peekWord (schedulerStop (threadScheduler t)) 0
  case state of
    Waiting n _ _ _ | stopped == 0 -> do
      name <- readRef (threadLabel t)
      contained (schedulerOnDeadlock (threadScheduler t) name)
      reportDeadlock t
      place <- placeIn (threadScheduler t)
      -- Another thread that was found with it may have woken it meanwhile.
      throwInWait n place t (toException BlockedIndefinitelyOnMVar)
    _ -> pure ()
