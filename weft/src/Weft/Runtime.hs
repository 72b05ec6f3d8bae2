-- |
-- The managers of a program: one for each capability, run by a thread that
-- stays on that capability, the dispatcher (Voellmy and others 2013, 3.3). They start when they are first needed.
--
-- When the number of capabilities is raised, a new one gets its dispatcher when a thread first waits
-- there. When it is lowered, GHC moves the threads of the removed capabilities, dispatchers too, and
-- all registrations stay valid; GHC does not move them back when it is raised again. A child of
-- 'System.Posix.Process.forkProcess' gets managers and kernel objects of its own
-- when it first needs one.
--
-- A program whose @main@ is written in C has to end the run-time system by @hs_exit_nowait@ (@HsFFI.h@), as a @main@
-- written in Haskell does: @hs_exit@ waits until all foreign calls have returned, and a dispatcher is in one.
--
-- @since 0.1.0
module Weft.Runtime
  ( startManager,
    stopManagers,
  )
where

import Control.Monad (void)
import Weft.Runtime.Managers

-- | Start the manager of the caller's capability now, not when a thread first waits there. No effect if there is one.
-- A program that may run out of descriptors before it first waits can then still wait.
--
-- In a child of 'System.Posix.Process.forkProcess' it releases the kernel objects of the parent's managers, whose
-- descriptors have numbers that the child may want to use otherwise. If the child has closed them before, and opened
-- files that got their numbers, these are left alone. A relinked program does this at its start, so that a back end
-- that it prefers later (@preferBackend@) is that of managers that start later.
--
-- Throws an 'IOError' if the kernel refuses the manager, and none of another capability serves this one.
startManager :: IO ()
startManager = void currentManager
