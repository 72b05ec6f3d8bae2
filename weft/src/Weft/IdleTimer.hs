-- |
-- Idle timers: limits on how long nothing may happen, such as a server has for each
-- connection. An idle timer is reset all the time, so 'reset' is cheap: it writes the new due time to a word and
-- touches no queue. A timer of the manager checks that word when the idle timer would have been due. An idle timer
-- replaces a time manager such as Warp's:
--
-- > timer <- newIdleTimer (seconds 30) (close connection)
-- > forever $ do
-- >   request <- receive connection
-- >   reset timer           -- 30 seconds again, from now
-- >   pause timer           -- no limit on the answer's computation
-- >   answer request
-- >   resume timer
--
-- Any thread may call any function. If two set a timer at the same time, the last one to write wins. Where several
-- threads wait for one peer (one receives, another sends), use 'during' instead of 'resume' and 'pause'.
--
-- Due times come from the kernel's coarse clock, which ticks every few milliseconds, and are
-- rounded up: an idle timer never fires early, and is less than 20 ms late. One that was made before
-- 'System.Posix.Process.forkProcess' does not fire in the child, also if it is reset there.
-- (For a deadline, the instant at which operations give up, see "Weft.Deadline".)
--
-- @since 0.1.0
module Weft.IdleTimer
  ( IdleTimer,
    newIdleTimer,
    newPausedIdleTimer,
    withIdleTimer,
    reset,
    resetFor,
    pause,
    resume,
    stop,
    during,
    remaining,
    expired,
  )
where

import Weft.Runtime.IdleTimer
