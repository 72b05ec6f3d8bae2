-- |
-- Schedulers: starting and stopping, policies, sharing, system calls of one's own.
module Spec.Loops
  ( tests,
  )
where

import qualified Control.Concurrent as GHC
import Control.Concurrent.MVar
import qualified Control.Exception as E
import Control.Monad (forM_, forever, replicateM_, void, when)
import Data.IORef
import Data.List (nub)
import Support
import System.Directory (listDirectory)
import System.Mem (performMajorGC)
import System.Posix.IO (closeFd, dup, stdError)
import qualified System.Posix.Resource as Posix
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Core.Counters
import Weft.Core.Manager (managerCounters)
import qualified Weft.Event as Event
import Weft.Hybrid hiding (MVar, newEmptyMVar, newMVar, putMVar, readMVar, takeMVar)
import qualified Weft.Hybrid as H (takeMVar)
import Weft.Hybrid.Policy
import Weft.Hybrid.Ready (newFifo, popFifo, pushFifo, sizeFifo)
import Weft.Hybrid.Scheduler (startScheduler, stopScheduler)
import Weft.Hybrid.SystemCall
import Weft.Hybrid.Trace (Loop (..), Scheduler (..), contextPriority)
import Weft.Sys (readBoxedArray, readRef, sizeBoxedArray)

