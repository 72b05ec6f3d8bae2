-- |
-- How the laws ask a back end: tests over a fresh one, polls whose reports are
-- compared.
module LawsAsking
  ( law,
    everyTrigger,

    -- * Polling
    Report,
    poll,
    soon,
    reports,
    reportsSome,
    silent,

    -- * Arming
    armed,
    notReady,
    tokenOf,
    hungUp,

    -- * Forgetting
    forgets,
    sleepingInKernel,
  )
where

import Control.Concurrent (forkOS, newEmptyMVar, putMVar, takeMVar, threadDelay)
import Control.Exception (bracket, finally)
import Control.Monad (forM_, join, when)
import Data.IORef
import Data.List (sort)
import Foreign.C.Types (CInt (..), CUInt (..))
import System.Posix.Types (Fd)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Core.Backend
import Weft.Core.Events
import Weft.Core.Time (milliseconds, seconds)
import Weft.Test.Descriptors

-- | A test with a back end and descriptors of its own.
law :: IO Backend -> String -> (Backend -> Fds -> IO ()) -> TestTree
law make name act = testCase name (withFds (\fds -> bracket make backendClose (`act` fds)))

-- | A test for every trigger.
everyTrigger :: IO Backend -> String -> (Trigger -> Backend -> Fds -> IO ()) -> [TestTree]
everyTrigger make name act = [law make (show t <> ": " <> name) (act t) | t <- [Once, Level, Edge]]

-- | A report of a poll.
type Report = (Token, Events)

-- | Poll once.
poll :: Backend -> Wait -> IO [Report]
poll b wait = do
  ref <- newIORef []
  n <- backendPoll b wait (\t e -> modifyIORef' ref ((t, e) :))
  got <- reverse <$> readIORef ref
  length got @?= n
  pure got

-- | Long enough for anything that is going to happen.
soon :: Wait
soon = WaitFor (seconds 20)

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

-- | Arm what has to be waited for.
armed :: Backend -> Fd -> Token -> Trigger -> Events -> Assertion
armed b fd tok trigger evs = do
  r <- backendArm b fd tok trigger evs
  r @?= Armed

-- | An operation found the descriptor not ready.
notReady :: Backend -> Fd -> Events -> IO ()
notReady b fd evs = forM_ (backendResume b) (\f -> f fd evs)

-- | A token, where any will do.
tokenOf :: Fd -> Token
tokenOf fd = tableToken fd 1

-- | The events that report a hang-up.
hungUp :: Events
hungUp = evtHangup <> evtRead <> evtWrite

-- Forgetting -------------------------------------------------------------------------

-- | Forget a descriptor, and wait until its file is released.
forgets :: Backend -> Fd -> IO ()
forgets b fd = join (backendForget b fd)

-- | Run the first action on an OS thread that sleeps for 0.3 seconds then, and the second one while it sleeps.
sleepingInKernel :: IO () -> IO a -> IO a
sleepingInKernel before act = do
  over <- newEmptyMVar
  _ <- forkOS ((before >> sleepInKernel 300000) `finally` putMVar over ())
  asleep (2000 :: Int)
  act <* takeMVar over
  where
    -- Where it cannot be seen, two seconds at most.
    asleep 0 = pure ()
    asleep n = sleepersInKernel >>= \k -> when (k == 0) (threadDelay 1000 >> asleep (n - 1))

foreign import ccall unsafe "weft_test_sleepers" sleepersInKernel :: IO CInt

-- | Let the calling OS thread sleep in the kernel for so many microseconds, uninterruptibly. Meanwhile no request of
-- io_uring that it has submitted can end.
foreign import ccall safe "weft_test_sleep" sleepInKernel :: CUInt -> IO ()
