-- |
-- "Weft.Event": running managers and stopping them, and their timers.
module Spec.EventLife
  ( tests,
  )
where

import Control.Concurrent
import Control.Exception
import Control.Monad (forM, forM_, forever, replicateM, replicateM_, unless, void, when)
import Data.IORef
import Data.List (sort, tails)
import Data.Maybe (fromJust)
import GHC.Clock (getMonotonicTime)
import Harness
import Spec.Event (caughtUp, counter, throwing, withManager)
import System.Directory (listDirectory)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Event
import Weft.Test.Descriptors
import Prelude hiding (init)

tests :: TestTree
tests = testGroup "event managers" [testGroup "stopping" stopping, testGroup "turns" turns, testGroup "timers" timers]

test :: String -> (EventManager -> IO ()) -> TestTree
test name act = testCase name (finishes name (withManager act))

-- Stopping ---------------------------------------------------------------------------

stopping :: [TestTree]
stopping =
  [ testCase "no thread runs it" $ do
      m <- new
      finishes "shutdown" (shutdown m)
      finishes "again" (shutdown m)
      e <- try (init m)
      assertBool "can be run afterwards" (either (const True) (const False) (e :: Either IOException ())),
    testCase "from a callback, from a timer" . withFds $ \fds -> do
      (r, w) <- pipe fds
      m <- new
      t <- start (loop m)
      registerFd_ m (\_ _ -> shutdown m >> shutdown m) r evtRead MultiShot
      say w 1
      result "loop" t
      m' <- new
      t' <- start (loop m')
      _ <- registerTimeout m' mempty (shutdown m')
      result "loop" t',
    testCase "from many threads at once" . replicateM_ (times 50) $ do
      m <- new
      t <- start (loop m)
      parallel 4 (\_ -> finishes "shutdown" (shutdown m))
      result "loop" t,
    testCase "while it sleeps for ever" . replicateM_ 20 $ do
      m <- new
      t <- start (loop m)
      pause 1
      finishes "shutdown" (shutdown m)
      result "loop" t,
    testCase "registrations are notified, timers never fire" . withFds $ \fds -> do
      (r, w) <- pipe fds
      m <- new
      t <- start (loop m)
      heard <- newEmptyMVar
      (hit, count) <- counter
      registerFd_ m (\_ e -> putMVar heard e) r evtRead MultiShot
      _ <- registerTimeout m (milliseconds 20) hit
      shutdown m
      result "loop" t
      -- On a slow machine it may have fired before the shutdown.
      fired <- count
      e <- finishes "callback" (takeMVar heard)
      -- Nothing but the documented event: callbacks compare with it.
      e @?= evtClose
      say w 1
      pause 40
      count >>= (@?= fired),
    testCase "by the thread that runs it, between turns" . leavesDescriptors 1 $ do
      m <- new
      init m
      wakeManager m
      step m >>= (@?= True)
      finishes "shutdown" (shutdown m)
      step m >>= (@?= False),
    testCase "the thread that runs it was killed" . leavesDescriptors 1 $ do
      m <- new
      t <- start (loop m)
      pause 2
      -- The exception arrives between turns, so turns are needed until it has.
      waker <- forkIO (forever (wakeManager m >> pause 1))
      stop t
      killThread waker
      finishes "shutdown" (shutdown m),
    testCase "killed while a callback blocks: the loop ends, and registrations are notified" . withFds $ \fds -> do
      (r, w) <- pipe fds
      (silent, _) <- pipe fds
      forM_ [False, True] $ \byTimer -> do
        m <- new
        t <- start (loop m)
        [begun, never] <- replicateM 2 newEmptyMVar
        heard <- newEmptyMVar
        registerFd_ m (\_ e -> putMVar heard e) silent evtRead OneShot
        let stuck = putMVar begun () >> takeMVar never
        if byTimer
          then void (registerTimeout m mempty stuck)
          else registerFd_ m (\_ _ -> stuck) r evtRead OneShot >> say w 1
        finishes "the callback" (takeMVar begun)
        stop t
        killed t
        e <- finishes "the other callback" (takeMVar heard)
        assertBool (show e) (e `includes` evtClose)
        finishes "shutdown" (shutdown m)
        -- Keep the variable alive until here; otherwise the collector finds that no thread can fill it.
        putMVar never (),
    testCase "killed while a callback computes: the callback comes to its end, and then the loop" . withFds $ \fds -> do
      (r, w) <- pipe fds
      m <- new
      t <- start (loop m)
      begun <- newEmptyMVar
      [going, ended] <- mapM newIORef [True, False]
      let spin = readIORef going >>= \on -> when on (yield >> spin)
      registerFd_ m (\_ _ -> putMVar begun () >> spin >> writeIORef ended True) r evtRead OneShot
      say w 1
      finishes "the callback" (takeMVar begun)
      killer <- start (stop t)
      blocked killer >>= assertBool "killed within a callback"
      writeIORef going False
      -- An exception on its way from another capability may arrive when the loop waits in the kernel again.
      waker <- forkIO (forever (pause 1 >> wakeManager m))
      result "killing" killer
      killThread waker
      killed t
      readIORef ended >>= (@?= True)
      finishes "shutdown" (shutdown m),
    testCase "the thread that runs it takes no more turns" . withFds $ \fds -> do
      (r, _) <- pipe fds
      m <- new
      [up, never] <- replicateM 2 newEmptyMVar
      t <- start (init m >> putMVar up () >> takeMVar never)
      finishes "init" (takeMVar up)
      heard <- newEmptyMVar
      -- A callback may call it too, whichever thread runs the callback.
      registerFd_ m (\_ e -> shutdown m >> putMVar heard e) r evtRead MultiShot
      finishes "shutdown" (shutdown m)
      e <- finishes "callback" (takeMVar heard)
      assertBool (show e) (e `includes` evtClose)
      putMVar never ()
      result "the thread" t,
    testCase "from a callback: the same turn ends it" . withFds $ \fds -> do
      (r, w) <- pipe fds
      m <- new
      init m
      registerFd_ m (\_ _ -> shutdown m) r evtRead OneShot
      say w 1
      finishes "step" (step m) >>= (@?= False)
      finishes "shutdown" (shutdown m),
    testCase "closeFd: an exception in a callback leaves none untold, and arrives" . withFds $ \fds -> do
      (r, _) <- pipe fds
      m <- new
      [begun, never] <- replicateM 2 newEmptyMVar
      (hit, count) <- counter
      replicateM_ 3 (registerFd_ m (\_ _ -> hit) r evtRead OneShot)
      registerFd_ m (\_ _ -> putMVar begun () >> takeMVar never) r evtRead OneShot
      replicateM_ 3 (registerFd_ m (\_ _ -> hit) r evtRead OneShot)
      t <- start (closeFd m (shut fds) r >> forever (threadDelay 1000000))
      finishes "the callback" (takeMVar begun)
      stop t
      killed t
      count >>= (@?= 6)
      putMVar never ()
      shutdown m,
    testCase "ten thousand starts and stops leave nothing behind" . leavesDescriptors (times 10000) $ do
      m <- new
      t <- start (loop m)
      wakeManager m
      shutdown m
      result "loop" t
  ]

