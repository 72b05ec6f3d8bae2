-- |
-- Threads that wait for each other, time, transactions, and blocking calls.
module Spec.Waiting
  ( tests,
  )
where

import Control.Concurrent (forkIO, threadDelay)
import qualified Control.Exception as E
import Control.Monad (forM, forM_, replicateM, replicateM_, void, when)
import Data.IORef
import GHC.Clock (getMonotonicTime)
import Support
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Hybrid
import qualified Weft.Hybrid.STM as STM
import Weft.Hybrid.Trace (ThreadState (..), threadState)
import Weft.Sys (readRef)

tests :: IO Scheduler -> TestTree
tests scheduler =
  testGroup
    "waiting"
    [ test "MVar: many producers and consumers, nothing lost or doubled" $ \s -> do
        let n = times 20
            each = 50 :: Int
        total <- runIn s $ do
          box <- newEmptyMVar
          results <- newEmptyMVar
          forM_ [1 .. n] $ \i -> fork (forM_ [1 .. each] $ \j -> putMVar box (i * each + j) >> when (j `mod` 7 == 0) yield)
          forM_ [1 .. n] $ \_ -> fork (replicateM each (takeMVar box) >>= putMVar results . sum)
          sum <$> replicateM n (takeMVar results)
        total @?= sum [i * each + j | i <- [1 .. n], j <- [1 .. each]],
      test "MVar: first come, first served; readers all at once" $ \s -> do
        r <- runIn s $ do
          box <- newEmptyMVar
          out <- newChannel
          -- Each waits before the next one begins: another loop may have taken it, and be off its core.
          forM_ [1 .. 5 :: Int] $ \i -> forkThread (takeMVar box >>= \x -> writeChannel out (i, x :: Char)) >>= parked
          readers <- replicateM 3 (forkThread (readMVar box >>= \x -> writeChannel out (0, x)))
          mapM_ parked readers
          forM_ "abcde" (putMVar box)
          mapM_ waitCatch readers
          replicateM 8 (readChannel out)
        [x | x@(i, _) <- r, i > 0] @?= zip [1 ..] "abcde"
        [c | (0, c) <- r] @?= "aaa",
      test "a race of takers that are killed: every value is taken once" $ \s -> forM_ [1 .. times 30] $ \_ -> do
        r <- runIn s $ do
          box <- newEmptyMVar
          taken <- newMVar (0 :: Int)
          takers <- replicateM 20 (forkThread (mask_ (takeMVar box >>= \x -> modifyMVar_ taken (pure . (+ x)))))
          fork (forM_ (take 10 takers) killThread)
          putters <- replicateM 2 (forkThread (replicateM_ 5 (putMVar box 1)))
          mapM_ waitCatch (take 10 takers <> putters)
          mapM_ waitCatch (drop 10 takers) `orAfter` seconds 0.05
          -- On a slow machine one that was given a value may not have added it yet.
          let added tries = readMVar taken >>= \n -> if n >= 9 || tries == (0 :: Int) then pure () else sleep (milliseconds 1) >> added (tries - 1)
          added 10000
          left <- tryTakeMVar box
          -- What was not taken is there still.
          (\n m -> n + maybe 0 id m) <$> takeMVar taken <*> pure left
        (r >= 9 && r <= 10) @? show r,
      test "semaphores: never more than there are; a killed waiter lets others by" $ \s -> do
        (most, served) <- runIn s $ do
          sem <- newSemaphore 3
          inside <- newMVar (0 :: Int, 0)
          ts <- forM [1 .. 30 :: Int] $ \i -> forkThread . withSemaphore sem (1 + i `mod` 3) $ do
            modifyMVar_ inside (\(n, top) -> let n' = n + 1 + i `mod` 3 in pure (n', max n' top))
            yield >> sleep (microseconds 100)
            modifyMVar_ inside (\(n, top) -> pure (n - 1 - i `mod` 3, top))
          mapM_ waitCatch ts
          (_, most) <- takeMVar inside
          acquire sem 2
          big <- forkThread (acquire sem 3)
          settle
          small <- forkThread (acquire sem 1)
          settle
          killThread big
          r <- waitCatch small
          pure (most, either (const False) (const True) r)
        (most <= 3) @? show most
        served @? "the small one still waits",
      test "mutex" $ \s -> do
        n <- newIORef (0 :: Int)
        runIn s $ do
          m <- newMutex
          ts <- replicateM 20 (forkThread (replicateM_ 50 (withMutex m (nonBlocking (readIORef n) >>= \x -> yield >> nonBlocking (writeIORef n (x + 1))))))
          mapM_ waitCatch ts
        readIORef n >>= (@?= 1000),
      test "channels: in order; bounded ones hold back" $ \s -> do
        (a, b) <- runIn s $ do
          ch <- newChannel
          fork (mapM_ (writeChannel ch) [1 .. 1000 :: Int])
          a <- replicateM 1000 (readChannel ch)
          bounded <- newBoundedChannel 3
          written <- newMVar (0 :: Int)
          fork (forM_ [1 .. 10 :: Int] (\i -> writeBounded bounded i >> modifyMVar_ written (const (pure i))))
          let three = readMVar written >>= \n -> if n < 3 then sleep (milliseconds 1) >> three else pure ()
          three
          settle
          b <- readMVar written
          replicateM_ 10 (readBounded bounded)
          pure (a, b)
        a @?= [1 .. 1000]
        b @?= 3,
      test "sleep: never early; many at once; timeout" $ \s -> do
        t0 <- getMonotonicTime
        runIn s (sleep (milliseconds 20))
        t1 <- getMonotonicTime
        (t1 - t0 >= 0.02) @? show (t1 - t0)
        runIn s $ do
          ts <- forM [1 .. times 1000] (\i -> forkThread (sleep (microseconds (i * 10))))
          ends <- mapM waitCatch ts
          nonBlocking (length [() | Right () <- ends] @?= times 1000)
        r <- runIn s ((,,) <$> within (milliseconds 5) (sleep (seconds 100)) <*> within (seconds 100) (pure 'x') <*> within (seconds (-1)) (pure ()))
        r @?= (Nothing, Just 'x', Nothing)
        r' <- runIn s (within (seconds 100) (within (milliseconds 5) (sleep (seconds 100))))
        r' @?= Just Nothing
        r'' <- runIn s (within (milliseconds 5) (within (seconds 100) (sleep (seconds 100))))
        r'' @?= Nothing,
      test "inTime: in time, too late and not early, and passed" $ \s -> do
        (r, took) <- runIn s $ do
          ample <- deadlineIn (seconds 100)
          x <- inTime ample (pure 'x')
          y <- inTime noDeadline (pure 'y')
          begun <- nonBlocking getMonotonicTime
          soon <- deadlineIn (milliseconds 20)
          late <- try (inTime soon (sleep (seconds 100)))
          ended <- nonBlocking getMonotonicTime
          nested <- try (inTime ample (inTime soon (pure 'z')))
          other <- try (inTime ample (throwM (userError "the action's own")))
          pure ((x, y, [either isTimeout (const False) late, either isTimeout (const False) nested, either isTimeout (\() -> True) other]), ended - begun)
        r @?= ('x', 'y', [True, True, False])
        (took >= 0.02) @? show took,
      test "timeouts that race with the end of the action" $ \s -> do
        rs <- runIn s $ do
          boxes <- forM [1 .. times 300] $ \i -> do
            box <- newEmptyMVar
            -- What it says is what happened: the action ended, or it did not.
            fork $ do
              ended <- nonBlocking (newIORef False)
              r <- within (microseconds 300) (sleep (microseconds (i `mod` 600)) >> mask_ (nonBlocking (writeIORef ended True)))
              e <- nonBlocking (readIORef ended)
              putMVar box (r, e)
            pure box
          mapM takeMVar boxes
        length rs @?= times 300
        [x | x@(Just (), False) <- rs] @?= [],
      test "STM: at once, and after a retry; from both worlds" $ \s -> do
        var <- STM.newTVarIO (0 :: Int)
        r <- runIn s (STM.atomically (STM.readTVar var))
        r @?= 0
        _ <- forkIO (threadDelay 5000 >> runIn s (STM.atomically (STM.writeTVar var 1)))
        r' <- runIn s (STM.atomically (STM.readTVar var >>= \x -> STM.check (x > 0) >> pure x))
        r' @?= 1,
      test "STM: killed while it waits, it has not committed" $ \s -> forM_ [1 .. times 20] $ \_ -> do
        var <- STM.newTVarIO False
        count <- STM.newTVarIO (0 :: Int)
        (r, n) <- runIn s $ do
          got <- newMVar False
          t <- forkThread . mask_ $ do
            STM.atomically (STM.readTVar var >>= STM.check >> STM.modifyTVar' count (+ 1))
            modifyMVar_ got (const (pure True))
          fork (STM.atomically (STM.writeTVar var True))
          killThread t
          _ <- waitCatch t
          (,) <$> takeMVar got <*> STM.atomically (STM.readTVar count)
        n @?= fromEnum r,
      test "STM: deadlock when no thread can change the variables" $ \s -> do
        told <- newIORef False
        void . forkFromIn s $ do
          v <- nonBlocking (STM.newTVarIO False)
          STM.atomically (STM.readTVar v >>= STM.check)
            `catch` \E.BlockedIndefinitelyOnSTM -> nonBlocking (writeIORef told True)
        eventually "told" (collect >> readIORef told),
      test "blocking calls: results, exceptions, beside each other" $ \s -> do
        r <- runIn s (blocking (threadDelay 1000 >> pure 'x'))
        r @?= 'x'
        e <- E.try (runIn s (blocking (E.throwIO Oops)))
        e @?= (Left Oops :: Either Oops ())
        -- Beside each other: each waits in its call for all of them to have begun.
        begun <- newIORef (0 :: Int)
        runIn s $ do
          ts <- replicateM 10 . forkThread . blocking $ do
            atomicModifyIORef' begun (\n -> (n + 1, ()))
            eventually "ten calls at once" ((== 10) <$> readIORef begun)
          ends <- mapM waitCatch ts
          nonBlocking (length [() | Right () <- ends] @?= 10)
        r' <- runIn s (onGhcThread (threadDelay 1000 >> pure 'y'))
        r' @?= 'y'
    ]
  where
    test name act = testCase name (finishes name (scheduler >>= act))
    -- Until that thread waits, and a little longer, as it has parked before the MVar knows of it.
    parked t = do
      state <- nonBlocking (readRef (threadState t))
      case state of
        Waiting {} -> settle
        _ -> sleep (milliseconds 1) >> parked t
    -- Until the threads that are ready have parked.
    settle = replicateM_ 20 yield >> sleep (milliseconds 2)
    orAfter act d = void (within d act)
