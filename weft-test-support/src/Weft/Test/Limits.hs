-- |
-- Time limits of tests. They are generous for a busy machine of today's speed, and too short for one that is emulated:
-- @WEFT_TEST_PATIENCE@ multiplies all of them, also tasty's ("Weft.Test.Main"), and changes nothing else
-- (@scripts/arm64@ sets it).
--
-- A limit says when waiting is given up. How long a test lets something happen before it looks is no limit, and is not
-- multiplied: then there would be as much more of it to wait for. A test of what Weft itself bounds by a time, in which
-- an emulated machine does too little, skips where 'patience' is not 1.
module Weft.Test.Limits
  ( patience,
    within,
    limited,
  )
where

import System.Environment (lookupEnv)
import System.IO.Unsafe (unsafePerformIO)
import System.Timeout (timeout)
import Test.Tasty.HUnit (assertFailure)
import Text.Read (readMaybe)

-- | The factor of all limits: @WEFT_TEST_PATIENCE@, at least 1, which it also is when the variable is not set or is no
-- number.
patience :: Double
patience = unsafePerformIO $ maybe 1 (max 1) . (>>= readMaybe) <$> lookupEnv "WEFT_TEST_PATIENCE"
{-# NOINLINE patience #-}

-- | The action's result, if it ends within this many seconds, times 'patience'; by GHC's clock.
limited :: Double -> IO a -> IO (Maybe a)
limited s = timeout (round (1e6 * s * patience))

-- | Fail, with the given words, unless the action ends within this many seconds, times 'patience'.
within :: Double -> String -> IO a -> IO a
within s what act = limited s act >>= maybe (assertFailure (what <> ": still not done after " <> show (s * patience) <> " s")) pure
