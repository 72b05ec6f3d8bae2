{-# LANGUAGE ScopedTypeVariables #-}

-- |
-- "Weft.Scope": its guarantees, when threads return, throw, are killed, mask exceptions or ignore them, in many orders.
module Spec.Scope
  ( tests,
  )
where

import Control.Concurrent hiding (forkOn, threadDelay)
import Control.Exception
import Control.Monad
import Data.IORef
import Data.List (sort)
import GHC.Conc (getUncaughtExceptionHandler, setUncaughtExceptionHandler)
import Harness hiding (Task, blocked, within)
import qualified Harness
import System.Mem (performMajorGC)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Scope
import Weft.Timer

newtype Own = Own Int
  deriving (Eq, Show)

instance Exception Own

tests :: TestTree
tests =
  testGroup
    "scope"
    [ test "results; the end waits for work, and kills daemons" $ do
        [worked, cleaned] <- replicateM 2 (newIORef False)
        r <- withScope $ \scope -> do
          _ <- fork scope (sleep (milliseconds 20) >> writeIORef worked True)
          _ <- forkDaemon scope (forever (sleep (seconds 60)) `finally` (sleep (milliseconds 5) >> writeIORef cleaned True))
          a <- fork scope (pure (1 :: Int))
          b <- forkOn 1 scope (pure 2)
          sleep (milliseconds 5)
          (+) <$> await a <*> await b
        r @?= 3
        readIORef worked >>= (@?= True)
        readIORef cleaned >>= (@?= True),
      test "a daemon that returns ends nothing" $
        withScope (\scope -> forkDaemon scope (pure 'x') >>= await) >>= (@?= 'x'),
      test "forkOn places" $ do
        caps <- getNumCapabilities
        places <- withScope $ \scope -> do
          tasks <- forM [0 .. 2 * caps - 1] (\c -> forkOn c scope (yield >> myThreadId >>= threadCapability))
          mapM await tasks
        places @?= [(c `mod` caps, True) | c <- [0 .. 2 * caps - 1]],
      test "threads are unmasked, also if the one that forks is not" $ do
        states <- mask_ (withScope (\scope -> fork scope getMaskingState >>= await))
        states @?= Unmasked,
      test "an exception of a thread ends the scope, whatever the owner does" . replicateM_ (times 100) $
        forM_ [await >=> pure, const (forever (sleep (seconds 60))), const (pure ()), const (void (evaluate (sum [1 .. 10000 :: Int])))] $ \owner -> do
          (running, note) <- counting
          r <- try . withScope $ \scope -> do
            replicateM_ 3 (note (fork scope) (forever (sleep (seconds 60)) :: IO ()))
            _ <- note (forkDaemon scope) (sleep (seconds 60))
            t <- note (fork scope) (yield >> throwIO (Own 1))
            owner t
          r @?= Left (Own 1)
          running >>= (@?= 0),
      test "an exception of the owner ends the scope" . replicateM_ (times 100) $ do
        (running, note) <- counting
        r <- try (withScope (\scope -> replicateM_ 5 (note (fork scope) (sleep (seconds 60))) >> throwIO (Own 2)))
        r @?= (Left (Own 2) :: Either Own ())
        running >>= (@?= 0),
      test "an owner that swallows exceptions does not hide that of a thread" $ do
        r <- try . withScope $ \scope -> do
          t <- fork scope (throwIO (Own 3) :: IO ())
          forM_ [1 .. 3 :: Int] (\_ -> (void (awaitCatch t) >> sleep (milliseconds 2)) `catch` \(_ :: SomeException) -> pure ())
        r @?= Left (Own 3),
      test "an owner that cannot be interrupted learns of a failure" $ do
        r <- try (uninterruptibleMask_ (withScope (\scope -> void (fork scope (throwIO (Own 4) :: IO ())))))
        r @?= Left (Own 4)
        let failing = throwIO (Own 4) :: IO ()
            uninterrupted act = start (try (uninterruptibleMask_ act)) >>= result "the scope" >>= (@?= Left (Own 4))
        uninterrupted (withScope (\scope -> fork scope failing >>= await))
        uninterrupted (void (concurrently failing (pure ())))
        replicateM_ (times 100) (uninterrupted (void (race failing (sleep (seconds 3600)))))
        replicateM_ (times 100) (uninterrupted (void (race (sleep (seconds 3600)) failing))),
      test "no exception is lost: the first is thrown, later ones go to the handler" . keepingHandler $ do
        begun <- newEmptyMVar
        (r, others) <- uncaught . try . withScope $ \scope -> do
          forM_ [1 .. 4] (\i -> fork scope ((putMVar begun () >> sleep (seconds 60)) `onException` throwIO (Own i)))
          -- One that is told to end before it has begun throws nothing of its own.
          replicateM_ 4 (takeMVar begun)
          _ <- fork scope (throwIO (Own 0) :: IO ())
          sleep (seconds 60)
        r @?= Left (Own 0)
        eventually "the others" ((== map (show . Own) [1 .. 4]) . sort <$> others),
      test "an exception while a daemon is ended is thrown" $ do
        begun <- newEmptyMVar
        r <- try (withScope (\scope -> void (forkDaemon scope ((putMVar begun () >> sleep (seconds 60)) `onException` throwIO (Own 5))) >> takeMVar begun))
        r @?= Left (Own 5),
      test "exceptions from outside, at any moment, reach owner and threads" . forM_ [0 .. times 400] $ \n -> do
        (running, note) <- counting
        owner <- start . withScope $ \scope -> do
          ts <- replicateM 3 (note (fork scope) (replicateM_ 20 yield))
          _ <- note (forkDaemon scope) (forever yield)
          mapM_ await ts
          withScope $ \inner -> replicateM_ 2 (note (fork inner) (replicateM_ 20 yield)) >> replicateM_ 20 yield
        replicateM_ (n `mod` 60) yield
        stop owner
        r <- outcome "the owner" owner
        either (\e -> show e @?= show ThreadKilled) pure r
        running >>= (@?= 0),
      test "an exception from outside is thrown after a failure, not instead" . keepingHandler . replicateM_ (times 200) $ do
        go <- newEmptyMVar
        (owner, others) <- uncaught $ do
          owner <- start (withScope (\scope -> fork scope (readMVar go >> throwIO (Own 6)) >>= await) :: IO ())
          yield
          putMVar go ()
          stop owner
          outcome "the owner" owner
        said <- others
        case owner of
          Left e | Just (Own 6) <- fromException e -> pure ()
          Left e | Just ThreadKilled <- fromException e -> assertBool (show said) (all (== show (Own 6)) said)
          other -> assertFailure (show other),
      test "masked threads are awaited; all others are told meanwhile" $ do
        [entered, gate] <- replicateM 2 newEmptyMVar
        told <- newIORef (0 :: Int)
        owner <- start . withScope $ \scope -> do
          _ <- forkDaemon scope (uninterruptibleMask_ (putMVar entered () >> takeMVar gate))
          replicateM_ 10 (forkDaemon scope (sleep (seconds 60) `finally` atomicModifyIORef' told (\n -> (n + 1, ()))))
          takeMVar entered
          -- Threads that were told before they ran would not count.
          sleep (milliseconds 20)
        eventually "the others end" ((== 10) <$> readIORef told)
        Harness.blocked owner >>= assertBool "it waits"
        putMVar gate ()
        result "the owner" owner,
      test "threads that do not end are named, and left if the program says so" $ do
        [entered, gate] <- replicateM 2 newEmptyMVar
        asked <- newIORef []
        let settings' = defaultScopeSettings {scopePatience = milliseconds 30, scopeOnOverdue = \left -> Leave <$ modifyIORef asked (left :)}
            stubborn = uninterruptibleMask_ (putMVar entered () >> readMVar gate)
        withScopeUsing settings' $ \scope -> do
          _ <- forkUsing daemon {childLabel = Just "stubborn"} scope stubborn
          takeMVar entered
        found <- readIORef asked
        map (map (takeWhile (/= ' '))) found @?= [["stubborn"]]
        -- The same, and it waits on.
        waits <- start . withScopeUsing settings' {scopeOnOverdue = \left -> WaitOn <$ modifyIORef asked (left :)} $ \scope -> do
          _ <- forkDaemon scope stubborn
          takeMVar entered
        eventually "it is asked" ((== 2) . length <$> readIORef asked)
        putMVar gate ()
        result "the scope" waits,
      test "the exception of a thread that was left goes to the handler for uncaught exceptions" . keepingHandler $ do
        [entered, gate] <- replicateM 2 newEmptyMVar
        let hasty = defaultScopeSettings {scopePatience = milliseconds 1, scopeOnOverdue = const (pure Leave)}
        (task, said) <- uncaught . withScopeUsing hasty $ \scope ->
          forkDaemon scope (uninterruptibleMask_ (putMVar entered () >> readMVar gate >> throwIO (Own 5))) <* takeMVar entered
        putMVar gate ()
        r <- awaitCatch task
        either fromException (const Nothing) r @?= Just (Own 5)
        eventually "it is reported" ((== [show (Own 5)]) <$> said),
      test "the exception of a thread is reported if the question about those that do not end throws" . keepingHandler $ do
        [entered, gate] <- replicateM 2 newEmptyMVar
        let asking = defaultScopeSettings {scopePatience = milliseconds 1, scopeOnOverdue = \_ -> throwIO (Own 8)}
        (r, said) <- uncaught . try . withScopeUsing asking $ \scope -> do
          _ <- forkDaemon scope (uninterruptibleMask_ (putMVar entered () >> readMVar gate))
          takeMVar entered
          _ <- fork scope (throwIO (Own 1) :: IO ())
          sleep (seconds 60)
        r @?= Left (Own 8)
        eventually "it is reported" ((== [show (Own 1)]) <$> said)
        putMVar gate (),
      test "a thread that is cancelled while it interrupts the owner goes on with it" . replicateM_ (times 50) $ do
        r <- try . withScope $ \scope -> do
          mask_ $ do
            task <- fork scope (throwIO (Own 6) :: IO ())
            _ <- uninterruptibleMask_ (awaitCatch task)
            -- It waits until this thread can be interrupted.
            replicateM_ 20 yield
            uninterruptibleMask_ (cancelTask task)
          sleep (seconds 60)
        r @?= Left (Own 6),
      test "nothing can be forked after the end" $ do
        scope <- withScope pure
        r <- try (fork scope (pure ()) >>= await)
        r @?= Left ScopeEnded,
      test "forking while the scope ends: the thread ends, or is not forked" . forM_ [0 .. times 300] $ \n -> do
        (running, note) <- counting
        shared <- newEmptyMVar
        other <- start $ do
          scope <- takeMVar shared
          replicateM 20 (try (note (fork scope) (sleep (seconds 60))))
        r <- try . withScope $ \scope -> putMVar shared scope >> replicateM_ (n `mod` 40) yield >> throwIO (Own 7)
        r @?= (Left (Own 7) :: Either Own ())
        running >>= (@?= 0)
        forked <- result "the other thread" other
        assertBool "another exception" (and [e == ScopeEnded | Left e <- forked]),
      test "cancelTask ends one thread, and waits for it" $ do
        cleaned <- newIORef False
        begun <- newEmptyMVar
        r <- withScope $ \scope -> do
          t <- fork scope ((putMVar begun () >> sleep (seconds 60)) `finally` (sleep (milliseconds 5) >> writeIORef cleaned True))
          takeMVar begun
          cancelTask t
          readIORef cleaned >>= (@?= True)
          try (await t)
        r @?= Left ScopeEnded,
      test "cancelling in every order" . forM_ (permutationsOf 4) $ \order ->
        withScope $ \scope -> do
          ts <- replicateM 4 (fork scope (sleep (seconds 60)))
          forM_ order (\i -> mapM_ cancelTask (take 1 (drop i ts)))
          forM_ ts (try . await >=> (@?= Left ScopeEnded)),
      test "deep nesting: an exception passes through all scopes, and all threads have ended" . replicateM_ (times 20) $ do
        (running, note) <- counting
        let nested :: Int -> IO ()
            nested 0 = throwIO (Own 8)
            nested n = withScope $ \scope -> do
              _ <- note (forkDaemon scope) (forever (sleep (seconds 60)))
              note (fork scope) (nested (n - 1)) >>= await
        r <- try (nested 50)
        r @?= Left (Own 8)
        running >>= (@?= 0),
      test "a deadlock of a thread is thrown as its own, not to those that wait for it" $ do
        -- In a thread that nothing refers to: a scope that can be reached keeps its threads from the collector.
        r <- unreferenced . try . withScope $ \scope -> do
          t <- fork scope ((newEmptyMVar >>= takeMVar :: IO ()) `catch` \BlockedIndefinitelyOnMVar -> throwIO (Own 9))
          u <- fork scope (awaitCatch t)
          void (await u)
        r @?= Left (Own 9)
        -- One that survives it.
        unreferenced (withScope (\scope -> fork scope ((newEmptyMVar >>= takeMVar) `catch` \BlockedIndefinitelyOnMVar -> pure 'x') >>= await)) >>= (@?= 'x'),
      test "threads that wait for each other find out" $ do
        r <- unreferenced . try . withScope $ \scope -> do
          box <- newEmptyMVar
          t <- fork scope (readMVar box >>= await :: IO ())
          putMVar box t
          await t
        either (\BlockedIndefinitelyOnMVar -> pure ()) pure r,
      test "waiting for a timer is no deadlock" $
        withScope (\scope -> fork scope (sleep (milliseconds 30) >> pure 'x') >>= collecting . await) >>= (@?= 'x'),
      test "race: the first one's result; the other has ended" . replicateM_ (times 100) $ do
        ended <- newIORef False
        begun <- newEmptyMVar
        r <- race ((putMVar begun () >> sleep (seconds 60)) `finally` writeIORef ended True) (takeMVar begun >> pure 'x')
        r @?= Right 'x'
        readIORef ended >>= (@?= True)
        e <- try (race (sleep (seconds 60)) (throwIO (Own 10) :: IO ()))
        e @?= Left (Own 10),
      test "concurrently: both results, or an exception of either" . replicateM_ (times 100) $ do
        concurrently (pure 'a') (pure 'b') >>= (@?= ('a', 'b'))
        forM_ [concurrently (throwIO (Own 11)) (sleep (seconds 60)), concurrently (sleep (seconds 60)) (throwIO (Own 11))] $ \act ->
          try act >>= (@?= Left (Own 11)),
      test "forConcurrently: results in order, at most so many at once; an exception stops further ones" $ do
        [running, most, begun] <- replicateM 3 (newIORef (0 :: Int))
        let change d = atomicModifyIORef' running (\n -> (n + d, n + d)) >>= \n -> atomicModifyIORef' most (\m -> (max n m, ()))
        r <- forConcurrently 3 [1 .. 50 :: Int] (\i -> bracket_ (change 1) (change (-1)) (2 * i <$ replicateM_ (i `mod` 7) yield))
        r @?= map (2 *) [1 .. 50]
        readIORef most >>= \m -> assertBool (show m) (m <= 3)
        forConcurrently 3 ([] :: [Int]) pure >>= (@?= [])
        forConcurrently 0 (Just 'x') pure >>= (@?= Just 'x')
        let act i = do
              atomicModifyIORef' begun (\n -> (n + 1, ()))
              when (i == 5) (throwIO (Own 12))
              when (i > 5) (sleep (seconds 60))
        e <- try (forConcurrently_ 2 [1 .. 1000 :: Int] act)
        e @?= Left (Own 12)
        readIORef begun >>= \n -> assertBool (show n) (n <= 6),
      test "a timeout around a scope ends it" $ do
        (running, note) <- counting
        r <- within (milliseconds 10) (withScope (\scope -> note (fork scope) (sleep (seconds 60)) >>= await))
        r @?= Nothing
        running >>= (@?= 0),
      test "many threads: all are told and awaited; nothing is kept of those that have ended" $ do
        ended <- newIORef (0 :: Int)
        begun <- newIORef (0 :: Int)
        let more ref = atomicModifyIORef' ref (\n -> (n + 1, ()))
        withScope $ \scope -> do
          replicateM_ 5000 (forkDaemon scope ((more begun >> sleep (seconds 60)) `finally` more ended))
          eventually "all have begun" ((== 5000) <$> readIORef begun)
        readIORef ended >>= (@?= 5000)
        withScope $ \scope -> do
          let round' = replicateM 1000 (fork scope (pure ())) >>= mapM_ await
          round'
          before <- liveBytes
          replicateM_ 10 round'
          after' <- settled (before + 100000) liveBytes
          assertBool (show (before, after')) (after' <= before + 100000)
    ]

test :: String -> IO () -> TestTree
test name act = testCase name (finishes name act)

-- | How many threads are between their beginning and their end, and a function around the forking of such threads. A
-- thread counts from its fork, unless it is killed before it begins.
counting :: IO (IO Int, (IO a -> IO (Task a)) -> IO a -> IO (Task a))
counting = do
  running <- newIORef 0
  let change d = atomicModifyIORef' running (\n -> (n + d, ()))
  pure (readIORef running, \how act -> how (mask (\restore -> change (1 :: Int) >> restore act `finally` (yield >> change (-1)))))

-- | Restore the handler for uncaught exceptions at the end.
keepingHandler :: IO a -> IO a
keepingHandler act = bracket getUncaughtExceptionHandler setUncaughtExceptionHandler (const act)

-- | The action's result, and what the handler for uncaught exceptions has been given so far.
uncaught :: IO a -> IO (a, IO [String])
uncaught act = do
  said <- newIORef []
  before <- getUncaughtExceptionHandler
  setUncaughtExceptionHandler (\e -> atomicModifyIORef' said (\es -> (maybe (displayException e) show (own e) : es, ())))
  -- The handler stays ('keepingHandler'), since exceptions may come after the action.
  a <- act `onException` setUncaughtExceptionHandler before
  pure (a, readIORef said)
  where
    -- Newer compilers display an exception with a backtrace.
    own :: SomeException -> Maybe Own
    own = fromException

-- | Wait in this thread while another one lets the collector run.
collecting :: IO a -> IO a
collecting act = do
  t <- forkIO (forever (performMajorGC >> pause 2))
  act `finally` killThread t

-- | Run an action in a thread that nothing refers to, while the collector runs.
unreferenced :: IO a -> IO a
unreferenced act = do
  done <- newEmptyMVar
  _ <- forkIO (act >>= putMVar done)
  collecting (readMVar done)

permutationsOf :: Int -> [[Int]]
permutationsOf n = go [0 .. n - 1]
  where
    go [] = [[]]
    go xs = [x : rest | x <- xs, rest <- go (filter (/= x) xs)]
