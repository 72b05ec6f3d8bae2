-- |
-- As much of "GHC.Conc" as the server needs, on the simulated machine: threads have no labels.
module GHC.Conc
  ( labelThread,
    TVar,
    STM,
  )
where

import Control.Concurrent.STM (STM, TVar)
import Weft.Sys (ThreadId)

labelThread :: ThreadId -> String -> IO ()
labelThread _ _ = pure ()
