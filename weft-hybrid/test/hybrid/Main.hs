-- |
-- The suite @hybrid@: on every back end, and with 1, 2 and 4 loops.
-- @-p '/epoll -N2/'@ chooses a group; @WEFT_TEST_SCALE@ multiplies repetitions.
module Main (main) where

import Control.Concurrent (getNumCapabilities, setNumCapabilities)
import Control.Monad (when)
import qualified Programs
import qualified Queues
import qualified Spec.Datagrams
import qualified Spec.Descriptors
import qualified Spec.Exceptions
import qualified Spec.ExternalCall
import qualified Spec.Flags
import qualified Spec.Forked
import qualified Spec.Interrupted
import qualified Spec.Loops
import qualified Spec.Races
import qualified Spec.Scope
import qualified Spec.Shutdown
import qualified Spec.Threads
import qualified Spec.Tutorial
import qualified Spec.Waiting
import System.Environment (setEnv)
import Test.Tasty hiding (defaultMain)
import Weft.Backend
import Weft.Hybrid.Scheduler
import Weft.Test.Configurations (configurations)
import Weft.Test.Main (defaultMain)
import Weft.Test.Skip (skipAll)

main :: IO ()
main = do
  setEnv "TASTY_NUM_THREADS" "1"
  choices <- mapM (\name -> (,) name <$> whyUnavailable name) backendNames
  chosen <- configurations ((== 2) . fst) [(n, choice) | n <- [1, 2, 4], choice <- choices]
  defaultMain . localOption (mkTimeout 120000000) . testGroup "hybrid" $
    Queues.tests :
      [maybe id (skipAll name) reason (group name n) | (n, (name, reason)) <- chosen]

group :: String -> Int -> TestTree
group name n =
  withResource begin stopScheduler $ \scheduler ->
    testGroup
      (name <> " -N" <> show n)
      [ Programs.tests scheduler,
        Spec.Threads.tests scheduler,
        Spec.Waiting.tests scheduler,
        Spec.Interrupted.tests scheduler,
        Spec.Descriptors.tests scheduler,
        Spec.Datagrams.tests scheduler,
        Spec.ExternalCall.tests scheduler,
        Spec.Flags.tests scheduler,
        Spec.Tutorial.tests scheduler,
        Spec.Races.tests n scheduler,
        Spec.Scope.tests n scheduler,
        Spec.Exceptions.tests,
        Spec.Shutdown.tests n,
        Spec.Forked.tests scheduler,
        Spec.Loops.tests n
      ]
  where
    begin = do
      preferBackend name
      caps <- getNumCapabilities
      when (caps /= n) (setNumCapabilities n)
      startScheduler defaultSettings {settingsOnException = \_ _ -> pure ()}
