-- |
-- Calls that can only block (2007, section 4.6): opening a file, resolving a name,
-- a library that knows no other way. They run on a bounded number of threads of
-- their own, each of which occupies an OS thread while its call blocks; further
-- calls queue, and the queue can be looked at.
--
-- The calling thread waits, interruptibly, like for any other operation. A call
-- that has begun cannot be taken back: if its caller is interrupted the call goes
-- on, and what it returns is disposed of.
--
-- The action should block in @safe@ foreign calls, as those of @base@, @unix@ and
-- @network@ do; an @unsafe@ call that blocks stops the whole capability.
module Weft.Blocking
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

import Control.Concurrent (forkIO, myThreadId)
import Control.Concurrent.MVar
import Control.Exception
import Control.Monad (unless, void, when)
import Data.IORef
import qualified Data.Sequence as Seq
import GHC.Conc (labelThread)
import System.IO.Unsafe (unsafePerformIO)

-- | A bounded number of threads and a queue.
newtype Pool = Pool (IORef State)

-- | Changed atomically, by any thread. Invariant: something is queued only while
-- 'stateRunning' is at the limit or above it.
data State = State
  { stateLimit :: !Int,
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

-- | A pool that runs at most so many calls at once (at least one). Its threads
-- come when they are needed and go when the queue is empty.
newPool :: Int -> IO Pool
newPool limit = Pool <$> newIORef (State (max 1 limit) 0 Seq.empty 0)

-- | The program's pool, for 16 calls at once unless 'setPoolLimit' says otherwise.
programPool :: Pool
programPool = unsafePerformIO (newPool 16)
{-# NOINLINE programPool #-}

-- | Run a call that may block on the program's pool. Its exceptions are thrown
-- here.
blocking :: IO a -> IO a
blocking = runIn programPool

-- | The same, with a way to dispose of the result when the caller was interrupted
-- before it came: closing a file that was opened after all, say.
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
  mask_ $
    do
      box <- newEmptyMVar
      -- Full once the caller has given up.
      abandoned <- newIORef False
      wanted <- newIORef True
      submit pool $ do
        still <- readIORef wanted
        when still $ do
          r <- try act
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
submit (Pool ref) job = do
  startNow <- atomicModifyIORef' ref $ \st ->
    if stateRunning st < stateLimit st
      then (st {stateRunning = stateRunning st + 1}, True)
      else (st {stateQueue = stateQueue st Seq.|> job}, False)
  when startNow (void (forkIO (labelled >> worker (Pool ref) job)))
  where
    labelled = myThreadId >>= (`labelThread` "weft blocking call")

-- | Run a call and then what is queued.
worker :: Pool -> IO () -> IO ()
worker (Pool ref) job = do
  job `catch` \e -> const (pure ()) (e :: SomeException)
  next <- atomicModifyIORef' ref $ \st ->
    let st' = st {stateDone = stateDone st + 1}
     in case Seq.viewl (stateQueue st) of
          j Seq.:< rest | stateRunning st <= stateLimit st -> (st' {stateQueue = rest}, Just j)
          _ -> (st' {stateRunning = stateRunning st - 1}, Nothing)
  mapM_ (worker (Pool ref)) next

-- | How a pool is doing.
statusOf :: Pool -> IO PoolStatus
statusOf (Pool ref) = do
  st <- readIORef ref
  pure (PoolStatus (stateLimit st) (stateRunning st) (Seq.length (stateQueue st)) (stateDone st))

-- | Change how many calls run at once. With a lower number those that run go on;
-- with a higher one, queued calls start.
setLimit :: Pool -> Int -> IO ()
setLimit pool@(Pool ref) n = do
  jobs <- atomicModifyIORef' ref $ \st ->
    let limit = max 1 n
        (now, later) = Seq.splitAt (limit - stateRunning st) (stateQueue st)
     in ( st {stateLimit = limit, stateQueue = later, stateRunning = stateRunning st + Seq.length now},
          now
        )
  unless (Seq.null jobs) (mapM_ (forkIO . worker pool) jobs)
