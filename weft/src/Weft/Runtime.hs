-- |
-- The managers of a program as a whole: one for each capability, each run by a thread that
-- stays there, the dispatcher (2013, 3.3). They start when they are first needed.
--
-- More capabilities, at run time, get their dispatcher when a thread first waits
-- there. With fewer, GHC moves the threads of those that went, dispatchers too, and
-- everything registered stays valid. A child made by
-- 'System.Posix.Process.forkProcess' gets managers and kernel objects of its own
-- when it first needs one.
--
-- @since 0.1.0
module Weft.Runtime
  ( stopManagers,
  )
where

import Weft.Runtime.Managers
