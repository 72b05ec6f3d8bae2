-- |
-- The boundary between Weft's threads and foreign code that runs on them: callbacks, timers, and handlers of the
-- program. No exception crosses it, whatever that code does. A turn of a manager thus always reaches its end, and
-- everything else that is due in it runs. All foreign code that Weft runs on a thread of its own is called by 'guarded'
-- or 'contained'; any thread may call them.
--
-- Exceptions go to the program's handler for uncaught exceptions ('GHC.Conc.setUncaughtExceptionHandler'), which is
-- foreign code too: it may throw, also because an exception cannot be shown, and it may block, for example on a log
-- that cannot be written. So it runs on a thread of its own, the reporter, and its own exceptions are dropped. The
-- reporter exists while there are exceptions to report; they are reported in the order in which they were thrown.
module Weft.Core.Boundary
  ( guarded,
    contained,
    reportUncaught,
  )
where

import Control.Exception (AsyncException (StackOverflow), SomeAsyncException (..), SomeException, fromException, toException)
import Control.Monad (unless, void, when)
import Weft.Sys

-- | Run foreign code. It never throws. An exception is reported, but for an asynchronous one: that is meant for the
-- calling thread, and is thrown to the thread again, so it is raised when exceptions are next unmasked.
guarded :: IO () -> IO ()
guarded act = act `catchAll` escaped
{-# INLINE guarded #-}

-- | 'guarded' for code to which no other thread can throw: an asynchronous exception is the code's own too. Exceptions
-- are masked meanwhile.
contained :: IO () -> IO ()
contained act = mask_ act `catchAll` reportUncaught

-- | The exception itself may be undefined; then what its evaluation throws is reported in its place.
escaped :: SomeException -> IO ()
escaped e = do
  asynchronous <- tryAll (pure $! isForThread e)
  case asynchronous of
    Right True -> postpone e
    Right False -> reportUncaught e
    Left e' -> reportUncaught e'
{-# NOINLINE escaped #-}

-- | A stack overflow is raised by the run-time system, not by a thread: the code that was running has caused it.
isForThread :: SomeException -> Bool
isForThread e = case (fromException e, fromException e) of
  (_, Just StackOverflow) -> False
  (Just (SomeAsyncException _), _) -> True
  _ -> False

-- Reporting ------------------------------------------------------------------------------

-- | The exceptions that are to be reported, the latest first, and the number of those that were dropped. Changed
-- atomically, by any thread.
--
-- @
--   Quiet      -> Reporting  an exception; the thread that changes the state starts the reporter
--   Reporting  -> Reporting  another exception; or the reporter takes all of them
--              -> Quiet      the reporter has found none, and ends
-- @
--
-- The first number is the process image ('forkGeneration'): the reporter of a parent does not exist in its child.
data Reports = Quiet | Reporting !Int !Int !Int [SomeException]

theReports :: Ref Reports
theReports = globalRef "Weft.Core.Boundary.theReports" (pure Quiet)
{-# NOINLINE theReports #-}

-- | The most exceptions that wait while the program's handler is at work. More are counted and dropped.
mostReports :: Int
mostReports = 1000

-- | Give an exception to the program's handler for uncaught exceptions, by the reporter. It neither blocks nor throws.
reportUncaught :: SomeException -> IO ()
reportUncaught e = mask_ $ do
  image <- forkGeneration
  before <- updateRef theReports (add image)
  unless (isOf image before) $ do
    cap <- myCapability
    void (forkPinned cap "weft uncaught exceptions" (\unmask -> reporter unmask))
  where
    isOf image (Reporting i _ _ _) = i == image
    isOf _ Quiet = False
    add image found = case found of
      Reporting i n dropped es
        | i == image && n < mostReports -> Reporting i (n + 1) dropped (e : es)
        | i == image -> Reporting i n (dropped + 1) es
      _ -> Reporting image 1 0 [e]

-- | Masked, but while the handler runs: it survives what the handler throws.
reporter :: (IO () -> IO ()) -> IO ()
reporter unmask = do
  found <- updateRef theReports taken
  case found of
    Reporting _ _ dropped es@(_ : _) -> do
      mapM_ report (reverse es)
      when (dropped > 0) (report (toException (userError (show dropped <> " more uncaught exceptions came while the handler was at work"))))
      reporter unmask
    _ -> pure ()
  where
    taken found = case found of
      Reporting image _ _ (_ : _) -> Reporting image 0 0 []
      _ -> Quiet
    report e = void (tryAll (unmask (handleUncaught e)))
