-- |
-- Waiting, for threads: what "GHC.Conc" and "System.Timeout" offer, with the same
-- types and meanings, on Weft's managers. A program that imports these instead
-- runs unchanged.
--
-- Every function may be called from any thread, takes asynchronous exceptions
-- while it waits, and leaves nothing registered when it ends, however it ends.
-- Times are microseconds, as there; "Weft.Timer" has the same with durations.
--
-- @since 0.1.0
module Weft.Thread
  ( -- * Descriptors
    threadWaitRead,
    threadWaitWrite,
    threadWaitReadSTM,
    threadWaitWriteSTM,
    closeFdWith,

    -- * Time
    threadDelay,
    registerDelay,
    timeout,
    Timeout,
  )
where

import Weft.Thread.Time
import Weft.Thread.Wait
