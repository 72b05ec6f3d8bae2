{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : Counting system calls
--
-- Attaches @strace -c -f@ to a running process. That slows the process down many times over, so traced
-- runs are never timed.
module Weft.Bench.Trace
  ( traceTool,
    withTrace,
    parseCounts,
  )
where

import Control.Concurrent (threadDelay)
import Control.Monad (when)
import Data.Map.Strict (Map)
import qualified Data.Map.Strict as M
import Data.Text (Text)
import qualified Data.Text as T
import qualified Data.Text.IO as T
import System.FilePath ((</>))
import System.Posix.Types (ProcessID)
import Text.Read (readMaybe)
import Weft.Bench.Child
import Weft.Bench.Types
import Weft.Tools.Proc

traceTool :: FilePath
traceTool = "strace"

-- | Trace all threads of a process while an action runs. The action gets another action, which ends the tracing and
-- returns how often each system call was made.
withTrace :: Env -> ProcessID -> (IO (Map Text Int) -> IO a) -> IO a
withTrace env pid action = do
  path <- locate env traceTool >>= maybe (failWith "missing: strace") pure
  withChild env (Program path ["-c", "-f", "-o", output, "-p", show pid] [] []) $ \child -> do
    waitUntilTraced 500
    action (interrupt child >> parseCounts <$> T.readFile output)
  where
    output = envScratch env </> "strace.counts"
    waitUntilTraced :: Int -> IO ()
    waitUntilTraced left = do
      ready <- fullyTraced pid
      when (left == 0) $ failWith "strace could not attach to the server"
      if ready then pure () else threadDelay 20000 >> waitUntilTraced (left - 1)

-- | Calls by name from strace's summary table, whose columns are: per cent, seconds, microseconds a call, calls,
-- errors (often empty), name.
parseCounts :: Text -> Map Text Int
parseCounts table = M.fromListWith (+) [(name, calls) | line <- T.lines table, Just (name, calls) <- [row (T.words line)]]
  where
    row (_ : _ : _ : calls : rest@(_ : _))
      | last rest /= "total" = (,) (last rest) <$> readMaybe (T.unpack calls)
    row _ = Nothing
