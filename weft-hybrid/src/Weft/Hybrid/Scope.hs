-- |
-- Hybrid threads that end with the block of code that starts them (structured concurrency): "Weft.Scope" for hybrid
-- threads, with the same functions and the same laws. Settings, children and exceptions are the types of that module.
--
-- What holds, whatever the threads do, for a call of 'withScope':
--
-- 1. /No thread outlives it./ When it returns or throws, all threads that were forked in the scope have ended, with
--    their finalizers. What they use can be released next.
-- 2. /No exception is lost./ An exception that ends a thread ends the scope, and 'withScope' throws it. Those that come
--    later are reported by the scheduler ('Weft.Hybrid.Scheduler.settingsOnException'), as those of
--    'Weft.Hybrid.fork' are.
-- 3. /All are told first, then all are awaited./ A scope that ends sends 'ThreadKilled' to all of its threads before
--    it waits for any of them: one that takes its time keeps no other alive.
-- 4. /Asynchronous exceptions reach everybody./ One that interrupts the scope's owner, the thread that called
--    'withScope', ends the scope, and is thrown when all threads have ended. That wait is not interruptible; threads
--    that do not end are named ('scopeOnOverdue').
-- 5. /A scope is not taken for a deadlock./ If a thread gets @BlockedIndefinitelyOnMVar@, those that wait for it do
--    not get it as well, but what becomes of that thread. (The collector finds only threads that nothing refers to, and
--    a scope refers to its threads: as long as the owner can be reached, they wait on.)
--
-- A scope ends when its block has returned and the threads of 'fork' have ended, or at the first exception of the
-- block or of a thread. Then the rest is told to end: threads of 'forkDaemon', for which the end does not wait as
-- long as they work, and, after an exception, all.
--
-- > withScope $ \scope -> do
-- >   _ <- forkDaemon scope (forever (sleep (seconds 60) >> refresh cache))
-- >   users <- fork scope (ask database)
-- >   prices <- fork scope (ask service)
-- >   page <$> await users <*> await prices
--
-- If @ask service@ throws, @ask database@ is killed, both have ended when 'withScope' throws that exception, and so has
-- the daemon. Functions for frequent cases: 'race', 'concurrently' and 'forConcurrently'.
--
-- Threads run unmasked, whatever the masking state of the thread that forks them, and inherit its priority and its
-- thread-local values. A scope may be given to other hybrid threads, in particular its own, which may fork in it; its
-- threads may have scopes of their own.
--
-- == Where hybrid threads differ
--
-- * An exception reaches a thread where it waits, when it is switched to, at the end of its turn, or when it unmasks
--   ('Weft.Hybrid.Thread.throwTo'). A step is never interrupted: a thread that computes, or runs 'IO' by
--   'Weft.Hybrid.nonBlocking', ends after that step, and the scope waits for it. Cut long computations by
--   'Weft.Hybrid.yield'.
-- * A call of 'Weft.Hybrid.Blocking.blocking' that has begun goes on in its pool when its thread has been killed, and
--   its result is dropped. The first law is about hybrid threads: what such a call uses is to be released by the call.
-- * A thread that ends by 'Weft.Hybrid.ret' has no result. That counts as its exception, a user error. An owner that
--   calls 'Weft.Hybrid.ret' ends without ending its scope, as it would leave any @bracket@.
-- * When the scheduler is stopped, its threads are killed, owners and children alike. After
--   'Weft.Hybrid.Scheduler.settingsGrace' it waits no more: threads that are left, with their scopes, do not go on.
-- * A thread of a scope has an identity, and takes a few hundred bytes (@doc\/rationale\/lifetimes.md@).
--
-- 'fork' is also a name of "Weft.Hybrid" and "Weft.Hybrid.Class": import one of the modules qualified, or
-- @hiding (fork)@.
--
-- @since 0.1.0
module Weft.Hybrid.Scope
  ( -- * Scopes
    Scope,
    withScope,
    withScopeUsing,
    ScopeSettings (..),
    defaultScopeSettings,
    Overdue (..),

    -- * Threads
    fork,
    forkOn,
    forkDaemon,
    forkUsing,
    Child (..),
    Kind (..),
    Place (..),
    work,
    daemon,
    ScopeEnded (..),

    -- * Their results
    Task,
    taskThread,
    await,
    awaitCatch,
    cancelTask,

    -- * Frequent cases
    race,
    concurrently,
    forConcurrently,
    forConcurrently_,
  )
