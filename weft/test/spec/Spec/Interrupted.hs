-- |
-- Threads that are killed at any moment of a call which sets something up. The call either was made or was not; what
-- others have set up, and set up later, works.
module Spec.Interrupted
  ( tests,
  )
where

import Control.Concurrent hiding (threadDelay)
import Control.Exception (IOException, SomeException, evaluate, throwIO, try)
import Control.Monad (forM, forM_, forever, replicateM_, void, when)
import qualified Data.ByteString.Char8 as C
import Data.IORef
import GHC.Clock (getMonotonicTime)
import GHC.Conc (ThreadStatus (..), threadStatus)
import Harness
import Spec.Event (counter, withManager)
import System.Posix.Process (getProcessID)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Blocking
import Weft.Event
import qualified Weft.IdleTimer as Idle
import Weft.Socket
import Weft.Socket.ByteString (recv, sendAll)
import Weft.Test.Descriptors
import Weft.Thread (threadDelay)
import Weft.Timer (cancel, schedule)
import Prelude hiding (init)

tests :: TestTree
tests =
  testGroup
    "killed in the middle of a call"
    [ test "wakeManager: later timers fire" . withManager $ \m -> storm 600 (wakeManager m) (timerOf m),
      test "registerTimeout: later timers fire" . withManager $ \m -> do
        far <- newIORef 0
        storm 600 (sooner far >>= \d -> registerTimeout m d (pure ()) >>= unregisterTimeout m) (timerOf m),
      test "schedule: later delays of the capability end" $ do
        far <- newIORef 0
        storm 600 (sooner far >>= \d -> schedule d (pure ()) >>= void . cancel) $ do
          t <- newEmptyMVar
          _ <- forkOn target (threadDelay 1000 >> putMVar t ())
          finishes "a delay" (takeMVar t),
      test "registerFd, unregisterFd: another registration of the descriptor gets its events" . withManager $ \m ->
        void . repeated 300 $ \n -> withFds $ \fds -> do
          (r, w) <- pipe fds
          arrived <- newEmptyMVar
          registerFd_ m (\_ _ -> void (tryPutMVar arrived ())) r evtRead MultiShot
          killed n (registerFd m (\_ _ -> pure ()) r evtRead OneShot >>= unregisterFd_ m)
          say w 1
          finishes "the event" (takeMVar arrived)
          closeFd m (const (pure ())) r,
      test "updateTimeout: the timer fires once" . withManager $ \m -> do
        (hit, count) <- counter
        rounds <- repeated 1500 $ \n -> do
          k <- registerTimeout m (milliseconds 50) hit
          killed n (updateTimeout m k (milliseconds 50))
        eventually "all have fired" ((>= rounds) <$> count)
        stays 20 "fired twice" ((== rounds) <$> count),
      test "updateTimeout while another thread unregisters the timer: it does not fire afterwards" . withManager $ \m -> do
        fired <- newIORef False
        void . repeated 1500 $ \n -> do
          over <- newIORef False
          k <- registerTimeout m (seconds 3600) (readIORef over >>= \late -> when late (writeIORef fired True))
          (go, updated) <- (,) <$> newEmptyMVar <*> newEmptyMVar
          _ <- forkOn target (takeMVar go >> updateTimeout m k (milliseconds 200) >> putMVar updated ())
          putMVar go ()
          spin n
          unregisterTimeout m k
          writeIORef over True
          finishes "the update" (takeMVar updated)
        pause 300
        readIORef fired >>= assertBool "fired" . not,
      test "reset of an idle timer: a later one counts" $ do
        (hit, count) <- counter
        rounds <- repeated 3000 $ \n -> do
          t <- Idle.newPausedIdleTimer (milliseconds 200) hit
          killed n (forM_ [150, 100, 50] (Idle.resetFor t . milliseconds))
          Idle.reset t
        eventually "all have expired" ((== rounds) <$> count),
      test "submit: no thread of the pool stays counted" $ do
        pool <- newPool 4
        storm 600 (submit pool (pure ())) (pure ())
        eventually "the pool is idle" ((\s -> poolRunning s == 0 && poolQueued s == 0) <$> statusOf pool)
        finishes "a call" (runIn pool (pure ())),
      test "a receive that has been woken and is interrupted then takes nothing" . onTarget $ do
        (sender, receiver) <- socketPair AF_UNIX Stream defaultProtocol
        let send' = sendAll sender (C.pack "x")
            takes r = recv r 10
        lost <- interruptedWaits (takes receiver) send' (\limit -> either (const False) (const True) <$> tried (void (takes (withDeadline limit receiver))))
        close sender >> close receiver
        fewOf lost,
      test "an accept that has been woken and is interrupted then takes nothing" . onTarget $ do
        -- A connect to a Unix socket does not wait.
        listening <- socket AF_UNIX Stream defaultProtocol
        id' <- getProcessID
        let address = SockAddrUnix ("\0weft-interrupted-" <> show id')
            takes l = accept l >>= close . fst
            connects = do
              client <- socket AF_UNIX Stream defaultProtocol
              connect client address
              close client
        bind listening address
        listen listening 10
        lost <- interruptedWaits (takes listening) connects (\limit -> either (const False) (const True) <$> tried (takes (withDeadline limit listening)))
        close listening
        fewOf lost
    ]
  where
    tried act = try act :: IO (Either IOException ())

-- | Run in a thread of the capability whose threads are interrupted: it yields to them and to their dispatcher only
-- where it says so.
onTarget :: IO a -> IO a
onTarget act = do
  place <- newEmptyMVar
  _ <- forkOn target (try act >>= putMVar place)
  takeMVar place >>= either (throwIO :: SomeException -> IO a) pure

-- | A thread waits for something that it takes; it comes; and the thread is killed, often between its wake-up and its
-- turn. What it has not taken, another attempt takes before the given instant. Returns the numbers of rounds and of
-- those in which nothing was left to take.
interruptedWaits :: IO a -> IO () -> (Instant -> IO Bool) -> IO (Int, Int)
interruptedWaits takes gives takesBefore = do
  losses <- forM [1 .. rounds] $ \i -> do
    ended <- newEmptyMVar
    t <- forkOn target (try takes >>= putMVar ended . either (const False . (id :: SomeException -> SomeException)) (const True))
    untilBlocked t
    gives
    replicateM_ (i `mod` 5) yield
    finishes "killThread" (killThread t)
    taken <- takeMVar ended
    left <- if taken then pure False else deadlineIn (milliseconds 50) >>= takesBefore
    pure (not taken && not left)
  pure (rounds, length (filter id losses))
  where
    rounds = 300
    untilBlocked t =
      threadStatus t >>= \status -> case status of
        ThreadBlocked _ -> pure ()
        _ -> yield >> untilBlocked t

-- | An exception may come as an operation returns; that is rare.
fewOf :: (Int, Int) -> Assertion
fewOf (rounds, lost) = assertBool (show lost <> " of " <> show rounds <> " were lost") (lost <= 3)

test :: String -> IO () -> TestTree
test name act = testCase name (within 50 name act)

-- | Durations of an hour or less, each shorter than the last: the manager has to be told of each timer.
sooner :: IORef Int -> IO Duration
sooner ref = atomicModifyIORef' ref (\n -> (n + 1, seconds 3600 <> microseconds (negate n)))

-- | A timer that is set now fires.
timerOf :: EventManager -> IO ()
timerOf m = do
  due <- newEmptyMVar
  _ <- registerTimeout m (milliseconds 1) (putMVar due ())
  finishes "a timer" (takeMVar due)

-- | Kill a thread that repeats the first action, and then run the second one; again and again.
storm :: Int -> IO () -> IO () -> IO ()
storm n act check = void (repeated n (\i -> killed i act >> check))

-- | Run an action again and again, with the number of the round, for 20 seconds at most. Returns how many rounds there
-- were.
repeated :: Int -> (Int -> IO ()) -> IO Int
repeated n act = do
  rounds <- rounded n
  end <- (+ 20) <$> getMonotonicTime
  let go i = do
        act i
        now <- getMonotonicTime
        if i >= rounds || now > end then pure i else go (i + 1)
  go 1

-- | With one capability a thread is killed only where it is preempted, and each round takes two time slices.
rounded :: Int -> IO Int
rounded n = (\caps -> if caps == 1 then 20 else times n) <$> getNumCapabilities

-- | Kill a thread of another capability while it repeats an action.
killed :: Int -> IO () -> IO ()
killed n act = do
  running <- newEmptyMVar
  -- It allocates, as a loop that does not could not be killed.
  t <- forkOn target (forever (act >> newIORef () >>= \ref -> void (tryPutMVar running ref)))
  void (takeMVar running)
  spin n
  finishes "killThread" (killThread t)

target :: Int
target = 1

-- | Let a little time pass, another with each number.
spin :: Int -> IO ()
spin n = do
  caps <- getNumCapabilities
  if caps == 1 then replicateM_ (n `mod` 2) yield else forM_ [0 .. (n * 37) `mod` 400] evaluate
