{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : What came of the requests of @weft-bench url@
--
-- Pure: which requests count, and as what. Instants are in nanoseconds of one clock.
module Weft.Bench.UrlLoad.Tally
  ( Tally (..),
    Measured (..),

    -- * One request
    Times (..),
    Outcome,
    Received (..),
    count,
    timedOut,

    -- * Requests without an answer
    abandoned,
    unanswered,
    unsent,

    -- * A rate
    dueAt,
  )
where

import qualified Data.Map.Strict as M
import Data.Text (Text)
import qualified Data.Text as T
import Weft.Bench.Latency

-- | What came of requests. Times are in nanoseconds. A request belongs to the measured time in which it was due, except that
-- answers are counted when they arrive, so that their number over the time is the rate of the server.
data Tally = Tally
  { -- | Latencies of the requests that were answered, also of those answered after the end. Requests that timed out, and
    -- those that were due and not sent before the end, count with the time that they had waited.
    tallyLatencies :: !Latencies,
    -- | How late requests were sent, measured from when they were due or, if later, from when a connection was free.
    tallyLag :: !Latencies,
    -- | Answers with a status below 400 that arrived in the measured time.
    tallyAnswered :: !Int,
    -- | Answers with such a status that arrived after it, to requests that were due in it.
    tallyLate :: !Int,
    -- | The number of both that were redirects.
    tallyRedirected :: !Int,
    tallyUnsent :: !Int,
    -- | The number of requests without an answer when a signal ended the load. They count with the time that they had
    -- waited.
    tallyInFlight :: !Int,
    -- | Bytes of the answers that arrived in the measured time.
    tallyBytes :: !Int,
    -- | The number of connections opened in the measured time.
    tallyOpened :: !Int,
    -- | Errors by kind: a word, or @status N@ from 400 on.
    tallyErrors :: !(M.Map Text Int),
    -- | Errors of requests that were due in the warm-up, by kind, and when they were noticed does not matter. Those
    -- without an answer when a signal ended the load are of the kind @no answer yet@.
    tallyWarmErrors :: !(M.Map Text Int)
  }
  deriving (Eq, Show)

instance Semigroup Tally where
  s <> t =
    Tally
      { tallyLatencies = tallyLatencies s <> tallyLatencies t,
        tallyLag = tallyLag s <> tallyLag t,
        tallyAnswered = both tallyAnswered,
        tallyLate = both tallyLate,
        tallyRedirected = both tallyRedirected,
        tallyUnsent = both tallyUnsent,
        tallyInFlight = both tallyInFlight,
        tallyBytes = both tallyBytes,
        tallyOpened = both tallyOpened,
        tallyErrors = M.unionWith (+) (tallyErrors s) (tallyErrors t),
        tallyWarmErrors = M.unionWith (+) (tallyWarmErrors s) (tallyWarmErrors t)
      }
    where
      both field = field s + field t

instance Monoid Tally where
  mempty = Tally none none 0 0 0 0 0 0 0 M.empty M.empty

-- | The measured time.
data Measured = Measured
  { measuredFrom :: !Int,
    measuredTo :: !Int
  }

-- | The instants of a request: when its connection was free, when it was due, when it was sent, and when its result was
-- there.
data Times = Times !Int !Int !Int !Int

-- | The response, or the kind of error.
type Outcome = Either Text Received

-- | A response: its status, and the number of its body's bytes without their framing.
data Received = Received !Int !Int

-- | When the request with this number is due.
dueAt :: Double -> Int -> Int -> Int
dueAt rate begun k = begun + round (fromIntegral k * 1e9 / rate)

-- | The number of requests that are due before the given instant.
dueBefore :: Double -> Int -> Int -> Int
dueBefore rate begun instant = until (\k -> dueAt rate begun k >= instant) (+ 1) (max 0 (floor (fromIntegral (instant - begun) * rate / 1e9) - 1))

-- | The requests that were due in the measured time and that no connection had taken by its end, with the time that
-- they had waited. There may be many millions of them, so that they are counted by arithmetic and not one by one. The
-- arguments are the rate; the begin of the load, of the measured time, and its end; and the number of requests that were
-- taken.
unsent :: Double -> Int -> Int -> Int -> Int -> Tally
unsent rate begun warm end sent
  | waiting end == 0 = mempty
  | otherwise = mempty {tallyLatencies = recordBetween longest (waiting . (end -)) none, tallyUnsent = waiting end}
  where
    first = max sent (dueBefore rate begun warm)
    longest = end - dueAt rate begun first
    waiting instant = max 0 (dueBefore rate begun instant - first)

-- | A request that was due at the instant, was taken by a connection, and is not sent any more, since the measured time
-- is over: it is due and unsent. It cannot be given back: others may have taken later ones meanwhile.
abandoned :: Measured -> Int -> Tally
abandoned measured due
  | due >= measuredFrom measured && due < measuredTo measured = mempty {tallyLatencies = record (measuredTo measured - due) none, tallyUnsent = 1}
  | otherwise = mempty

-- | A request that was due at the instant, and had no answer yet when the measured time was cut short.
unanswered :: Measured -> Int -> Tally
unanswered measured due
  | due < measuredFrom measured = mempty {tallyWarmErrors = M.singleton "no answer yet" 1}
  | otherwise = mempty {tallyLatencies = record (measuredTo measured - due) none, tallyInFlight = 1}

-- | Count a request.
count :: Measured -> Times -> Outcome -> Tally -> Tally
count (Measured from to) (Times free due sent done) outcome = late . result
  where
    -- Whether it was due in the measured time, and whether its answer came in it.
    counted = due >= from
    timely = done >= from && done <= to
    result = case outcome of
      Right (Received status size)
        | status < 400 -> answered status size
        | otherwise -> failed ("status " <> T.pack (show status))
      Left kind -> failed kind
    answered status size t
      | timely = arrived {tallyAnswered = tallyAnswered t + 1, tallyBytes = tallyBytes t + size}
      | counted = arrived {tallyLate = tallyLate t + 1}
      | otherwise = t
      where
        arrived = (waited t) {tallyRedirected = tallyRedirected t + (if redirects status then 1 else 0)}
    failed kind t
      | counted = (if kind == timedOut then waited t else t) {tallyErrors = M.insertWith (+) kind 1 (tallyErrors t)}
      | otherwise = t {tallyWarmErrors = M.insertWith (+) kind 1 (tallyWarmErrors t)}
    waited t = if counted then t {tallyLatencies = record (done - due) (tallyLatencies t)} else t
    late t = if counted then t {tallyLag = record (sent - max due free) (tallyLag t)} else t

-- | Whether a status below 400 sends the client elsewhere.
redirects :: Int -> Bool
redirects status = status >= 300 && status /= 304

-- | The kind of requests that were not answered in time. They count with the time that they waited.
timedOut :: Text
timedOut = "timed out"
