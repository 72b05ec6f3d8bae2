-- |
-- Changes to a program's dispatchers while it works: the number of capabilities changes,
-- the process forks, the managers are stopped. Waiting threads must not notice.
module Spec.Lifecycle
  ( tests,
  )
where

import Control.Concurrent hiding (threadDelay, threadWaitRead, threadWaitWrite)
import Control.Exception
import Control.Monad
import qualified Data.ByteString.Char8 as C
import Data.IORef
import Harness
import System.Exit (ExitCode (..))
import System.IO (hPutStrLn, stderr)
import System.Posix.Process (ProcessStatus (..), exitImmediately, forkProcess, getProcessStatus)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Duration
import Weft.Runtime (stopManagers)
import Weft.Socket
import Weft.Socket.ByteString
import Weft.Test.Descriptors
import Weft.Thread

tests :: TestTree
tests =
  testGroup
    "lifecycle"
    [ test "capabilities come and go under load" $
        whileLoaded $ \progress -> do
          before <- getNumCapabilities
          -- Few changes: stock GHC 9.0.2 itself comes to a standstill about once in
          -- ten thousand (doc/rationale/ghc.md).
          forM_ [1 .. 12] $ \i -> do
            setNumCapabilities (1 + (5 * i) `mod` 8)
            progress
          setNumCapabilities before
          progress,
      test "the managers are stopped under load" $
        whileLoaded $ \progress -> replicateM_ (times 20) (stopManagers >> progress),
      test "the process forks under load (GHC 4449)" $
        whileLoaded $ \progress -> replicateM_ (times 4) $ do
          child <- forkProcess $ do
            within 5 "the child's work" childsWork `catch` \e -> do
              hPutStrLn stderr ("in the child: " <> displayException (e :: SomeException))
              exitImmediately (ExitFailure 1)
            exitImmediately ExitSuccess
          status <- getProcessStatus True False child
          status @?= Just (Exited ExitSuccess)
          progress,
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

test :: String -> IO () -> TestTree
test name act = testCase name (finishes name act)

blocks :: Task a -> IO ()
blocks t = blocked t >>= assertBool "does not block"

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
