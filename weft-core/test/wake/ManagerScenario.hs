-- | A whole manager on the simulated machine: waiting, waking, stopping and timers. Thread 0 is a dispatcher in each
-- scenario. "ClosingScenario" has those of closing and of callbacks, "BoundaryScenario" those of exceptions.
module ManagerScenario
  ( managerTests,
  )
where

import BoundaryScenario
import ClosingScenario
import Control.Exception (AsyncException (ThreadKilled), SomeException)
import Control.Monad
import Data.Either (fromRight)
import Data.IORef
import Data.List (sort)
import Kernel
import ManagerMachine
import Search
import Simulation (Scenario, blockUntil, sleepUntil)
import Test.Tasty
import Weft.Core.Backend
import Weft.Core.Descriptor
import Weft.Core.Events
import Weft.Core.Manager
import Weft.Core.Registry
import Weft.Core.Time (Instant (..), never)
import Weft.Core.Timer (cancelTimer)
import Weft.Sys

-- Waiting ---------------------------------------------------------------------------

-- | This many readers of one pipe, and as many writes of a byte.
readers :: Int -> Setting -> IO Scenario
readers n setting = do
  x <- machine setting 1
  (r, w) <- newPipe
  d <- owned x r
  got <- newIORef []
  let reader = reading x d never 1 >>= \o -> modifyIORef got (o :)
      writer i = void (writeBytes w [i])
  pure . finally' x [0] ([dispatcher x 0] <> replicate n reader <> map writer [1 .. n]) $ do
    outcomes <- readIORef got
    pure (holdsThat [(sort [b | Completed [b] <- outcomes] == [1 .. n], "the readers got " <> show outcomes)])

