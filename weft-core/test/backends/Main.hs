-- |
-- The suite @backends@: the laws of "Weft.Core.Backend", run on every back end of
-- this build. The tests of one that the kernel refuses are skipped. Also the choice of another one if epoll is refused.
module Main (main) where

import Control.Exception (bracket, bracket_)
import Control.Monad (replicateM_, unless, when)
import Data.List (isInfixOf)
import Foreign.C.Types (CInt (..))
import GHC.Clock (getMonotonicTimeNSec)
import Laws
import System.Environment (getArgs, getExecutablePath, setEnv, unsetEnv)
import System.Exit (ExitCode (..), exitWith)
import System.Process (readProcessWithExitCode)
import Test.Tasty hiding (defaultMain)
import Test.Tasty.HUnit ((@?=))
import Weft.Backend.Choice
import Weft.Core.Backend
import Weft.Core.Time (milliseconds)
import Weft.FFI.RingEntries (preferRingEntries)
import Weft.Test.Configurations (configurations)
import Weft.Test.Main (defaultMain)
import Weft.Test.Skip (skip, skipAll, testCase)

main :: IO ()
main = do
  arguments <- getArgs
  case arguments of
    [argument] | argument == withoutEpoll -> chooseWithoutEpoll
    [argument] | argument == withoutPwait2 -> waitWithoutPwait2
    _ -> suite

suite :: IO ()
suite = do
  -- The laws look at the numbers of descriptors: one at a time.
  setEnv "TASTY_NUM_THREADS" "1"
  groups <- configurations (const True) backendNames >>= traverse (\name -> group name (laws name (newBackend name)))
  -- Submission queue full, completions that overflow.
  tiny <- configurations (const False) [2] >>= traverse (\n -> group "io_uring" (lawsOfOverflow ("io_uring, rings of " <> show n) (sized n (newBackend "io_uring"))))
  defaultMain (localOption (mkTimeout limit) (testGroup "back ends" ([refused, older] <> groups <> tiny)))
  where
    limit = 120000000

group :: String -> TestTree -> IO TestTree
group name tests = do
  reason <- whyUnavailable name
  pure (maybe id (skipAll name) reason tests)

-- | The choice in a process that may not use epoll: this program with an argument.
refused :: TestTree
refused = testCase "epoll refused by a filter of system calls: the next one is chosen" $ do
  when ("epoll" `notElem` backendNames) (skip "there is no epoll")
  own <- getExecutablePath
  (code, _, said) <- readProcessWithExitCode own [withoutEpoll] ""
  when (code == ExitFailure unfiltered) (skip "no filter of system calls can be installed")
  (code, said) @?= (ExitSuccess, "")

-- | The argument of the program that 'refused' runs.
withoutEpoll :: String
withoutEpoll = "without-epoll"

-- | Its exit status if it can use epoll.
unfiltered :: Int
unfiltered = 42

chooseWithoutEpoll :: IO ()
chooseWithoutEpoll = do
  unsetEnv "WEFT_BACKEND"
  filtered <- refuseEpoll
  when (filtered < 0) (exitWith (ExitFailure unfiltered))
  reason <- whyUnavailable "epoll"
  choice <- backendChoice
  made <- newDefaultBackend
  unless (maybe False ("forbids" `isInfixOf`) reason && choiceBackend choice /= "epoll" && backendName made == choiceBackend choice) $
    error (show (reason, choice, backendName made))

-- | Waits with a limit on a kernel before Linux 5.11: this program with another argument.
older :: TestTree
older = testCase "a kernel without epoll_pwait2 is asked for it once" $ do
  when ("epoll" `notElem` backendNames) (skip "there is no epoll")
  own <- getExecutablePath
  (code, _, said) <- readProcessWithExitCode own [withoutPwait2] ""
  when (code == ExitFailure unfiltered) (skip "this program does not know epoll_pwait2")
  (code, said) @?= (ExitSuccess, "")

-- | The argument of the program that 'older' runs.
withoutPwait2 :: String
withoutPwait2 = "without-epoll_pwait2"

waitWithoutPwait2 :: IO ()
waitWithoutPwait2 = do
  known <- refusePwait2
  when (known < 0) (exitWith (ExitFailure unfiltered))
  begun <- getMonotonicTimeNSec
  bracket (newBackend "epoll") backendClose $ \b -> replicateM_ waits (backendPoll b (WaitFor (milliseconds 1)) (\_ _ -> pure ()))
  took <- subtract begun <$> getMonotonicTimeNSec
  asked <- pwait2Refused
  unless (asked == 1 && took >= waits * 1000000) (error (show (asked, took)))
  where
    waits :: Num a => a
    waits = 50

-- | From now on epoll_pwait2(2) is not known. A negative error if that cannot be done.
foreign import ccall unsafe "weft_test_refuse_pwait2" refusePwait2 :: IO CInt

-- | How often it was asked for since then.
foreign import ccall unsafe "weft_test_pwait2_refused" pwait2Refused :: IO CInt

-- | Refuse epoll_create1(2) to this process for ever. A negative error if that cannot be done.
foreign import ccall unsafe "weft_test_refuse_epoll" refuseEpoll :: IO CInt

-- | Run an action in which new rings have the given number of entries.
sized :: Int -> IO a -> IO a
sized n = bracket_ (preferRingEntries (Just (fromIntegral n))) (preferRingEntries Nothing)
