-- |
-- Deadlines of hybrid threads. They are those of "Weft.Deadline", with the same laws: a socket carries one
-- ('Weft.Hybrid.Socket.withDeadline'), the functions of "Weft.Hybrid.Datagram" are given one, and 'inTime' is for what
-- takes none, such as an operation on a file, a transaction of "Weft.Hybrid.STM" or a blocking call.
--
-- @since 0.1.0
module Weft.Hybrid.Deadline
  ( Instant,
    deadlineIn,
    noDeadline,
    isTimeout,
    inTime,
  )
where

import Control.Monad.Catch (throwM)
import Weft.Deadline (Duration, Instant, isTimeout, noDeadline, timeoutError, untilDeadline)
import qualified Weft.Deadline as GHC
import Weft.Hybrid.Monad
import Weft.Hybrid.Timer (within)

-- | The instant after the given duration from now.
deadlineIn :: Duration -> Hybrid Instant
deadlineIn d = nonBlocking (GHC.deadlineIn d)

-- | Run an action, and interrupt it when the deadline passes, as 'within' does: it then raises an error that satisfies
-- 'isTimeout'. It does not begin if the deadline has passed.
inTime :: Instant -> Hybrid a -> Hybrid a
inTime deadline act
  | deadline == noDeadline = act
  | otherwise = do
    left <- nonBlocking (untilDeadline deadline)
    within left act >>= maybe (throwM (timeoutError "Weft.Hybrid.inTime")) pure
