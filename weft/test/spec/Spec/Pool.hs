-- |
-- "Weft.Pool": its laws, with resources that note what is done to them, and under exceptions at any point.
module Spec.Pool
  ( tests,
  )
where

import Control.Concurrent (getNumCapabilities, threadDelay, yield)
import qualified Control.Concurrent as C
import Control.Concurrent.MVar
import Control.Exception
import Control.Monad
import Data.IORef
import qualified Data.IntMap.Strict as IntMap
import GHC.Clock (getMonotonicTime)
import Harness hiding (within)
import Test.Tasty hiding (withResource)
import Test.Tasty.HUnit
import Weft.Deadline (inTime)
import Weft.Duration
import Weft.Pool
import Weft.Scope (await, forConcurrently_, forkOn, withScope)
import Weft.Test.Forked (inChild)
import Weft.Transport (deadlineIn, isTimeout, noDeadline)

tests :: TestTree
tests =
  testGroup
    "Pool"
    [ testCase "the latest one is used again" reuse,
      testCase "there are no more than the bound" bound,
      testCase "those who wait are served in order" inOrder,
      testCase "a resource that is given back just as another begins to wait is not overlooked" justThen,
      testCase "a deadline" deadline,
      testCase "an exception in the action destroys the resource" exceptions,
      testCase "a resource that cannot be made leaves its place" failing,
      testCase "a resource that is destroyed makes room for one who waits" discarded,
      testCase "a resource that is taken out makes room for one who waits, and is not destroyed" takenOut,
      testCase "validation, after a while" validation,
      testCase "validation that throws what no IOError is" throwingValidation,
      testCase "validation that takes longer than the caller has" slowValidation,
      testCase "idle resources are destroyed" idle,
      testCase "old resources are destroyed" old,
      testCase "another capability's is taken before a new one is made" borrowing,
      testCase "the end of a pool" closing,
      testCase "a resource that cannot be destroyed keeps no other one" undestroyed,
      testCase "a storm of exceptions loses nothing" storm,
      testCase "a forked child begins with an empty pool, and leaves its parent's resources alone" forked,
      testCase "in a forked child idle resources are destroyed" forkedIdle,
      testCase "a pool that is closed is closed in a forked child" forkedClosed
    ]

-- | What the resources are: each is in one of these states.
data State = Idle | Used | Gone
  deriving (Eq, Show)

data World = World {worldStates :: IORef (IntMap.IntMap State), worldBroken :: IORef [String]}

newWorld :: IO World
newWorld = World <$> newIORef IntMap.empty <*> newIORef []

-- | From one state into another; anything else is noted.
move :: World -> Int -> State -> State -> IO ()
move w i from to = do
  before <- atomicModifyIORef' (worldStates w) (\m -> (IntMap.insert i to m, IntMap.lookup i m))
  unless (before == Just from) $
    atomicModifyIORef' (worldBroken w) (\bs -> ((show i <> ": " <> show before <> " to " <> show to) : bs, ()))

settings :: World -> PoolSettings Int
settings w = poolOf (const create) (\i -> move w i Idle Gone)
  where
    create = atomicModifyIORef' (worldStates w) (\m -> let i = IntMap.size m in (IntMap.insert i Idle m, i))

-- | One is idle, and then all are in use and one waits for them.
forked :: Assertion
forked = do
  w <- newWorld
  withPool (settings w) {poolMost = 2} $ \pool -> do
    withResource pool noDeadline (\i -> using w i (i @?= 0))
    inChild $ do
      poolCounts pool >>= \counts -> (countTotal counts, countIdle counts, countCreated counts) @?= (0, 0, 0)
      replicateM_ 3 (withResource pool noDeadline (\i -> using w i (i @?= 1)))
      readIORef (worldStates w) >>= (@?= [(0, Idle), (1, Idle)]) . IntMap.toList
    kept <- acquire pool noDeadline
    other <- acquire pool noDeadline
    leased kept @?= 0
    waiting <- start (withResource pool noDeadline pure)
    eventually "it waits" ((== 1) . countWaiting <$> poolCounts pool)
    inChild $ do
      both <- replicateM 2 (acquire pool noDeadline)
      map leased both @?= [2, 3]
      -- They are not the child's.
      release pool kept
      discard pool other
      detach pool other
      soon <- deadlineIn (milliseconds 20)
      e <- failure "no place is free" (acquire pool soon)
      assertBool (show e) (isTimeout e)
      mapM_ (discard pool) both
      poolCounts pool >>= \counts -> (countTotal counts, countIdle counts, countDestroyed counts) @?= (0, 0, 2)
      readIORef (worldStates w) >>= (@?= [(0, Idle), (1, Idle), (2, Gone), (3, Gone)]) . IntMap.toList
    release pool kept
    result "the parent's thread that waits" waiting >>= (@?= 0)
    release pool other
  clean w

