-- |
-- The suite @spec@: everything that a user of the library sees, on every back end
-- and on 1, 2 and 4 capabilities, in one process. The back end and the number of
-- capabilities are changed between the groups, which is itself among the things
-- that are tested. @-p '/epoll -N2/'@ chooses a group.
--
-- @WEFT_TEST_SCALE@ multiplies the number of repetitions, for soaks.
-- @WEFT_TEST_CONFIGURATIONS=one@ leaves one group.
module Main
  ( main,
  )
where

import Control.Concurrent hiding (threadDelay)
import Control.Monad (forM_, when)
import Harness
import qualified Spec.Blocking
import qualified Spec.Boundary
import qualified Spec.Closing
import qualified Spec.Compatibility
import qualified Spec.DatagramBatches
import qualified Spec.Datagrams
import qualified Spec.Deadline
import qualified Spec.Dial
import qualified Spec.Event
import qualified Spec.EventLife
import qualified Spec.EventTogether
import qualified Spec.Exports
import qualified Spec.IdleTimer
import qualified Spec.Interrupted
import qualified Spec.Lifecycle
import qualified Spec.Messages
import qualified Spec.Metrics
import qualified Spec.Pool
import qualified Spec.Process
import qualified Spec.Reader
import qualified Spec.Resolver
import qualified Spec.Scope
import qualified Spec.Sending
import qualified Spec.Serve
import qualified Spec.Signal
import qualified Spec.Socket
import qualified Spec.StandardError
import qualified Spec.Stm
import qualified Spec.Thread
import qualified Spec.Time
import qualified Spec.Timeout
import qualified Spec.Transport
import System.Environment (getArgs, setEnv)
import Test.Tasty hiding (defaultMain)
import Weft.Backend
import Weft.Runtime (stopManagers)
import Weft.Test.Configurations (configurations)
import Weft.Test.Main (defaultMain)
import Weft.Test.Skip (skipAll)
import Weft.Thread (threadDelay)

main :: IO ()
main = do
  arguments <- getArgs
  if arguments == [Spec.Closing.aborting] then Spec.Closing.abortConnections else suite

suite :: IO ()
suite = do
  -- The tests look at what the whole process holds: one at a time.
  setEnv "TASTY_NUM_THREADS" "1"
  choices <- mapM usable backendNames
  chosen <- configurations ((== 2) . fst) [(n, choice) | n <- [1, 2, 4], choice <- choices]
  defaultMain . localOption (mkTimeout limit) . testGroup "weft" $
    [ testGroup
        "GHC's own -N1"
        [ Spec.Thread.tests Spec.Thread.ghc,
          Spec.Time.tests Spec.Time.ghc,
          Spec.Timeout.tests Spec.Timeout.ghc
        ],
      Spec.Exports.tests,
      Spec.Closing.ofAborts,
      Spec.StandardError.tests
    ]
      <> [maybe id (skipAll name) reason (group name n) | (n, (name, reason)) <- chosen]
  where
    limit = round (60e6 * max 1 scale)
    usable name = (,) name <$> whyUnavailable name

group :: String -> Int -> TestTree
group name n =
  withResource enter (const stopManagers) $ \_ ->
    testGroup
      (name <> " -N" <> show n)
      [ Spec.Event.tests name,
        Spec.EventLife.tests,
        Spec.EventTogether.tests,
        Spec.Boundary.tests,
        Spec.Interrupted.tests,
        Spec.Thread.tests Spec.Thread.weft,
        Spec.Thread.ownTests,
        Spec.Stm.tests,
        Spec.Deadline.tests,
        Spec.Time.tests Spec.Time.weft,
        Spec.Time.ownTests,
        Spec.Timeout.tests Spec.Timeout.weft,
        Spec.Timeout.ownTests,
        Spec.IdleTimer.tests,
        Spec.Socket.tests,
        Spec.Messages.tests,
        Spec.Compatibility.tests,
        Spec.Datagrams.tests,
        Spec.DatagramBatches.tests,
        Spec.Sending.tests,
        Spec.Serve.tests,
        Spec.Transport.tests (name == "poll"),
        Spec.Reader.tests,
        Spec.Resolver.tests,
        Spec.Dial.tests,
        Spec.Pool.tests,
        Spec.Process.tests,
        Spec.Signal.tests,
        Spec.Blocking.tests,
        Spec.Scope.tests,
        Spec.Metrics.tests,
        Spec.Closing.tests,
        Spec.Lifecycle.tests
      ]
  where
    enter = do
      -- In this order: a thread that is left from another group may start a new
      -- dispatcher at any moment.
      preferBackend name
      stopManagers
      caps <- getNumCapabilities
      when (caps /= n) (setNumCapabilities n)
      -- All dispatchers now: one that starts later may get the number of a descriptor
      -- that a test has just closed.
      forM_ [0 .. n - 1] $ \cap -> do
        started <- newEmptyMVar
        _ <- forkOn cap (threadDelay 1 >> putMVar started ())
        takeMVar started
