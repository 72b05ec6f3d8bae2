-- |
-- Description : What can follow what in an event log
--
-- A log has no checksum. A byte that is changed in it is found where the decoder fails (the type of an event, the size
-- of a text or a block), or where what it says cannot be:
--
-- * Scheduler events, labels and markers of a capability are in the order of their times. (Those of collections are
--   not: the run-time system notes some of them later, with the time of an earlier reading of the clock.)
-- * A capability runs one thread at a time: that thread stops before another one runs, and no other one stops.
--
-- Not found are other changes of the low bytes of a time, which moves an event between its neighbours; of the text of a
-- message or a label; of the thread and the capability of a wake-up; and of events that no timeline shows.
--
-- Pure.
module Weft.Tools.Trace.Sequence
  ( Entry (..),
    What (..),
    Marker (..),
    Known,
    nothingKnown,
    follows,
  )
where

import Data.Int (Int64)
import qualified Data.IntMap.Strict as M
import Data.Text (Text)

-- | An event on a capability, with its time in nanoseconds since the start.
data Entry = Entry
  { entryTime :: !Int64,
    entryCapability :: !Int,
    entryWhat :: !What
  }
  deriving (Eq, Show)

-- | The kinds of events; threads are identified by their numbers.
data What
  = Runs !Int
  | Stops !Int
  | -- | A thread becomes ready on that capability.
    Wakes !Int !Int
  | Labelled !Int !Text
  | CollectionBegins
  | CollectionEnds
  | Marked !Marker
  deriving (Eq, Show)

-- | The markers of "Weft.Core.EventLog".
data Marker = Sleeping | Woken !Int | Handed !Int | Fired !Int | Signalled !Int | Waited | Submitted !Int | Finished !Int
  deriving (Eq, Show)

-- | What a log has said so far: of each capability the time of its last event, and its thread.
newtype Known = Known (M.IntMap Capability)

data Capability = Capability !Int64 !Occupied

data Occupied
  = -- | No thread has run or stopped yet: the log may begin in the middle of the program.
    Unclear
  | Idle
  | Running !Int

-- | At the beginning of a log.
nothingKnown :: Known
nothingKnown = Known M.empty

-- | What is known after an entry, unless it cannot follow what was before it in the file. O(log n) in the number of
-- capabilities.
follows :: Known -> Entry -> Maybe Known
follows known@(Known capabilities) (Entry time number what) = case what of
  CollectionBegins -> Just known
  CollectionEnds -> Just known
  _ | time < before -> Nothing
  Runs thread -> case occupied of
    Running _ -> Nothing
    _ -> now (Running thread)
  Stops thread -> case occupied of
    Running other | other /= thread -> Nothing
    Idle -> Nothing
    _ -> now Idle
  _ -> now occupied
  where
    Capability before occupied = M.findWithDefault (Capability 0 Unclear) number capabilities
    now state = Just (Known (M.insert number (Capability time state) capabilities))
