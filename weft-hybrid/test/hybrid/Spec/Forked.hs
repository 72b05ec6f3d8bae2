-- |
-- A forked child: hybrid threads, timers and descriptors work, and no thread of the parent's goes on there.
module Spec.Forked
  ( tests,
  )
where

import Control.Concurrent (forkIO, threadDelay)
import qualified Control.Concurrent as GHC (killThread)
import qualified Control.Exception as E
import Control.Monad (forM_, forever, replicateM, replicateM_, unless, void)
import qualified Data.ByteString.Char8 as B
import Data.IORef
import Support
import System.Exit (ExitCode (..))
import System.IO (hPutStrLn, stderr)
import System.Posix.IO (createPipe)
import System.Posix.Process (ProcessStatus (..), exitImmediately, forkProcess, getProcessStatus)
import qualified System.Timeout as GHC
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Hybrid
import Weft.Hybrid.Descriptor (descriptorFd)
import Weft.Hybrid.Scheduler (currentScheduler)

tests :: IO Scheduler -> TestTree
tests scheduler =
  testGroup
    "forked"
    [ test "the child's threads run, wait and use descriptors; the parent's do not" $ \s -> do
        -- One at which threads wait, and one that a loop of the parent watches.
        (r, w) <- pipe
        (r', w') <- pipe
        ran <- newIORef (0 :: Int)
        readers <- replicateM 3 (forkFromIn s (void (readBytes r 1) `finally` nonBlocking (bump ran)))
        runIn s (fork (sleep (milliseconds 2) >> void (writeBytes w' (B.pack "x"))) >> readBytes r' 1) >>= (@?= B.pack "x")
        runIn s (sleep (milliseconds 5))
        child $ do
          run (sleep (milliseconds 1) >> replicateM_ 10 yield)
          talk r' w'
          -- The new ones have the numbers of the first pipe.
          mapM_ closeDescriptor [r, w]
          (new, new') <- pipe
          assertEqual "numbers" (map descriptorFd [r, w]) (map descriptorFd [new, new'])
          talk new new'
          forM_ [new, new', r', w'] (\d -> closeDescriptor d >>= assertBool "closed before")
          readIORef ran >>= assertEqual "threads of the parent that ran in the child" 0
          withScheduler defaultSettings (\own -> runIn own (newMVar 'x' >>= takeMVar) >>= assertEqual "in one of its own" 'x')
        forM_ readers (\t -> runIn s (killThread t >> waitCatch t))
        mapM_ closeDescriptor [r, w, r', w']
        readIORef ran >>= (@?= 3),
      test "forked while others ask for the scheduler and adopt descriptors" $ \s -> do
        let busy = forever (currentScheduler >> E.bracket (E.uninterruptibleMask_ pipe) (\(r, w) -> mapM_ closeDescriptor [r, w]) (const (threadDelay 20)))
        E.bracket (replicateM 4 (forkIO busy)) (mapM_ GHC.killThread) $ \_ -> forM_ [1 .. times 20] $ \_ -> do
          child $ do
            (r, w) <- pipe
            got <- run (writeBytes w (B.pack "x") >> readBytes r 1)
            assertEqual "byte" (B.pack "x") got
          runIn s yield
    ]
  where
    test name act = testCase name (finishes name (scheduler >>= act))
    pipe = createPipe >>= \(r, w) -> (,) <$> adopt r <*> adopt w
    talk from to = do
      got <- run $ do
        box <- newEmptyMVar
        fork (readBytes from 5 >>= putMVar box)
        sleep (milliseconds 5)
        _ <- writeBytes to (B.pack "hello")
        takeMVar box
      assertEqual "through a pipe" (B.pack "hello") got
    bump ref = atomicModifyIORef' ref (\k -> (k + 1, ()))

-- | Run in a child; it has to end well.
child :: Assertion -> Assertion
child act = do
  pid <- forkProcess . (`E.finally` exitImmediately (ExitFailure 8)) $ do
    r <- E.try (GHC.timeout 30000000 act)
    case r of
      Right Nothing -> hPutStrLn stderr "the child: still not done after 30 s" >> exitImmediately (ExitFailure 9)
      Right (Just ()) -> exitImmediately ExitSuccess
      Left e -> hPutStrLn stderr ("in the child: " <> show (e :: E.SomeException)) >> exitImmediately (ExitFailure 7)
  status <- getProcessStatus True False pid
  unless (status == Just (Exited ExitSuccess)) (assertFailure ("the child: " <> show status <> " (7: see its message above; 9: it did not end)"))
