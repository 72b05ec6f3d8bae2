-- |
-- How long a connection stays open after its last answer, for HTTP\/1 and HTTP\/2. The kernel's buffer may hold
-- megabytes that the client has not taken yet, and TCP resets a connection that is closed while its client goes on
-- sending: the client would lose what it was answered. So a server ends its sending direction, and receives and drops
-- what still comes, until the client closes (RFC 9112, 9.6; RFC 9113, 6.8). 'untilTaken' decides when that has taken
-- too long. The states:
--
-- @
--   Taking    part of what was sent is not acknowledged. The client has to acknowledge     -> Taken, over
--             128 KiB, or 20 KiB a second if that is less, within its time limit
--   Taken     everything is acknowledged, or the transport does not know. The client may   -> over
--             go on sending for 'lingerTime', and be silent for 'lingerSilence'
-- @
--
-- Any thread may use it, one for each connection. It throws nothing of its own.
module Weft.Http.Linger
  ( untilTaken,
    Heard (..),

    -- * Times
    lingerTime,
    lingerSilence,
    drainLinger,
  )
where

import Control.Monad (when)
import Weft.Core.Time (Duration (..), Instant, after)
import Weft.Duration (milliseconds, seconds)
import Weft.Http.SendTime (leastIn)
import Weft.Sys (now)
import Weft.Transport (Connection, SendProgress (..), connSendProgress)

-- | What came from the client while its bytes were dropped.
data Heard
  = -- | The end of its stream, or an error: nothing more comes, so a close does not reset.
    HeardEnd
  | HeardBytes
  | HeardNothing
  deriving (Eq)

data State
  = -- | What the client had acknowledged when its present time limit began, and when that was.
    Taking !Int !Instant
  | -- | When everything was acknowledged, and when the client last sent something.
    Taken !Instant !Instant

-- | Wait until the connection is to be closed. Arguments: the client's time limit; an action that runs at least twice a
-- second while the client takes what was sent; one that waits until the instant, or until something came from the
-- client, which it drops; and one that is asked twice a second whether the server shuts down.
untilTaken :: Duration -> IO () -> (Instant -> IO Heard) -> IO Bool -> Connection -> IO ()
untilTaken limit taking hear draining connection = do
  t <- now
  go (Taking 0 t) (after briefly t)
  where
    time = min limit lingerTime
    silence = min limit lingerSilence
    briefly = milliseconds 500
    -- The instant is when to look at the state next.
    go state due = do
      heard <- hear due
      when (heard /= HeardEnd) $ do
        t <- now
        if t < due && heard == HeardBytes
          then go (heardAt t heard state) due
          else look t (heardAt t heard state)
    heardAt t HeardBytes (Taken since _) = Taken since t
    heardAt _ _ state = state
    look t (Taking before began) = do
      progress <- connSendProgress connection
      case progress of
        Just p | sendOutstanding p -> do
          let enough = sendAcknowledged p - before >= leastIn time
          when (enough || t < after time began) $ do
            taking
            go (if enough then Taking (sendAcknowledged p) t else Taking before began) (after briefly t)
        _ -> taking >> go (Taken t t) (after (min silence briefly) t)
    look t (Taken since heard) = do
      drains <- draining
      let over = min (after (if drains then drainLinger else lingerTime) since) (after silence heard)
      when (t < over) (go (Taken since heard) (min over (after briefly t)))

-- | How long a client that has taken everything may go on sending.
lingerTime :: Duration
lingerTime = seconds 30

-- | How long it may send nothing then.
lingerSilence :: Duration
lingerSilence = seconds 5

-- | How long a server that shuts down waits for a client that has taken everything.
drainLinger :: Duration
drainLinger = seconds 2
