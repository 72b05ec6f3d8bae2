{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : Counting instructions
--
-- Runs a server under @valgrind --tool=callgrind@, which counts the instructions that it executes in user space. The
-- count does not depend on the machine's other load. The difference of two runs under loads of different lengths gives
-- the cost of a request without that of starting the program.
module Weft.Bench.Callgrind
  ( callgrindTool,
    underCallgrind,
  )
where

import Data.Maybe (listToMaybe, mapMaybe)
import Data.Text (Text)
import qualified Data.Text as T
import qualified Data.Text.IO as T
import System.FilePath ((</>))
import Text.Read (readMaybe)
import Weft.Bench.Child
import Weft.Bench.Types

callgrindTool :: FilePath
callgrindTool = "valgrind"

-- | Run a program under callgrind while an action runs. The result includes the instructions of the program's whole
-- life.
underCallgrind :: Env -> Program -> (Child -> IO a) -> IO (a, Double)
underCallgrind env program action = do
  path <- locate env callgrindTool >>= maybe (failWith "missing: valgrind") pure
  result <- withChild env (wrapped path) action
  output <- T.readFile logFile
  case parseCollected output of
    Just collected -> pure (result, collected)
    Nothing -> failWith ("callgrind of " <> T.pack (programPath program) <> " did not say what it counted")
  where
    logFile = envScratch env </> "callgrind.log"
    wrapped path =
      program
        { programPath = path,
          programArguments =
            ["--tool=callgrind", "--callgrind-out-file=/dev/null", "--log-file=" ++ logFile, programPath program]
              ++ programArguments program
        }

-- | The number after @Collected :@ in callgrind's summary.
parseCollected :: Text -> Maybe Double
parseCollected output = listToMaybe (mapMaybe collected (T.lines output))
  where
    collected line = case T.breakOn "Collected :" line of
      (_, found) | not (T.null found) -> readMaybe . T.unpack =<< listToMaybe (T.words (T.drop 11 found))
      _ -> Nothing
