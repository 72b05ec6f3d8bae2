-- |
-- Changes to a program's dispatchers while it works: the number of capabilities changes,
-- the process forks, the managers are stopped. Waiting threads must not notice.
module Spec.Lifecycle
  ( tests,
  )
where

import Control.Concurrent hiding (threadDelay, threadWaitRead, threadWaitReadSTM, threadWaitWrite)
import Control.Concurrent.STM (atomically, check, readTVar)
import Control.Exception
import Control.Monad
import qualified Data.ByteString.Char8 as C
import Data.IORef
import Foreign.C.Error (eTIMEDOUT)
import Foreign.C.Types (CInt)
import Harness
import Spec.Serve (withNoneLeft)
import System.Exit (ExitCode (..))
import System.IO (hPutStrLn, stderr)
import System.Posix.Files (getFdStatus, isNamedPipe)
import System.Posix.IO (closeFd, dup, dupTo)
import System.Posix.Process (ProcessStatus (..), exitImmediately, forkProcess, getProcessStatus)
import System.Posix.Types (Fd (..))
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Core.Backend (backendDescriptors)
import Weft.Core.Descriptor (closeDescriptor, newDescriptor, useDescriptor)
import Weft.Core.Manager (isAlive, managerBackend)
import qualified Weft.Core.Manager as Manager (shutdown)
import Weft.Core.Readiness (Direction (..), acquire, anyExpired, expiredDone, newReadiness, noteExpired, release)
import Weft.Duration
import Weft.Event (Lifetime (OneShot), evtRead, registerFd_)
import Weft.IdleTimer (expired, newIdleTimer)
import Weft.Metrics (metricsRegistered, readMetrics)
import Weft.Runtime.Managers (currentManager, currentRegistry, managers, stopManagers)
import Weft.Socket
import Weft.Socket.ByteString
import Weft.Test.Capabilities (changeCapabilities)
import Weft.Test.Descriptors
import Weft.Thread
import Weft.Timer (cancel, schedule)
import Weft.Transport (connReceive, connectionPair)

