{-# LANGUAGE MagicHash #-}

-- |
-- Markers of a manager's activity in GHC's event log (user events: @+RTS -l@, in a program that was linked with
-- @-eventlog@ if the compiler asks for it). @weft trace@ draws them.
--
-- In a program that does not log, a marker costs one test of a tag: whether user events are logged is found out once
-- for each manager, and a marker that is not written is not built. Any thread may write one; the log records the
-- capability.
module Weft.Core.EventLog
  ( EventLog,
    openEventLog,
    Marker (..),
    mark,
  )
where

import Control.Monad (when)
import GHC.Ptr (Ptr (..))
import Weft.Sys (traceUserEvent, traceUserEventNumber, userEventsLogged)

-- | Whether user events are logged.
newtype EventLog = EventLog Bool

-- | Whether the program logs user events; that does not change while it runs.
openEventLog :: IO EventLog
openEventLog = EventLog <$> userEventsLogged

-- | A marker.
data Marker
  = -- | The manager is about to block in the kernel.
    Sleeping
  | -- | It has returned from the kernel, with that number of events.
    Woken !Int
  | -- | It has handled that number of events, which it found without blocking.
    Handed !Int
  | -- | That number of timers were fired.
    Fired !Int
  | -- | A thread woke the manager with this number.
    Signalled !Int
  | -- | A thread is going to wait for a descriptor.
    Waited
  | -- | A request to a file goes to the ring of that capability.
    Submitted !Int
  | -- | That number of requests of a ring are complete; written on its capability.
    Finished !Int
  deriving (Eq, Show)

-- | Write a marker, if the program logs.
mark :: EventLog -> Marker -> IO ()
mark (EventLog on) marker = when on (write marker)
{-# INLINE mark #-}

-- | The text of a marker: @weft:@, a word and, for some, a number. "Weft.Tools.Trace.Log" reads it.
write :: Marker -> IO ()
write marker = case marker of
  Sleeping -> traceUserEvent (Ptr "weft:sleep"#)
  Woken n -> traceUserEventNumber (Ptr "weft:woken "#) n
  Handed n -> traceUserEventNumber (Ptr "weft:handed "#) n
  Fired n -> traceUserEventNumber (Ptr "weft:fired "#) n
  Signalled n -> traceUserEventNumber (Ptr "weft:signal "#) n
  Waited -> traceUserEvent (Ptr "weft:wait"#)
  Submitted n -> traceUserEventNumber (Ptr "weft:submit "#) n
  Finished n -> traceUserEventNumber (Ptr "weft:done "#) n
{-# NOINLINE write #-}
