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
import qualified Data.Sequence as Seq
import GHC.Conc (labelThread)
import System.IO.Unsafe (unsafePerformIO)
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
    stateQueue :: !(Seq.Seq (IO ())),
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
emptyState generation limit = PoolState generation limit 0 Seq.empty 0

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
runInOr pool dispose act =
  mask $ \restore ->
    do
      box <- newEmptyMVar
      -- 'True' when the first of the two has come: the caller has been interrupted, or the call has ended.
      abandoned <- newIORef False
      wanted <- newIORef True
      submit pool $ do
        still <- readIORef wanted
        when still $ do
          r <- try (restore act)
          putMVar box r
          gone <- atomicModifyIORef' abandoned (\g -> (True, g))
          when gone (either (ignore . asException) dispose r)
      takeMVar box `onException` do
        writeIORef wanted False
        came <- atomicModifyIORef' abandoned (\g -> (True, g))
        when came (tryTakeMVar box >>= mapM_ (either (ignore . asException) dispose))
      >>= either throwIO pure
  where
    ignore _ = pure ()
    asException :: SomeException -> SomeException
    asException = id

-- | Start a call, or queue it, without waiting for it. Its exceptions are dropped.
submit :: Pool -> IO () -> IO ()
submit pool job = mask_ $ do
  -- Masked, as the thread that is counted here has to be started.
  startNow <- change pool $ \st ->
    if stateRunning st < stateLimit st
      then (st {stateRunning = stateRunning st + 1}, True)
      else (st {stateQueue = stateQueue st Seq.|> job}, False)
  when startNow (startWorker pool job)

-- | Start a thread of the pool. It does not inherit the masking state of the thread that starts it: calls run unmasked,
-- unless they mask exceptions themselves.
startWorker :: Pool -> IO () -> IO ()
startWorker pool job = void (mask_ (forkIOWithUnmask (\unmask -> labelled >> worker unmask pool job)))
  where
    labelled = myThreadId >>= (`labelThread` "weft blocking call")

-- | Run a call, and then the queued ones.
worker :: (IO () -> IO ()) -> Pool -> IO () -> IO ()
worker unmask pool job = do
  unmask job `catch` \e -> const (pure ()) (e :: SomeException)
  next <- change pool $ \st ->
    let st' = st {stateDone = stateDone st + 1}
     in case Seq.viewl (stateQueue st) of
          j Seq.:< rest | stateRunning st <= stateLimit st -> (st' {stateQueue = rest}, Just j)
          _ -> (st' {stateRunning = stateRunning st - 1}, Nothing)
  mapM_ (worker unmask pool) next

-- | The state of a pool.
statusOf :: Pool -> IO PoolStatus
statusOf pool = change pool $ \st ->
  (st, PoolStatus (stateLimit st) (stateRunning st) (Seq.length (stateQueue st)) (stateDone st))

-- | Change the number of calls that run at once. If it is lowered, running calls go on;
-- if it is raised, queued calls start.
setLimit :: Pool -> Int -> IO ()
setLimit pool n = mask_ $ do
  jobs <- change pool $ \st ->
    let limit = max 1 n
        (now, later) = Seq.splitAt (limit - stateRunning st) (stateQueue st)
     in ( st {stateLimit = limit, stateQueue = later, stateRunning = stateRunning st + Seq.length now},
          now
        )
  unless (Seq.null jobs) (mapM_ (startWorker pool) jobs)