forkedIdle :: Assertion
forkedIdle = do
  w <- newWorld
  withPool (settings w) {poolIdleTime = milliseconds 40} $ \pool -> do
    inChild $ do
      withResource pool noDeadline (const (pure ()))
      eventually "it is destroyed" ((== 1) <$> count w Gone)
    withResource pool noDeadline (@?= 0)

forkedClosed :: Assertion
forkedClosed = do
  w <- newWorld
  pool <- withPool (settings w) pure
  inChild $ do
    r <- try (withResource pool noDeadline pure)
    r @?= Left PoolClosed

-- | Use a resource, as the world sees it.
using :: World -> Int -> IO a -> IO a
using w i = bracket_ (move w i Idle Used) (move w i Used Idle)

count :: World -> State -> IO Int
count w st = IntMap.size . IntMap.filter (== st) <$> readIORef (worldStates w)

-- | Nothing was used twice at a time, or destroyed twice or in use; in the end all are gone.
clean :: World -> Assertion
clean w = do
  readIORef (worldBroken w) >>= (@?= [])
  left <- IntMap.toList . IntMap.filter (/= Gone) <$> readIORef (worldStates w)
  left @?= []

reuse :: Assertion
reuse = do
  w <- newWorld
  withPool (settings w) $ \pool -> do
    (a, b) <- withResource pool noDeadline $ \x -> withResource pool noDeadline $ \y -> pure (x, y)
    (a, b) @?= (0, 1)
    replicateM 3 (withResource pool noDeadline pure) >>= (@?= [0, 0, 0])
    counts <- poolCounts pool
    (countTotal counts, countIdle counts, countCreated counts, countDestroyed counts) @?= (2, 2, 2, 0)
    countReused counts + countBorrowed counts @?= 3
  clean w

bound :: Assertion
bound = do
  w <- newWorld
  withPool (settings w) {poolMost = 3} $ \pool -> do
    forConcurrently_ 20 [1 .. 200 :: Int] $ \_ -> withResource pool noDeadline $ \i -> using w i yield
    counts <- poolCounts pool
    assertBool (show counts) (countTotal counts <= 3 && countCreated counts <= 3 && countWaiting counts == 0)
  clean w

