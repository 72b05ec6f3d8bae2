-- |
-- Markers of a manager's activity in GHC's event log (user events: @+RTS -l@, in a program that was linked with
-- @-eventlog@ if the compiler asks for it). @weft trace@ draws them.
--
-- In a program that does not log, a marker costs one test of a tag: whether user events are logged is found out once for
-- each manager, and a marker that is not written is not built. Any thread may write one; the log records the capability.
module Weft.Core.EventLog
  ( EventLog,
    openEventLog,
    Marker (..),
    mark,
    render,
  )
where

import Control.Monad (when)
import Weft.Sys (traceUserEvent, userEventsLogged)

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

write :: Marker -> IO ()
write marker = traceUserEvent (render marker)
{-# NOINLINE write #-}

-- | The text of a marker: @weft:@, a word and, for some, a number.
render :: Marker -> String
render marker = case marker of
  Sleeping -> "weft:sleep"
  Woken n -> "weft:woken " ++ show n
  Handed n -> "weft:handed " ++ show n
  Fired n -> "weft:fired " ++ show n
  Signalled n -> "weft:signal " ++ show n
  Waited -> "weft:wait"
  Submitted n -> "weft:submit " ++ show n
  Finished n -> "weft:done " ++ show n
