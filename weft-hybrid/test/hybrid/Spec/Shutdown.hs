-- |
-- A scheduler is stopped: its threads are killed, their handlers run to their ends, and it
-- takes no longer than it may.
module Spec.Shutdown
  ( tests,
  )
where

import qualified Control.Concurrent as GHC
import qualified Control.Exception as E
import Control.Monad (forM_, forever, void)
import qualified Control.Monad.Catch as C
import qualified Data.ByteString.Char8 as C8
import Data.IORef
import Data.List ((\\))
import GHC.Clock (getMonotonicTime)
import Support
import System.Directory (listDirectory)
import System.Posix.IO (createPipe)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Hybrid
import qualified Weft.Hybrid.STM as STM
import Weft.Hybrid.Scheduler (startScheduler, stopScheduler)
import Weft.Hybrid.SystemCall (later, systemCall)
import Weft.Hybrid.Trace (Scheduler (..))
import qualified Weft.Socket as Weft
import Weft.Sys (readWord)

-- | Tests with the given number of loops.
tests :: Int -> TestTree
tests n =
  testGroup
    "shutdown"
    ( [testCase ("handlers run in a thread that " <> name) (finishes name (mapM_ (handlersRun body) starts)) | (name, body) <- waits]
        <> [ test "a handler may wait, and is not killed itself" patient,
             test "masked threads end where they wait, uninterruptible ones where they are not" masking,
             test "a thread that waits in an MVar ends, whether or not another's handler fills it" chained,
             test "ten thousand threads in one MVar, some of them with a pipe" crowd,
             test "only the scheduler's own threads are taken out of an MVar" ofTwo,
             test "threads of two schedulers wait for one socket: each scheduler ends its own" (mapM_ sharedSocket [False, True]),
             test "the caller of run learns that its thread was killed" told,
             test "threads that do not end are dropped when the time is over" stubborn,
             test "many threads, each in a wait of its own" many'
           ]
    )
  where
    test name act = testCase name (finishes name act)
    settings = defaultSettings {settingsLoops = Just n, settingsOnException = \_ _ -> pure ()}

    -- Each scheduler that is stopped is not the one whose thread was the last to wait, or is that one.
    sharedSocket named = do
      [first, second, third] <- mapM (const (startScheduler settings)) [1 .. 3 :: Int]
      (a, b) <- Weft.socketPair Weft.AF_UNIX Weft.Stream 0 >>= \(x, y) -> runIn first ((,) <$> fromSocket x <*> fromSocket y)
      ended <- newIORef (0 :: Int)
      received <- GHC.newEmptyMVar
      sent <- GHC.newEmptyMVar
      let begin s body = (if named then void (forkFromIn s body) else runIn s (fork body)) >> pause 3
          reader = begin first ((recv a 10 >>= nonBlocking . GHC.putMVar received) `finally` nonBlocking (bump ended))
          writer s = begin s (sendAll a (C8.replicate 1000000 'x') >> nonBlocking (GHC.putMVar sent ()))
          drain s = runIn s (recv b 1000000) >>= \bytes -> if C8.null bytes then pure () else drain s
      reader
      writer second
      stopScheduler second
      pause 3
      readIORef ended >>= (@?= 0)
      runIn third (sendAll b (C8.pack "x"))
      GHC.takeMVar received >>= (@?= C8.pack "x")
      eventually "the reader has ended" ((== 1) <$> readIORef ended)
      reader
      writer third
      stopScheduler first
      readIORef ended >>= (@?= 2)
      draining <- GHC.forkIO (drain third `E.catch` \e -> const (pure ()) (e :: E.SomeException))
      GHC.takeMVar sent
      runIn third (close a)
      GHC.killThread draining
      runIn third (close b)
      stopScheduler third

    -- Only the last handler counts.
    handlersRun body start = forM_ [0, 0, 1, 3 :: Int] $ \ms -> do
      begun <- newIORef (0 :: Int)
      ended <- newIORef (0 :: Int)
      s <- startScheduler settings
      forM_ [1 .. 2 * n] $ \i -> do
        let counted = bracket_ (nonBlocking (bump begun)) (nonBlocking (bump ended)) (body `finally` yield)
        -- By a loop of its own: a thread of the last one may be killed before it forks.
        GHC.forkOn i (runIn s (start counted) `E.catch` \e -> const (pure ()) (e :: E.SomeException))
      if ms == 3 then eventually "all have begun" ((== 2 * n) <$> readIORef begun) else pause ms
      stopScheduler s
      (,) <$> readIORef begun <*> readIORef ended >>= \(b, e) -> e @?= b

    starts = [fork, void . forkThread, void . forkLabelled "a thread"]

    patient = do
      ended <- newIORef (0 :: Int)
      s <- startScheduler settings
      begun <- newIORef (0 :: Int)
      forM_ [1 .. 10 :: Int] $ \_ -> forkFromIn s $ (nonBlocking (bump begun) >> forever (sleep (seconds 100))) `finally` (sleep (milliseconds 5) >> yield >> nonBlocking (bump ended))
      eventually "all have begun" ((== 10) <$> readIORef begun)
      stopScheduler s
      readIORef ended >>= (@?= 10)

    masking = do
      steps <- newIORef []
      s <- startScheduler settings
      let note x = nonBlocking (atomicModifyIORef' steps (\xs -> (x : xs, ())))
      begun <- newIORef (0 :: Int)
      let here = nonBlocking (bump begun)
      _ <- forkFromIn s (mask_ (here >> sleep (seconds 100) `onException` note 'm'))
      _ <- forkFromIn s (C.uninterruptibleMask_ (here >> untilStopped s >> sleep (milliseconds 6) >> note 'u') >> note 'x')
      eventually "both are masked" ((== 2) <$> readIORef begun)
      stopScheduler s
      found <- readIORef steps
      (length found == 2 && all (`elem` found) "mu") @? found

    untilStopped s = do
      stop <- nonBlocking (readWord (schedulerStop s) 0)
      if stop /= 0 then pure () else sleep (milliseconds 1) >> untilStopped s

    chained = do
      begun <- newIORef (0 :: Int)
      ended <- newIORef (0 :: Int)
      s <- startScheduler settings
      let here = nonBlocking (bump begun)
      runIn s $ do
        boxes <- mapM (const newEmptyMVar) [0 .. 5 :: Int]
        forM_ (zip boxes (drop 1 boxes)) $ \(a, b) -> fork ((here >> takeMVar a) `finally` (nonBlocking (bump ended) >> putMVar b ()))
        fork ((here >> sleep (seconds 100)) `finally` mapM_ (`putMVar` ()) (take 1 boxes))
      eventually "all have begun" ((== 6) <$> readIORef begun)
      stopScheduler s
      readIORef ended >>= (@?= 5)

    crowd = do
      begun <- newIORef (0 :: Int)
      ended <- newIORef (0 :: Int)
      before <- length <$> listDirectory "/proc/self/fd"
      s <- startScheduler settings
      box <- newEmptyMVarIO
      let pipe = nonBlocking (createPipe >>= \(r, w) -> (,) <$> adopt r <*> adopt w)
          closing (r, w) = nonBlocking (mapM_ closeDescriptor [r, w])
          counted = bracket_ (nonBlocking (bump begun)) (nonBlocking (bump ended))
      runIn s . forM_ [1 .. 10000 :: Int] $ \i ->
        fork . counted $ if i <= 200 then bracket pipe closing (const (takeMVar box)) else takeMVar box
      eventually "all have begun" ((== 10000) <$> readIORef begun)
      stopScheduler s
      readIORef ended >>= (@?= 10000)
      left <- length <$> listDirectory "/proc/self/fd"
      (left <= before) @? (show (left - before) <> " descriptors are left")
      -- Nobody is left behind in it.
      kept <- startScheduler settings
      filled <- tryPutMVarIO kept box ()
      runIn kept (tryTakeMVar box) >>= (@?= Just ())
      filled @? "it was full"
      stopScheduler kept

    ofTwo = do
      box <- newEmptyMVarIO
      begun <- newIORef (0 :: Int)
      outcomes <- newIORef []
      first <- startScheduler settings
      second <- startScheduler settings
      let waiter name = void (forkFromIn name (fork ((nonBlocking (bump begun) >> takeMVar box) `onException` note "killed" >> note "served")))
          note x = nonBlocking (atomicModifyIORef' outcomes (\xs -> (x : xs, ())))
      mapM_ waiter [first, second, first]
      eventually "all have begun" ((== 3) <$> readIORef begun)
      runIn first (sleep (milliseconds 5))
      runIn second (sleep (milliseconds 5))
      stopScheduler first
      readIORef outcomes >>= (@?= ["killed", "killed"])
      _ <- tryPutMVarIO second box ()
      eventually "the other goes on" (elem "served" <$> readIORef outcomes)
      stopScheduler second

    told = do
      s <- startScheduler settings
      begun <- newIORef (0 :: Int)
      answer <- GHC.newEmptyMVar
      _ <- GHC.forkIO (E.try (runIn s (nonBlocking (bump begun) >> sleep (seconds 100))) >>= GHC.putMVar answer)
      eventually "it has begun" ((== 1) <$> readIORef begun)
      stopScheduler s
      r <- GHC.takeMVar answer
      isKilled r @? show r

    stubborn = do
      s <- startScheduler settings {settingsGrace = milliseconds 50}
      _ <- forkFromIn s (forever (forever (sleep (milliseconds 1)) `catch` \e -> const (pure ()) (e :: E.SomeException)))
      _ <- forkFromIn s (forever (yield `catch` \e -> const (pure ()) (e :: E.SomeException)))
      _ <- forkFromIn s (let again = (fork again >> sleep (seconds 100)) `finally` again in again)
      runIn s (sleep (milliseconds 1))
      begun <- getMonotonicTime
      stopScheduler s
      ended <- getMonotonicTime
      let took = ended - begun
      -- The grace is 50 ms; the bound above is ours, for a machine that is busy.
      (took >= 0.05) @? ("the grace was cut short: " <> show took)
      (took < 30) @? show took

    many' = forM_ [1 .. times 20] $ \_ -> do
      ended <- newIORef []
      begun <- newIORef []
      let mark ref i = nonBlocking (atomicModifyIORef' ref (\is -> (i : is, ())))
      s <- startScheduler settings
      pipes <- mapM (const (createPipe >>= \(r, w) -> (,) <$> adopt r <*> adopt w)) [1 .. 8 :: Int]
      runIn s . forM_ (zip [0 ..] (concat (replicate 20 pipes))) $ \(i, (r, _)) -> do
        let wait' = case i `mod` 5 :: Int of
              0 -> sleep (seconds 100)
              1 -> void (readBytes r 1)
              2 -> forever yield
              3 -> void (within (seconds 50) (readBytes r 1))
              _ -> forever (blocking (pure ()))
        (if even i then fork else void . forkThread) (bracket_ (mark begun i) (mark ended i) wait')
      pause 1
      stopScheduler s
      mapM_ (\(r, w) -> closeDescriptor r >> closeDescriptor w) pipes
      -- The numbers of those that have not ended; modulo five they say what they waited for.
      (\\) <$> readIORef begun <*> readIORef ended >>= (@?= [])

bump :: IORef Int -> IO ()
bump ref = atomicModifyIORef' ref (\k -> (k + 1, ()))

-- | The operations in which a thread may be stopped.
waits :: [(String, Hybrid ())]
waits =
  [ ("yields", forever yield),
    ("sleeps", sleep (seconds 100)),
    ("computes in steps", forever (nonBlocking (pure ()))),
    ("waits for a pipe", withPipe (\r -> void (readBytes r 1))),
    ("waits with a time limit", withPipe (\r -> void (within (seconds 100) (readBytes r 1)))),
    ("makes blocking calls", forever (blocking (GHC.threadDelay 300))),
    ("waits on a GHC thread", onGhcThread (GHC.threadDelay 20000) >> sleep (seconds 100)),
    ("is masked", mask_ (forever (yield >> sleep (microseconds 50)))),
    ("waits in an MVar of its own", newEmptyMVar >>= takeMVar),
    ("waits to put", newMVar () >>= \box -> putMVar box ()),
    ("reads an MVar, masked", mask_ (newEmptyMVar >>= readMVar)),
    ("waits for a semaphore", newSemaphore 1 >>= \s -> acquire s 2),
    ("waits for a channel", newChannel >>= readChannel),
    ("waits for room in a channel", newBoundedChannel 1 >>= \ch -> forever (writeBounded ch ())),
    ("waits for a transaction", nonBlocking (STM.newTVarIO False) >>= \v -> STM.atomically (STM.readTVar v >>= STM.check)),
    ("waits for a thread that waits", forkThread (newEmptyMVar >>= takeMVar) >>= void . waitCatch),
    ("waits for itself", myThread >>= void . waitCatch),
    ("waits for a library that never answers", systemCall (\c -> later c (\_ -> pure (pure ())))),
    ("waits on a GHC thread for ever", onGhcThread (forever (GHC.threadDelay 1000000)))
  ]
  where
    withPipe act = bracket (nonBlocking (createPipe >>= \(r, w) -> (,) <$> adopt r <*> adopt w)) (\(r, w) -> nonBlocking (mapM_ closeDescriptor [r, w])) (act . fst)
