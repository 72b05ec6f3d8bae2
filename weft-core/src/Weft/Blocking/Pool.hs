-- |
-- Pools of threads for calls that can only block; documented in "Weft.Blocking".
module Weft.Blocking.Pool
  ( -- * The program's pool
    blocking,
    blockingOr,
    poolStatus,
    setPoolLimit,

    -- * Pools of one's own
    Pool,
    newPool,
    programPool,
    submit,
    enqueue,
    runIn,
    runInOr,
    statusOf,
    setLimit,
    PoolStatus (..),
  )
where

import Control.Concurrent (forkIOWithUnmask, myThreadId)
import Control.Concurrent.MVar
import Control.Exception
import Control.Monad (unless, void, when)
import Data.IORef
import qualified Data.IntSet as IntSet
import qualified Data.Map.Lazy as Map
import GHC.Conc (labelThread)
import System.IO.Unsafe (unsafePerformIO)
import Weft.FFI.ThreadNumber (threadNumber)
import Weft.Sys (forkGeneration)

-- | A bounded number of threads and a queue.
newtype Pool = Pool (IORef PoolState)

-- | The state of a pool. Any thread changes it atomically, by 'change'. Invariant: calls are queued only while
-- 'stateRunning' is at the limit or above it.
data PoolState = PoolState
  { -- | The process image that the other fields belong to ('forkGeneration').
    stateGeneration :: !Int,
    stateLimit :: !Int,
    -- | Threads that run a call now.
    stateRunning :: !Int,
    -- | The numbers of these threads: a thread is in the set while it runs calls. Numbers, as a thread's identity would
    -- keep the collector from finding out that a call waits for ever.
    stateThreads :: !IntSet.IntSet,
    -- | The calls that wait, numbered in the order in which they came, and the next number. Not evaluated: a call that
    -- is undefined fails when it runs.
    stateQueue :: !(Map.Map Int (IO ())),
    stateNext :: !Int,
    stateDone :: !Int
  }

-- | The state of a pool.
data PoolStatus = PoolStatus
  { -- | The largest number of calls that run at once.
    poolLimit :: !Int,
    -- | The number of calls that run now.
    poolRunning :: !Int,
    -- | The number of calls that wait for a thread.
    poolQueued :: !Int,
    -- | The number of calls that have ended.
    poolCompleted :: !Int
  }
  deriving (Eq, Show)

-- | A pool that runs at most the given number of calls at once (at least one). Its threads
-- are started when they are needed and end when the queue is empty.
newPool :: Int -> IO Pool
newPool limit = do
  generation <- forkGeneration
  Pool <$> newIORef (emptyState generation (max 1 limit))

emptyState :: Int -> Int -> PoolState
emptyState generation limit = PoolState generation limit 0 IntSet.empty Map.empty 0 0

-- | Change the state. In a forked child it is the parent's at first, of which only the limit is
-- kept.
change :: Pool -> (PoolState -> (PoolState, a)) -> IO a
change (Pool ref) f = do
  generation <- forkGeneration
  atomicModifyIORef' ref $ \st ->
    f (if stateGeneration st == generation then st else emptyState generation (stateLimit st))

