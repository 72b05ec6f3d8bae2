-- |
-- The part of "GHC.Conc" that the server needs, on the simulated machine: thread labels are ignored.
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