where

import Control.Exception (AsyncException (ThreadKilled), BlockedIndefinitelyOnMVar (..), Exception (..), SomeAsyncException (..), SomeException, asyncExceptionFromException, asyncExceptionToException)
import Control.Monad (replicateM_, unless, void, when)
import Control.Monad.Catch (mask, onException, throwM, try, uninterruptibleMask_)
import Data.Foldable (toList)
import Data.Maybe (isJust)
import Weft.Core.Boundary (contained)
import Weft.Hybrid.Flag
import Weft.Hybrid.MVar
import Weft.Hybrid.Monad hiding (fork, throw)
import Weft.Hybrid.Park (onLoop, retract)
import qualified Weft.Hybrid.Park as Park
import Weft.Hybrid.Scope.Threads
import Weft.Hybrid.Thread (myThread, throwTo)
import Weft.Hybrid.Trace (Loop (..), Mask (..), Scheduler (..), Thread (..), ThreadState (..), Trace (..), contextMask)
import Weft.Scope.Types
import Weft.Sys (Ref, newRef, readRef, swapRef, updateRef, writeRef)

-- | A scope: its owner, its threads, and how far it has come. Hybrid threads of any loop of the owner's scheduler may
-- use it, also after its end: nothing can be forked in it then.
data Scope = Scope !Thread !Threads !(Ref State)

-- | Changed atomically, by threads that fail and by the owner:
--
-- > Open    --a thread fails--> Failing, and the thread interrupts the owner, and raises the flag
-- > Open    --the owner leaves--> Closing Nothing
-- > Failing --the owner leaves--> Closing (Just first exception)
-- > Closing Nothing --a thread fails--> Closing (Just its exception)
-- > Closing --all threads have ended, or are left (by the owner)--> Over
--
-- From 'Closing' on nobody begins to interrupt the owner. One thread may have begun before: the owner waits for its
-- flag, and takes back the interruption if that has not been raised yet. So nothing of the scope reaches it later. In
-- 'Over' there are threads only if they were left, and the scheduler reports their exceptions.
data State = Open | Failing !SomeException !Flag | Closing !(Maybe SomeException) | Over

-- | Interrupts the owner of a scope in which a thread has failed.
newtype ChildFailed = ChildFailed (Ref State)

instance Show ChildFailed where
  show _ = "Weft.Hybrid.Scope: a thread of this scope has failed"

instance Exception ChildFailed where
  toException = asyncExceptionToException
  fromException = asyncExceptionFromException

-- | Run an action with a new scope, and end the scope. The calling thread gets an identity
-- ('Weft.Hybrid.Thread.myThread').
--
-- Throws the first exception that ended the action or one of the threads. An asynchronous exception that interrupts the
-- calling thread takes precedence over exceptions of threads. A synchronous exception of the action after a thread has
-- failed counts as its consequence, and is dropped.
withScope :: (Scope -> Hybrid a) -> Hybrid a
withScope = withScopeUsing defaultScopeSettings

