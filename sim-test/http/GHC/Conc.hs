-- |
-- The part of "GHC.Conc" that the server needs, on the simulated machine: thread labels are ignored,
-- and so are exceptions that nobody handles.
module GHC.Conc
  ( labelThread,
    getUncaughtExceptionHandler,
    TVar,
    STM,
  )
where

import Control.Concurrent.STM (STM, TVar)
import Control.Exception (SomeException)
import Weft.Sys (ThreadId)

labelThread :: ThreadId -> String -> IO ()
labelThread _ _ = pure ()

getUncaughtExceptionHandler :: IO (SomeException -> IO ())
getUncaughtExceptionHandler = pure (const (pure ()))