tests :: TestTree
tests =
  testGroup
    "lifecycle"
    [ testCase "capabilities come and go under load" . within 50 "the changes" $
        whileLoaded $ \progress -> do
          before <- getNumCapabilities
          forM_ [1 .. times 40] $ \i -> do
            changeCapabilities (1 + (5 * i) `mod` 8)
            progress
          changeCapabilities before
          progress,
      -- With io_uring at -N2 a round takes up to two seconds on a busy machine, elsewhere a tenth of that: see "The
      -- parallel collector on a busy machine" in doc/rationale/ghc.md.
      testCase "the managers are stopped under load" . within 50 "stopping" $
        whileLoaded $ \progress -> replicateM_ (times 10) (stopManagers >> progress),
      testCase "capabilities come and go while a bound thread stops the managers" . within 50 "the changes" $
        whileLoaded $ \progress -> runInBoundThread $ do
          before <- getNumCapabilities
          forM_ [1 .. times 25] $ \i -> do
            changeCapabilities (1 + i `mod` 4)
            replicateM_ 5 (stopManagers >> threadDelay 500)
          changeCapabilities before
          progress,
      test "stopping the managers is interrupted: all of them end" . replicateM_ (times 30) $ do
        n <- getNumCapabilities
        forM_ [0 .. n - 1] (\cap -> onCapability cap (threadDelay 1))
        started <- managers
        (entered, leave) <- (,) <$> newEmptyMVar <*> newEmptyMVar
        -- The dispatcher that is stopped first is held, so that the thread that stops them waits.
        _ <- onCapability 0 (schedule mempty (putMVar entered () >> takeMVar leave))
        takeMVar entered
        stopping <- start stopManagers
        blocks stopping
        stop stopping
        alive <- mapM isAlive started
        putMVar leave ()
        mapM_ (finishes "the end of a dispatcher" . Manager.shutdown) started
        alive @?= map (const False) started,
      test "timers of stopped managers fire at their time, and can be cancelled" (movedTimers id stopManagers),
      test "timers of managers that are stopped while no descriptor is free" (movedTimers withNoneLeft stopManagers),
      test "timers of stopped managers while no manager can be started" (movedTimers withoutNew stopManagers),
      test "timers of dispatchers that end by an asynchronous exception of a timer's action" (movedTimers id endDispatchers),
      test "threads wait on when their manager is stopped while no descriptor is free" . withFds $ \fds -> do
        (r, w) <- pipe fds
        reader <- start (threadWaitRead r)
        blocks reader
        withNoneLeft $ do
          stopManagers
          blocks reader
          say w 1
          result "the wait" reader,
      test "without a free descriptor, a capability that has no dispatcher waits with another's" . withFds $ \fds -> do
        n <- getNumCapabilities
        (r, w) <- pipe fds
        stopManagers
        onCapability 0 (threadDelay 1)
        withNoneLeft . onCapability (n - 1) $ do
          threadDelay 1000
          timeout 1000 (threadDelay 100000000) >>= (@?= Nothing)
          say w 1
          threadWaitRead r,
      test "an STM wait that is cancelled while its dispatcher stops is not registered again" . withFds $ \fds -> do
        readers <- replicateM 2 (fst <$> pipe fds)
        onCapability 0 (threadDelay 1)
        m : _ <- managers
        before <- metricsRegistered <$> readMetrics
        cancels <- newIORef []
        -- The dispatcher takes the registrations of all descriptors out, and runs their callbacks afterwards. The first
        -- of these callbacks to run cancels the wait for the other descriptor before the callback of that wait runs.
        forM_ readers $ \r -> registerFd_ m (\_ _ -> readIORef cancels >>= sequence_) r evtRead OneShot
        waits <- mapM threadWaitReadSTM readers
        writeIORef cancels (map snd waits)
        stopManagers
        left <- settled before (metricsRegistered <$> readMetrics)
        -- Kept until here: the collector cancels waits that nothing refers to.
        mapM_ snd waits
        assertBool (show (left - before) <> " registrations left behind") (left <= before),
      test "the process forks under load (GHC 4449)" $
        whileLoaded $ \progress -> replicateM_ (times 4) $ do
          child <- forkProcess $ do
            within 15 "the child's work" childsWork `catch` \e -> do
              hPutStrLn stderr ("in the child: " <> displayException (e :: SomeException))
              exitImmediately (ExitFailure 1)
            exitImmediately ExitSuccess
          status <- getProcessStatus True False child
          status @?= Just (Exited ExitSuccess)
          progress,
      test "a forked child closes a descriptor that a thread of the parent is using" . withFds $ \fds -> do
        (r, _) <- pipe fds
        copy@(Fd number) <- dup r
        d <- newDescriptor currentRegistry currentManager copy (\_ -> pure () <$ closeFd copy)
        (using, over) <- (,) <$> newEmptyMVar <*> newEmptyMVar
        user <- start (useDescriptor d (putMVar using () >> takeMVar over))
        takeMVar using
        child <- forkProcess $ do
          mine <- useDescriptor d (pure ())
          closed <- closeDescriptor d
          open <- isOpen number
          exitImmediately (if mine == Just () && closed && not open then ExitSuccess else ExitFailure 1)
        status <- finishes "the child" (getProcessStatus True False child)
        status @?= Just (Exited ExitSuccess)
        -- The parent's thread goes on using it, and closes it at the end.
        closeDescriptor d >>= (@?= True)
        isOpen number >>= (@?= True)
        putMVar over ()
        result "the parent's thread" user >>= (@?= Just ())
        isOpen number >>= (@?= False),
      test "a forked child closes what it inherits, and opens descriptors with the numbers of the parent's managers: they stay open" . withFds $ \fds -> do
        (r, w) <- pipe fds
        reader <- start (threadWaitRead r)
        blocks reader
        numbers <- concatMap (backendDescriptors . managerBackend) <$> managers
        assertBool "there is a manager" (not (null numbers))
        child <- forkProcess $ do
          -- By one call, which closes the number too: threads of the run-time system that start in the child open
          -- descriptors at the same time, and would get it.
          forM_ numbers (dupTo r)
          threadDelay 1000
          still <- mapM (fmap isNamedPipe . getFdStatus) numbers
          exitImmediately (if and still then ExitSuccess else ExitFailure 1)
        status <- finishes "the child" (getProcessStatus True False child)
        status @?= Just (Exited ExitSuccess)
        say w 1
        result "threadWaitRead" reader,
      test "a waiter that is ahead of the timer of its deadline leaves nothing behind" $ do
        rd <- newReadiness 0 1
        forM_ [Reading, Writing] $ \direction -> do
          expiredDone rd direction
          during <- anyExpired rd direction
          usable <- acquire rd <* release rd
          noteExpired rd direction
          afterwards <- anyExpired rd direction
          (during, usable, afterwards) @?= (False, True, False),
      test "a forked child has none of the parent's waiters whose deadline has passed" $ do
        rd <- newReadiness 0 1
        noteExpired rd Reading
        child <- forkProcess $ do
          -- As before each attempt.
          mine <- acquire rd
          left <- anyExpired rd Reading
          exitImmediately (if mine && not left then ExitSuccess else ExitFailure 1)
        status <- finishes "the child" (getProcessStatus True False child)
        status @?= Just (Exited ExitSuccess)
        anyExpired rd Reading >>= (@?= True),
      test "a wake-up is never lost (soak)" soak,
      test "collector: threads that wait for a descriptor or a time do not count as deadlocked" . withFds $ \fds -> do
        (r, w) <- pipe fds
        reader <- start (threadWaitRead r)
        sleeper <- start (threadDelay 60000)
        waiter <- start (timeout 60000 (newEmptyMVar >>= \v -> takeMVar (v :: MVar ()) `catch` \BlockedIndefinitelyOnMVar -> pure ()))
        blocks reader
        replicateM_ 3 collect
        say w 1
        result "threadWaitRead" reader
        result "threadDelay" sleeper
        void (result "timeout" waiter)
    ]

