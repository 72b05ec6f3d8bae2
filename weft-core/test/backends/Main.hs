-- |
-- The suite @backends@: the laws of "Weft.Core.Backend", run on every back end of
-- this build. The tests of one that the kernel refuses are skipped. Also the choice of another one if epoll is refused.
module Main (main) where

import Control.Exception (bracket_)
import Control.Monad (unless, when)
import Data.List (isInfixOf)
import Foreign.C.Types (CInt (..))
import Laws
import System.Environment (setEnv, unsetEnv)
import System.Exit (ExitCode (..))
import System.Posix.Process (ProcessStatus (..), exitImmediately, forkProcess, getProcessStatus)
import Test.Tasty hiding (defaultMain)
import Test.Tasty.HUnit ((@?=))
import Weft.Backend.Choice
import Weft.FFI.RingEntries (preferRingEntries)
import Weft.Test.Configurations (configurations)
import Weft.Test.Main (defaultMain)
import Weft.Test.Skip (skip, skipAll, testCase)

main :: IO ()
main = do
  -- The laws look at the numbers of descriptors: one at a time.
  setEnv "TASTY_NUM_THREADS" "1"
  groups <- configurations (const True) backendNames >>= traverse (\name -> group name (laws name (newBackend name)))
  -- Submission queue full, completions that overflow.
  tiny <- configurations (const False) [2] >>= traverse (\n -> group "io_uring" (lawsOfOverflow ("io_uring, rings of " <> show n) (sized n (newBackend "io_uring"))))
  defaultMain (localOption (mkTimeout limit) (testGroup "back ends" (refused : groups <> tiny)))
  where
    limit = 120000000

group :: String -> TestTree -> IO TestTree
group name tests = do
  reason <- whyUnavailable name
  pure (maybe id (skipAll name) reason tests)

-- | The choice in a child process that may not use epoll.
refused :: TestTree
refused = testCase "epoll refused by a filter of system calls: the next one is chosen" $ do
  when ("epoll" `notElem` backendNames) (skip "there is no epoll")
  child <- forkProcess $ do
    unsetEnv "WEFT_BACKEND"
    filtered <- refuseEpoll
    when (filtered < 0) (exitImmediately (ExitFailure unfiltered))
    reason <- whyUnavailable "epoll"
    choice <- backendChoice
    made <- newDefaultBackend
    let others = filter (/= "epoll") backendNames
    unless (maybe False ("forbids" `isInfixOf`) reason && choiceBackend choice `elem` others && backendName made == choiceBackend choice) $
      error (show (reason, choice, backendName made))
  status <- getProcessStatus True False child
  when (status == Just (Exited (ExitFailure unfiltered))) (skip "no filter of system calls can be installed")
  status @?= Just (Exited ExitSuccess)
  where
    unfiltered = 42

-- | Refuse epoll_create1(2) to this process for ever. A negative error if that cannot be done.
foreign import ccall unsafe "weft_test_refuse_epoll" refuseEpoll :: IO CInt

-- | Run an action in which new rings have the given number of entries.
sized :: Int -> IO a -> IO a
sized n = bracket_ (preferRingEntries (Just (fromIntegral n))) (preferRingEntries Nothing)
