{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : Programs that measure themselves
--
-- The subjects of @delay@, @timeout@ and @deadline@ run to completion and print their figures as one JSON object of
-- numbers. Then they wait for a line of input, which leaves time to query the kernel about the process.
module Weft.Bench.Timing
  ( -- * Programs
    Trial (..),
    trialCase,

    -- * Measuring
    selfMeasured,
    SubjectMetrics (..),
  )
where

import Data.Aeson (FromJSON (..))
import qualified Data.Map.Strict as M
import Weft.Bench.Child
import Weft.Bench.Server
import Weft.Bench.Types
import Weft.Tools.Proc

-- | One run of such a program.
data Trial = Trial
  { trialSubject :: !Subject,
    trialArguments :: ![String],
    trialCapabilities :: !Int,
    -- | The parameters for comparisons.
    trialParams :: !Params
  }

-- | A case that runs a trial once a round, with an action on its process.
trialCase :: (Env -> Child -> IO Metrics) -> Trial -> Case
trialCase measure trial =
  timedCase (trialSubject trial) (trialParams trial) $ \env -> do
    program <- subjectProgramWith env (trialCapabilities trial) (trialSubject trial) (trialArguments trial)
    withChild env program (measure env)

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