-- | 'withScope' with other settings. 'scopeOnOverdue' runs on the loop's thread and must not block.
withScopeUsing :: ScopeSettings -> (Scope -> Hybrid a) -> Hybrid a
withScopeUsing settings body =
  call (\_ ctx k -> pure $! k (contextMask ctx)) >>= \outside -> mask $ \restore -> do
    owner <- myThread
    threads <- nonBlocking newThreads
    state <- nonBlocking (newRef Open)
    result <- try (restore (body (Scope owner threads state)) <* awaitWork threads)
    -- Not interruptible: an exception would leave threads behind. It is thrown afterwards.
    (failed, ended') <- uninterruptibleMask_ $ do
      before <- nonBlocking (updateRef state left)
      ended' <- try (tellAll threads >> awaitAll (scopePatience settings) (scopeOnOverdue settings) threads)
      failed <- case before of
        Failing _ sent -> True <$ awaitFlag sent
        _ -> pure False
      -- The collector may have found a deadlock of this thread meanwhile, with one of a thread that it waited for.
      nonBlocking (retract owner (\e -> isOwn state e || isDeadlock e))
      pure (failed, ended')
    found <- nonBlocking (swapRef state Over)
    case (firstOf found, ended', result) of
      (first, Left x, _) -> mapM_ unhandled first >> throwM (x :: SomeException)
      (Just e, _, Left x)
        | not failed || isForeign state x -> unhandled e >> throwM x
      (Just e, _, _) -> do
        -- One from elsewhere, which has come during that wait, takes its place as soon as it is let in.
        overtaken <- nonBlocking (isInterrupted owner)
        when (overtaken && outside == Unmasked) (unhandled e)
        throwM e
      (Nothing, _, _) -> either throwM pure result
  where
    left st = case st of
      Open -> Closing Nothing
      Failing e _ -> Closing (Just e)
      _ -> st
    firstOf st = case st of
      Closing first -> first
      _ -> Nothing
    isOwn state x = case fromException x of
      Just (ChildFailed s) -> s == state
      Nothing -> False
    isInterrupted t = do
      st <- readRef (threadState t)
      pure $ case st of
        Active _ (_ : _) -> True
        _ -> False
    isDeadlock x = isJust (fromException x :: Maybe BlockedIndefinitelyOnMVar)
    -- Whether an asynchronous exception is another one than that of a thread which has failed.
    isForeign state x = not (isOwn state x) && isAsynchronous x
    isAsynchronous x = case fromException x of
      Just (SomeAsyncException _) -> True
      Nothing -> False

-- | Have the scheduler report an exception that cannot be thrown, as that of a thread which dies of it.
unhandled :: SomeException -> Hybrid ()
unhandled e = call $ \l _ k -> do
  contained (unless expected (schedulerOnException (loopScheduler l) Nothing e))
  pure $! k ()
  where
    expected = isKill e || isJust (fromException e :: Maybe BlockedIndefinitelyOnMVar)

isKill :: SomeException -> Bool
isKill e = case fromException e of
  Just ThreadKilled -> True
  _ -> False

-- Threads ------------------------------------------------------------------------------

-- | The result of a thread, now or later.
data Task a = Task
  { taskId :: !Thread,
    -- | Filled by the thread, or by the one that goes on with its end.
    taskResult :: !(MVar (Either SomeException a)),
    -- | Whether it was told to end, by 'cancelTask'. Written before that, read by the thread when it has ended.
    taskCancelled :: !(Ref Bool)
  }

-- | The thread itself. Exceptions can be thrown to it; if they end it, they end its scope. (To 'Weft.Hybrid.wait' for it
-- is no way to its result or its exception: that is 'await'.)
taskThread :: Task a -> Thread
taskThread = taskId

-- | Run an action in a thread of the scope, and wait for its end before the scope ends. Throws 'ScopeEnded' if the
-- scope is ending.
fork :: Scope -> Hybrid a -> Hybrid (Task a)
fork = forkUsing work

-- | 'fork' on the given loop of the scheduler, modulo their number. The thread is put there; loops that are idle take
-- threads from others.
forkOn :: Int -> Scope -> Hybrid a -> Hybrid (Task a)
forkOn c = forkUsing work {childPlace = On c}

-- | Run an action in a thread that is killed when the scope ends. If it ends before, by returning, nothing happens; an
-- exception ends the scope.
forkDaemon :: Scope -> Hybrid a -> Hybrid (Task a)
forkDaemon = forkUsing daemon

-- | 'fork' for threads of either kind, with a place and a label. O(log n) for n threads of the scope. Does not wait.
forkUsing :: Child -> Scope -> Hybrid a -> Hybrid (Task a)
forkUsing = forkTelling (pure ())
-- The kind and the place are known in 'fork' then, and no closure has to hold them.
{-# INLINE forkUsing #-}

-- | 'forkUsing', with what tells somebody that the thread has failed. It must not wait.
forkTelling :: Hybrid () -> Child -> Scope -> Hybrid a -> Hybrid (Task a)
forkTelling tellFailed child scope@(Scope _ threads _) act = call $ \l ctx k -> do
  box <- newEmptyMVarIO
  cancelled <- newRef False
  started <-
    startThread l ctx threads child $
      Run
        { -- The result is in its place by the thread's last step: an exception that comes now is too late.
          runBody = \() -> unHybrid act (\a -> unHybrid (putMVar box (Right a)) (\() -> Ret)),
          runFailed = ended scope cancelled (\why -> putMVar box (Left why) >> tellFailed),
          runSettled = isJust <$> tryReadMVarIO box,
          runNoResult = noResult
        }
  case started of
    Nothing -> pure (Throw (toException ScopeEnded))
    Just t -> pure $! k (Task t box cancelled)
{-# INLINE forkTelling #-}

-- | The exception of a thread that ends by 'ret'.
noResult :: SomeException
noResult = toException (userError "Weft.Hybrid.Scope: the thread has ended without a result")
{-# NOINLINE noResult #-}

-- | The end of a thread by an exception. The function is called with what those that await it get: after the state has
-- changed, and before the owner is interrupted, as an owner that cannot be interrupted may be one of them. Runs masked,
-- and does not wait. An exception that it throws is for the scheduler to report.
ended :: Scope -> Ref Bool -> (SomeException -> Hybrid ()) -> SomeException -> Hybrid ()
ended (Scope owner threads state) cancelled settle e = do
  told <- nonBlocking (readRef cancelled)
  if told && isKill e
    then settle (toException ScopeEnded)
    else do
      sent <- nonBlocking newFlag
      before <- nonBlocking . updateRef state $ \st -> case st of
        Open -> Failing e sent
        Closing Nothing | not expected -> Closing (Just e)
        _ -> st
      case before of
        Open -> settle e >> interrupt sent
        Closing _ | expected -> settle (toException ScopeEnded)
        Over | expected -> settle (toException ScopeEnded)
        Closing Nothing -> settle e
        _ -> settle e >> throwM e
  where
    -- How a thread ends that was told to.
    expected = isKill e || fromException e == Just ScopeEnded
    interrupt sent = call $ \l _ k -> do
      endWork threads
      Park.throwTo (onLoop l) owner (toException (ChildFailed state))
      raiseFlag sent
      pure $! k ()
{-# NOINLINE ended #-}

-- | Wait for a thread's end and return its result, or throw its exception: 'ScopeEnded' if it was told to end.
-- Interruptible. Any number of hybrid threads may wait, also after the scope's end.
await :: Task a -> Hybrid a
await task = awaitCatch task >>= either throwM pure

-- | 'await' that returns the thread's exception.
awaitCatch :: Task a -> Hybrid (Either SomeException a)
awaitCatch task = orTwice (readMVar (taskResult task))

-- | Send 'ThreadKilled' to the thread and wait until it has ended. Its scope goes on. The wait is interruptible.
cancelTask :: Task a -> Hybrid ()
cancelTask task = do
  nonBlocking (writeRef (taskCancelled task) True)
  throwTo (taskId task) ThreadKilled
  void (awaitCatch task)

-- Frequent cases -----------------------------------------------------------------------

-- | Run two actions at once, and return the result of the one that ends first. The other one is killed, and has ended
-- when this returns. An exception of either is thrown.
race :: Hybrid a -> Hybrid b -> Hybrid (Either a b)
race a b = withScope $ \scope -> do
  first <- newEmptyMVar
  let contend side act = forkTelling (void (tryPutMVar first Nothing)) daemon scope (act >>= tryPutMVar first . Just . side)
  _ <- contend Left a
  _ <- contend Right b
  -- Without a result the scope has failed, and throws why.
  orTwice (readMVar first) >>= maybe (throwM ScopeEnded) pure

-- | Run two actions at once, the second one in the calling thread, and return both results. If one throws, the other is
-- killed or interrupted.
concurrently :: Hybrid a -> Hybrid b -> Hybrid (a, b)
concurrently a b = withScope $ \scope -> do
  first <- fork scope a
  second <- b
  (\r -> (r, second)) <$> await first

-- | Run an action for each element, at most the given number (at least one) of them at once, and return the results in
-- order. If one throws, the others are killed, and further ones do not begin.
forConcurrently :: Traversable t => Int -> t a -> (a -> Hybrid b) -> Hybrid (t b)
forConcurrently most xs act = do
  cells <- traverse (\x -> (,) x <$> newEmptyMVar) xs
  forConcurrently_ most cells (\(x, cell) -> act x >>= putMVar cell)
  traverse (takeMVar . snd) cells

-- | 'forConcurrently' without results.
forConcurrently_ :: Foldable t => Int -> t a -> (a -> Hybrid b) -> Hybrid ()
forConcurrently_ most xs act = withScope $ \scope -> do
  left <- nonBlocking (newRef (toList xs))
  let worker = nonBlocking (updateRef left (drop 1)) >>= mapM_ (\x -> act x `onException` nonBlocking (swapRef left []) >> worker) . take 1
  replicateM_ (length (take (max 1 most) (toList xs))) (fork scope worker)