tests :: Int -> TestTree
tests n =
  testGroup "loops" $
    -- It has two loops in any case, and takes seconds.
    [test "a step that does not end is reported, with its label, and does not block other loops" stuck | n == 2]
      <> [ test "start and stop, many times: nothing is left" $ do
             withScheduler defaultSettings (\s -> runIn s (pure ()))
             before <- length <$> listDirectory "/proc/self/fd"
             replicateM_ (times 50) $
               withScheduler defaultSettings $ \s -> do
                 replicateM_ 10 (forkFromIn s (sleep (seconds 100)))
                 runIn s (sleep (microseconds 100))
             left <- length <$> listDirectory "/proc/self/fd"
             (left <= before) @? show (left - before),
           test "one that cannot be started for want of descriptors leaves none" refused,
           test "priorities: the first runs first, the last is not forgotten" $ do
             order <- newIORef []
             withScheduler one {settingsPolicy = priorities 3} $ \s -> do
               runIn s $ do
                 forM_ [2, 1, 0 :: Int] $ \p -> forM_ [1 .. 5 :: Int] $ \_ -> do
                   setPriority p
                   fork (nonBlocking (modifyIORef order (p :)))
                 setPriority 2
                 replicateM_ 20 yield
               stop <- newIORef False
               replicateM_ 3 (forkFromIn s (busy stop))
               runIn s (setPriority 2 >> yield)
               writeIORef stop True
             seen <- reverse <$> readIORef order
             take 5 seen @?= [0, 0, 0, 0, 0]
             length seen @?= 15,
           test "resource-aware: threads that take more wait while the resource is scarce" $ do
             used <- newIORef (100 :: Int)
             order <- newIORef []
             withScheduler one {settingsPolicy = resourceAware (Resource (readIORef used) 50)} $ \s ->
               runIn s $ do
                 forM_ [1 .. 6 :: Int] $ \i -> do
                   setPriority (i `mod` 2)
                   fork (nonBlocking (modifyIORef order ((i `mod` 2) :)))
                 setPriority 1
                 replicateM_ 20 yield
             readIORef order >>= (@?= [1, 1, 1, 0, 0, 0]),
           -- What a thread held is garbage when it has ended, although the queue has a place for it.
           test "priorities, resource-aware: threads that have ended are not kept" $
             forM_ [priorities 2, resourceAware (Resource (pure 0) 1)] $ \rule ->
               withScheduler one {settingsPolicy = rule} $ \s -> do
                 gone <- newIORef (0 :: Int)
                 runIn s . replicateM_ 100 $ do
                   held <- nonBlocking (newIORef 'x' >>= \r -> r <$ mkWeakIORef r (atomicModifyIORef' gone (\k -> (k + 1, ()))))
                   fork (yield >> nonBlocking (void (readIORef held)) >> yield)
                 runIn s (replicateM_ 10 yield)
                 eventually "they are garbage" ((>= 99) <$> (performMajorGC >> GHC.threadDelay 10000 >> readIORef gone)),
           -- It is a matter of luck how soon the other loop is there.
           test "work is shared" $
             withScheduler defaultSettings $ \s -> do
               used <- sharing s (50 :: Int)
               when (n > 1) (length used > 1 @? ("all on one loop: " <> show used)),
           test "threads wake each other across loops, over and over" $
             withScheduler defaultSettings $ \s -> do
               boxes <- mapM (const newEmptyMVar) [1 .. 2 * n]
               forM_ boxes $ \box -> GHC.forkOn 0 $ do
                 r <- E.try (runIn s (replicateM_ (times 200) (sleep (microseconds 20) >> yield)))
                 putMVar box (r :: Either E.SomeException ())
               rs <- mapM takeMVar boxes
               forM_ rs (either (assertFailure . show) pure),
           test "a system call of one's own: an answer, a failure, a callback" $
             withScheduler defaultSettings $ \s -> do
               r <- runIn s (systemCall (\c -> immediate c (pure 'x')))
               r @?= 'x'
               e <- E.try (runIn s (systemCall (\_ -> failing (E.toException Oops))))
               e @?= (Left Oops :: Either Oops ())
               r' <- runIn s . systemCall $ \c -> later c $ \answer -> do
                 key <- Event.registerTimeout (callManager c) (milliseconds 2) (void (answer (Right 'y')))
                 pure (Event.unregisterTimeout (callManager c) key)
               r' @?= 'y'
               stopped <- newIORef False
               r'' <- runIn s $ do
                 t <- forkThread (systemCall (\c -> later c (\_ -> pure (writeIORef stopped True))))
                 sleep (milliseconds 2)
                 killThread t
                 waitCatch t
               isKilled r'' @? "not killed"
               readIORef stopped >>= (@? "not given up"),
           test "an idle scheduler does nothing: none of its loops looks for anything" idle,
           test "under a policy, threads that are dealt keep their priority" dealt
         ]
  where
    -- The loops that 200 threads, all of them forked by one, ran on; once more while it was one.
    sharing s tries = do
      loops <- newIORef []
      left <- newIORef (200 :: Int)
      done <- newEmptyMVar
      void . forkFromIn s . forM_ [1 .. 200 :: Int] $ \i -> fork $ do
        x <- nonBlocking (E.evaluate (work (20000 + i)))
        where' <- systemCall (\c -> immediate c (x `seq` fst <$> (GHC.myThreadId >>= GHC.threadCapability)))
        nonBlocking $ do
          atomicModifyIORef' loops (\ls -> (nub (where' : ls), ()))
          k <- atomicModifyIORef' left (\k -> (k - 1, k - 1))
          when (k == 0) (putMVar done ())
      takeMVar done
      used <- readIORef loops
      if length used == 1 && n > 1 && tries > 1 then sharing s (tries - 1) else pure used
    test name act = testCase name (finishes name act)
    one = defaultSettings {settingsLoops = Just 1}
    busy stop = do
      x <- nonBlocking (readIORef stop)
      if x then pure () else yield >> busy stop

-- | Eight loops, and descriptors for some of them.
refused :: Assertion
refused = do
  before <- length <$> listDirectory "/proc/self/fd"
  limits <- Posix.getResourceLimit Posix.ResourceOpenFiles
  let lower = Posix.setResourceLimit Posix.ResourceOpenFiles limits {Posix.softLimit = Posix.ResourceLimit 200}
      untilNone = E.try (dup stdError) >>= either (\e -> const (pure []) (e :: E.IOException)) (\d -> (d :) <$> untilNone)
      allButThree = do
        (spare, held) <- splitAt 3 <$> untilNone
        held <$ mapM_ closeFd spare
  started <-
    E.bracket_ lower (Posix.setResourceLimit Posix.ResourceOpenFiles limits)
      . E.bracket allButThree (mapM_ closeFd)
      $ \_ -> E.try (startScheduler defaultSettings {settingsLoops = Just 8})
  either (\e -> const (pure ()) (e :: E.IOException)) (\s -> stopScheduler s >> assertFailure "it was started") started
  left <- length <$> listDirectory "/proc/self/fd"
  (left <= before) @? show (left - before)

