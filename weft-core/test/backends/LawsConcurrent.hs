-- |
-- Laws that need other threads, many descriptors, or many back ends.
module LawsConcurrent
  ( wakeLaws,
    manyLaws,
    threadLaws,
    lifecycleLaws,
  )
where

import Control.Concurrent
import Control.Exception (IOException, bracket_, finally, try)
import Control.Monad (forM, forM_, forever, replicateM, replicateM_, unless, void, when)
import Data.IORef
import qualified Data.Map.Strict as Map
import GHC.Clock (getMonotonicTimeNSec)
import LawsAsking
import System.Exit (ExitCode (ExitSuccess))
import System.Posix.IO (closeFd, dup)
import System.Posix.Process (ProcessStatus (Exited), exitImmediately, forkProcess, getProcessStatus)
import System.Posix.Resource
import System.Posix.Types (Fd)
import System.Timeout (timeout)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Core.Backend
import Weft.Core.Events
import Weft.Core.Time (Duration (..), microseconds, milliseconds)
import Weft.Test.Descriptors

-- Waking ---------------------------------------------------------------------------

wakeLaws :: IO Backend -> [TestTree]
wakeLaws make =
  [ law make "a wake that came before" $ \b _ -> do
      backendWake b
      got <- guarded b (poll b Forever)
      got @?= [],
    law make "a wake that comes later" $ \b _ -> replicateM_ 20 $ do
      _ <- forkIO (threadDelay 2000 >> backendWake b)
      got <- guarded b (poll b Forever)
      got @?= [],
    law make "wakes are merged, and come to an end" $ \b _ -> do
      replicateM_ 1000 (backendWake b)
      let quiet n = do
            (_, t) <- timed (poll b (WaitFor (milliseconds 20)))
            when (t < milliseconds 20) $ do
              n > (0 :: Int) @? "still waking"
              quiet (n - 1)
      quiet 1000,
    law make "a wake does not hide an event" $ \b fds -> do
      (r, w) <- pipe fds
      armed b r (tokenOf r) Once evtRead
      backendWake b
      say w 1
      found <- until' b 5 (not . null)
      found @?= [(tokenOf r, evtRead)],
    law make "a wait is not too short" $ \b _ ->
      forM_ [microseconds 1, microseconds 100, milliseconds 1, microseconds 1500, milliseconds 20] $ \d -> do
        (got, t) <- timed (poll b (WaitFor d))
        got @?= []
        t >= d @? (show t <> " instead of " <> show d),
    law make "no wait is none" $ \b _ ->
      forM_ [NoWait, WaitFor mempty, WaitFor (milliseconds (-1)), WaitFor minBound] $ \w -> do
        (got, t) <- timed (poll b w)
        got @?= []
        t < milliseconds 5000 @? show t,
    law make "the longest wait ends with a wake" $ \b _ ->
      forM_ [WaitFor maxBound, WaitFor (Duration (maxBound - 1)), WaitFor (Duration 0x4000000000000000)] $ \w -> do
        -- A wake that is lost fails 'guarded'.
        (_, t) <- timed (forkIO (threadDelay 30000 >> backendWake b) >> guarded b (poll b w))
        t > milliseconds 20 @? show t,
    law make "10,000 wakes by four threads, none lost" (wakeStorm 4 2500)
  ]

-- | Each waker asks and then waits for the answer: a wake that is lost hangs.
wakeStorm :: Int -> Int -> Backend -> Fds -> Assertion
wakeStorm wakers rounds b _ = do
  questions <- replicateM wakers newEmptyMVar
  answers <- replicateM wakers newEmptyMVar
  done <- newIORef (0 :: Int)
  owner <- async' . forever $ do
    _ <- poll b Forever
    forM_ (zip questions answers) $ \(q, a) -> do
      asked <- tryTakeMVar q
      forM_ asked $ \() -> modifyIORef' done (+ 1) >> putMVar a ()
  finished <- forM (zip questions answers) $ \(q, a) -> async' . replicateM_ rounds $ do
    putMVar q ()
    backendWake b
    takeMVar a
  ok <- timeout 100000000 (mapM_ (takeMVar . snd) finished)
  stopOwner b owner
  n <- readIORef done
  (ok, n) @?= (Just (), wakers * rounds)

-- Many -----------------------------------------------------------------------------

