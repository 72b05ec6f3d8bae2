-- |
-- How many streams a client may reset, or have reset by its errors: enough for a proxy that shares a connection among
-- hundreds of users, not enough for an attack that starts requests only to reset them ("rapid reset", CVE-2023-44487).
-- Pure; time is passed in.
--
-- A reset is paid for by a rate per second with a burst, or else by a completed request: each one earns two, up to a
-- limit. So the work that a client can make the server throw away is in proportion to the work that it takes.
module Weft.Http2.Resets
  ( ResetRule (..),
    defaultResetRule,
    Resets,
    noResets,
    completed,
    reset,
  )
where

import Weft.Core.Time (Instant)
import Weft.Http2.Budget

-- | The rate that is always allowed, and the most resets that completed requests can earn.
data ResetRule = ResetRule
  { resetRate :: !Rate,
    resetEarned :: !Int
  }
  deriving (Eq, Show)

-- | 50 a second with a burst of 250, and 10,000 that are earned.
defaultResetRule :: ResetRule
defaultResetRule = ResetRule (Rate 50 250) 10000

-- | What a client may still reset.
data Resets = Resets !Budget !Int
  deriving (Eq, Show)

-- | The state of a new connection.
noResets :: Resets
noResets = Resets fullBudget 0

-- | That many requests were completed.
completed :: ResetRule -> Int -> Resets -> Resets
completed rule n (Resets budget earned) = Resets budget (min (resetEarned rule) (earned + 2 * n))

-- | A stream was reset; 'Nothing' if that was one too many.
reset :: ResetRule -> Instant -> Resets -> Maybe Resets
reset rule t (Resets budget earned) = case spend (resetRate rule) t budget of
  Just left -> Just (Resets left earned)
  Nothing
    | earned > 0 -> Just (Resets budget (earned - 1))
    | otherwise -> Nothing