-- | Timers and delays of each kind. Their managers are stopped within the function.
movedTimers :: (IO () -> IO ()) -> IO () -> Assertion
movedTimers around stopping = do
  fired <- newIORef (0 :: Int)
  let us = 200000 :: Int
      hit = atomicModifyIORef' fired (\n -> (n + 1, ()))
      notEarly name act = start $ do
        (_, s) <- timed act
        assertBool (name <> " took " <> show s <> " s") (s * 1e6 >= fromIntegral us)
  (a, _) <- connectionPair 1000 (SockAddrUnix "a") (SockAddrUnix "b")
  waiting <-
    sequence
      [ notEarly "threadDelay" (threadDelay us),
        notEarly "timeout" (timeout us (threadDelay maxBound) >>= (@?= Nothing)),
        notEarly "registerDelay" (registerDelay us >>= \v -> atomically (readTVar v >>= check)),
        notEarly "a deadline" (deadlineIn (microseconds us) >>= \soon -> failsWith "receiving" eTIMEDOUT (connReceive a soon 1))
      ]
  doomed <- start (threadDelay us >> hit)
  _ <- schedule (microseconds us) hit
  later <- schedule (microseconds (3 * us)) hit
  idle <- newIdleTimer (microseconds us) hit
  cancelled <- schedule (microseconds us) hit
  mapM_ blocks (doomed : waiting)
  around $ do
    () <- stopping
    cancel cancelled >>= assertBool "a timer that has not fired is cancelled"
    cancel cancelled >>= assertBool "it is cancelled once" . not
    stop doomed
    mapM_ (result "a wait") waiting
    eventually "the timers fire" ((>= 2) <$> readIORef fired)
    expired idle >>= assertBool "the idle timer has expired"
  eventually "the last timer fires" ((>= 3) <$> readIORef fired)
  cancel later >>= assertBool "it has fired" . not
  pause 20
  readIORef fired >>= (@?= 3)