manyLaws :: IO Backend -> [TestTree]
manyLaws make =
  concat
    [ everyTrigger make "2,000 pipes ready at once" $ \t b fds -> do
        pipes <- replicateM 2000 (pipe fds)
        forM_ pipes $ \(r, w) -> say w 1 >> armed b r (tokenOf r) t evtRead
        everyoneOnce t b (map fst pipes),
      everyTrigger make "2,000 pipes become ready" $ \t b fds -> do
        pipes <- replicateM 2000 (pipe fds)
        forM_ pipes $ \(r, _) -> armed b r (tokenOf r) t evtRead
        silent b
        forM_ pipes $ \(_, w) -> say w 1
        everyoneOnce t b (map fst pipes),
      everyTrigger make "2,000 armed, changed and forgotten" $ \t b fds -> do
        pipes <- replicateM 2000 (pipe fds)
        forM_ pipes $ \(r, _) -> armed b r (tokenOf r) t evtRead
        forM_ pipes $ \(r, _) -> armed b r (tableToken r 2) t evtRead
        forM_ pipes $ \(_, w) -> say w 1
        forM_ pipes $ \(r, _) -> forgets b r
        silent b
    ]
    <> [ law make "20,000 changes between two polls" $ \b fds -> do
           (r, w) <- pipe fds
           armed b r (tokenOf r) Edge evtRead
           _ <- poll b NoWait
           replicateM_ 20000 (say w 1)
           found <- until' b 5 (not . null)
           all (== (tokenOf r, evtRead)) found @? show found
           _ <- drain r
           _ <- poll b NoWait
           notReady b r evtRead
           _ <- poll b NoWait
           say w 1
           reportsSome b (tokenOf r) (== evtRead),
         law make "a busy descriptor does not hide 300 others" $ \b fds -> do
           (busy, w) <- pipe fds
           say w 1
           armed b busy (tokenOf busy) Level evtRead
           pipes <- replicateM 300 (pipe fds)
           forM_ pipes $ \(r, w') -> say w' 1 >> armed b r (tokenOf r) Level evtRead
           seen <- newIORef Map.empty
           replicateM_ 10 $ poll b NoWait >>= mapM_ (\(Token t, _) -> modifyIORef' seen (Map.insert t ()))
           n <- Map.size <$> readIORef seen
           n @?= 301
       ]

-- | Polls report each of these, and with 'Once' and 'Edge' exactly once.
everyoneOnce :: Trigger -> Backend -> [Fd] -> Assertion
everyoneOnce t b ready = do
  counts <- newIORef (Map.fromList [(fd, 0 :: Int) | fd <- ready])
  let rounds = 100 :: Int
      go n = do
        missing <- Map.size . Map.filter (== 0) <$> readIORef counts
        when (missing > 0 && n > 0) $ do
          got <- poll b soon
          forM_ got $ \(tok, evs) -> do
            evs @?= evtRead
            modifyIORef' counts (Map.adjust (+ 1) (tokenFd tok))
          go (n - 1)
  go rounds
  unless (t == Level) (silent b)
  final <- Map.elems <$> readIORef counts
  if t == Level
    then all (> 0) final @? "a descriptor was never reported"
    else (minimum final, maximum final) @?= (1, 1)

-- Threads --------------------------------------------------------------------------

threadLaws :: IO Backend -> [TestTree]
threadLaws make =
  [ law make "arming while the owner is blocked" $ \b fds -> replicateM_ 50 $ do
      (r, w) <- pipe fds
      say w 1
      _ <- forkIO $ do
        threadDelay 1000
        void (backendArm b r (tokenOf r) Once evtRead)
        when (backendDeferred b) (backendWake b)
      found <- until' b 5 (not . null)
      found @?= [(tokenOf r, evtRead)]
      forgets b r
      mapM_ (shut fds) [r, w],
    law make "readiness after arming while the owner is blocked" $ \b fds -> do
      (r, w) <- pipe fds
      _ <- forkIO $ do
        threadDelay 1000
        void (backendArm b r (tokenOf r) Once evtRead)
        when (backendDeferred b) (backendWake b)
        threadDelay 20000
        say w 1
      found <- until' b 5 (not . null)
      found @?= [(tokenOf r, evtRead)],
    law make "the callback may arm and forget" $ \b fds -> do
      (r, w) <- pipe fds
      (r', w') <- pipe fds
      mapM_ (`say` 1) [w, w']
      armed b r (tableToken r 0) Once evtRead
      armed b r' (tokenOf r') Level evtRead
      left <- newIORef (10 :: Int)
      let react tok _
            | tokenFd tok == r' = forgets b r'
            | otherwise = do
              n <- readIORef left
              writeIORef left (n - 1)
              when (n > 1) (void (backendArm b r (tableToken r (11 - n)) Once evtRead))
      replicateM_ 20 (backendPoll b (WaitFor (milliseconds 5)) react)
      n <- readIORef left
      n @?= 0,
    law make "what a thread that has exited armed and polled" exitedThread,
    law make "four threads wait 500 times each" (pingPong 4 500),
    law make "four threads open, wait and close" churnLaw,
    law make "a report that is lost is noticed" lostReport
  ]

-- | Bound threads, so that the OS thread goes too: io_uring cancels its requests.
exitedThread :: Backend -> Fds -> Assertion
exitedThread b fds = forM_ [Once, Level, Edge] $ \t -> do
  (r, w) <- pipe fds
  replicateM_ 3 $ do
    gone <- newEmptyMVar
    _ <- flip forkOS' gone $ do
      void (backendArm b r (tokenOf r) t evtRead)
      void (poll b NoWait)
      void (poll b (WaitFor (microseconds 100)))
    takeMVar gone
    threadDelay 20000
  silent b
  backendWake b
  (_, time) <- timed (poll b (WaitFor (milliseconds 20000)))
  time < milliseconds 15000 @? "the wake was lost"
  say w 1
  found <- until' b 5 (not . null)
  found @?= [(tokenOf r, evtRead)]
  forgets b r
  where
    forkOS' act gone = forkOS (act `finally` putMVar gone ())

-- | Threads that wait for data of their own over and over, and one that polls.
pingPong :: Int -> Int -> Backend -> Fds -> Assertion
pingPong threads rounds b fds = do
  pipes <- replicateM threads (pipe fds)
  boxes <- replicateM threads newEmptyMVar
  let byFd = Map.fromList (zip (map fst pipes) boxes)
  owner <- async' . forever . backendPoll b Forever $ \tok _ ->
    forM_ (Map.lookup (tokenFd tok) byFd) (`putMVar` tokenGeneration tok)
  finished <- forM (zip pipes boxes) $ \((r, w), box) -> async' . forM_ [1 .. rounds] $ \g -> do
    void (backendArm b r (tableToken r g) Once evtRead)
    when (backendDeferred b) (backendWake b)
    when (even g) yield
    say w 1
    g' <- takeMVar box
    g' @?= g
    void (drain r)
  ok <- timeout 100000000 (mapM (takeMVar . snd) finished)
  stopOwner b owner
  maybe (assertFailure "an event was lost") (mapM_ (either assertFailure pure)) ok

-- | A round trip with a new pipe each time, so that descriptor numbers move from thread to thread.
churnLaw :: Backend -> Fds -> Assertion
churnLaw b _ = do
  finished <- churn 4 250 (threadDelay 100000000) b
  either assertFailure (@?= replicate 4 250) finished

-- | The same with a back end that loses all reports of one registration: its thread must be found waiting.
lostReport :: Backend -> Fds -> Assertion
lostReport b _ = do
  lost <- newEmptyMVar
  let losing = b {backendPoll = \w report -> backendPoll b w (\tok evs -> if tokenGeneration tok == 4 * 20 + 1 then void (tryPutMVar lost ()) else report tok evs)}
  finished <- churn 4 250 (readMVar lost >> threadDelay 300000) losing
  fmap (!! 1) finished @?= Right 19

-- | Threads that each wait for one event in each round, and one that polls. Returns how many rounds each thread
-- finished before all had finished or the action ended. A report may come twice, and as late as in a later round: each
-- thread takes its reports in order from a queue and skips those of earlier rounds.
churn :: Int -> Int -> IO () -> Backend -> IO (Either String [Int])
churn threads rounds giveUp b = do
  queues <- replicateM threads newChan
  progress <- replicateM threads (newIORef 0)
  let byThread = Map.fromList (zip [0 ..] queues)
  owner <- async' . forever . backendPoll b Forever $ \tok _ ->
    forM_ (Map.lookup (tokenGeneration tok `mod` threads) byThread) (`writeChan` tok)
  workers <- forM (zip3 [0 ..] queues progress) $ \(me, queue, done) -> async' . forM_ [1 .. rounds] $ \i -> withFds $ \own' -> do
    (r, w) <- pipe own'
    let tok = tableToken r (i * threads + me)
        trigger = [Once, Edge] !! (i `mod` 2)
    void (backendArm b r tok trigger evtRead)
    when (backendDeferred b) (backendWake b)
    say w 1
    let await = do
          tok' <- readChan queue
          when (tokenGeneration tok' > tokenGeneration tok) (assertFailure (show tok' <> " was reported before it was armed"))
          unless (tok' == tok) await
    await
    forgets b r
    writeIORef done i
  over <- newEmptyMVar
  watchers <- sequence [forkIO (mapM (readMVar . snd) workers >>= putMVar over . sequence_), forkIO (giveUp >> putMVar over (Right ()))]
  outcome <- takeMVar over
  mapM_ killThread watchers
  finished <- mapM readIORef progress
  mapM_ (killThread . fst) workers
  stopOwner b owner
  pure (finished <$ outcome)

-- Lifecycle ------------------------------------------------------------------------

-- | No more descriptors are open than before. (Fewer may be: an earlier test's are closed when they are collected.)
noneLeft :: Int -> Assertion
noneLeft before = do
  left <- openCount
  assertBool (show left <> " descriptors are open, " <> show before <> " before") (left <= before)

lifecycleLaws :: IO Backend -> [TestTree]
lifecycleLaws make =
  [ testCase "10,000 made and closed leave no descriptor" . withFds $ \fds -> do
      (r, w) <- pipe fds
      say w 1
      before <- openCount
      forM_ [1 .. 10000 :: Int] $ \i -> do
        b <- make
        when (i `mod` 10 == 0) $ do
          armed b r (tokenOf r) Edge evtRead
          reports b [(tokenOf r, evtRead)]
        backendClose b
      noneLeft before,
    testCase "one that cannot be made for want of descriptors leaves none" $ do
      before <- openCount
      limits <- getResourceLimit ResourceOpenFiles
      forM_ [0 .. 3] $ \spare ->
        bracket_ (setResourceLimit ResourceOpenFiles limits {softLimit = ResourceLimit 256}) (setResourceLimit ResourceOpenFiles limits) $ do
          taken <- untilNone
          mapM_ closeFd (take spare taken)
          let held = length taken - spare
          made <- try make :: IO (Either IOException Backend)
          either (const (pure ())) backendClose made
          again <- untilNone
          mapM_ closeFd (again <> drop spare taken)
          (spare, held + length again) @?= (spare, length taken)
      noneLeft before,
    testCase "closing it releases the watched descriptors" . withFds $ \fds -> do
      b <- make
      (s, peer) <- tcpPair fds
      armed b s (tokenOf s) Edge evtRead
      silent b
      backendClose b
      shut fds s
      b' <- make
      armed b' peer (tokenOf peer) Once evtRead
      reportsSome b' (tokenOf peer) (`includes` evtRead)
      backendClose b',
    law make "a forked child closes its copy" $ \b fds -> do
      (r, w) <- pipe fds
      armed b r (tokenOf r) Edge evtRead
      silent b
      child <- forkProcess (backendClose b >> exitImmediately ExitSuccess)
      status <- getProcessStatus True False child
      status @?= Just (Exited ExitSuccess)
      say w 1
      reports b [(tokenOf r, evtRead)]
      backendWake b
      void (guarded b (poll b Forever))
  ]

-- | Descriptors as long as there are any.
untilNone :: IO [Fd]
untilNone = try (dup 0) >>= either (\e -> const (pure []) (e :: IOException)) (\fd -> (fd :) <$> untilNone)

-- Help -----------------------------------------------------------------------------

timed :: IO a -> IO (a, Duration)
timed act = do
  t0 <- getMonotonicTimeNSec
  a <- act
  t1 <- getMonotonicTimeNSec
  pure (a, Duration (fromIntegral (t1 - t0)))

-- | A poll that must end by itself; when it does not, it is woken again and again
-- and the test fails instead of hanging.
guarded :: Backend -> IO a -> IO a
guarded b act = do
  late <- newIORef False
  watch <- forkIO $ do
    threadDelay 20000000
    writeIORef late True
    forever (backendWake b >> threadDelay 100000)
  a <- act `finally` killThread watch
  failed <- readIORef late
  when failed (assertFailure "a wake was lost")
  pure a

-- | Poll, at most this many times and for as long as it takes, until the reports of
-- one poll are as wanted.
until' :: Backend -> Int -> ([Report] -> Bool) -> IO [Report]
until' b n good = do
  got <- poll b soon
  if good got || n <= 1 then pure got else until' b (n - 1) good

-- | Run it beside; what it failed with, if it did, comes through the box.
async' :: IO () -> IO (ThreadId, MVar (Either String ()))
async' act = do
  box <- newEmptyMVar
  t <- forkFinally act (putMVar box . either (Left . show) Right)
  pure (t, box)

-- | End a thread that polls for ever.
stopOwner :: Backend -> (ThreadId, MVar (Either String ())) -> IO ()
stopOwner b (t, box) = do
  killer <- forkIO (killThread t)
  waker <- forkIO (forever (backendWake b >> threadDelay 1000))
  void (takeMVar box)
  mapM_ killThread [killer, waker]
