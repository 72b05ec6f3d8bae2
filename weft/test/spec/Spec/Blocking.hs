-- |
-- "Weft.Blocking": the bound, the queue, exceptions, results of interrupted callers.
module Spec.Blocking
  ( tests,
  )
where

import Control.Concurrent (myThreadId)
import Control.Concurrent.MVar
import Control.Exception (MaskingState (..), getMaskingState, mask_, throwIO)
import Control.Monad (forM_, replicateM, replicateM_)
import GHC.Stats (GCDetails (..), RTSStats (..), getRTSStats)
import Harness
import System.Exit (ExitCode (..))
import System.Mem (performMajorGC)
import System.Posix.Process (ProcessStatus (..), exitImmediately, forkProcess, getProcessStatus)
import System.Timeout (timeout)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Blocking

tests :: TestTree
tests =
  testGroup
    "blocking calls"
    [ testCase "the bound holds, the queue is visible, a higher bound starts more" $ do
        pool <- newPool 2
        gate <- newEmptyMVar
        ts <- replicateM 5 (start (runIn pool (readMVar gate)))
        eventually "two run, three wait" ((== PoolStatus 2 2 3 0) <$> statusOf pool)
        setLimit pool 4
        eventually "four run" ((== PoolStatus 4 4 1 0) <$> statusOf pool)
        putMVar gate ()
        forM_ ts (result "call")
        eventually "all are done" ((== PoolStatus 4 0 0 5) <$> statusOf pool),
      testCase "a call runs in its caller's masking state, whoever started the thread" $ do
        pool <- newPool 1
        gate <- newEmptyMVar
        first <- start (mask_ (runIn pool (takeMVar gate >> getMaskingState)))
        eventually "one runs" ((== 1) . poolRunning <$> statusOf pool)
        second <- start (runIn pool getMaskingState)
        third <- start (mask_ (runIn pool getMaskingState))
        eventually "two wait" ((== 2) . poolQueued <$> statusOf pool)
        putMVar gate ()
        result "first" first >>= (@?= MaskedInterruptible)
        result "second" second >>= (@?= Unmasked)
        result "third" third >>= (@?= MaskedInterruptible)
        runIn pool getMaskingState >>= (@?= Unmasked),
      testCase "exceptions come to the caller" $ do
        e <- failure "call" (blocking (throwIO (userError "own") :: IO ()))
        e @?= userError "own",
      testCase "cancellation: an abandoned result is disposed of once" $ do
        pool <- newPool 1
        [begun, gate, disposed] <- replicateM 3 newEmptyMVar
        t <- start (runInOr pool (putMVar disposed) (putMVar begun () >> takeMVar gate))
        finishes "begin" (takeMVar begun)
        stop t
        putMVar gate ()
        finishes "disposal" (takeMVar disposed)
        eventually "done" ((== PoolStatus 1 0 0 1) <$> statusOf pool),
      testCase "a call whose caller was interrupted leaves the queue" $ do
        (pool, release) <- occupied
        ts <- replicateM 100 (start (runIn pool (pure ())))
        last' <- start (runIn pool (pure 'x'))
        eventually "they wait" ((== 101) . poolQueued <$> statusOf pool)
        mapM_ stop ts
        statusOf pool >>= (@?= 1) . poolQueued
        release
        result "the last" last' >>= (@?= 'x')
        eventually "two ran" ((== PoolStatus 1 0 0 2) <$> statusOf pool),
      testCase "a call that is undefined harms no other" $ do
        (pool, release) <- occupied
        submit pool (error "undefined")
        after' <- start (runIn pool (pure 'x'))
        eventually "two wait" ((== 2) . poolQueued <$> statusOf pool)
        release
        result "the last" after' >>= (@?= 'x'),
      testCase "a thread with much to do keeps no stack" $ do
        pool <- newPool 1
        gate <- newEmptyMVar
        [during, end] <- replicateM 2 newEmptyMVar
        let live = performMajorGC >> fmap (gcdetails_live_bytes . gc) getRTSStats
        submit pool (readMVar gate)
        replicateM_ 200000 (submit pool (pure ()))
        submit pool (live >>= putMVar during)
        putMVar gate ()
        before <- finishes "the calls" (takeMVar during)
        eventually "it has ended" ((== 0) . poolRunning <$> statusOf pool)
        live >>= putMVar end
        after' <- takeMVar end
        -- Eight bytes for each call would be 1.6 MB.
        assertBool (show (before, after')) (before < after' + 800000),
      testCase "calls inside calls, as many as there are threads" $ do
        pool <- newPool 3
        gate <- newEmptyMVar
        let nested = (,) <$> runIn pool (runIn pool myThreadId) <*> myThreadId
        ts <- replicateM 3 (start (runIn pool (readMVar gate >> nested)))
        ts' <- replicateM 3 (start (runIn pool (readMVar gate >> runInOr pool (const (pure ())) (mask_ (runIn pool getMaskingState)))))
        eventually "the pool is full" ((== PoolStatus 3 3 3 0) <$> statusOf pool)
        putMVar gate ()
        forM_ ts $ \t -> result "a call in a call in a call" t >>= uncurry (@?=)
        forM_ ts' $ \t -> result "a masked call in a call" t >>= (@?= MaskedInterruptible)
        eventually "all have ended" ((== PoolStatus 3 0 0 6) <$> statusOf pool)
        e <- failure "exceptions pass through" (runIn pool (runIn pool (throwIO (userError "own") :: IO ())))
        e @?= userError "own",
      testCase "forked while all threads are busy: the child's calls run (the program's pool, one of its own)" $ do
        own <- newPool 2
        gate <- newEmptyMVar
        busy <- poolLimit <$> poolStatus
        ts <- replicateM (busy + 3) (start (blocking (readMVar gate)))
        ts' <- replicateM 5 (start (runIn own (readMVar gate)))
        eventually "all threads are busy" ((\s -> poolRunning s == busy && poolQueued s == 3) <$> poolStatus)
        eventually "all threads are busy" ((== PoolStatus 2 2 3 0) <$> statusOf own)
        child <- forkProcess $ do
          r <- timeout 15000000 ((,) <$> blocking (pure 'x') <*> mapM (runIn own . pure) "yz")
          left <- (,) <$> statusOf own <*> poolStatus
          let (mine, program) = left
          exitImmediately $ case r of
            Just ('x', "yz")
              | poolQueued mine == 0 && poolQueued program == 0 && poolLimit program == busy -> ExitSuccess
              | otherwise -> ExitFailure 2
            _ -> ExitFailure 1
        status <- finishes "the child" (getProcessStatus True False child)
        putMVar gate ()
        forM_ (ts <> ts') (result "the parent's calls")
        assertEqual "the child: 1 if a call did not end, 2 if a pool's status was wrong" (Just (Exited ExitSuccess)) status
    ]

-- | A pool whose only thread is in a call, and the action that ends the call.
occupied :: IO (Pool, IO ())
occupied = do
  pool <- newPool 1
  gate <- newEmptyMVar
  running <- start (runIn pool (readMVar gate))
  eventually "one runs" ((== 1) . poolRunning <$> statusOf pool)
  pure (pool, putMVar gate () >> result "the first" running)
