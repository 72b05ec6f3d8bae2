-- |
-- Loops, and GHC threads that use them. In each scenario thread 0 starts the scheduler, waits for the users, and stops
-- it. Then every thread has to end: users, loops and watchdog.
module LoopScenario
  ( loopTests,

    -- * For other scenarios
    Setting,
    onEpoll,
    loopsReporting,
    holdsThat,
    onLoopOf,
    telling,
  )
where

import Control.Exception (AsyncException (ThreadKilled), SomeException, toException)
import Control.Monad
import Control.Monad.Catch (finally, mask_, onException)
import Data.IORef
import Data.List (sort)
import Kernel
import Search
import Simulation (Outcome (..), Scenario (..), blockUntil, patientClock, sample, seeded, weakMemory)
import Test.Tasty
import Test.Tasty.HUnit (assertFailure, testCase)
import qualified Weft.Backend.Choice as Choice
import qualified Weft.Backend.Epoll as Epoll
import qualified Weft.Backend.Uring as Uring
import Weft.Core.Time (milliseconds, nanoseconds, seconds)
import Weft.FFI.RingEntries (preferRingEntries)
import Weft.Hybrid.Descriptor
import qualified Weft.Hybrid.MVar as H
import Weft.Hybrid.Monad hiding (throw)
import qualified Weft.Hybrid.Park as Park
import Weft.Hybrid.Scheduler
import Weft.Hybrid.Thread
import Weft.Hybrid.Timer (sleep, within)
import Weft.Hybrid.Trace (Context (..), Trace (Parked), schedulerLoops)
import Weft.Sys hiding (finally, mask_, onException, yield)
import qualified Weft.Sys as Sys (yield)

-- | The back end of the loops, and how often the kernel may misbehave.
data Setting = Setting (IO ()) Faults

onEpoll, onUring :: Setting
onEpoll = Setting (Choice.useBackend Epoll.new) noFaults
onUring = Setting (Choice.useBackend (preferRingEntries (Just 8) >> Uring.new)) noFaults

-- | A scheduler with the given number of loops, and GHC threads that use it.
loops :: Setting -> Int -> [Scheduler -> IO ()] -> IO (Maybe String) -> IO Scenario
loops setting n users check = loopsReporting setting n users $ \died -> case died of
  why : _ -> pure (Just ("a hybrid thread died: " <> why))
  [] -> check

-- | 'loops', with a check that is told of which exceptions hybrid threads have died.
loopsReporting :: Setting -> Int -> [Scheduler -> IO ()] -> ([String] -> IO (Maybe String)) -> IO Scenario
loopsReporting (Setting backend faults) n users check = do
  bootKernel faults
  backend
  box <- newEmptyMVar
  died <- newIORef []
  ended <- mapM (const newEmptyMVar) users
  let settings =
        defaultSettings
          { settingsLoops = Just n,
            settingsOnException = \_ e -> modifyIORef died (show e :),
            settingsOnStall = \_ _ -> pure (),
            -- Longer than any wait, since the clock may advance while threads could run.
            settingsGrace = seconds 100000000
          }
      keeper = do
        s <- startScheduler settings
        putMVar box s
        mapM_ takeMVar ended
        stopScheduler s
      user (use, done) = readMVar box >>= use >> putMVar done ()
  pure . Scenario (keeper : map user (zip users ended)) $ \stuck -> do
    bad <- readIORef died
    found <- check bad
    pure $ case (bad, stuck) of
      (_, _ : _) | maybe True (const False) found || null bad -> Just ("never woken: threads " <> show stuck)
      _ -> found

holdsThat :: [(Bool, String)] -> Maybe String
holdsThat claims = case [why | (False, why) <- claims] of
  why : _ -> Just why
  [] -> Nothing

-- | Start a hybrid thread, initially on that loop.
onLoopOf :: Scheduler -> Int -> Hybrid () -> IO ()
onLoopOf s i m = do
  slots <- readRef (schedulerLoops s)
  l <- readBoxedArray slots i
  Park.toLoop l Plain (taskOf m)

