-- |
-- Which of several addresses is connected to (RFC 8305, section 5): the first one is tried, and the next one when the
-- last one has failed, or has not succeeded for a while. The first one that succeeds wins, and all others are
-- abandoned.
--
-- Pure: time is passed in, and 'Command's come out, which "Weft.Dial" carries out.
module Weft.Dial.Race
  ( Race,
    begin,
    Event (..),
    Command (..),
    step,
    nextLook,
    Failure (..),
  )
where

import Data.List (sortOn)
import Weft.Core.Time hiding (until)

-- | A race for addresses @a@ that fail with errors @e@.
data Race a e
  = Racing !(Running a e)
  | -- | It is decided. For good.
    Over

-- | A race that is not decided: at least one attempt is under way.
data Running a e = Running
  { -- | Between the beginnings of two attempts.
    raceDelay :: !Duration,
    raceDeadline :: !Instant,
    -- | When the next attempt begins, if none fails before.
    raceNext :: !Instant,
    -- | Those that have not been tried, in order.
    raceLeft :: ![(Int, a)],
    -- | The attempts that are under way, the latest first.
    raceUnderWay :: ![(Int, a)],
    -- | The attempts that have failed.
    raceFailed :: ![(Int, a, e)]
  }

-- | What has happened. Attempts are numbered from 0, in the order of the addresses.
data Event e
  = Succeeded !Int
  | Failed !Int e
  | -- | Time has passed.
    Look
  deriving (Eq, Show)

-- | What is to be done, in this order.
data Command a e
  = -- | Begin an attempt.
    Start !Int a
  | -- | End an attempt that is under way or has succeeded, and close what it has.
    Abandon !Int
  | -- | This attempt is the result.
    Win !Int
  | -- | There is no result. For each address, in order, why.
    Lose [(a, Failure e)]
  deriving (Eq, Show)

-- | Why an address is not the result.
data Failure e
  = -- | It failed.
    Refused e
  | -- | It had neither failed nor succeeded at the deadline.
    TooSlow
  | -- | Its turn did not come before the deadline.
    NotTried
  deriving (Eq, Show)

-- | A race with the time between two attempts and the deadline, at an instant.
begin :: Duration -> Instant -> Instant -> [a] -> (Race a e, [Command a e])
begin delay deadline t addresses = proceed True t (Running delay deadline t (zip [0 ..] addresses) [] [])

-- | The race after an event, at an instant, and what is to be done. Events of attempts that are not under way change
-- nothing; one that has succeeded all the same is abandoned.
step :: Instant -> Event e -> Race a e -> (Race a e, [Command a e])
step _ event Over = (Over, [Abandon i | Succeeded i <- [event]])
step t event (Racing race) = case event of
  Succeeded i
    | i `elem` attempts -> (Over, Win i : map Abandon (filter (/= i) attempts))
    | otherwise -> (Racing race, [Abandon i])
  Failed i e -> case lookup i (raceUnderWay race) of
    Just a -> proceed True t race {raceUnderWay = others i, raceFailed = (i, a, e) : raceFailed race}
    Nothing -> (Racing race, [])
  Look -> proceed False t race
  where
    attempts = map fst (raceUnderWay race)
    others i = filter ((/= i) . fst) (raceUnderWay race)

-- | Go on, at an instant: the next attempt begins if that is wanted, or if it is time.
proceed :: Bool -> Instant -> Running a e -> (Race a e, [Command a e])
proceed wanted t race = case raceLeft race of
  [] | null (raceUnderWay race) -> over
  _ | t >= raceDeadline race -> over
  (i, a) : rest
    | wanted || t >= raceNext race ->
      ( Racing race {raceLeft = rest, raceUnderWay = (i, a) : raceUnderWay race, raceNext = after (raceDelay race) t},
        [Start i a]
      )
  _ -> (Racing race, [])
  where
    over = (Over, map (Abandon . fst) (raceUnderWay race) ++ [Lose (verdicts race)])

-- | For each address, in order, why it is not the result.
verdicts :: Running a e -> [(a, Failure e)]
verdicts race = map snd (sortOn fst (failed ++ slow ++ left))
  where
    failed = [(i, (a, Refused e)) | (i, a, e) <- raceFailed race]
    slow = [(i, (a, TooSlow)) | (i, a) <- raceUnderWay race]
    left = [(i, (a, NotTried)) | (i, a) <- raceLeft race]

-- | When a 'Look' is due; 'Nothing' when the race is over.
nextLook :: Race a e -> Maybe Instant
nextLook Over = Nothing
nextLook (Racing race)
  | null (raceLeft race) = Just (raceDeadline race)
  | otherwise = Just (min (raceNext race) (raceDeadline race))
