-- |
-- The suite @backends@: the laws of "Weft.Core.Backend", run on every back end of
-- this build. The tests of one that the kernel refuses are skipped. Also the choice of another one if epoll is refused.
module Main (main) where

import Control.Exception (bracket_)
import Control.Monad (unless, when)
import Data.List (isInfixOf)
import Foreign.C.Types (CInt (..))
import Laws
import System.Environment (getArgs, getExecutablePath, setEnv, unsetEnv)
import System.Exit (ExitCode (..), exitWith)
import System.Process (readProcessWithExitCode)
import Test.Tasty hiding (defaultMain)
import Test.Tasty.HUnit ((@?=))
import Weft.Backend.Choice
import Weft.FFI.RingEntries (preferRingEntries)
import Weft.Test.Configurations (configurations)
import Weft.Test.Main (defaultMain)
import Weft.Test.Skip (skip, skipAll, testCase)

main :: IO ()
main = do
  arguments <- getArgs
  if arguments == [withoutEpoll] then chooseWithoutEpoll else suite

suite :: IO ()
suite = do
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

-- | Refuse epoll_create1(2) to this process for ever. A negative error if that cannot be done.
foreign import ccall unsafe "weft_test_refuse_epoll" refuseEpoll :: IO CInt

-- | Run an action in which new rings have the given number of entries.
sized :: Int -> IO a -> IO a
sized n = bracket_ (preferRingEntries (Just (fromIntegral n))) (preferRingEntries Nothing)