-- | The program's pool, for 16 calls at once unless 'setPoolLimit' says otherwise.
programPool :: Pool
programPool = unsafePerformIO (newPool 16)
{-# NOINLINE programPool #-}

-- | Run a call that may block on the program's pool, in the caller's masking state. Its exceptions
-- are thrown here.
blocking :: IO a -> IO a
blocking = runIn programPool

-- | 'blocking' with a function that disposes of a result which arrives after the caller was
-- interrupted: it closes a file that was opened, for example.
blockingOr :: (a -> IO ()) -> IO a -> IO a
blockingOr = runInOr programPool

-- | The state of the program's pool.
poolStatus :: IO PoolStatus
poolStatus = statusOf programPool

-- | Change the number of calls that run at once on the program's pool.
setPoolLimit :: Int -> IO ()
setPoolLimit = setLimit programPool

-- | 'blocking' on a given pool.
runIn :: Pool -> IO a -> IO a
runIn pool = runInOr pool (const (pure ()))

-- | 'blockingOr' on a given pool.
runInOr :: Pool -> (a -> IO ()) -> IO a -> IO a
runInOr pool dispose act = do
  nested <- onThreadOf pool
  if nested then act else handOver pool dispose act

-- | Whether the calling thread is one of the pool's. Such a thread runs a further call itself: it has its place in the
-- pool already, and if it waited for a second one, calls that wait for each other could fill the pool for good.
onThreadOf :: Pool -> IO Bool
onThreadOf pool = do
  n <- myThreadId >>= threadNumber
  change pool $ \st -> (st, IntSet.member n (stateThreads st))

-- | Run a call on a thread of the pool, and wait for it.
handOver :: Pool -> (a -> IO ()) -> IO a -> IO a
handOver pool dispose act =
  mask $ \restore ->
    do
      box <- newEmptyMVar
      -- 'True' when the first of the two has come: the caller has been interrupted, or the call has ended.
      abandoned <- newIORef False
      withdraw <- enqueue pool $ do
        tooLate <- readIORef abandoned
        unless tooLate $ do
          r <- try (restore act)
          putMVar box r
          gone <- atomicModifyIORef' abandoned (\g -> (True, g))
          when gone (either (ignore . asException) dispose r)
      takeMVar box `onException` do
        withdraw
        came <- atomicModifyIORef' abandoned (\g -> (True, g))
        when came (tryTakeMVar box >>= mapM_ (either (ignore . asException) dispose))
      >>= either throwIO pure
  where
    ignore _ = pure ()
    asException :: SomeException -> SomeException
    asException = id

-- | Start a call, or queue it, without waiting for it. Its exceptions are dropped.
submit :: Pool -> IO () -> IO ()
submit pool job = void (enqueue pool job)

-- | 'submit'. The result takes the call out of the queue again, if it is still there. O(log n) for n calls in the
-- queue.
enqueue :: Pool -> IO () -> IO (IO ())
enqueue pool job = mask_ $ do
  -- Masked, as the thread that is counted here has to be started.
  queued <- change pool $ \st ->
    let n = stateNext st
     in if stateRunning st < stateLimit st
          then (st {stateRunning = stateRunning st + 1}, Nothing)
          else (st {stateQueue = Map.insert n job (stateQueue st), stateNext = n + 1}, Just n)
  case queued of
    Nothing -> pure () <$ startWorker pool job
    Just n -> do
      generation <- forkGeneration
      -- In a forked child the number may be another call's.
      pure (forkGeneration >>= \g -> when (g == generation) (change pool (\st -> (st {stateQueue = Map.delete n (stateQueue st)}, ()))))

-- | Start a thread of the pool. It does not inherit the masking state of the thread that starts it: calls run unmasked,
-- unless they mask exceptions themselves.
startWorker :: Pool -> IO () -> IO ()
startWorker pool job = void . mask_ $
  forkIOWithUnmask $ \unmask -> do
    self <- myThreadId
    labelThread self "weft blocking call"
    n <- threadNumber self
    change pool $ \st -> (st {stateThreads = IntSet.insert n (stateThreads st)}, ())
    worker unmask n pool job

-- | Run a call, and then the queued ones, on the thread with that number.
worker :: (IO () -> IO ()) -> Int -> Pool -> IO () -> IO ()
worker unmask n pool job = do
  unmask job `catch` \e -> const (pure ()) (e :: SomeException)
  next <- change pool $ \st ->
    let st' = st {stateDone = stateDone st + 1}
     in case Map.minView (stateQueue st) of
          Just (j, rest) | stateRunning st <= stateLimit st -> (st' {stateQueue = rest}, Just j)
          _ -> (st' {stateRunning = stateRunning st - 1, stateThreads = IntSet.delete n (stateThreads st)}, Nothing)
  -- The last call, so that a thread with much to do keeps no stack.
  maybe (pure ()) (worker unmask n pool) next

-- | The state of a pool.
statusOf :: Pool -> IO PoolStatus
statusOf pool = change pool $ \st ->
  (st, PoolStatus (stateLimit st) (stateRunning st) (Map.size (stateQueue st)) (stateDone st))

-- | Change the number of calls that run at once. If it is lowered, running calls go on;
-- if it is raised, queued calls start.
setLimit :: Pool -> Int -> IO ()
setLimit pool n = mask_ $ do
  jobs <- change pool $ \st ->
    let limit = max 1 n
        (now, later) = Map.splitAt (limit - stateRunning st) (stateQueue st)
     in ( st {stateLimit = limit, stateQueue = later, stateRunning = stateRunning st + Map.size now},
          now
        )
  unless (Map.null jobs) (mapM_ (startWorker pool) jobs)
