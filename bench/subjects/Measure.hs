-- |
-- Description : The command line and the result of a subject that measures itself
--
-- The subjects of the timer benchmarks run to their end: they take a few numbers, and @--timers NAME@ (the queue of
-- Weft's managers) and @--backend NAME@, both ignored by GHC's own manager. They print their figures as one line of
-- JSON and then wait for a line on standard input, so that the parent process can still read the kernel's figures about the
-- process. Figures about the heap need @+RTS -T@.
module Measure
  ( -- * Arguments
    arguments,
    usage,

    -- * Measuring
    Spent (..),
    spending,
    liveBytes,

    -- * Results
    say,
    hear,
  )
where

import Control.Monad (void)
import Data.List (intercalate)
import GHC.Clock (getMonotonicTimeNSec)
import GHC.Stats (GCDetails (..), RTSStats (..), getRTSStats)
import System.CPUTime (getCPUTime)
import System.Environment (getArgs, getProgName, setEnv)
import System.Exit (ExitCode (ExitFailure), exitWith)
import System.IO (hFlush, hPutStrLn, stderr, stdout)
import System.IO.Error (catchIOError)
import System.Mem (performMajorGC, performMinorGC)

-- | The words of the command line without the options, whose wishes are put into the environment, where Weft looks.
arguments :: IO [String]
arguments = getArgs >>= strip
  where
    strip words' = case words' of
      "--timers" : name : rest -> setEnv "WEFT_TIMERS" name >> strip rest
      "--backend" : name : rest -> setEnv "WEFT_BACKEND" name >> strip rest
      word : rest -> (word :) <$> strip rest
      [] -> pure []

-- | Say what the arguments should be and end with status 2.
usage :: String -> IO a
usage expected = do
  name <- getProgName
  hPutStrLn stderr ("usage: " ++ name ++ " " ++ expected ++ " [--timers psq|wheel] [--backend NAME]")
  exitWith (ExitFailure 2)

-- | The cost of an action.
data Spent = Spent
  { -- | Seconds by the monotonic clock.
    spentWall :: !Double,
    -- | Seconds of CPU time of the whole process.
    spentCpu :: !Double,
    -- | Bytes allocated, to the end of a minor collection before and after.
    spentBytes :: !Double
  }

-- | Run an action and say what it took.
spending :: IO () -> IO Spent
spending action = do
  bytes <- allocatedBytes
  cpu <- getCPUTime
  begun <- getMonotonicTimeNSec
  action
  ended <- getMonotonicTimeNSec
  cpuAfter <- getCPUTime
  bytesAfter <- allocatedBytes
  pure (Spent (fromIntegral (ended - begun) / 1e9) (fromIntegral (cpuAfter - cpu) / 1e12) (bytesAfter - bytes))

-- | Bytes allocated so far by all capabilities.
allocatedBytes :: IO Double
allocatedBytes = do
  performMinorGC
  fromIntegral . allocated_bytes <$> getRTSStats

-- | Bytes alive. Collects twice: what the first collection finds dead may have had a finalizer.
liveBytes :: IO Double
liveBytes = do
  performMajorGC
  performMajorGC
  fromIntegral . gcdetails_live_bytes . gc <$> getRTSStats

-- | Print figures as a line of JSON.
say :: [(String, Double)] -> IO ()
say figures = do
  putStrLn ("{" ++ intercalate ", " [show name ++ ": " ++ show value | (name, value) <- figures] ++ "}")
  hFlush stdout

-- | Wait for a line, or the end, of standard input.
hear :: IO ()
hear = void getLine `catchIOError` const (pure ())