-- | One after the other begins to wait.
inOrder :: Assertion
inOrder = do
  w <- newWorld
  served <- newIORef []
  withPool (settings w) {poolMost = 1} $ \pool -> do
    lease <- acquire pool noDeadline
    tasks <- forM [1 .. 10 :: Int] $ \n -> do
      task <- start (withResource pool noDeadline (\_ -> modifyIORef' served (n :)))
      eventually "it waits" ((== n) . countWaiting <$> poolCounts pool)
      pure task
    release pool lease
    mapM_ (result "a task") tasks
  readIORef served >>= (@?= [1 .. 10]) . reverse
  clean w

-- | Two threads, each on a capability of its own if there are two: one gives the only resource back while the other one
-- asks for it, at about the same moment, and the resource is then nobody else's to give. On a busy machine a thread may
-- be descheduled in every round, which then takes milliseconds; so the rounds end after some seconds.
justThen :: Assertion
justThen = do
  w <- newWorld
  turn <- newIORef (0 :: Int)
  withPool (settings w) {poolMost = 1} $ \pool -> finishes "taking turns" . withScope $ \scope -> do
    begin <- getMonotonicTime
    let rounds = times 5000
        -- Turn 2 n - 1 is the second thread's, for round n, and 2 n the first one's; a negative turn is the end.
        awaitTurn n = do
          now <- readIORef turn
          if now < 0 then pure False else if now < n then yield >> awaitTurn n else pure True
        spin n = when (n > 0) (readIORef turn >>= \t -> when (t >= 0) (spin (n - 1 :: Int)))
        enough n = (\t -> n > rounds || t - begin > 5 * max 1 scale) <$> getMonotonicTime
        giving n = do
          over <- enough n
          if over
            then atomicWriteIORef turn (-1)
            else do
              lease <- acquire pool noDeadline
              atomicWriteIORef turn (2 * n - 1)
              spin (n `mod` 37)
              release pool lease
              awaitTurn (2 * n) >>= \on -> when on (giving (n + 1))
        asking n = do
          on <- awaitTurn (2 * n - 1)
          when on $ do
            spin (n `mod` 31)
            lease <- acquire pool noDeadline
            release pool lease
            atomicWriteIORef turn (2 * n)
            asking (n + 1)
    first <- forkOn 0 scope (giving 1)
    second <- forkOn 1 scope (asking 1)
    await first
    await second
  clean w

deadline :: Assertion
deadline = do
  w <- newWorld
  withPool (settings w) {poolMost = 1} $ \pool -> do
    withResource pool noDeadline $ \_ -> do
      soon <- deadlineIn (milliseconds 20)
      e <- failure "acquiring" (acquire pool soon)
      assertBool (show e) (isTimeout e)
      past <- deadlineIn mempty
      e' <- failure "acquiring" (acquire pool past)
      assertBool (show e') (isTimeout e')
    past <- deadlineIn mempty
    -- What is there is taken whatever the deadline.
    withResource pool past (@?= 0)
    counts <- poolCounts pool
    (countTimeouts counts, countWaits counts, countWaiting counts) @?= (2, 2, 0)
  clean w

exceptions :: Assertion
exceptions = do
  w <- newWorld
  withPool (settings w) {poolMost = 1} $ \pool -> do
    _ <- failure "the action" (withResource pool noDeadline (\_ -> ioError (userError "no") :: IO ()))
    count w Gone >>= (@?= 1)
    withResource pool noDeadline (@?= 1)
  clean w

failing :: Assertion
failing = do
  w <- newWorld
  calls <- newIORef (0 :: Int)
  let create d = do
        n <- atomicModifyIORef' calls (\n -> (n + 1, n))
        if even n then ioError (userError "no") else poolCreate (settings w) d
  withPool (settings w) {poolMost = 1, poolCreate = create} $ \pool -> do
    _ <- failure "the first" (acquire pool noDeadline)
    poolCounts pool >>= (@?= 0) . countTotal
    withResource pool noDeadline (@?= 0)
  clean w

discarded :: Assertion
discarded = do
  w <- newWorld
  withPool (settings w) {poolMost = 1} $ \pool -> do
    lease <- acquire pool noDeadline
    waiting <- start (withResource pool noDeadline pure)
    eventually "it waits" ((== 1) . countWaiting <$> poolCounts pool)
    discard pool lease
    result "the one who waits" waiting >>= (@?= 1)
  clean w

takenOut :: Assertion
takenOut = do
  w <- newWorld
  withPool (settings w) {poolMost = 1} $ \pool -> do
    lease <- acquire pool noDeadline
    waiting <- start (withResource pool noDeadline pure)
    eventually "it waits" ((== 1) . countWaiting <$> poolCounts pool)
    detach pool lease
    result "the one who waits" waiting >>= (@?= 1)
    counts <- poolCounts pool
    (countTotal counts, countIdle counts, countCreated counts) @?= (1, 1, 2)
  -- The pool has destroyed its own one only.
  readIORef (worldStates w) >>= (@?= [(0, Idle), (1, Gone)]) . IntMap.toList

validation :: Assertion
validation = do
  w <- newWorld
  asked <- newIORef []
  let validate i = do
        modifyIORef' asked (i :)
        if i == 2 then ioError (userError "gone") else pure (i /= 0)
      always = (settings w) {poolValidate = const validate, poolValidateAfter = mempty}
  withPool always $ \pool -> do
    replicateM 4 (withResource pool noDeadline pure) >>= (@?= [0, 1, 1, 1])
    -- The next one after one that fails to answer.
    lease <- acquire pool noDeadline
    discard pool lease
    replicateM 2 (withResource pool noDeadline pure) >>= (@?= [2, 3])
  readIORef asked >>= (@?= [2, 1, 1, 1, 0])
  clean w
  w' <- newWorld
  withPool (settings w') {poolValidate = \_ _ -> pure False, poolValidateAfter = seconds 1000} $ \pool ->
    replicateM 3 (withResource pool noDeadline pure) >>= (@?= [0, 0, 0])
  clean w'

-- | As a library's that has exceptions of its own; those that are asynchronous end the caller, not the validation only.
throwingValidation :: Assertion
throwingValidation = do
  w <- newWorld
  withPool (settings w) {poolValidate = \_ _ -> throwIO (ErrorCall "no connection"), poolValidateAfter = mempty} $ \pool ->
    replicateM 3 (withResource pool noDeadline pure) >>= (@?= [0, 1, 2])
  clean w
  w' <- newWorld
  withPool (settings w') {poolValidate = \_ _ -> throwIO ThreadKilled, poolValidateAfter = mempty, poolMost = 1} $ \pool -> do
    withResource pool noDeadline (@?= 0)
    try (withResource pool noDeadline pure) >>= (@?= Left ThreadKilled)
    -- Its place is free.
    withResource pool noDeadline (@?= 1)
  clean w'

-- | A peer that is silent: the resource is destroyed at the deadline, and another one is made. With no time left at all
-- it is not asked, and not destroyed.
slowValidation :: Assertion
slowValidation = do
  w <- newWorld
  asked <- newIORef (0 :: Int)
  let silent soon _ = modifyIORef' asked (+ 1) >> inTime soon (newEmptyMVar >>= \never -> True <$ takeMVar (never :: MVar ()))
  withPool (settings w) {poolValidate = silent, poolValidateAfter = mempty, poolMost = 1} $ \pool -> do
    withResource pool noDeadline (@?= 0)
    past <- deadlineIn mempty
    late <- try (withResource pool past pure)
    either (\e -> isTimeout e @? show (e :: IOException)) (\i -> assertFailure ("got " <> show i)) late
    readIORef asked >>= (@?= 0)
    count w Gone >>= (@?= 0)
    -- On a busy machine this deadline, too, may have passed when it begins.
    let untilAsked = do
          soon <- deadlineIn (milliseconds 20)
          _ <- try (withResource pool soon (@?= 1)) :: IO (Either IOException ())
          n <- readIORef asked
          when (n == 0) untilAsked
    untilAsked
    count w Gone >>= (@?= 1)
  clean w

idle :: Assertion
idle = do
  w <- newWorld
  withPool (settings w) {poolIdleTime = milliseconds 30} $ \pool -> do
    withResource pool noDeadline (@?= 0)
    eventually "it is destroyed" ((== 1) <$> count w Gone)
    eventually "its place is free" ((== 0) . countTotal <$> poolCounts pool)
    withResource pool noDeadline (@?= 1)
  clean w

old :: Assertion
old = do
  w <- newWorld
  withPool (settings w) {poolMaximalAge = milliseconds 50, poolMost = 1} $ \pool -> do
    lease <- acquire pool noDeadline
    threadDelay 60000
    release pool lease
    count w Gone >>= (@?= 1)
    withResource pool noDeadline (@?= 1)
    eventually "the next one is destroyed while it is idle" ((== 2) <$> count w Gone)
  clean w

borrowing :: Assertion
borrowing = do
  w <- newWorld
  n <- getNumCapabilities
  withPool (settings w) $ \pool -> do
    forM_ [0 .. n - 1] $ \c -> do
      done <- newEmptyMVar
      _ <- C.forkOn c (try (withResource pool noDeadline pure) >>= putMVar done)
      r <- finishes "a resource" (takeMVar done)
      either (throwIO :: SomeException -> IO ()) (@?= 0) r
    counts <- poolCounts pool
    (countReused counts + countBorrowed counts, countCreated counts) @?= (n - 1, 1)
  clean w

undestroyed :: Assertion
undestroyed = do
  w <- newWorld
  n <- getNumCapabilities
  let destroy i = poolDestroy (settings w) i >> throwIO (ErrorCall "no")
  r <- try . withPool (settings w) {poolDestroy = destroy} $ \pool -> do
    -- One for each capability: all are in use before the first is given back.
    entered <- newMVar (0 :: Int)
    withScope $ \scope -> forM_ [0 .. n - 1] $ \c -> forkOn c scope . withResource pool noDeadline $ \_ -> do
      modifyMVar_ entered (pure . (+ 1))
      eventually "all are in use" ((== n) <$> readMVar entered)
  r @?= Left (ErrorCall "no")
  count w Gone >>= (@?= n)
  clean w

closing :: Assertion
closing = do
  w <- newWorld
  (pool, lease, waiting) <- withPool (settings w) {poolMost = 2} $ \pool -> do
    lease <- acquire pool noDeadline
    other <- acquire pool noDeadline
    waiting <- start (acquire pool noDeadline)
    eventually "it waits" ((== 1) . countWaiting <$> poolCounts pool)
    -- It gets this one, and keeps it.
    release pool other
    _ <- result "the one who waits" waiting
    waiting' <- start (acquire pool noDeadline)
    eventually "it waits" ((== 1) . countWaiting <$> poolCounts pool)
    pure (pool, lease, waiting')
  closed "the one who waits" (void <$> outcome "the one who waits" waiting)
  closed "one who comes later" (try (void (acquire pool noDeadline)))
  count w Gone >>= (@?= 0)
  release pool lease
  count w Gone >>= (@?= 1)
  poolCounts pool >>= (@?= 1) . countTotal
  where
    closed what act = do
      r <- act
      case r of
        Left e | Just PoolClosed <- fromException e -> pure ()
        Left e -> assertFailure (what <> ": " <> show e)
        Right () -> assertFailure (what <> ": got a resource")

-- | Threads use resources, discard them, fail, are cut off at any point and by deadlines, while resources become old.
-- Nobody waits for ever, and in the end all are gone.
storm :: Assertion
storm = do
  w <- newWorld
  let s = (settings w) {poolMost = 4, poolIdleTime = milliseconds 5, poolMaximalAge = milliseconds 20, poolValidateAfter = mempty, poolValidate = \_ i -> pure (i `mod` 11 /= 0)}
      checked d = do
        i <- poolCreate s d
        when (i `mod` 7 == 0) (move w i Idle Gone >> ioError (userError "cannot be made"))
        pure i
  withPool s {poolCreate = checked} $ \pool -> do
    finishes "the storm" . forConcurrently_ 16 [1 .. times 3000] $ \n -> do
      limit <- if n `mod` 3 == 0 then deadlineIn (microseconds (n `mod` 50 * 20)) else pure noDeadline
      task <- start . tolerant $
        withResource pool limit $ \i -> using w i $ do
          when (n `mod` 5 == 0) yield
          when (n `mod` 9 == 0) (threadDelay 100)
          when (n `mod` 13 == 0) (ioError (userError "failed"))
      if n `mod` 2 == 0
        then replicateM_ (n `mod` 4) yield >> stop task
        else result "a task" task
    -- All places can be had.
    leases <- finishes "all places" (replicateM 4 (persistent (acquire pool noDeadline)))
    mapM_ (release pool) leases
    counts <- poolCounts pool
    assertBool (show counts) (countTotal counts <= 4 && countWaiting counts == 0)
  clean w
  where
    tolerant act = act `catch` \e -> const (pure ()) (e :: IOException)
    persistent act = try act >>= either (\e -> const (persistent act) (e :: IOException)) pure
