-- |
-- What the core asks of the kernel's event mechanism: one record (2010, section
-- 6), one value of it for each mechanism. The core knows nothing else about
-- epoll, poll, io_uring or kqueue.
module Weft.Core.Backend
  ( Backend (..),
    Wait (..),
    Armed (..),
  )
where

import System.Posix.Types (Fd)
import Weft.Core.Events
import Weft.Core.Time (Duration)

-- | How long 'backendPoll' may block.
data Wait
  = -- | Not at all: look and return.
    NoWait
  | -- | At most so long; a back end may return later than asked by the
    -- resolution of its clock, never earlier without an event.
    WaitFor !Duration
  | -- | Until an event or a 'backendWake'.
    Forever
  deriving (Eq, Show)

-- | Answer to 'backendArm'.
data Armed
  = -- | The kernel will report the descriptor.
    Armed
  | -- | The kernel has nothing to wait for on such a descriptor (a regular
    -- file): it is always ready, and was not registered.
    AlwaysReady
  deriving (Eq, Show)

-- | A kernel event mechanism with its state.
--
-- Laws, for every back end; the test suite runs them on each:
--
-- [present] After @backendArm fd tok trigger evs@ returned 'Armed', if some of
-- @evs@ holds, the next poll reports it with @tok@, or one of the next if more is ready than
-- one poll has room for: in turn, so that none is passed over for ever. Arming again re-checks.
--
-- [trigger] 'Once', 'Level' and 'Edge' mean what "Weft.Core.Events" says. With
-- 'Edge' a change after a report is reported again, provided that, where
-- 'backendResume' is given, it was called since that report.
--
-- [latest] Arming a descriptor that is armed replaces token, trigger and set.
--
-- [always] 'evtHangup' is reported whether asked for or not, and then 'evtRead'
-- and 'evtWrite' with it.
--
-- [forgotten] After @backendForget fd@ no event is reported for it but those
-- that a concurrent poll had collected already; the caller may close it at once,
-- and closing takes effect at once.
-- Forgetting what is not known is no error.
--
-- [wake] @backendWake@ makes a blocking poll return that is under way, or the next
-- poll if none is. Wakes may be merged, and a poll that does not block may use one
-- up: only a manager that has announced that it blocks is woken.
--
-- [errors] 'backendArm' throws an 'IOError' with the errno (@EBADF@ for a
-- descriptor that is closed or negative) and then has registered nothing.
--
-- Threads: 'backendPoll' is called by one thread at a time, its owner's; all
-- others from any thread at any time. 'backendArm' and 'backendForget' of one
-- descriptor are never called concurrently (the registration table's lock).
data Backend = Backend
  { -- | Its name, as in @WEFT_BACKEND@.
    backendName :: !String,
    -- | Report ready descriptors through the callback, then return how many
    -- there were. With anything but 'NoWait' the call releases the capability
    -- while it blocks. The callback does not block and does not throw.
    backendPoll :: !(Wait -> (Token -> Events -> IO ()) -> IO Int),
    -- | Watch a descriptor.
    backendArm :: !(Fd -> Token -> Trigger -> Events -> IO Armed),
    -- | Stop watching a descriptor.
    backendForget :: !(Fd -> IO ()),
    -- | Must a poll that is already blocking be woken for 'backendArm' to take
    -- effect? If so the caller of 'backendArm' sees to it.
    backendDeferred :: !Bool,
    -- | Given where the kernel does not keep edges: to be called with the events
    -- that an operation found not ready, after it did and before it waits.
    backendResume :: !(Maybe (Fd -> Events -> IO ())),
    -- | The descriptors that it has open, which no program may wait for or close.
    backendDescriptors :: ![Fd],
    -- | Interrupt a blocking poll.
    backendWake :: !(IO ()),
    -- | Give everything back to the kernel. Nothing may be called afterwards.
    backendClose :: !(IO ())
  }
