-- |
-- Calls that can only block (Li and Zdancewic 2007, section 4.6): resolving a name, say, or a library without a
-- non-blocking interface. They run on a bounded pool of threads, each of which occupies an OS
-- thread while its call blocks. Further calls wait in a queue; 'poolStatus' tells how many.
--
-- The calling thread waits, interruptibly. A call that has begun cannot be cancelled: if its
-- caller is interrupted, the call goes on, and its result is disposed of. 'Weft.Deadline.inTime' gives a wait a
-- deadline.
--
-- A call made from within a call, on the same pool, runs on the thread that makes it: it takes no further place in the
-- pool, and cannot wait for one. This does not extend to other threads: calls that wait for a thread which makes a call
-- on the same pool, or calls of two pools that wait for each other, may fill the pools and wait for ever.
--
-- In a child of 'System.Posix.Process.forkProcess' every pool is empty: the threads and the callers of
-- the parent do not exist there.
--
-- The action should block in @safe@ foreign calls, as those of @base@, @unix@ and
-- @network@ do; an @unsafe@ call that blocks stops the whole capability.
--
-- @since 0.1.0
module Weft.Blocking
  ( -- * The program's pool
    blocking,
    blockingOr,
    poolStatus,
    setPoolLimit,

    -- * Pools of one's own
    Pool,
    newPool,
    programPool,
    submit,
    runIn,
    runInOr,
    statusOf,
    setLimit,
    PoolStatus (..),
  )
where

import Weft.Blocking.Pool
