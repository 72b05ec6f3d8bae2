-- |
-- Deadlines: the one form in which the time of an operation is limited.
--
-- > soon <- deadlineIn (seconds 5)
-- > request <- recv (withDeadline soon sock) 4096          -- "Weft.Socket"
-- > line <- readLine reader soon                           -- "Weft.Reader"
-- > config <- inTime soon (readAt file 0 4096)             -- "Weft.File"
-- > job <- atomicallyInTime soon (readTBQueue jobs)
--
-- A deadline is an 'Instant' of the monotonic clock. It is made once, and passed on to all operations of a task: their
-- sum is limited, however many there are. A value of it is for this process only.
--
-- What holds for each operation that takes one:
--
-- 1. If the deadline passes before the operation is finished, it throws an 'IOError' that satisfies 'isTimeout', and
--    never earlier.
-- 2. An operation that can be finished at once is, even if the deadline has passed. ('inTime' does not begin what it
--    has no time for.)
-- 3. What has arrived is not lost: it is the result of this operation or of the next one. ('inTime' interrupts its
--    action by an exception, which may come just as the action returns. Under 'Control.Exception.mask_' it only comes
--    where the action waits, and then this holds for it too.)
-- 4. 'noDeadline' costs nothing.
--
-- Operations that consist of several, as "Weft.Dial", "Weft.Resolver", "Weft.Pool" and HTTP requests do, and 'inTime',
-- interrupt their waits by an exception. Under 'Control.Exception.uninterruptibleMask_' it cannot come, so that they
-- wait for as long as it takes; a socket, a connection and 'atomicallyUntil' keep to their deadlines there too.
--
-- Connections ("Weft.Transport"), readers and writers, "Weft.Dial", "Weft.Pool", "Weft.Process", "Weft.Signal" and
-- "Weft.Datagram" take a deadline as an argument; a socket carries it ('Weft.Socket.withDeadline'), as the names of
-- @network@ have no argument for it. What has neither, such as an operation on a file or a call of "Weft.Blocking", is
-- run by 'inTime', and a transaction by 'atomicallyInTime'. "Weft.Hybrid" has the same for its threads.
--
-- A 'Duration' limits what begins over and over (an idle connection, a phase of each request), and is then a setting.
-- 'Weft.Timer.within' and, with GHC's name and unit, 'Weft.Thread.timeout' give 'Nothing' instead of an error.
--
-- Any thread may call these functions.
--
-- @since 0.1.0
module Weft.Deadline
  ( -- * Deadlines
    Instant,
    deadlineIn,
    noDeadline,
    isTimeout,
    module Weft.Duration,

    -- * For what takes none
    inTime,
    atomicallyInTime,

    -- * For implementations
    untilDeadline,
    timeoutError,
    atomicallyUntil,
  )
where

import Control.Concurrent.STM (STM, atomically, check, newTVarIO, orElse, readTVar, writeTVar)
import Control.Exception (finally, mask_)
import Foreign.C.Error (Errno (..), eTIMEDOUT)
import GHC.IO.Exception (IOErrorType (TimeExpired), IOException (ioe_type))
import Weft.Core.Manager (addTimer)
import Weft.Core.Time (Instant, after, never, until)
import Weft.Core.Timer (cancelTimer)
import Weft.Duration
import Weft.FFI.Errno (errnoError)
import Weft.Runtime.Managers (currentManager)
import Weft.Sys (now)
import Weft.Thread.Time (within)
import Prelude hiding (until)

-- | The instant after the given duration from now, on the monotonic clock; 'noDeadline' for 'maxBound'.
deadlineIn :: Duration -> IO Instant
deadlineIn d = after d <$> now

-- | No deadline.
noDeadline :: Instant
noDeadline = never

-- | Whether it is @ETIMEDOUT@: a deadline has passed, or the kernel has given up a connection.
isTimeout :: IOError -> Bool
isTimeout e = case ioe_type e of
  TimeExpired -> True
  _ -> False

-- For what takes none ------------------------------------------------------------------

-- | Run an action, and interrupt it when the deadline passes, by the exception of 'Weft.Timer.within'; an action that
-- ends in spite of it has its own result. It does not begin if the deadline has passed. It runs in the calling thread,
-- calls nest, and other exceptions pass through.
--
-- Of a write to a file a part may then have been written. A request that waits for a disk as a blocking call, and a
-- call of "Weft.Blocking" that has begun, cannot be cancelled: see there what becomes of it.
--
-- > mask_ (inTime soon (readNext pipe 4096))               -- loses no bytes of the pipe
inTime :: Instant -> IO a -> IO a
inTime deadline act
  | deadline == noDeadline = act
  | otherwise = do
    left <- untilDeadline deadline
    within left act >>= inTimeOr "Weft.Deadline.inTime"

-- | Run a transaction, and wait until it commits or the deadline passes. It is tried once if the deadline has passed.
-- If it throws, it has not committed: no exception comes between the commit and the return, as if under 'mask_'.
atomicallyInTime :: Instant -> STM a -> IO a
atomicallyInTime deadline act = mask_ (atomicallyUntil deadline act >>= inTimeOr "Weft.Deadline.atomicallyInTime")

inTimeOr :: String -> Maybe a -> IO a
inTimeOr loc = maybe (ioError (timeoutError loc)) pure

-- For implementations ------------------------------------------------------------------

-- | The time until a deadline, for 'Weft.Timer.within': not positive if it has passed, 'maxBound' for 'noDeadline'.
untilDeadline :: Instant -> IO Duration
untilDeadline deadline
  | deadline == noDeadline = pure maxBound
  | otherwise = until deadline <$> now

-- | The error of an operation whose deadline has passed, which satisfies 'isTimeout'. The location is for its message.
timeoutError :: String -> IOError
timeoutError loc = let Errno e = eTIMEDOUT in errnoError loc e

-- | 'atomicallyInTime' that gives 'Nothing' if the deadline passes, to throw an error of one's own. A timer is set only
-- if the transaction has to wait.
atomicallyUntil :: Instant -> STM a -> IO (Maybe a)
atomicallyUntil deadline act
  | deadline == noDeadline = Just <$> atomically act
  | otherwise = mask_ (atomically ((Just <$> act) `orElse` pure Nothing) >>= maybe waiting (pure . Just))
  where
    waiting = do
      passed <- newTVarIO False
      m <- currentManager
      timer <- addTimer m deadline (atomically (writeTVar passed True))
      let tooLate = Nothing <$ (readTVar passed >>= check)
      atomically ((Just <$> act) `orElse` tooLate) `finally` cancelTimer timer
