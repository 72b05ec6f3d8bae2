-- |
-- Threads that are killed while they wait for external calls.
module Spec.ExternalCall
  ( tests,
  )
where

import Control.Concurrent (forkIO, threadDelay)
import Control.Concurrent.MVar (newEmptyMVar, putMVar, takeMVar)
import qualified Control.Exception as E
import Control.Monad (forM_, replicateM_, void, when)
import Data.IORef
import GHC.Conc (getUncaughtExceptionHandler, setUncaughtExceptionHandler)
import Support
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Hybrid hiding (newEmptyMVar, putMVar, takeMVar, throwTo)
import Weft.Hybrid.ExternalCall
import Weft.Hybrid.Monad (call)
import qualified Weft.Hybrid.Park as Park
import Weft.Hybrid.Scheduler (placeIn, startScheduler, stopScheduler)
import Weft.Hybrid.SystemCall (later, systemCall)

tests :: IO Scheduler -> TestTree
tests scheduler =
  testGroup
    "external calls"
    [ test "a result, and an exception" results,
      test "an exception from starting the call is raised" startFails,
      test "killed, it leaves; a late result is disposed of, once" leaves,
      test "killed, it stays for the end" (staysFor id),
      test "killed while masked, it stays for the end" (staysFor mask_),
      test "killed while the work begins" beginning,
      test "a kill and the result at the same moment" races,
      test "an exception of the action that cancels the work reaches no thread" cancelFails,
      test "a scheduler ends although an action that cancels work throws" cancelFailsAtEnd
    ]
  where
    test name act = testCase name (finishes name (scheduler >>= act))

outsideOf :: Interrupted a -> (Promise a -> IO (IO ())) -> Hybrid a
outsideOf interrupted begin = call (\l ctx k -> outside l ctx k interrupted begin)

-- | Everything that can happen to a piece of work.
data Work = Work {workStopped, workDisposed :: IORef Int}

newWork :: IO Work
newWork = Work <$> newIORef 0 <*> newIORef 0

count :: IORef Int -> IO ()
count ref = atomicModifyIORef' ref (\n -> (n + 1, ()))

results :: Scheduler -> Assertion
results s = do
  x <- runIn s (outsideOf (Leaves (const (pure ()))) (\p -> pure () <$ forkIO (void (fulfil p (Right 'x')))))
  x @?= 'x'
  r <- E.try (runIn s (outsideOf (Stays pure) (\p -> pure () <$ fulfil p (Left (E.toException Oops)))))
  r @?= Left Oops

startFails :: Scheduler -> Assertion
startFails s = do
  r <- E.try . runIn s $ myThread >> outsideOf (Leaves pure) (\_ -> E.throwIO Oops)
  r @?= Left Oops
  -- The thread's state is in order: it can wait again, and be killed there.
  end <- runIn s $ do
    t <- forkThread $ do
      _ <- try (outsideOf (Leaves pure) (\_ -> E.throwIO Oops)) :: Hybrid (Either Oops ())
      sleep (seconds 100)
    sleep (milliseconds 1)
    killThread t
    waitCatch t
  isKilled end @? show end

leaves :: Scheduler -> Assertion
leaves s = do
  w <- newWork
  box <- newEmptyMVar
  end <- runIn s $ do
    t <- forkThread . outsideOf (Leaves (\() -> count (workDisposed w))) $ \p ->
      count (workStopped w) <$ putMVar box p
    p <- onGhcThread (takeMVar box)
    killThread t
    end <- waitCatch t
    nonBlocking $ do
      still <- wanted p
      taken <- mapM (const (fulfil p (Right ()))) [1, 2 :: Int]
      (still, taken) @?= (False, [False, False])
    pure end
  isKilled end @? show end
  (,) <$> readIORef (workStopped w) <*> readIORef (workDisposed w) >>= (@?= (1, 1))

staysFor :: (Hybrid () -> Hybrid ()) -> Scheduler -> Assertion
staysFor masked s = do
  w <- newWork
  box <- newEmptyMVar
  went <- newIORef False
  end <- runIn s $ do
    t <- forkThread . (`finally` nonBlocking (writeIORef went True)) . masked $ do
      outsideOf (Stays (\() -> count (workDisposed w))) (\p -> count (workStopped w) <$ putMVar box p)
      nonBlocking (assertFailure "it went on")
    p <- onGhcThread (takeMVar box)
    killThread t
    killThread t
    sleep (milliseconds 2)
    nonBlocking $ do
      readIORef went >>= (@?= False)
      void (fulfil p (Right ()))
    waitCatch t
  isKilled end @? show end
  (,) <$> readIORef (workStopped w) <*> readIORef (workDisposed w) >>= (@?= (1, 1))

