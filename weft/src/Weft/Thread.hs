-- |
-- Waiting, for threads: what "GHC.Conc" and "System.Timeout" offer, with the same
-- types and meanings, on Weft's managers. A program that imports these instead
-- runs unchanged.
--
-- Any thread may call these functions. They are interruptible while they wait, and leave nothing
-- registered when they end, also by an exception.
-- Times are microseconds, as in base; "Weft.Timer" has the same functions with durations.
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
