-- |
-- The interface to the kernel's event mechanism: one record (O'Sullivan and Tibell 2010, section
-- 6), with one value for each mechanism. The core knows nothing else about
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
  | -- | At most that long. A back end may return later, by the
    -- resolution of its clock, never earlier without an event.
    WaitFor !Duration
  | -- | Until an event or a 'backendWake'.
    Forever
  deriving (Eq, Show)

-- | The result of 'backendArm'.
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
-- [present] If some of @evs@ holds when @backendArm fd tok trigger evs@ has returned 'Armed', the next poll reports
-- it with @tok@. If more descriptors are ready than one poll has room for, it is one of the next polls: they are
-- reported in turn, so that none starves. Arming again checks again.
--
-- [trigger] 'Once', 'Level' and 'Edge' have the meaning in "Weft.Core.Events". With
-- 'Edge' a change after a report is reported again. (If the back end has a
-- 'backendResume', only after it was called since that report.)
--
-- [latest] Arming a descriptor that is armed replaces token, trigger and set.
--
-- [always] 'evtHangup' is reported whether asked for or not, and then 'evtRead'
-- and 'evtWrite' with it.
--
-- [forgotten] After @backendForget fd@ no event is reported for it but those
-- that a concurrent poll had collected already; the caller may close it at once,
-- and closing takes effect when the returned action has ended: nearly always there is nothing to wait for.
-- Forgetting a descriptor that is not watched is no error.
--
-- [wake] @backendWake@ makes a blocking poll return, or, if none blocks, the next poll. Several wakes may count as
-- one, and a poll that does not block may consume one. That suffices, since a manager is woken only after it has
-- announced that it blocks.
--
-- [errors] 'backendArm' throws an 'IOError' with the errno (@EBADF@ for a
-- descriptor that is closed or negative) and then has registered nothing.
--
-- Threads: 'backendPoll' is called by one thread only, the manager's; all
-- others by any thread at any time. 'backendArm' and 'backendForget' of one
-- descriptor are never called concurrently (the registry's lock).
data Backend = Backend
  { -- | Its name, as in @WEFT_BACKEND@.
    backendName :: !String,
    -- | Report ready descriptors through the callback, then return how many
    -- there were. With anything but 'NoWait' the call releases the capability
    -- while it blocks. The callback does not block and does not throw.
    backendPoll :: !(Wait -> (Token -> Events -> IO ()) -> IO Int),
    -- | Watch a descriptor.
    backendArm :: !(Fd -> Token -> Trigger -> Events -> IO Armed),
    -- | Stop watching a descriptor. The action that it returns waits until the kernel's mechanism has released the
    -- file; it may block, and may be run at any time, also after 'backendClose'.
    backendForget :: !(Fd -> IO (IO ())),
    -- | Whether 'backendArm' takes effect only when a blocking poll returns. If so, the caller of 'backendArm' wakes
    -- the poll.
    backendDeferred :: !Bool,
    -- | 'Just' if the kernel mechanism is not edge-triggered. The action has to be called with the events for which
    -- an operation got @EAGAIN@, before the operation waits.
    backendResume :: !(Maybe (Fd -> Events -> IO ())),
    -- | The back end's own open descriptors. The program must neither wait for them nor close them.
    backendDescriptors :: ![Fd],
    -- | Interrupt a blocking poll.
    backendWake :: !(IO ()),
    -- | Release all kernel objects. No other field may be used afterwards.
    backendClose :: !(IO ())
  }
