{-# LANGUAGE RankNTypes #-}

-- |
-- The managers of a program: one for each capability, each run by a thread that
-- stays there, the dispatcher (Voellmy and others 2013, 3.3). They start when they are first needed
-- and share one registry.
--
-- With a watchdog the first manager starts those of all capabilities, since one without a manager is not watched.
--
-- When the number of capabilities is raised, a new one gets its dispatcher when a thread first waits
-- there. When it is lowered, GHC moves the threads of the removed capabilities, dispatchers too, and
-- all registrations stay valid; GHC does not move them back when it is raised again. A child of
-- 'System.Posix.Process.forkProcess' gets managers and kernel objects of its own
-- when it first needs one.
module Weft.Runtime.Managers
  ( currentManager,
    currentRegistry,
    managers,
    startAll,
    stopManagers,
  )
where

import Control.Concurrent (rtsSupportsBoundThreads)
import Control.Exception (IOException, SomeException, catch, throwIO, try)
import Control.Monad (forM_, join, unless, void, when)
import Data.List (partition)
import Data.Maybe (catMaybes, isNothing)
import Foreign.Ptr (nullPtr)
import Weft.Backend.Choice (chooseBackend)
import Weft.Core.Boundary (contained)
import Weft.Core.Heartbeat (isWatched)
import Weft.Core.Manager
import Weft.Core.Registry (Registry)
import Weft.Core.Timer (Timer, fireTimer, timerDue)
import Weft.FFI.Poll (pollWait)
import Weft.StandardError (reportLine)
import Weft.Sys
import Weft.TimerQueue (newQueue)
import Weft.Watchdog.Bound (boundFromEnvironment)

-- | The managers of one process image.
data Runtime = Runtime
  { -- | The process image ('forkGeneration').
    runtimeGeneration :: !Int,
    runtimeRegistry :: !(Registry Manager),
    -- | The managers by capability. Written under the lock, read by any thread.
    runtimeManagers :: !(Ref (BoxedArray (Maybe Manager))),
    runtimeLock :: !(MVar ()),
    -- | Timers of stopped managers, while no manager can be started. The thread that adds the first one starts 'retry',
    -- which takes them out. Changed atomically.
    runtimeStranded :: !(Ref [Timer])
  }

theRuntime :: Ref Runtime
theRuntime = globalRef "Weft.Runtime.Managers.theRuntime" newRuntime
{-# NOINLINE theRuntime #-}

-- | The generation for which a thread is making a runtime.
-- Changed by compare-and-swap.
claimed :: WordArray
claimed = globalWords "Weft.Runtime.Managers.claimed" 1
{-# NOINLINE claimed #-}

newRuntime :: IO Runtime
newRuntime = do
  generation <- forkGeneration
  registry <- newManagerRegistry
  none <- newBoxedArray 0 Nothing
  Runtime generation registry <$> newRef none <*> newMVar () <*> newRef []

-- | The runtime of this process. A forked child finds its parent's and replaces it: threads that do not exist in the
-- child may hold its locks.
runtime :: IO Runtime
runtime = do
  rt <- readRef theRuntime
  generation <- forkGeneration
  if generation == runtimeGeneration rt then pure rt else replace rt generation
  where
    -- Masked from the claim on: other threads wait for the one that made it.
    replace old generation = join . mask_ $ do
      before <- readWord claimed 0
      found <- if before == generation then pure before else casWord claimed 0 before generation
      if before == generation || found /= before
        then pure (yield >> runtime)
        else do
          fresh <- newRuntime
          writeRef theRuntime fresh
          inherited <- running old
          pure fresh <$ mapM_ discard inherited

-- | The registry that all dispatchers share.
currentRegistry :: IO (Registry Manager)
currentRegistry = runtimeRegistry <$> runtime

-- | The manager of the caller's capability. It is started if there is none. If the kernel has no descriptor for that,
-- the manager of another capability serves the caller; throws an 'IOError' if there is no other one.
currentManager :: IO Manager
currentManager = do
  rt <- runtime
  cap <- myCapability
  found <- managerAt rt cap
  maybe (start rt cap) pure found

managerAt :: Runtime -> Int -> IO (Maybe Manager)
managerAt rt cap = do
  arr <- readRef (runtimeManagers rt)
  if cap >= sizeBoxedArray arr
    then pure Nothing
    else do
      slot <- readBoxedArray arr cap
      case slot of
        Nothing -> pure Nothing
        Just m -> do
          alive <- isAlive m
          pure (if alive then slot else Nothing)

start :: Runtime -> Int -> IO Manager
start rt cap = withMVar (runtimeLock rt) $ \() -> do
  found <- managerAt rt cap
  case found of
    Just m -> pure m
    Nothing -> mask_ $ do
      boundFromEnvironment
      -- Before the back end, since its setting may be refused, and nothing would close the back end.
      queue <- newQueue
      made <- try (chooseBackend >>= newManager cap (runtimeRegistry rt) queue resettle)
      case made of
        Right m -> m <$ (begin m >> isWatched (managerHeartbeat m) >>= \watched -> when watched startAll)
        -- A program without a free descriptor can still wait for time, as its accept loop may do until there is one.
        Left e -> running rt >>= firstAlive >>= maybe (throwIO (e :: IOException)) pure
  where
    begin m = do
      ready <- newEmptyMVar
      _ <- forkPinned cap ("weft dispatcher " <> show cap) (dispatcher m ready)
      -- Uninterruptible until the thread has run for the first time: an exception here would leave a
      -- dispatcher that is not in the table.
      uninterruptibleMask_ (takeMVar ready)
      store rt cap m
    firstAlive [] = pure Nothing
    firstAlive (m : ms) = isAlive m >>= \alive -> if alive then pure (Just m) else firstAlive ms

-- | For a watchdog: let the capabilities that have no manager start theirs. Each does so by a thread of its own, which
-- this function does not wait for.
startAll :: IO ()
startAll = do
  rt <- runtime
  capabilities <- getNumCapabilities
  forM_ [0 .. capabilities - 1] $ \cap -> do
    found <- managerAt rt cap
    when (isNothing found) . void $ forkPinned cap ("weft dispatcher " <> show cap <> ", start") (\unmask -> unmask (void currentManager) `catch` refused)
  where
    -- Without a free descriptor the capability is not watched; who waits there hears of it.
    refused :: IOException -> IO ()
    refused _ = pure ()

-- | Give the present dispatcher a timer whose dispatcher was stopped.
resettle :: Timer -> IO ()
resettle t = try currentManager >>= either stranded (`moveTimer` t)
  where
    stranded :: IOException -> IO ()
    stranded _ = runtime >>= \rt -> strand rt [t]

-- | Keep timers for which no manager can be started, as there is no free descriptor.
strand :: Runtime -> [Timer] -> IO ()
strand rt ts = unless (null ts) $ do
  before <- updateRef (runtimeStranded rt) (ts <>)
  cap <- myCapability
  case before of
    [] -> void (forkPinned cap "weft timers without a dispatcher" (\unmask -> unmask (retry rt)))
    _ -> pure ()

-- | Wait a little, fire the timers that are due, and try again to start a manager for the others.
retry :: Runtime -> IO ()
retry rt = do
  -- With -threaded by a system call, since a delay would need a manager.
  if rtsSupportsBoundThreads then void (pollWait nullPtr 0 10000000) else threadDelay 10000
  timers <- swapRef (runtimeStranded rt) []
  t <- now
  let (due, later) = partition ((<= t) . timerDue) timers
  forM_ due fireTimer
  found <- try currentManager
  case found of
    Right m -> forM_ later (moveTimer m)
    Left e -> const (strand rt later) (e :: IOException)

-- | A dispatcher; it runs until it is stopped. If the back end fails, or another thread throws at this
-- one, a line on standard error says so, and waiting threads find a new manager.
dispatcher :: Manager -> MVar () -> (forall a. IO a -> IO a) -> IO ()
dispatcher m ready unmask = do
  _ <- initialize m
  putMVar ready ()
  unmask (loop m) `catch` failed
  where
    failed :: SomeException -> IO ()
    failed e = do
      requestStop m
      _ <- step m
      -- At the end, since the exception may be one that cannot be shown.
      contained (reportLine ("weft: dispatcher " <> show (managerIndex m) <> " failed and is replaced: " <> show e))

store :: Runtime -> Int -> Manager -> IO ()
store rt cap m = do
  arr <- readRef (runtimeManagers rt)
  if cap < sizeBoxedArray arr
    then writeBoxedArray arr cap (Just m)
    else do
      bigger <- newOwnArray (max (cap + 1) (2 * sizeBoxedArray arr)) Nothing
      copyBoxedArray arr bigger
      writeBoxedArray bigger cap (Just m)
      writeRef (runtimeManagers rt) bigger

running :: Runtime -> IO [Manager]
running rt = do
  arr <- readRef (runtimeManagers rt)
  catMaybes <$> mapM (readBoxedArray arr) [0 .. sizeBoxedArray arr - 1]

-- | The managers of this process that have been started, by capability.
managers :: IO [Manager]
managers = running =<< runtime

-- | Stop all dispatchers and release their kernel objects. Threads that wait for descriptors go on waiting with new
-- dispatchers, which also take over pending delays and timers: each fires once, at its time, and can be cancelled. For
-- a program that releases everything before it ends, or that changes the back end while nothing happens. Interruptible
-- while it waits for the dispatchers to end; they all end then too.
stopManagers :: IO ()
stopManagers = do
  rt <- runtime
  -- Masked: a dispatcher that has left the table can no longer be found, so it is told to stop in any case.
  mask_ $ do
    stopped <- withMVar (runtimeLock rt) $ \() -> do
      ms <- running rt
      none <- newBoxedArray 0 Nothing
      writeRef (runtimeManagers rt) none
      ms <$ mapM_ requestStop ms
    mapM_ shutdown stopped
