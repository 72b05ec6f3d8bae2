-- |
-- Threads that misbehave, and what becomes of the others; exceptions, labels, locals.
module Spec.Threads
  ( tests,
  )
where

import Control.Concurrent (ThreadId, forkIOWithUnmask, newEmptyMVar, putMVar, takeMVar)
import qualified Control.Concurrent as GHC
import Control.Exception (BlockedIndefinitelyOnMVar, SomeException, evaluate, fromException)
import qualified Control.Exception as E
import Control.Monad (forM, forM_, forever, replicateM, replicateM_, void)
import Data.Either (fromRight)
import Data.IORef
import Support
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Hybrid hiding (MVar, newEmptyMVar, putMVar, readMVar, takeMVar)
import qualified Weft.Hybrid as H
import qualified Weft.Hybrid.STM as STM

tests :: IO Scheduler -> TestTree
tests scheduler =
  testGroup
    "threads"
    [ test "a result, an exception, an exception of pure code" $ \s -> do
        r <- runIn s (pure (42 :: Int))
        r @?= 42
        e <- E.try (runIn s (throwM Oops))
        e @?= (Left Oops :: Either Oops ())
        e' <- E.try (runIn s (pure () >>= \() -> if length (show (1 :: Int)) == 1 then error "pure" else pure ()))
        either (\(E.ErrorCall m) -> m @?= "pure") (\() -> assertFailure "no exception") e',
      test "catch, by type; finally; nested; exceptions of a handler" $ \s -> do
        order <- newIORef []
        let say x = nonBlocking (modifyIORef order (x :))
        r <-
          E.try . runIn s $
            ( (throwM Oops `catch` \e -> say "wrong" >> throwM (e :: E.ArithException))
                `finally` say "first"
            )
              `catch` (\Oops -> say "second" >> throwM E.Overflow)
        r @?= (Left E.Overflow :: Either E.ArithException ())
        readIORef order >>= (@?= ["second", "first"]),
      test "a thread that dies does not affect others" $ \s -> do
        n <- newIORef (0 :: Int)
        done <- newEmptyMVar
        forM_ [1 .. times 200] $ \i ->
          forkFromIn s $ if odd i then throwM Oops else nonBlocking (evaluate (1 `div` (0 :: Int)) >> pure ())
        forM_ [1 .. 100 :: Int] $ \_ -> forkFromIn s $ do
          replicateM_ 10 yield
          k <- nonBlocking (atomicModifyIORef' n (\x -> (x + 1, x + 1)))
          if k == 100 then nonBlocking (putMVar done ()) else pure ()
        takeMVar done,
      test "a GHC thread is killed in forkFrom: its loop hears of later threads" $ \s -> do
        caps <- GHC.getNumCapabilities
        forM_ [1 .. if caps == 1 then 20 else times 400] $ \i -> do
          forked <- newEmptyMVar
          t <- GHC.forkOn 1 . forever $ forkFromIn s (pure ()) >>= GHC.tryPutMVar forked
          _ <- takeMVar forked
          forM_ [0 .. (i * 37) `mod` 400] evaluate
          GHC.killThread t
          done <- newEmptyMVar
          _ <- GHC.forkOn 1 (runIn s (pure ()) >>= putMVar done)
          takeMVar done,
      test "threads that loop for ever let others run" $ \s -> do
        stop <- newIORef False
        forM_ [1 .. 20 :: Int] $ \_ -> forkFromIn s (spin stop)
        forM_ [1 .. 20 :: Int] $ \_ -> forkFromIn s (spinning stop)
        forM_ [1 .. 5 :: Int] $ \_ -> runIn s (sleep (milliseconds 2))
        writeIORef stop True,
      test "forks without end, until it is stopped" $ \s -> do
        stop <- newIORef False
        let bomb = do
              enough <- nonBlocking (readIORef stop)
              if enough then pure () else fork bomb >> fork (pure ()) >> bomb'
            bomb' = yield >> nonBlocking (readIORef stop) >>= \x -> if x then pure () else yield
        void (forkFromIn s bomb)
        runIn s (sleep (milliseconds 5))
        writeIORef stop True
        runIn s (pure ()),
      test "killed: ready, and by itself" $ \s -> do
        r <- runIn s $ do
          t <- forkThread (forever yield)
          killThread t
          waitCatch t
        isKilled r @? "was not killed"
        cleaned <- newIORef False
        r' <- runIn s $ do
          t <- forkThread ((myThread >>= killThread) `finally` nonBlocking (writeIORef cleaned True))
          waitCatch t
        isKilled r' @? "did not kill itself"
        readIORef cleaned >>= (@? "did not clean up"),
      test "wait rethrows the exception that ended the thread" $ \s -> do
        r <- runIn s $ do
          fine <- forkThread (pure ())
          bad <- forkThread (throwM E.Overflow)
          wait fine
          try (wait bad) :: Hybrid (Either E.ArithException ())
        r @?= Left E.Overflow,
      test "masked: it comes later; ended: it does nothing" $ \s -> do
        r <- runIn s $ do
          go <- H.newEmptyMVar
          got <- H.newEmptyMVar
          t <- forkThread $ mask_ (H.putMVar go () >> replicateM_ 3000 yield >> H.putMVar got 'a') >> H.putMVar got 'b'
          H.takeMVar go
          killThread t
          end <- waitCatch t
          killThread t
          (,) end <$> H.takeMVar got
        isKilled (fst r) @? "was not killed"
        snd r @?= 'a',
      test "exceptions come in the order in which they were sent" $ \s -> do
        seen <- newIORef []
        runIn s $ do
          begun <- H.newEmptyMVar
          t <- forkThread . mask_ $ do
            H.putMVar begun ()
            forM_ [1 .. 3 :: Int] $ \_ ->
              forever yield' `catch` \e -> nonBlocking (modifyIORef seen (show (e :: E.ArithException) :))
          H.takeMVar begun
          mapM_ (throwTo t) [E.Overflow, E.Underflow, E.DivideByZero]
          void (waitCatch t)
        readIORef seen >>= (@?= map show [E.DivideByZero, E.Underflow, E.Overflow]),
      test "run is interrupted: the thread is, cleans up, and then the caller" $ \s -> do
        cleaned <- newIORef False
        started <- newEmptyMVar
        done <- newEmptyMVar
        tid <- forkIO' done (runIn s ((nonBlocking (putMVar started ()) >> sleep (seconds 100)) `finally` nonBlocking (writeIORef cleaned True)))
        takeMVar started
        GHC.killThread tid
        r <- takeMVar done
        isKilled r @? "was not killed"
        readIORef cleaned >>= (@? "did not clean up"),
      test "locals are the thread's own, and inherited" $ \s -> do
        var <- newLocal 'a'
        r <- runIn s $ do
          setLocal var 'b'
          box <- H.newEmptyMVar
          fork (getLocal var >>= \x -> setLocal var 'c' >> H.putMVar box x)
          x <- H.takeMVar box
          y <- getLocal var
          pure (x, y)
        r @?= ('b', 'b'),
      testCase "a deadlocked thread is reported, gets an exception, and is collected" deadlock,
      test "a deadlocked thread without a label runs its handlers too" $ \s -> do
        ended <- newIORef (0 :: Int)
        let bump = nonBlocking (atomicModifyIORef' ended (\n -> (n + 1, ())))
            waits = [H.newEmptyMVar >>= H.takeMVar, newSemaphore 1 >>= \x -> acquire x 2, newChannel >>= readChannel]
        runIn s . forM_ waits $ \body -> do
          fork (body `finally` bump)
          -- It may wait again, and is told again.
          void (forkThread ((body `catch` \e -> const body (e :: BlockedIndefinitelyOnMVar)) `finally` bump))
          replicateM_ 3 yield
        eventually "all handlers" (collect >> (== 6) <$> readIORef ended),
      test "bracket, many threads, all released" $ \s -> do
        n <- newIORef (0 :: Int)
        let change d = nonBlocking (atomicModifyIORef' n (\x -> (x + d, ())))
        runIn s $ do
          ts <- forM [1 .. times 500] $ \i ->
            forkThread (bracket_ (change 1) (change (-1)) (if even i then sleep (seconds 100) else throwM Oops))
          yield
          mapM_ killThread ts
          mapM_ waitCatch ts
        readIORef n >>= (@?= 0),
      test "many GHC threads call in" $ \s -> do
        boxes <- replicateM 50 newEmptyMVar
        forM_ (zip [1 ..] boxes) $ \(i, box) -> forkIO' box (runIn s (yield >> sleep (microseconds 100) >> pure (i :: Int)))
        rs <- mapM takeMVar boxes
        map (fromRight 0) rs @?= [1 .. 50]
    ]
  where
    test name act = testCase name (finishes name (scheduler >>= act))
    yield' = sleep (milliseconds 1)
    spin stop = do
      x <- nonBlocking (readIORef stop)
      if x then pure () else spin stop
    spinning stop = do
      x <- nonBlocking (readIORef stop)
      if x then pure () else yield >> spinning stop

-- | Wait, and have the collector come by.
outcomeOf :: GHC.MVar a -> IO a
outcomeOf box = GHC.tryTakeMVar box >>= maybe (collect >> outcomeOf box) pure

-- | A GHC thread whose outcome goes there.
forkIO' :: GHC.MVar (Either SomeException a) -> IO a -> IO ThreadId
forkIO' box act = E.mask_ (forkIOWithUnmask (\unmask -> E.try (unmask act) >>= putMVar box))

deadlock :: Assertion
deadlock = finishes "deadlock" $ do
  reported <- newIORef []
  let settings =
        defaultSettings
          { settingsOnDeadlock = \l -> atomicModifyIORef' reported (\ls -> (l : ls, ())),
            settingsOnException = \_ _ -> pure ()
          }
  withScheduler settings $ \s -> do
    told <- newIORef (0 :: Int)
    runIn s $ do
      forM_ [1 .. 10 :: Int] $ \i -> void . forkLabelled ("number " <> show i) $ do
        box <- H.newEmptyMVar
        H.takeMVar box `catch` \e ->
          nonBlocking (atomicModifyIORef' told (\n -> (n + 1, ()))) >> throwM (e :: BlockedIndefinitelyOnMVar)
      kept <- H.newEmptyMVar
      t <- forkLabelled "can be killed" (H.takeMVar kept)
      replicateM_ 100 yield
      nonBlocking (replicateM_ 3 collect)
      sleep (milliseconds 50)
      killThread t
      r <- waitCatch t
      nonBlocking (isKilled r @? "not killed")
    eventually "all told" (collect >> (== 10) <$> readIORef told)
    names <- readIORef reported
    length names @?= 10
    -- The thread of 'runIn' handles its own, and goes on.
    forM_
      [ (H.newEmptyMVar >>= H.takeMVar) `catch` (\E.BlockedIndefinitelyOnMVar -> pure ()),
        (nonBlocking (STM.newTVarIO False) >>= \var -> STM.atomically (STM.readTVar var >>= \set -> if set then pure () else STM.retry)) `catch` (\E.BlockedIndefinitelyOnSTM -> pure ())
      ]
      $ \stuck -> do
        finished <- newEmptyMVar
        _ <- forkIO' finished (runIn s (stuck >> sleep (milliseconds 20) >> pure ()))
        outcomeOf finished >>= either (assertFailure . show) pure
    -- In a thread that no time limit refers to.
    box <- newEmptyMVar
    _ <- forkIO' box (runIn s (H.newEmptyMVar >>= H.takeMVar))
    e <- outcomeOf box
    case e of
      Left e' | Just x <- fromException e' -> const (pure ()) (x :: BlockedIndefinitelyOnMVar)
      Left e' -> assertFailure (show e')
      Right () -> assertFailure "no deadlock"