-- | Repeat the action so often; it leaves neither descriptors nor OS threads.
leavesDescriptors :: Int -> IO () -> IO ()
leavesDescriptors n act = do
  act
  before <- openDescriptors
  tasks <- osThreads
  replicateM_ n act
  left <- settled before openDescriptors
  assertBool (show (left - before) <> " descriptors left") (left <= before)
  -- GHC's run-time system keeps up to six spare ones for each capability.
  caps <- getNumCapabilities
  let most = tasks + 2 + 6 * caps
  left' <- settled most osThreads
  assertBool (show (left' - tasks) <> " threads left") (left' <= most)
  where
    osThreads = length <$> listDirectory "/proc/self/task"

-- | A thread that was killed has ended with that exception.
killed :: Task () -> Assertion
killed t = do
  r <- outcome "the thread that was killed" t
  either ((@?= Just ThreadKilled) . fromException) (\() -> assertFailure "it ended otherwise") r

-- | Thrown at threads that take turns.
data Poke = Poke
  deriving (Show)

instance Exception Poke

-- Turns ------------------------------------------------------------------------------

turns :: [TestTree]
turns =
  [ testCase "one at a time" . withFds $ \fds -> do
      m <- new
      init m
      (r, w) <- pipe fds
      (hit, count) <- counter
      registerFd_ m (\_ _ -> hit) r evtRead OneShot
      say w 1
      finishes "step" (step m) >>= (@?= True)
      count >>= (@?= 1)
      wakeManager m
      finishes "a step that has nothing to do, but was woken" (step m) >>= (@?= True)
      _ <- forkIO (shutdown m)
      more <- finishes "steps to the end" (stepsToEnd m 0)
      assertBool "steps without end" (more < 1000),
    testCase "a manager is run by one thread" $ do
      m <- new
      init m
      e <- failure "init again" (init m)
      e' <- failure "loop" (loop m)
      assertBool "" (not (null (show e <> show e')))
      void (forkIO (shutdown m))
      void (finishes "steps" (stepsToEnd m 0)),
    testCase "wakeManager interrupts a step that blocks (lost wake-up)" $ do
      m <- new
      init m
      forM_ [1 .. times 200 :: Int] $ \n -> do
        _ <- forkIO (replicateM_ (n `mod` 7) yield >> wakeManager m)
        finishes "step" (step m) >>= (@?= True)
      void (forkIO (shutdown m))
      void (finishes "steps" (stepsToEnd m 0)),
    testCase "exceptions thrown at the thread that takes turns lose no event" . withFds $ \fds -> do
      m <- new
      init m
      pipes <- replicateM 20 (pipe fds)
      ending <- newIORef False
      (interrupt, interruptions) <- counter
      -- Exceptions arrive around and inside 'step' only.
      let run restore = do
            over <- readIORef ending
            unless over ((void (restore (step m)) `catch` \Poke -> interrupt) >> run restore)
      masked <- newEmptyMVar
      runner <- start (mask (\restore -> putMVar masked () >> run (restore :: IO Bool -> IO Bool)))
      -- An exception before that would end it.
      takeMVar masked
      let Task thread _ = runner
      -- After eight exceptions there is time for a whole turn, and more and more of it: otherwise, on a busy machine,
      -- none might ever end.
      storm <- forkIO (forM_ [50 ..] (\us -> replicateM_ 8 (throwTo thread Poke >> yield) >> threadDelay us))
      forM_ [1 .. times 300 :: Int] $ \n -> do
        arrived <- replicateM 20 newEmptyMVar
        forM_ (zip pipes arrived) $ \((r, _), v) -> registerFd_ m (\_ _ -> putMVar v ()) r evtRead OneShot
        due <- newEmptyMVar
        _ <- registerTimeout m (microseconds n) (putMVar due ())
        forM_ pipes $ \(_, w) -> say w 1
        forM_ (due : arrived) (finishes ("round " <> show n) . takeMVar)
        forM_ pipes (drain . fst)
      killThread storm
      interruptions >>= (@>= 100)
      writeIORef ending True
      wakeManager m
      result "the runner" runner
      shutdown m
  ]
  where
    stepsToEnd :: EventManager -> Int -> IO Int
    stepsToEnd m n = do
      going <- step m
      if going then stepsToEnd m (n + 1) else pure n

-- Timers -----------------------------------------------------------------------------

timers :: [TestTree]
timers =
  [ test "in order of their times, whatever the order of setting" $ \m -> do
      ref <- newIORef []
      let delays = [(i * 7) `mod` 30 | i <- [1 .. 30 :: Int]]
      done <- newEmptyMVar
      -- When each is due, at the earliest and at the latest: this thread may be off its core between two of them.
      dueTimes <- forM delays $ \d -> do
        from <- getMonotonicTime
        _ <- registerTimeout m (milliseconds (2 * d + 5)) (modifyIORef ref (d :))
        to <- getMonotonicTime
        let delay = fromIntegral (2 * d + 5) / 1000
        pure (d, (from + delay, to + delay))
      threadDelay 80000
      _ <- registerTimeout m (milliseconds 1) (putMVar done ())
      takeMVar done
      fired <- reverse <$> readIORef ref
      sort fired @?= sort delays
      let span' d = fromJust (lookup d dueTimes)
          wrong = [(a, b) | a : later <- tails fired, b <- later, snd (span' b) + tick < fst (span' a)]
          -- Timers within a tick of the queue may fire in either order.
          tick = 0.0001
      wrong @?= [],
    test "never early, with or without other work" $ \m -> parallel 20 $ \i -> do
      t0 <- getMonotonicTime
      done <- newEmptyMVar
      let us = 50 + 211 * i
      _ <- registerTimeout m (microseconds us) (getMonotonicTime >>= putMVar done)
      t1 <- takeMVar done
      (t1 - t0) * 1e6 @>= fromIntegral us,
    test "nothing to wait for: in the next turn" $ \m ->
      forM_ [mempty, milliseconds (-5), minBound] $ \d -> do
        done <- newEmptyMVar
        _ <- registerTimeout m d (putMVar done ())
        finishes "timer" (takeMVar done),
    test "a delay of maxBound never ends, and one nearly as long does not end today" $ \m -> do
      (hit, count) <- counter
      forM_ [maxBound, seconds 1e9, milliseconds (2 ^ (31 :: Int)), milliseconds (2 ^ (31 :: Int) - 1)] $ \d ->
        registerTimeout m d hit
      stays 50 "fired" ((== 0) <$> count),
    test "moved later and earlier, while the manager sleeps and while it does not" $ \m -> do
      movedLater m 10
      done <- newEmptyMVar
      k' <- registerTimeout m (seconds 3600) (putMVar done ())
      pause 5
      updateTimeout m k' (milliseconds 1)
      takeMVar done
      -- No effect on one that has fired.
      updateTimeout m k' mempty
      pause 5
      tryTakeMVar done >>= (@?= Nothing),
    test "cancelled: does not fire; cancelling again, or after it fired, is harmless" $ \m -> withFds $ \fds -> do
      (hit, count) <- counter
      keys <- forM [1 .. 100 :: Int] (\i -> registerTimeout m (milliseconds (i `mod` 10)) hit)
      parallel 4 $ \i -> forM_ (drop (25 * i) (take (25 * (i + 1)) keys)) (unregisterTimeout m)
      pause 20
      caughtUp m fds
      n <- count
      forM_ keys (unregisterTimeout m)
      stays 20 "fired though cancelled" ((== n) <$> count),
    test "a callback that throws does not affect others" $ \m -> do
      done <- newEmptyMVar
      throwing 1 $ do
        _ <- registerTimeout m (milliseconds 1) (throwIO (userError "in a timer"))
        _ <- registerTimeout m (milliseconds 5) (putMVar done ())
        takeMVar done,
    test "lost wake-up: timers set while the manager is about to sleep" $ \m -> parallel 4 $ \i ->
      forM_ [1 .. times 400] $ \n -> do
        done <- newEmptyMVar
        _ <- registerTimeout m (microseconds ((n * 37 + i) `mod` 200)) (putMVar done ())
        finishes "timer" (takeMVar done)
        unless (n `mod` 3 == 0) (replicateM_ (n `mod` 11) yield),
    test "a timer stays with its manager, and so does a registration" $ \m -> withFds $ \fds -> do
      -- A manager that no thread runs.
      other <- new
      (hit, count) <- counter
      key <- registerTimeout m (seconds 3600) hit
      updateTimeout other key (milliseconds 1)
      eventually "it fires" ((== 1) <$> count)
      (r, _) <- pipe fds
      mine <- registerFd m (\_ _ -> pure ()) r evtRead OneShot
      yours <- registerFd other (\_ _ -> pure ()) r evtRead OneShot
      assertBool "they are the same" (mine /= yours)
      unregisterFd m yours >>= assertBool "was not there"
      unregisterFd other mine >>= assertBool "was not there"
      shutdown other,
    test "set, moved and cancelled from callbacks" $ \m -> do
      done <- newEmptyMVar
      keys <- replicateM 3 (registerTimeout m (seconds 3600) (putMVar done 'x'))
      _ <- registerTimeout m mempty $ do
        forM_ (take 2 keys) (unregisterTimeout m)
        void . registerTimeout m (milliseconds 1) $ forM_ keys (\k -> updateTimeout m k mempty)
      takeMVar done >>= (@?= 'x')
      pause 10
      tryTakeMVar done >>= (@?= Nothing)
  ]

-- | A timer that is moved before it is due fires when it was moved to. Where this thread could not move it in time,
-- another has twice the time. The second argument is in milliseconds.
movedLater :: EventManager -> Int -> Assertion
movedLater m ms = do
  done <- newEmptyMVar
  t0 <- getMonotonicTime
  k <- registerTimeout m (milliseconds ms) (getMonotonicTime >>= putMVar done)
  updateTimeout m k (milliseconds (ms + 50))
  moved <- getMonotonicTime
  t1 <- takeMVar done
  if moved - t0 < fromIntegral ms / 1000
    then (t1 - t0) * 1000 @>= fromIntegral (ms + 50)
    else movedLater m (2 * ms)
