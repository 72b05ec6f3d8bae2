-- |
-- Pools of threads for calls that can only block. "Weft.Blocking" says what they promise.
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

-- | Changed atomically, by any thread, through 'change'. Invariant: something is queued only while
-- 'stateRunning' is at the limit or above it.
data PoolState = PoolState
  { -- | The process that the rest is about, by 'forkGeneration'.
    stateGeneration :: !Int,
    stateLimit :: !Int,
    -- | Threads that run a call now.
    stateRunning :: !Int,
    stateQueue :: !(Seq.Seq (IO ())),
    stateDone :: !Int
  }

-- | How a pool is doing.
data PoolStatus = PoolStatus
  { -- | The most calls that run at once.
    poolLimit :: !Int,
    -- | Calls that run now.
    poolRunning :: !Int,
    -- | Calls that wait for a thread.
    poolQueued :: !Int,
    -- | Calls that have ended.
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

-- | Change the state of this process. What a forked child finds is its parent's: only the limit is
-- taken over.
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

-- | 'blocking', with a way to dispose of a result that arrives after the caller was
-- interrupted: to close a file that was opened after all, say.
blockingOr :: (a -> IO ()) -> IO a -> IO a
blockingOr = runInOr programPool

-- | How the program's pool is doing.
poolStatus :: IO PoolStatus
poolStatus = statusOf programPool

-- | Change how many calls run at once on the program's pool.
setPoolLimit :: Int -> IO ()
setPoolLimit = setLimit programPool

-- | 'blocking' on a pool of one's own.
runIn :: Pool -> IO a -> IO a
runIn pool = runInOr pool (const (pure ()))

-- | 'blockingOr' on a pool of one's own.
runInOr :: Pool -> (a -> IO ()) -> IO a -> IO a
runInOr pool dispose act =
  mask $ \restore ->
    do
      box <- newEmptyMVar
      -- Full once the caller has given up.
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

-- | Start a call, or queue it, without waiting for it. What it throws is lost.
submit :: Pool -> IO () -> IO ()
submit pool job = do
  startNow <- change pool $ \st ->
    if stateRunning st < stateLimit st
      then (st {stateRunning = stateRunning st + 1}, True)
      else (st {stateQueue = stateQueue st Seq.|> job}, False)
  when startNow (startWorker pool job)

-- | A thread of the pool. Its masking state is not that of who happened to start it: jobs run unmasked,
-- unless they say otherwise.
startWorker :: Pool -> IO () -> IO ()
startWorker pool job = void (mask_ (forkIOWithUnmask (\unmask -> labelled >> worker unmask pool job)))
  where
    labelled = myThreadId >>= (`labelThread` "weft blocking call")

-- | Run a call and then what is queued.
worker :: (IO () -> IO ()) -> Pool -> IO () -> IO ()
worker unmask pool job = do
  unmask job `catch` \e -> const (pure ()) (e :: SomeException)
  next <- change pool $ \st ->
    let st' = st {stateDone = stateDone st + 1}
     in case Seq.viewl (stateQueue st) of
          j Seq.:< rest | stateRunning st <= stateLimit st -> (st' {stateQueue = rest}, Just j)
          _ -> (st' {stateRunning = stateRunning st - 1}, Nothing)
  mapM_ (worker unmask pool) next

-- | How a pool is doing.
statusOf :: Pool -> IO PoolStatus
statusOf pool = change pool $ \st ->
  (st, PoolStatus (stateLimit st) (stateRunning st) (Seq.length (stateQueue st)) (stateDone st))

-- | Change how many calls run at once. With a lower number those that run go on;
-- with a higher one, queued calls start.
setLimit :: Pool -> Int -> IO ()
setLimit pool n = do
  jobs <- change pool $ \st ->
    let limit = max 1 n
        (now, later) = Seq.splitAt (limit - stateRunning st) (stateQueue st)
     in ( st {stateLimit = limit, stateQueue = later, stateRunning = stateRunning st + Seq.length now},
          now
        )
  unless (Seq.null jobs) (mapM_ (startWorker pool) jobs)