-- | Signals a GHC thread that waits for it.
telling :: MVar () -> Hybrid ()
telling done = nonBlocking (void (tryPutMVar done ()))

-- | Threads are handed to loops that sleep or are about to sleep.
handed :: [Int] -> Setting -> IO Scenario
handed places setting = do
  ran <- newIORef (0 :: Int)
  let use i s = do
        done <- newEmptyMVar
        onLoopOf s i (nonBlocking (modifyIORef' ran (+ 1)) >> telling done)
        takeMVar done
  loops setting 2 (map use places) $ do
    n <- readIORef ran
    pure (holdsThat [(n == length places, "ran " <> show n)])

-- | Threads arrive one by one: the user hands over its next thread while the loop has one in its inbox, which it is
-- about to take.
arriving :: Setting -> IO Scenario
arriving setting = do
  ran <- newIORef (0 :: Int)
  let use s = do
        [first, second, third] <- replicateM 3 newEmptyMVar
        let arrive done = onLoopOf s 0 (nonBlocking (modifyIORef' ran (+ 1)) >> telling done)
        onLoopOf s 0 (nonBlocking (arrive second) >> telling first)
        takeMVar first
        -- The loop, which yields as well, comes to its inbox now.
        Sys.yield
        arrive third
        mapM_ takeMVar [second, third]
  loops setting 2 [use] $ do
    n <- readIORef ran
    pure (holdsThat [(n == 2, "ran " <> show n)])

-- | A thread of one loop waits for a value, and a thread of another loop puts it.
across :: Setting -> IO Scenario
across setting = do
  box <- H.newEmptyMVarIO
  got <- newIORef []
  let taker s = do
        done <- newEmptyMVar
        onLoopOf s 0 (H.takeMVar box >>= \x -> nonBlocking (modifyIORef got (x :)) >> telling done)
        takeMVar done
      putter s = onLoopOf s 1 (H.putMVar box (7 :: Int))
  loops setting 2 [taker, putter] $ do
    xs <- readIORef got
    pure (holdsThat [(xs == [7], "taken " <> show xs)])

-- | A thread that waits for a value is killed while the value is put. The thread gets the value or the exception, the
-- value is not lost, and the thread ends.
killed :: Bool -> Setting -> IO Scenario
killed putting setting = do
  box <- H.newEmptyMVarIO
  got <- newIORef []
  cleaned <- newIORef (0 :: Int)
  named <- newEmptyMVar
  let taker s = do
        done <- newEmptyMVar
        onLoopOf s 0 $ do
          t <- forkThread $ do
            nonBlocking . putMVar named =<< myThread
            -- Masked, so that the exception arrives where the thread waits, or outside, but not after the value was
            -- recorded.
            mask_ ((H.takeMVar box >>= \x -> nonBlocking (modifyIORef got (x :))) `onException` nonBlocking (modifyIORef' cleaned (+ 1)))
          _ <- waitCatch t
          telling done
        takeMVar done
      killer s = do
        t <- takeMVar named
        place <- placeIn s
        Park.throwTo place t (toException ThreadKilled)
      putter s = when putting (onLoopOf s 1 (H.putMVar box (7 :: Int)))
  loops setting 2 ([taker, killer] <> [putter | putting]) $ do
    xs <- readIORef got
    n <- readIORef cleaned
    pure (holdsThat [(length xs + n <= 1, "taken " <> show xs <> ", and cleaned up " <> show n <> " times")])

-- | The handlers of threads that wait for ever run when the scheduler stops.
stopped :: Setting -> IO Scenario
stopped setting = do
  box <- H.newEmptyMVarIO :: IO (H.MVar ())
  cleaned <- newIORef []
  let waits i m s = do
        begun <- newEmptyMVar
        onLoopOf s i ((telling begun >> m) `finally` nonBlocking (modifyIORef cleaned (i :)))
        takeMVar begun
  loops setting 2 [waits 0 (H.takeMVar box), waits 1 (sleep (milliseconds 1000000))] $ do
    is <- readIORef cleaned
    pure (holdsThat [(sort is == [0, 1], "cleaned up " <> show is)])

-- | A thread that is queued behind a long step moves to the other loop, which is idle. The clock is patient: the
-- watchdog would otherwise take a loop that is slow to wake up for one that is held, and hand its threads back to the
-- loop with the long step, where they wait for the end of that step.
shared :: Setting -> IO Scenario
shared setting = do
  patientClock
  ran <- newIORef (0 :: Int)
  let use s = do
        done <- newEmptyMVar
        onLoopOf s 0 $ do
          replicateM_ 3 (fork (nonBlocking (threadDelay 600 >> modifyIORef' ran (+ 1))))
          yield
          nonBlocking (blockUntil ((== 3) <$> readIORef ran))
          telling done
        takeMVar done
  loops setting 2 [use] $ do
    n <- readIORef ran
    pure (holdsThat [(n == 3, "ran " <> show n)])

-- | A time limit, and a value that arrives at the same time.
limited :: Setting -> IO Scenario
limited setting = do
  box <- H.newEmptyMVarIO
  got <- newIORef []
  let taker s = do
        done <- newEmptyMVar
        onLoopOf s 0 $ do
          r <- within (nanoseconds 50) (H.takeMVar box)
          left <- maybe (H.tryTakeMVar box) (const (pure Nothing)) r
          nonBlocking (modifyIORef got ((r, left) :))
          telling done
        takeMVar done
      putter s = void (H.tryPutMVarIO s box (7 :: Int))
  loops setting 2 [taker, putter] $ do
    rs <- readIORef got
    later <- pure (rs == [(Nothing, Nothing)])
    pure (holdsThat [(later || rs `elem` [[(Just 7, Nothing)], [(Nothing, Just 7)]], "got " <> show rs)])

-- | A thread goes to another loop within a time limit, which the first loop still keeps: its exception may be on the
-- way when the action ends.
limitedElsewhere :: Setting -> IO Scenario
limitedElsewhere setting = do
  got <- newIORef []
  let use s = do
        done <- newEmptyMVar
        onLoopOf s 0 $ do
          r <- within (nanoseconds 50) (goTo s 1 >> pure (7 :: Int))
          -- The exception would arrive here.
          yield
          nonBlocking (modifyIORef got (r :))
          telling done
        takeMVar done
  loops setting 2 [use] $ do
    rs <- readIORef got
    pure (holdsThat [(rs `elem` [[Just 7], [Nothing]], "got " <> show rs)])
  where
    goTo s i = call $ \_ ctx k -> do
      slots <- readRef (schedulerLoops s)
      l <- readBoxedArray slots i
      Parked <$ Park.toLoop l ctx k

-- | What a GHC thread does to a pipe with readers: it writes, closes it, or closes it once both readers have begun.
data Use = Written | Closed | ClosedUnderReaders
  deriving (Eq)

-- | A pipe with readers on two loops, and a GHC thread that uses it.
piped :: Use -> Setting -> IO Scenario
piped use setting = do
  got <- newIORef []
  begun <- newIORef (0 :: Int)
  said <- newIORef []
  pipe <- newIORef Nothing
  let reader i s = do
        done <- newEmptyMVar
        blockUntil (maybe False (const True) <$> readIORef pipe)
        d <- readIORef pipe >>= maybe (ioError (userError "no pipe")) (pure . snd)
        onLoopOf s i $ do
          nonBlocking (modifyIORef' begun (+ 1))
          r <- attemptAny (perform (Kind "read" Reading) (sourceOf d) (const (attempting d)))
          nonBlocking $ either (\_ -> modifyIORef said (i :)) (\x -> modifyIORef got (x <>)) r
          telling done
        takeMVar done
      attempting d = do
        r <- readBytes (fromIntegral (descriptorFd d)) 1
        pure $ case r of
          Right bytes -> Done bytes
          Left (-11) -> NotYet
          Left e -> Failed (fromIntegral (negate e))
      attemptAny m = (Right <$> m) `catchAny` (pure . Left) :: Hybrid (Either SomeException [Int])
  let opener _ = do
        (r, w) <- newPipe
        d <- adopt (fromIntegral r)
        writeIORef pipe (Just (w, d))
      writer _ = do
        blockUntil (maybe False (const True) <$> readIORef pipe)
        (w, d) <- readIORef pipe >>= maybe (ioError (userError "no pipe")) pure
        when (use == ClosedUnderReaders) (blockUntil ((== 2) <$> readIORef begun))
        if closing
          then void (closeDescriptor d)
          else forM_ [1, 2] (\x -> writeBytes w [x])
  loops setting 2 [opener, reader 0, reader 1, writer] $ do
    bytes <- readIORef got
    errors <- readIORef said
    pure $
      holdsThat
        [ (closing || (sort bytes == [1, 2] && null errors), "read " <> show bytes <> ", failed " <> show errors),
          (not closing || (null bytes && sort errors == [0, 1]), "read " <> show bytes <> ", failed " <> show errors)
        ]
  where
    closing = use /= Written

loopTests :: TestTree
loopTests =
  testGroup
    "loops of hybrid threads"
    [ testGroup "epoll" (searches onEpoll),
      testGroup "io_uring" [holdsWithin bound name (make onUring) | (bound, name, make) <- scenarios, name `elem` kernels],
      testGroup "on ARM" [holdsOnArm bound name (make onEpoll) | (bound, name, make) <- take 3 scenarios],
      -- Searching all schedules with one departure takes up to a minute each.
      testGroup "on ARM, at random" [holdsOnArmAtRandom name (make onEpoll) | (_, name, make) <- drop 3 scenarios],
      testCase "the schedule of a seed is the same whatever ran before" replayed
    ]
  where
    -- Compares the traces of some seeds with those in another order, after runs in which other threads came first.
    replayed = do
      let ways = [(name, prepare >> make onEpoll) | (_, name, make) <- scenarios, prepare <- [pure (), weakMemory 2]]
          seeds = [1 .. 6 :: Int]
          story (name, make) = forM seeds (\n -> (\o -> (name, n, outcomeStory o)) <$> seeded n make)
      first <- concat <$> mapM story ways
      forM_ ways (\(_, make) -> sample 100 10 make)
      again <- concat . reverse <$> mapM story (reverse ways)
      forM_ (zip first again) $ \((name, n, one), (_, _, two)) ->
        case [(a, b) | (a, b) <- zip (one <> ["end"]) (two <> ["end"]), a /= b] of
          (a, b) : _ -> assertFailure (name <> ", seed " <> show n <> ": " <> a <> ", and the second time: " <> b)
          [] -> pure ()
    searches setting = [holdsWithin bound name (make setting) | (bound, name, make) <- scenarios]
    kernels = ["a thread for each of two loops", "two readers of a pipe, on two loops", "two readers of a pipe that is closed"]
    scenarios =
      [ (1, "a thread for each of two loops", handed [0, 1]),
        (1, "two threads for a loop", handed [0, 0]),
        (1, "a value from one loop to another", across),
        (1, "a thread arrives as the inbox is emptied", arriving),
        (1, "a thread is killed where it waits", killed False),
        (1, "a thread is killed as what it waits for comes", killed True),
        (1, "a time limit", limited),
        (1, "a time limit, and another loop", limitedElsewhere),
        (1, "a thread goes to an idle loop", shared),
        (1, "two readers of a pipe, on two loops", piped Written),
        (1, "two readers of a pipe that is closed", piped Closed),
        (1, "two readers of a pipe that is closed under them", piped ClosedUnderReaders),
        (1, "the scheduler is stopped under those who wait", stopped)
      ]
