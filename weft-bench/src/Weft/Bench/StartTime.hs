{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : How long a program takes from start to end
module Weft.Bench.StartTime
  ( startCase,
    startParams,
  )
where

import Control.Monad (replicateM, unless)
import Data.List (sort)
import qualified Data.Map.Strict as M
import qualified Data.Text as T
import GHC.Clock (getMonotonicTimeNSec)
import System.Exit (ExitCode (..))
import System.Process (CreateProcess (std_in), StdStream (..), waitForProcess, withCreateProcess)
import Weft.Bench.Child (Program (..), processOf)
import Weft.Bench.Server (subjectProgramWith)
import Weft.Bench.Types

startParams :: Params
startParams = [("workload", Word "start"), ("capabilities", Count 2)]

-- | Runs a subject that ends by itself the given number of times, one after the other, and takes the median.
startCase :: Int -> Subject -> Case
startCase count subject =
  timedCase subject startParams $ \env -> do
    program <- subjectProgramWith env 2 subject []
    -- taskset(1) takes time of its own. It is left out where the program may use all cores anyway.
    times <- replicateM (max 1 count) (once program {programCores = if length (programCores program) < envCores env then programCores program else []})
    pure (M.singleton "start_ms" (sort times !! (length times `div` 2)))

-- | The duration of one run in milliseconds.
once :: Program -> IO Double
once program = do
  command <- processOf program
  begun <- getMonotonicTimeNSec
  ended <- withCreateProcess command {std_in = NoStream} $ \_ _ _ handle -> waitForProcess handle
  done <- getMonotonicTimeNSec
  unless (ended == ExitSuccess) $ failWith (T.pack (programPath program) <> " ended with " <> T.pack (show ended))
  pure (fromIntegral (done - begun) / 1e6)
