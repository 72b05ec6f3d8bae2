-- |
-- Runs a program with a time limit, as @timeout@ of the GNU core utilities does: the exit code is the program's,
-- 128 and the signal's number if one has killed it, 124 if it was not done in time, and 127 if it cannot be run. It
-- has ended when this program has, also if that is by a signal.
--
-- > deadline 2.5 sort -n < numbers
module Main (main) where

import Control.Exception (handle)
import System.Environment (getArgs)
import System.Exit
import System.IO (hPutStrLn, stderr)
import System.IO.Error (isDoesNotExistError, isPermissionError)
import Text.Read (readMaybe)
import Weft.Duration (nanoseconds)
import Weft.Process
import Weft.Scope (race)
import Weft.Signal
import Weft.Socket (deadlineIn, isTimeout, noDeadline)

main :: IO ()
main = do
  arguments <- getArgs
  case arguments of
    limit : path : rest | Just s <- readMaybe limit -> run s (program path rest)
    _ -> complain 125 "usage: deadline SECONDS PROGRAM [ARGUMENT...]"

run :: Double -> Program -> IO ()
run s p = handle refused $ do
  deadline <- deadlineIn (nanoseconds (round (1e9 * s)))
  ended <- withSignals [sigHUP, sigINT, sigTERM] $ \signals ->
    withProcess p $ \process -> race (waitSignal signals noDeadline) (waitProcess process deadline)
  exitWith $ case ended of
    Right (Exited 0) -> ExitSuccess
    Right (Exited code) -> ExitFailure code
    Right (Killed signal) -> byNumber signal
    Left signal -> byNumber signal
  where
    byNumber signal = ExitFailure (128 + fromIntegral signal)
    refused e
      | isTimeout e = complain 124 (programPath p <> ": not done in time")
      | isDoesNotExistError e || isPermissionError e = complain 127 (show e)
      | otherwise = complain 126 (show e)

complain :: Int -> String -> IO a
complain code text = hPutStrLn stderr text >> exitWith (ExitFailure code)
