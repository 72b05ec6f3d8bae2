-- |
-- Calls that can only block (2007, section 4.6): opening a file, resolving a name,
-- a library that knows no other way. They run on a bounded number of threads of
-- their own, each of which occupies an OS thread while its call blocks; further
-- calls queue, and the queue can be looked at.
--
-- The calling thread waits, interruptibly, like for any other operation. A call
-- that has begun cannot be taken back: if its caller is interrupted the call goes
-- on, and what it returns is disposed of.
--
-- In a child made by 'System.Posix.Process.forkProcess' every pool is empty: the threads and the callers of
-- the parent's calls do not exist there.
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