-- | End the dispatchers of all capabilities, each by the action of a timer. Returns when they have ended.
endDispatchers :: IO ()
endDispatchers = do
  n <- getNumCapabilities
  old <- managers
  forM_ [0 .. n - 1] (\cap -> onCapability cap (schedule mempty (throwIO ThreadKilled)))
  eventually "the dispatchers have ended" (not . or <$> mapM isAlive old)

test :: String -> IO () -> TestTree
test name act = testCase name (finishes name act)

blocks :: Task a -> IO ()
blocks t = blocked t >>= assertBool "does not block"

-- | Run an action in a thread of a capability.
onCapability :: Int -> IO a -> IO a
onCapability cap act = do
  done <- newEmptyMVar
  _ <- forkOn cap (try act >>= putMVar done)
  takeMVar done >>= either (throwIO :: SomeException -> IO a) pure

-- | Run an action beside threads that echo over sockets, wait for pipes, for time and
-- with time limits. It is given a check that each of them has come on since it began.
whileLoaded :: (IO () -> IO ()) -> IO ()
whileLoaded act = do
  ending <- newIORef False
  let worker body = do
        count <- newIORef (0 :: Int)
        t <- start . untilEnd ending $ do
          r <- timeout 15000000 body
          assertBool "a worker waits in vain" (r == Just ())
          atomicModifyIORef' count (\n -> (n + 1, ()))
        pure (t, count)
  workers <- concat <$> replicateM 3 (sequence [echo worker, delays worker, pipes worker])
  act (progress (map snd workers)) `finally` writeIORef ending True
  forM_ workers (result "a worker" . fst)
  where
    untilEnd ending body = do
      over <- readIORef ending
      unless over (body >> untilEnd ending body)
    progress counts = forM_ counts $ \c -> do
      n <- readIORef c
      eventually "a worker comes on" ((> n) <$> readIORef c)
    echoAll b = do
      bs <- recv b 100
      unless (C.null bs) (sendAll b bs >> echoAll b)
    delays worker = worker (threadDelay 300)
    echo worker = do
      (a, b) <- socketPair AF_UNIX Stream defaultProtocol
      _ <- start (echoAll b `finally` close b)
      worker (sendAll a (C.pack "ping") >> recv a 100 >>= (@?= C.pack "ping"))
    pipes worker = worker . withFds $ \fds -> do
      (r, w) <- pipe fds
      t <- start (threadWaitRead r)
      yield
      say w 1
      result "a pipe's reader" t

isOpen :: CInt -> IO Bool
isOpen number = either (const False :: IOException -> Bool) (const True) <$> try (getFdStatus (Fd number))

-- | All kinds of waiting, in a process that has just been forked.
childsWork :: IO ()
childsWork = do
  (a, b) <- socketPair AF_UNIX Stream defaultProtocol
  t <- start (recv b 10)
  threadDelay 2000
  sendAll a (C.pack "child")
  result "recv" t >>= (@?= C.pack "child")
  soon <- deadlineIn (milliseconds 5)
  late <- try (recv (withDeadline soon b) 1)
  assertBool "the deadline passes" (either isTimeout (const False) late)
  timeout 2000 (threadDelay 5000000) >>= (@?= Nothing)
  -- Until here, or the collector closes them: the other end would see its stream end.
  mapM_ close [a, b]

-- | Two threads in turn wake each other through a pipe and a socket, after pauses
-- that make the dispatchers fall asleep at all moments.
soak :: IO ()
soak = withFds $ \fds -> do
  (r, w) <- pipe fds
  (a, b) <- socketPair AF_UNIX Stream defaultProtocol
  answerer <- start . forM_ rounds $ \i -> do
    threadWaitRead r
    void (drain r)
    when (i `mod` 3 == 0) (threadDelay (i `mod` 120))
    sendAll b (C.pack "y")
  forM_ rounds $ \i -> do
    when (i `mod` 2 == 0) (threadDelay (i `mod` 170))
    say w 1
    within 10 ("round " <> show i) (recv a 1) >>= (@?= C.pack "y")
  result "the answerer" answerer
  mapM_ close [a, b]
  where
    rounds = [1 .. times 300]
