-- |
-- Functions that the tests of the suite @hybrid@ share.
module Support
  ( times,
    finishes,
    pause,
    eventually,
    collect,
    Oops (..),
    isKilled,
  )
where

import Control.Concurrent (threadDelay)
import Control.Exception (AsyncException (ThreadKilled), Exception, SomeException, fromException)
import Control.Monad (unless)
import System.Environment (lookupEnv)
import System.IO.Unsafe (unsafePerformIO)
import System.Mem (performMajorGC)
import Test.Tasty.HUnit
import Text.Read (readMaybe)
import qualified Weft.Test.Limits as Limits

-- | This many repetitions, scaled, at least one.
times :: Int -> Int
times n = max 1 (round (scale * fromIntegral n))

scale :: Double
scale = unsafePerformIO $ do
  set <- lookupEnv "WEFT_TEST_SCALE"
  pure (maybe 1 (max 0.001) (set >>= readMaybe))
{-# NOINLINE scale #-}

-- | Fail unless the action ends, by GHC's clock.
finishes :: String -> IO a -> IO a
finishes = Limits.within 60

-- | This many milliseconds.
pause :: Int -> IO ()
pause ms = threadDelay (1000 * ms)

-- | Fail unless the condition comes to hold.
eventually :: String -> IO Bool -> Assertion
eventually what cond = finishes what go
  where
    go = cond >>= \ok -> unless ok (threadDelay 1000 >> go)

-- | Let the collector and finalizers run.
collect :: IO ()
collect = performMajorGC >> threadDelay 2000

-- | An exception of the tests.
data Oops = Oops
  deriving (Eq, Show)

instance Exception Oops

-- | Did the thread end by being killed?
isKilled :: Either SomeException a -> Bool
isKilled (Left e) = fromException e == Just ThreadKilled
isKilled (Right _) = False
