{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : Programs that measure themselves
--
-- The subjects of @delay@, @timeout@ and @deadline@ run to completion and print their figures as one JSON object of
-- numbers. Then they wait for a line of input, which leaves time to query the kernel about the process.
module Weft.Tools.Bench.Timing
  ( -- * Programs
    Trial (..),
    Mode (..),
    trialCase,
    modeParam,

    -- * Measuring
    selfMeasured,
    SubjectMetrics (..),
  )
where

import Data.Aeson (FromJSON (..))
import qualified Data.Map.Strict as M
import Data.Text (Text)
import Weft.Tools.Bench.Child
import Weft.Tools.Bench.Proc
import Weft.Tools.Bench.Server
import Weft.Tools.Bench.Types

-- | One run of such a program.
data Trial = Trial
  { trialSubject :: !Subject,
    trialMode :: !Mode,
    trialArguments :: ![String],
    trialCapabilities :: !Int,
    -- | The parameters for comparisons, without the mode.
    trialParams :: !Params
  }

-- | The queue of timers: the manager's default, or Weft's priority search queue. (It is a parameter of every
-- run, so that a bound on one is never judged by the other.)
data Mode = Own | SearchQueue
  deriving (Eq, Show)

modeParam :: Mode -> (Text, ParamValue)
modeParam Own = ("mode", Word "default")
modeParam SearchQueue = ("mode", Word "psq")

-- | A case that runs a trial once a round, with an action on its process.
trialCase :: (Env -> Child -> IO Metrics) -> Trial -> Case
trialCase measure trial =
  Case
    { caseSubject = trialSubject trial,
      caseParams = given,
      caseGroup = trialParams trial,
      caseMeasure = \env -> do
        program <- subjectProgramWith env (trialCapabilities trial) (trialSubject trial) arguments
        metrics <- withChild env program (measure env)
        pure [(given, metrics)],
      caseCounts = []
    }
  where
    given = trialParams trial ++ [modeParam (trialMode trial)]
    arguments = trialArguments trial ++ concat [["--timers", "psq"] | trialMode trial == SearchQueue]

-- | The figures that the program prints, and its peak memory.
selfMeasured :: Env -> Child -> IO Metrics
selfMeasured _ child = do
  SubjectMetrics figures <- hearJson patience child
  peak <- peakResidentBytes (childPid child)
  pure (M.insert "max_rss_mb" (peak / 1e6) figures)

-- | Seconds after which a program is abandoned. A million delays take GHC's own manager half a minute.
patience :: Double
patience = 300

-- | An object of numbers.
newtype SubjectMetrics = SubjectMetrics Metrics
  deriving (Eq, Show)

instance FromJSON SubjectMetrics where
  parseJSON = fmap SubjectMetrics . parseJSON
