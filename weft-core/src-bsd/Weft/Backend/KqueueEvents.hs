-- |
-- Weft's events in the terms of kqueue(2), and back. For "Weft.Backend.Kqueue";
-- pure, so that it is compiled and tested on systems without kqueue too.
--
-- kqueue has no sets of events but filters, each registered and reported separately: reading, writing, on some
-- systems exceptions. The end of the stream is a flag of the first two.
module Weft.Backend.KqueueEvents
  ( -- * Asking
    Filter (..),
    Mode (..),
    Change (..),
    watch,
    replace,
    unwatch,

    -- * Reported events
    FilterEvent (..),
    meaning,
    endsAll,
    afterwards,
  )
where

import Weft.Core.Events

-- | The kernel's filters: kinds of events of a descriptor.
data Filter
  = -- | @EVFILT_READ@
    ReadFilter
  | -- | @EVFILT_WRITE@
    WriteFilter
  | -- | @EVFILT_EXCEPT@ with @NOTE_OOB@, on macOS and OpenBSD
    ExceptFilter
  deriving (Eq, Ord, Enum, Bounded, Show)

-- | How a filter is registered, or that it is removed.
data Mode
  = -- | @EV_ADD@: reported by every poll for as long as it lasts.
    Plain
  | -- | @EV_ADD | EV_ONESHOT@: reported once, then removed by the kernel.
    Single
  | -- | @EV_ADD | EV_CLEAR@: reported now and after each change.
    Clear
  | -- | @EV_DELETE@
    Remove
  deriving (Eq, Ord, Enum, Bounded, Show)

-- | One element of kevent's list of changes.
data Change = Change !Filter !Mode
  deriving (Eq, Show)

-- | The registrations for a trigger and events, if nothing is registered yet. The
-- first argument says whether the system has the exception filter. Without it
-- 'evtUrgent' is never reported.
watch :: Bool -> Trigger -> Events -> [Change]
watch hasExcept trigger asked =
  [Change WriteFilter usual | asked `includes` evtWrite]
    -- Hang-ups are always reported, so there is always a filter that reports them.
    <> [Change ReadFilter readMode | not (asked `includes` evtWrite) || asked `overlaps` (evtRead <> evtPeerClosed)]
    <> [Change ExceptFilter usual | hasExcept, asked `includes` evtUrgent]
  where
    -- The caller did not ask for data: one report is enough.
    readMode = if asked `includes` evtRead then usual else Clear
    usual = case trigger of
      Once -> Single
      Level -> Plain
      Edge -> Clear

-- | Make these registrations instead of the registered filters. The flags of a registered filter do not
-- change, so it is removed first; a filter that is added reports the current state.
replace :: [Filter] -> [Change] -> [Change]
replace registered changes = unwatch registered <> changes

-- | Remove filters.
unwatch :: [Filter] -> [Change]
unwatch registered = [Change f Remove | f <- registered]

-- | A returned event: its filter, whether @EV_EOF@ was set, and whether there was an error
-- (@fflags@).
data FilterEvent = FilterEvent !Filter !Bool !Bool
  deriving (Eq, Show)

-- | The events to report to a caller that asked for these events. Hang-ups are always reported, other
-- events only if the caller asked for them.
meaning :: Events -> FilterEvent -> Events
meaning asked (FilterEvent f end failed)
  | end && (failed || f == WriteFilter) = endsAll asked (held <> evtPeerClosed)
  | otherwise = common asked held <> (if held `common` asked `includes` evtUrgent then evtRead else mempty)
  where
    held = case f of
      ReadFilter -> evtRead <> (if end then evtPeerClosed else mempty)
      WriteFilter -> evtWrite
      ExceptFilter -> evtUrgent

-- | The events to report if both directions have ended.
endsAll :: Events -> Events -> Events
endsAll asked held = common asked held <> evtHangup <> evtRead <> evtWrite

-- | The changes of registrations after events were reported. With 'Once' all filters of the
-- descriptor are removed. With 'Level' a hang-up that was registered for one report is registered
-- again for a report at each poll. Arguments: the trigger, the requested events, the registered
-- filters, the returned events.
afterwards :: Trigger -> Events -> [Filter] -> [FilterEvent] -> [Change]
afterwards trigger asked registered delivered = case trigger of
  Once -> unwatch [f | f <- registered, f `notElem` spent]
  Level
    | not (asked `includes` evtRead),
      or [end | FilterEvent ReadFilter end _ <- delivered] ->
      [Change ReadFilter Remove, Change ReadFilter Plain]
  _ -> []
  where
    -- The kernel has removed these itself.
    spent = [f | FilterEvent f _ _ <- delivered, Change f Single `elem` watch True trigger asked]