-- | The loops of an idle scheduler do not poll, by the counters of their managers.
idle :: Assertion
idle = withScheduler defaultSettings $ \s -> do
  replicateM_ 10 (forkFromIn s (forever (sleep (seconds 100))))
  runIn s (sleep (milliseconds 5))
  -- The watchdog's last look may be late.
  quiet <- anyOf (10 :: Int) $ do
    pause 600
    before <- looks s
    pause 300
    (== before) <$> looks s
  quiet @? "it is never quiet for 300 ms"
  looks s >>= \n -> (n > 0) @? "they never looked"
  where
    anyOf 0 _ = pure False
    anyOf k check = check >>= \ok -> if ok then pure True else anyOf (k - 1) check
    looks s = do
      loops <- readRef (schedulerLoops s)
      sum <$> mapM (\i -> readBoxedArray loops i >>= looked) [0 .. sizeBoxedArray loops - 1]
    looked l = sum <$> mapM (readCounter (managerCounters (loopManager l))) [PollsEmpty, PollsFull, Sleeps]

dealt :: Assertion
dealt = do
  recording <- newIORef False
  wrong <- newIORef (0 :: Int)
  total <- newIORef (0 :: Int)
  let recorded = policy $ do
        q <- newFifo
        pure
          Queue
            { queuePush = \ctx task -> do
                on <- readIORef recording
                when on $ do
                  atomicModifyIORef' total (\k -> (k + 1, ()))
                  when (contextPriority ctx /= 3) (atomicModifyIORef' wrong (\k -> (k + 1, ())))
                pushFifo q (inContext ctx task),
              queuePop = popFifo q,
              queueSize = sizeFifo q
            }
  withScheduler defaultSettings {settingsLoops = Just 2, settingsPolicy = recorded} $ \s -> do
    left <- newIORef (400 :: Int)
    done <- newEmptyMVar
    void . forkFromIn s $ do
      setPriority 3
      nonBlocking (writeIORef recording True)
      forM_ [1 .. 400 :: Int] $ \i -> fork $ do
        x <- nonBlocking (E.evaluate (work (20000 + i)))
        yield
        nonBlocking $ do
          k <- x `seq` atomicModifyIORef' left (\k -> (k - 1, k - 1))
          when (k == 0) (writeIORef recording False >> putMVar done ())
    takeMVar done
  pushes <- readIORef total
  (pushes >= 800) @? show pushes
  readIORef wrong >>= (@?= 0)

-- | The other loop's threads go on; what the first one's are resumed with goes to the other.
stuck :: Assertion
stuck = do
  reports <- newIORef []
  let settings = defaultSettings {settingsLoops = Just 2, settingsOnStall = \name d -> atomicModifyIORef' reports (\rs -> ((name, d) : rs, ()))}
  withScheduler settings $ \s -> do
    stop <- newIORef False
    begun <- newEmptyMVar
    box <- newEmptyMVarIO
    served <- newEmptyMVar
    void . forkFromIn s $ void . forkLabelled "greedy" $ nonBlocking (putMVar begun () >> spinUntil stop)
    takeMVar begun
    replicateM_ 4 (forkFromIn s (H.takeMVar box >>= nonBlocking . putMVar served))
    eventually "a report" (not . null <$> readIORef reports)
    replicateM_ 4 (tryPutUntil s box >> takeMVar served)
    -- Calls from any thread are served, possibly later.
    forM_ [0, 1] $ \cap -> do
      out <- newEmptyMVar
      _ <- GHC.forkOn cap (runIn s (pure cap) >>= putMVar out)
      takeMVar out >>= (@?= cap)
    writeIORef stop True
  -- Another loop may be reported, too, if the machine kept it off its core for a second.
  rs <- filter ((== Just "greedy") . fst) <$> readIORef reports
  length rs @?= 1
  all ((>= seconds 1) . snd) rs @? show rs
  where
    spinUntil stop = do
      x <- readIORef stop
      _ <- E.evaluate (work 1000)
      if x then pure () else GHC.yield >> spinUntil stop
    tryPutUntil s box = tryPutMVarIO s box () >>= \ok -> if ok then pure () else pause 1 >> tryPutUntil s box

work :: Int -> Int
work c = go c 1
  where
    go :: Int -> Int -> Int
    go 0 acc = acc
    go k acc = go (k - 1) (acc * 31 + k)
{-# NOINLINE work #-}
