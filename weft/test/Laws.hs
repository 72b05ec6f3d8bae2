-- |
-- The laws of "Weft.Core.Backend" as tests. One suite for all back ends: what
-- passes on one and fails on another is a fault of one of them.
module Laws
  ( laws,
  )
where

import Control.Concurrent
import Control.Exception (IOException, bracket, finally, try)
import Control.Monad (forM, forM_, replicateM, replicateM_, unless, void, when)
import Data.IORef
import Data.List (nub, sort)
import Descriptors
import Foreign.C.Error (Errno (..), eBADF)
import GHC.Clock (getMonotonicTimeNSec)
import GHC.IO.Exception (ioe_errno)
import System.Posix.Process (exitImmediately, forkProcess, getProcessStatus)
import System.Exit (ExitCode (ExitSuccess))
import System.Posix.Types (Fd)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Core.Backend
import Weft.Core.Events
import Weft.Core.Time (Duration, milliseconds, seconds, toSeconds)

-- | All laws, for the back end of that name.
laws :: String -> IO Backend -> TestTree
laws name make =
  testGroup
    name
    [ testGroup "present" (presentLaws make),
      testGroup "trigger" (triggerLaws make),
      testGroup "latest" (latestLaws make),
      testGroup "always" (alwaysLaws make),
      testGroup "half-close" (halfCloseLaws make),
      testGroup "urgent" (urgentLaws make),
      testGroup "kinds" (kindLaws make),
      testGroup "forgotten" (forgottenLaws make),
      testGroup "wake" (wakeLaws make),
      testGroup "errors" (errorLaws make),
      testGroup "many" (manyLaws make),
      testGroup "threads" (threadLaws make),
      testGroup "lifecycle" (lifecycleLaws make)
    ]

-- Asking ---------------------------------------------------------------------------

law :: IO Backend -> String -> (Backend -> Fds -> IO ()) -> TestTree
law make name act = testCase name (withFds (\fds -> bracket make backendClose (`act` fds)))

-- | The same test for every trigger.
everyTrigger :: IO Backend -> String -> (Trigger -> Backend -> Fds -> IO ()) -> [TestTree]
everyTrigger make name act = [law make (show t <> ": " <> name) (act t) | t <- [Once, Level, Edge]]

type Report = (Token, Events)

poll :: Backend -> Wait -> IO [Report]
poll b wait = do
  ref <- newIORef []
  n <- backendPoll b wait (\t e -> modifyIORef' ref ((t, e) :))
  reports <- reverse <$> readIORef ref
  length reports @?= n
  pure reports

-- | Long enough for anything that is going to happen.
soon :: Wait
soon = WaitFor (seconds 5)

-- | The next poll reports these and nothing else.
reports :: Backend -> [Report] -> Assertion
reports b expected = do
  got <- poll b soon
  assertEqual "reported" (sort (map plain expected)) (sort (map plain got))
  where
    plain (t, e) = (show t, show e)

-- | Nothing is reported, neither now nor in a little while.
silent :: Backend -> Assertion
silent b = do
  now <- poll b NoWait
  assertEqual "reported at once" [] now
  late <- poll b (WaitFor (milliseconds 20))
  assertEqual "reported later" [] late

-- | The next poll reports the token, with events that pass the test.
reportsSome :: Backend -> Token -> (Events -> Bool) -> Assertion
reportsSome b tok good = do
  got <- poll b soon
  case got of
    [(t, e)] | t == tok && good e -> pure ()
    _ -> assertFailure ("unexpected: " <> show got)

armed :: Backend -> Fd -> Token -> Trigger -> Events -> Assertion
armed b fd tok trigger evs = do
  r <- backendArm b fd tok trigger evs
  r @?= Armed

-- | An operation found the descriptor not ready.
notReady :: Backend -> Fd -> Events -> IO ()
notReady b fd evs = forM_ (backendResume b) (\f -> f fd evs)

tokenOf :: Fd -> Token
tokenOf fd = tableToken fd 1

hungUp :: Events
hungUp = evtHangup <> evtRead <> evtWrite