-- | The exception comes after the thread has said that it waits, and before the work can be
-- given up.
beginning :: Scheduler -> Assertion
beginning s = do
  w <- newWork
  began <- newEmptyMVar
  t <- forkFromIn s . outsideOf (Leaves (\() -> count (workDisposed w))) $ \_ -> do
    putMVar began ()
    threadDelay 2000
    pure (count (workStopped w))
  takeMVar began
  place <- placeIn s
  Park.throwTo place t (E.toException E.ThreadKilled)
  end <- runIn s (waitCatch t)
  isKilled end @? show end
  eventually "giving up" ((== 1) <$> readIORef (workStopped w))

-- | Interrupted by another thread, by a time limit and by a GHC thread. The action throws what a loop's thread would
-- take for an exception of its own, too.
cancelFails :: Scheduler -> Assertion
cancelFails s = forM_ [E.toException Oops, E.toException E.ThreadKilled] $ \e -> do
  let waits begun = systemCall (\c -> later c (\_ -> E.throwIO e <$ putMVar begun ())) :: Hybrid ()
  end <- reporting (replicate 4 (show e)) $ do
    box <- newEmptyMVar
    bystander <- forkFromIn s (onGhcThread (takeMVar box))
    r <- runIn s $ do
      begun <- nonBlocking newEmptyMVar
      t <- forkThread (waits begun)
      onGhcThread (takeMVar begun)
      killThread t
      end <- waitCatch t
      nonBlocking (isKilled end @? show end)
      within (milliseconds 1) (waits begun)
    r @?= Nothing
    begun <- newEmptyMVar
    t <- forkFromIn s (waits begun)
    takeMVar begun
    place <- placeIn s
    Park.throwTo place t (E.toException E.ThreadKilled)
    end <- runIn s (waitCatch t)
    isKilled end @? show end
    -- The exception comes while the work begins.
    w <- forkFromIn s . systemCall $ \c -> later c $ \_ -> do
      putMVar begun ()
      threadDelay 2000
      pure (E.throwIO e) :: IO (IO ())
    takeMVar begun
    Park.throwTo place w (E.toException E.ThreadKilled)
    end' <- runIn s (waitCatch (w :: Thread))
    isKilled end' @? show end'
    putMVar box ()
    runIn s (waitCatch bystander)
  either (assertFailure . show) pure end

-- | With handlers and without, identified or not.
cancelFailsAtEnd :: Scheduler -> Assertion
cancelFailsAtEnd _ = forM_ [roundRobin, priorities 3] $ \policy -> do
  ends <- newIORef (0 :: Int)
  reporting ["Oops", "Oops"] $ do
    s <- startScheduler defaultSettings {settingsPolicy = policy, settingsGrace = seconds 50}
    begun <- newEmptyMVar
    let waits = systemCall (\c -> later c (\_ -> E.throwIO Oops <$ putMVar begun ())) :: Hybrid ()
        noted act = act `finally` nonBlocking (count ends)
    _ <- forkFromIn s (noted waits)
    runIn s (fork (noted waits))
    _ <- forkFromIn s (noted (nonBlocking (putMVar begun ()) >> sleep (seconds 100)))
    replicateM_ 3 (takeMVar begun)
    stopScheduler s
  readIORef ends >>= (@?= 3)

-- | Run an action, and expect that these exceptions go to the program's handler for uncaught ones, which may be a
-- little later.
reporting :: [String] -> IO a -> IO a
reporting expected act = do
  heard <- newIORef []
  E.bracket getUncaughtExceptionHandler setUncaughtExceptionHandler $ \_ -> do
    setUncaughtExceptionHandler (\e -> atomicModifyIORef' heard (\es -> (show e : es, ())))
    a <- act
    eventually ("the reports " <> show expected) ((== expected) <$> readIORef heard)
    pure a

-- | Either the thread has the result, or the result is disposed of. The work is cancelled only if no
-- thread has the result.
races :: Scheduler -> Assertion
races s = forM_ [1 .. times 300] $ \i -> do
  w <- newWork
  box <- newEmptyMVar
  got <- newIORef (0 :: Int)
  let interrupted = (if even i then Leaves else Stays) (\() -> count (workDisposed w))
  t <- forkFromIn s $ do
    outsideOf interrupted (\p -> count (workStopped w) <$ putMVar box p)
    nonBlocking (count got)
  p <- takeMVar box
  ended <- newEmptyMVar
  void (forkIO (fulfil p (Right ()) >>= putMVar ended))
  when (i `mod` 3 == 0) (threadDelay 1)
  place <- placeIn s
  Park.throwTo place t (E.toException E.ThreadKilled)
  _ <- takeMVar ended
  end <- runIn s (waitCatch t)
  taken <- readIORef got
  disposed <- readIORef (workDisposed w)
  -- Killed after the result came and before it went on, it has neither.
  (taken + disposed <= 1) @? show (i, taken, disposed)
  (taken == 1 || isKilled end) @? show (i, end)
  -- It is not cancelled if it ends while it begins.
  stopped <- readIORef (workStopped w)
  (taken + stopped <= 1) @? show (i, taken, stopped)