-- | A reader with a deadline and one without, and two writes.
deadlines :: Setting -> IO Scenario
deadlines setting = do
  x <- machine setting 1
  (r, w) <- newPipe
  d <- owned x r
  got <- newIORef []
  let reader deadline = do
        o <- reading x d deadline 1
        t <- now
        when (o == DeadlinePassed && t < deadline) (blame x "a deadline passed early")
        modifyIORef got (o :)
      writer = forM_ [1, 2] (\i -> writeBytes w [i])
  pure . finally' x [0] [dispatcher x 0, reader (Instant 50), reader never, writer] $ do
    outcomes <- readIORef got
    left <- readBytes r 2
    let all' = concat [b | Completed b <- outcomes] <> fromRight [] left
    pure (holdsThat [(sort all' == [1, 2], "bytes are lost: " <> show (outcomes, left))])

-- | A reader with a deadline beside one without, and nothing to read: it comes back.
nothingCame :: Setting -> IO Scenario
nothingCame setting = do
  x <- machine setting 1
  (r, _) <- newPipe
  d <- owned x r
  got <- newIORef []
  let patient = void (reading x d never 1)
      brief = reading x d (Instant 50) 1 >>= \o -> modifyIORef got (o :)
  pure . finally' x [0, 1] [dispatcher x 0, patient, brief] $ do
    outcomes <- readIORef got
    pure (holdsThat [(outcomes == [DeadlinePassed], "it got " <> show outcomes)])

-- | A reader that is thrown at, at any moment, another one, and two writes.
killed :: Instant -> Setting -> IO Scenario
killed deadline setting = do
  x <- machine setting 1
  (r, w) <- newPipe
  d <- owned x r
  got <- newIORef []
  victim <- newIORef Nothing
  let doomed = do
        me <- myThreadId
        writeIORef victim (Just me)
        o <- tryAll (reading x d deadline 1 >>= \o -> modifyIORef got (o :))
        either (const (pure ()) :: SomeException -> IO ()) pure o
      reader = reading x d never 1 >>= \o -> modifyIORef got (o :)
      writer = forM_ [1, 2] (\i -> writeBytes w [i])
      killer = do
        blockUntil (maybe False (const True) <$> readIORef victim)
        readIORef victim >>= mapM_ (`throwToThread` ThreadKilled)
  pure . finally' x [0] [dispatcher x 0, doomed, reader, writer, killer] $ do
    outcomes <- readIORef got
    left <- readBytes r 2
    let count = length (concat [b | Completed b <- outcomes]) + either (const 0) length left
    -- The exception may arrive between the reading and the note of it.
    pure (holdsThat [(count >= 1, "bytes are lost: " <> show (outcomes, left))])

-- Waking ------------------------------------------------------------------------------

-- | A thread that makes the manager take a turn, or sets a timer, is killed at any moment. A timer that another thread
-- sets fires all the same: the manager does not sleep on because of a notification whose signal is never sent. The
-- manager sleeps when they begin, unless the clock departs from the ordinary schedule.
wakerKilled :: (Manager -> IO ()) -> Setting -> IO Scenario
wakerKilled waking setting = do
  x <- machine setting 1
  fired <- newIORef (0 :: Int)
  victim <- newIORef Nothing
  let m = firstManager x
      doomed = do
        sleepUntil 1
        me <- myThreadId
        writeIORef victim (Just me)
        o <- tryAll (waking m)
        either (const (pure ()) :: SomeException -> IO ()) pure o
      begun = blockUntil (maybe False (const True) <$> readIORef victim)
      killer = do
        begun
        readIORef victim >>= mapM_ (`throwToThread` ThreadKilled)
      setter = begun >> void (addTimer m (Instant 30) (modifyIORef' fired (+ 1)))
  pure . finally' x [0] [dispatcher x 0, doomed, killer, setter] $ do
    n <- readIORef fired
    pure (holdsThat [(n == 1, "the timer fired " <> show n <> " times")])

-- Stopping ----------------------------------------------------------------------------

-- | The manager of a waiting reader stops, or its thread is killed; another one takes over.
stopping :: Bool -> Setting -> IO Scenario
stopping killing setting = do
  x <- machine setting 2
  (r, w) <- newPipe
  d <- owned x r
  got <- newIORef []
  runner <- newIORef Nothing
  told <- newIORef (0 :: Int)
  before <- openNumbers
  let first = firstManager x
      -- Masked: it is killed in the loop, not before.
      doomed = mask_ $ do
        me <- myThreadId
        writeIORef runner (Just me)
        void (tryAll (dispatcher x 0))
      reader = reading x d never 1 >>= \o -> modifyIORef got (o :)
      writer = void (writeBytes w [1])
      stopper
        | killing = do
          blockUntil (maybe False (const True) <$> readIORef runner)
          readIORef runner >>= mapM_ (`throwAside` ThreadKilled)
          wakeManager first
        | otherwise = shutdown first
      setter = void (addTimer first (Instant 1000) (modifyIORef' told (+ 1)))
  pure . finally' x ([1] <> [0 | killing]) [doomed, dispatcher x 1, reader, writer, stopper, setter] $ do
    outcomes <- readIORef got
    n <- readIORef told
    now' <- openNumbers
    stillRuns <- isAlive first
    pure . holdsThat $
      [ (outcomes == [Completed [1]], "the reader got " <> show outcomes),
        (n == 1, "the timer's action ran " <> show n <> " times"),
        (stillRuns || not (any ((`elem` now') . fromIntegral) (backendDescriptors (managerBackend first))), "its descriptors are left"),
        (length now' <= length before, "descriptors are left")
      ]

-- | A thread that tells the manager to stop, without waiting, is killed at any moment: the manager stops, or runs on.
stopperKilled :: Setting -> IO Scenario
stopperKilled setting = do
  x <- machine setting 1
  victim <- newIORef Nothing
  let m = firstManager x
      doomed = do
        me <- myThreadId
        writeIORef victim (Just me)
        o <- tryAll (requestStop m)
        either (const (pure ()) :: SomeException -> IO ()) pure o
      killer = do
        blockUntil (maybe False (const True) <$> readIORef victim)
        readIORef victim >>= mapM_ (`throwToThread` ThreadKilled)
  pure . finally' x [0] [dispatcher x 0, doomed, killer] $ do
    stillRuns <- isAlive m
    now' <- openNumbers
    pure (holdsThat [(stillRuns || null now', "it was told to stop and did not; open are " <> show now')])

-- | Callbacks of a manager that is stopped are notified, once.
orphans :: Setting -> IO Scenario
orphans setting = do
  x <- machine setting 1
  (r, w) <- newPipe
  calls <- newIORef []
  refused <- newIORef (0 :: Int)
  let m = firstManager x
      registrar = do
        p <- register (theRegistry x) m (fd r) evtRead OneShot (\_ evs -> modifyIORef calls (evs :))
        case p of
          Placed _ -> pure ()
          _ -> modifyIORef' refused (+ 1)
      writer = void (writeBytes w [1])
  pure . finally' x [] [dispatcher x 0, registrar, writer, shutdown m] $ do
    told <- readIORef calls
    no <- readIORef refused
    now' <- openNumbers
    pure . holdsThat $
      [ (length told + no == 1, "told " <> show told <> ", refused " <> show no),
        (sort now' == sort [r, w], "open are " <> show now')
      ]

-- | A descriptor has a callback of a manager that is about to stop, and gets one of another manager, which serves both
-- from then on.
takenOver :: Setting -> IO Scenario
takenOver setting = do
  x <- machine setting 2
  (r, w) <- newPipe
  calls <- newIORef []
  let m = firstManager x
      registers name manager = void (register (theRegistry x) manager (fd r) evtRead OneShot (\_ _ -> modifyIORef calls (name :)))
      runner = do
        _ <- initialize m
        registers "first" m
        requestStop m
        registers "second" (theManagers x !! 1)
        _ <- step m
        void (writeBytes w [1])
  pure . finally' x [0] [dispatcher x 1, runner] $ do
    told <- readIORef calls
    known <- registeredCount (theRegistry x)
    pure . holdsThat $
      [ (sort told == ["first", "second"], "called were " <> show told),
        (known == 0, "registrations are left: " <> show known)
      ]

-- | A descriptor loses its manager, and the next one cannot have it, since its number has been closed.
refusedByNext :: Setting -> IO Scenario
refusedByNext setting = do
  x <- machine setting 2
  (r, _) <- newPipe
  d <- owned x r
  let m = firstManager x
      owner = do
        _ <- initialize m
        prepareDescriptor d
        requestStop m
        _ <- step m
        _ <- closeNumber r
        o <- tryAll (prepareDescriptor d)
        either (const (pure ()) :: SomeException -> IO ()) (\() -> blame x "a closed number was taken") o
  pure . finally' x [0] [dispatcher x 1, owner] $ do
    known <- registeredCount (theRegistry x)
    pure (holdsThat [(known == 0, "descriptors known: " <> show known)])

-- | It is woken by a thread that is slow, while it stops for another reason.
wokenLate :: Setting -> IO Scenario
wokenLate setting = do
  x <- machine setting 1
  (r, w) <- newPipe
  let m = firstManager x
      stopper = do
        requestStop m
        _ <- writeBytes w [1]
        shutdown m
  _ <- register (theRegistry x) m (fd r) evtRead OneShot (\_ _ -> pure ())
  pure . finally' x [] [dispatcher x 0, wakeManager m, stopper] $ do
    now' <- openNumbers
    pure (holdsThat [(sort now' == sort [r, w], "open are " <> show now')])

-- | The thread that takes turns ends after one, at any moment of another thread's stop. There are no more turns.
lastTurn :: Setting -> IO Scenario
lastTurn setting = do
  x <- machine setting 1
  (r, w) <- newPipe
  calls <- newIORef []
  let m = firstManager x
      runner = do
        _ <- initialize m
        wakeManager m
        void (step m)
      callback _ evs = do
        modifyIORef calls (evs :)
        -- No effect, on any thread.
        shutdown m
  _ <- register (theRegistry x) m (fd r) evtRead OneShot callback
  pure . finally' x [] [runner, shutdown m] $ do
    told <- readIORef calls
    now' <- openNumbers
    pure . holdsThat $
      [ (length told == 1, "told " <> show told),
        (sort now' == sort [r, w], "open are " <> show now')
      ]

-- Timers ------------------------------------------------------------------------------

-- | Timers that are set while the manager sleeps, one of them cancelled.
timing :: Setting -> IO Scenario
timing setting = do
  x <- machine setting 1
  fired <- newIORef []
  cancelled <- newIORef []
  let m = firstManager x
      setTo t = addTimer m (Instant t) $ do
        Instant time <- now
        when (time < t) (blame x ("the timer of " <> show t <> " fired at " <> show time))
        modifyIORef fired (t :)
      setter = void (setTo 30)
      fickle = do
        t <- setTo 50
        won <- cancelTimer t
        when won (modifyIORef cancelled (50 :))
  pure . finally' x [0] [dispatcher x 0, setter, fickle] $ do
    f <- readIORef fired
    c <- readIORef cancelled
    pure (holdsThat [(sort (f <> c) == [30, 50], "fired " <> show f <> ", cancelled " <> show c)])

-- | A timer that is set and cancelled while its manager is stopped and another one takes it over.
moving :: Setting -> IO Scenario
moving setting = do
  x <- machine setting 2
  outcomes <- newIORef []
  let m = firstManager x
      setter = do
        t <- addTimer m (Instant 30) $ do
          Instant time <- now
          when (time < 30) (blame x ("it fired at " <> show time))
          modifyIORef outcomes ("fired" :)
        won <- cancelTimer t
        when won (modifyIORef outcomes ("cancelled" :))
  pure . finally' x [1] [dispatcher x 0, dispatcher x 1, setter, shutdown m] $ do
    found <- readIORef outcomes
    pure (holdsThat [(length found == 1, "it was " <> show found)])

-- | One that is dropped by the thread that set it, as deadlines of operations are, beside one that stays.
dropping :: Setting -> IO Scenario
dropping setting = do
  x <- machine setting 1
  fired <- newIORef []
  let m = firstManager x
      setter = do
        t <- addTimer m (Instant 30) (modifyIORef fired ((30 :: Int) :))
        won <- cancelTimer t
        when won (modifyIORef fired (30 :))
      other = void (addTimer m (Instant 20) (modifyIORef fired (20 :)))
  pure . finally' x [0] [dispatcher x 0, setter, other] $ do
    f <- readIORef fired
    pure (holdsThat [(sort f == [20, 30], "fired or dropped " <> show f)])

managerTests :: IO TestTree
managerTests =
  pure . testGroup "a manager on a model of the kernel" $
    [ testGroup "epoll" (searches onEpoll),
      testGroup "poll" (searches onPoll),
      testGroup "epoll, and a kernel that misbehaves" (searches onEpoll {settingFaults = allFaults}),
      testGroup "io_uring" (cheaper holdsWithin (onUring 8)),
      testGroup "io_uring with one entry, and a kernel that misbehaves" (cheaper holdsWithin (onUring 1) {settingFaults = allFaults {faultRefuse = 1}}),
      testGroup
        "io_uring, and a request that does not end at once"
        [holdsWithin bound name (make (onUring 8) {settingFaults = noFaults {faultUnfinished = 2}}) | (bound, name, make) <- scenarios, name `elem` closes],
      testGroup "epoll, on ARM" (cheaper holdsOnArm onEpoll),
      testGroup "io_uring, on ARM" (cheaper holdsOnArm (onUring 8))
    ]
  where
    searches setting = [holdsWithin bound name (make setting) | (bound, name, make) <- scenarios]
    -- One departure less where there are ten thousand schedules.
    cheaper :: (Int -> String -> IO Scenario -> TestTree) -> Setting -> [TestTree]
    cheaper search setting = [search (if name `elem` long then 1 else bound) name (make setting) | (bound, name, make) <- scenarios]
    long = ["a one-shot callback is unregistered", "a callback is unregistered", "two callbacks of a descriptor"]
    closes = ["two readers and a close", "a close, and the number in use again", "a close that has finished, and the other end", "a close of a number that has finished, and the other end", "closing against registering"]
    -- Short scenarios may depart from the ordinary schedule twice.
    scenarios =
      [ (2, "one reader", readers 1),
        (1, "two readers", readers 2),
        (1, "a deadline", deadlines),
        (1, "a deadline, and nothing comes", nothingCame),
        (1, "a reader that is killed", killed never),
        (1, "a reader with a deadline that is killed", killed (Instant 50)),
        (1, "two readers and a close", closedUnder),
        (1, "two readers, and a close of the number", closedByNumber),
        (1, "a close, and the number in use again", closing),
        (2, "a one-shot callback is unregistered", unregistering OneShot),
        (2, "a callback is unregistered", unregistering MultiShot),
        (1, "callbacks that are due together, one of which is unregistered, and a close", together),
        (1, "a callback that stays is called again", staying),
        (2, "two callbacks of a descriptor", several),
        (1, "a close, and the other end", heard),
        (1, "a second close of a number, and the other end", heardOfSecond),
        (1, "a close that has finished, and the other end", released),
        (2, "a close of a number that has finished, and the other end", releasedCallback),
        (1, "closing against registering", registering),
        (1, "the manager is stopped", stopping False),
        (1, "the manager's thread is killed", stopping True),
        (1, "callbacks of a manager that is stopped", orphans),
        (1, "callbacks of a manager that is stopped, and of another one", takenOver),
        (1, "the manager is stopped, and the next one cannot have its descriptor", refusedByNext),
        (2, "the manager is woken while it stops", wokenLate),
        (2, "the manager is stopped as its thread takes the last turn", lastTurn),
        (2, "a thread that tells the manager to stop is killed", stopperKilled),
        (1, "a thread that wakes the manager is killed", wakerKilled wakeManager),
        (1, "a thread that sets a timer is killed", wakerKilled (\m -> void (addTimer m (Instant 20) (pure ())))),
        (2, "timers", timing),
        (2, "a timer that is dropped", dropping),
        (1, "a timer that moves to another manager, and is cancelled", moving),
        (1, "callbacks that throw, and a handler that throws", throwing Throws),
        (1, "callbacks that throw, and a handler that blocks", throwing Blocks),
        (2, "two threads whose handlers throw", throwingAtOnce),
        (1, "the manager's thread is killed while callbacks run", thrownAt),
        (1, "a number that was closed is armed again", closedBehind),
        (1, "a number that was closed is armed again by an unregistration", closedBehindRemover)
      ]
