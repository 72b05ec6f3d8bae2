{-# LANGUAGE RankNTypes #-}

-- |
-- Threads that end with the block of code that starts them (structured concurrency), for GHC's threads.
--
-- What holds, whatever the threads do, for a call of 'withScope':
--
-- 1. /No thread outlives it./ When it returns or throws, all threads that were forked in the scope have ended, with
--    their finalizers. What they use can be released next.
-- 2. /No exception is lost./ An exception that ends a thread ends the scope, and 'withScope' throws it. Those that come
--    later go to the program's handler for uncaught exceptions, as those of 'Control.Concurrent.forkIO' do.
-- 3. /All are told first, then all are awaited./ A scope that ends throws 'ThreadKilled' to all of its threads before
--    it waits for any of them: one that takes its time keeps no other alive.
-- 4. /Asynchronous exceptions reach everybody./ One that interrupts the scope's owner, the thread that called
--    'withScope', ends the scope, and is thrown when all threads have ended. That wait is not interruptible; threads
--    that do not end are named ('scopeOnOverdue').
-- 5. /A scope is not taken for a deadlock./ If a thread gets @BlockedIndefinitelyOnMVar@, those that wait for it do
--    not get it as well, but what becomes of that thread. (The collector throws it only to threads that nothing
--    refers to, and a scope refers to its threads, as an @Async@ does to its thread: as long as the owner can be
--    reached, they wait on.)
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
-- Threads run unmasked, whatever the masking state of the thread that forks them. A scope may be given to other
-- threads, in particular its own, which may fork in it; its threads may have scopes of their own.
--
-- A child of 'System.Posix.Process.forkProcess' has none of the threads, nor the owner: a scope of the parent's does not
-- end there, and 'await' waits for ever. Scopes that the child begins are its own.
--
-- 'forkOn' is also a name of "Control.Concurrent": import one of the two modules qualified, or @hiding (forkOn)@.
--
-- @since 0.1.0
module Weft.Scope
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

import Control.Concurrent (ThreadId, forkIO, myThreadId)
import Control.Concurrent.MVar
import Control.Exception
import Control.Monad (replicateM_, void)
import Data.Foldable (toList)
import Data.IORef
import GHC.Conc (getUncaughtExceptionHandler)
import Weft.Scope.Threads
import Weft.Scope.Types
import Weft.Sys.Label (threadLabel)

-- | A scope: its owner, its threads, and how far it has come. It may be used from any thread, also after its end:
-- nothing can be forked in it then.
data Scope = Scope !ThreadId !Threads !(IORef State)

-- | Changed atomically, by threads that fail and by the owner:
--
-- > Open    --a thread fails--> Failing, and the thread interrupts the owner
-- > Open    --the owner leaves--> Closing Nothing
-- > Failing --the owner leaves--> Closing (Just first exception)
-- > Closing Nothing --a thread fails--> Closing (Just its exception)
-- > Closing --all threads have ended, or are left (by the owner)--> Over
--
-- From 'Closing' on the owner is not interrupted any more. Only threads of the scope throw to the owner, and they do it
-- interruptibly: one that is blocked there when the scope closes is interrupted, and throws nothing. When all threads
-- have ended, nothing of theirs can reach the owner. In 'Over' there are threads only if they were left ('Leave'), and
-- their exceptions go to the program's handler.
data State = Open | Failing !SomeException | Closing !(Maybe SomeException) | Over

-- | Interrupts the owner of a scope in which a thread has failed.
newtype ChildFailed = ChildFailed (IORef State)

instance Show ChildFailed where
  show _ = "Weft.Scope: a thread of this scope has failed"

instance Exception ChildFailed where
  toException = asyncExceptionToException
  fromException = asyncExceptionFromException

-- | Run an action with a new scope, and end the scope.
--
-- Throws the first exception that ended the action or one of the threads. An asynchronous exception that interrupts the
-- calling thread takes precedence over exceptions of threads. A synchronous exception of the action after a thread has
-- failed counts as its consequence, and is dropped.
withScope :: (Scope -> IO a) -> IO a
withScope = withScopeUsing defaultScopeSettings

-- | 'withScope' with other settings.
withScopeUsing :: ScopeSettings -> (Scope -> IO a) -> IO a
withScopeUsing settings body = mask $ \restore -> do
  owner <- myThreadId
  threads <- newThreads
  state <- newIORef Open
  result <- try (restore (body (Scope owner threads state)) <* awaitWork threads)
  failed <- atomicModifyIORef' state $ \st -> case st of
    Failing e -> (Closing (Just e), True)
    Open -> (Closing Nothing, False)
    _ -> (st, False)
  -- Not interruptible: an exception would leave threads behind. It is thrown afterwards.
  ended' <- try (uninterruptibleMask_ (tellAll threads >> awaitAll (scopePatience settings) (scopeOnOverdue settings) threads))
  found <- atomicModifyIORef' state (\st -> (Over, st))
  case (firstOf found, ended', result) of
    (first, Left x, _) -> mapM_ unhandled first >> throwIO (x :: SomeException)
    (Just e, _, Left x)
      | not failed || isForeign state x -> unhandled e >> throwIO x
    (Just e, _, _) -> throwIO e
    (Nothing, _, _) -> either throwIO pure result
  where
    firstOf st = case st of
      Closing first -> first
      _ -> Nothing
    -- Whether an asynchronous exception is another one than that of a thread which has failed.
    isForeign state x
      | Just (ChildFailed s) <- fromException x, s == state = False
      | Just (SomeAsyncException _) <- fromException x = True
      | otherwise = False

-- | Give an exception that cannot be thrown to the program's handler for uncaught exceptions, except those that the
-- threads of 'forkIO' do not give it.
unhandled :: SomeException -> IO ()
unhandled e
  | Just ThreadKilled <- fromException e = pure ()
  | Just BlockedIndefinitelyOnMVar <- fromException e = pure ()
  | Just BlockedIndefinitelyOnSTM <- fromException e = pure ()
  | otherwise = void (forkIO (getUncaughtExceptionHandler >>= \handler -> handler e))

-- Threads ------------------------------------------------------------------------------

-- | The result of a thread, now or later.
data Task a = Task
  { taskId :: !ThreadId,
    taskResult :: !(MVar (Either SomeException a)),
    -- | Whether it was told to end, by 'cancelTask'. Written before that, read by the thread when it has ended.
    taskCancelled :: !(IORef Bool)
  }

-- | The thread itself. Exceptions can be thrown to it; if they end it, they end its scope.
taskThread :: Task a -> ThreadId
taskThread = taskId

-- | Run an action in a thread of the scope, and wait for its end before the scope ends. Throws 'ScopeEnded' if the
-- scope is ending.
fork :: Scope -> IO a -> IO (Task a)
fork = forkUsing work

-- | 'fork' on the given capability, modulo their number. The thread stays there.
forkOn :: Int -> Scope -> IO a -> IO (Task a)
forkOn c = forkUsing work {childPlace = On c}

-- | Run an action in a thread that is killed when the scope ends. If it ends before, by returning, nothing happens; an
-- exception ends the scope.
forkDaemon :: Scope -> IO a -> IO (Task a)
forkDaemon = forkUsing daemon

-- | 'fork' for threads of either kind, with a place and a label. O(log n) for n threads of the scope.
forkUsing :: Child -> Scope -> IO a -> IO (Task a)
forkUsing = forkTelling (pure ())
-- See Note [What a fork costs].
{-# INLINE forkUsing #-}

-- | 'forkUsing', with what tells somebody that the thread has failed. It must not block.
forkTelling :: IO () -> Child -> Scope -> IO a -> IO (Task a)
forkTelling tellFailed (Child kind place label) scope@(Scope _ threads _) act = do
  box <- newEmptyMVar
  cancelled <- newIORef False
  started <- startThread threads kind place encoded $ \unmask -> do
    r <- try (unmask act)
    case r of
      Right _ -> putMVar box r
      Left e -> ended unmask scope cancelled (\why -> putMVar box (Left why) >> tellFailed) e
  maybe (throwIO ScopeEnded) (\t -> pure (Task t box cancelled)) started
  where
    -- No thunk, if there is none.
    encoded = case label of
      Nothing -> Nothing
      Just text -> Just (threadLabel text)
-- See Note [What a fork costs].
{-# INLINE forkTelling #-}

-- | The end of a thread by an exception. The function is called with what those that await it get: after the state has
-- changed, and before the owner is interrupted, as an owner that cannot be interrupted may be one of them. Runs masked.
ended :: (IO () -> IO ()) -> Scope -> IORef Bool -> (SomeException -> IO ()) -> SomeException -> IO ()
ended unmask (Scope owner threads state) cancelled settle e = do
  told <- readIORef cancelled
  if told && killed
    then settle (toException ScopeEnded)
    else do
      (result, next) <- atomicModifyIORef' state $ \st -> case st of
        Open -> (Failing e, (e, interrupt))
        Closing _ | expected -> (st, (toException ScopeEnded, pure ()))
        Over | expected -> (st, (toException ScopeEnded, pure ()))
        Closing Nothing -> (Closing (Just e), (e, pure ()))
        _ -> (st, (e, unhandled e))
      settle result >> next
  where
    -- How a thread ends that was told to.
    expected = killed || fromException e == Just ScopeEnded
    killed = case fromException e of
      Just ThreadKilled -> True
      _ -> False
    -- The owner may not be interruptible, and wait for this thread. If this thread is interrupted itself, the owner is
    -- leaving, or somebody else has done it. (Unmasked, as it may have been forked uninterruptibly.)
    interrupt = endWork threads >> reach
    reach = unmask (throwTo owner (ChildFailed state)) `catch` \x -> const again (x :: SomeException)
    again =
      readIORef state >>= \st -> case st of
        Failing _ -> reach
        _ -> pure ()
{-# NOINLINE ended #-}

-- Note [What a fork costs]. Most of what a fork takes more than that of base is memory: the closures that the new thread
-- runs. So 'forkUsing' and 'startThread' are inlined, up to 'fork', where the kind and the place are known, and what
-- few threads come to ('ended') is not. Figures are in doc/rationale/lifetimes.md.

-- | Wait for a thread's end and return its result, or throw its exception: 'ScopeEnded' if it was told to end.
-- Interruptible. Any number of threads may wait, also after the scope's end.
await :: Task a -> IO a
await task = awaitCatch task >>= either throwIO pure

-- | 'await' that returns the thread's exception.
awaitCatch :: Task a -> IO (Either SomeException a)
awaitCatch task = orTwice (readMVar (taskResult task))

-- | Throw 'ThreadKilled' to the thread and wait until it has ended. Its scope goes on. The wait is interruptible.
cancelTask :: Task a -> IO ()
cancelTask task = do
  writeIORef (taskCancelled task) True
  tell ThreadKilled (taskId task)
  void (awaitCatch task)

-- Frequent cases -----------------------------------------------------------------------

-- | Run two actions at once, and return the result of the one that ends first. The other one is killed, and has ended
-- when this returns. An exception of either is thrown.
race :: IO a -> IO b -> IO (Either a b)
race a b = withScope $ \scope -> do
  first <- newEmptyMVar
  let contend side act = forkTelling (void (tryPutMVar first Nothing)) daemon scope (act >>= tryPutMVar first . Just . side)
  _ <- contend Left a
  _ <- contend Right b
  -- Without a result the scope has failed, and throws why.
  orTwice (readMVar first) >>= maybe (throwIO ScopeEnded) pure

-- | Run two actions at once, the second one in the calling thread, and return both results. If one throws, the other is
-- killed or interrupted.
concurrently :: IO a -> IO b -> IO (a, b)
concurrently a b = withScope $ \scope -> do
  first <- fork scope a
  second <- b
  (\r -> (r, second)) <$> await first

-- | Run an action for each element, at most the given number (at least one) of them at once, and return the results in
-- order. If one throws, the others are killed, and further ones do not begin.
forConcurrently :: Traversable t => Int -> t a -> (a -> IO b) -> IO (t b)
forConcurrently most xs act = do
  cells <- traverse (\x -> (,) x <$> newEmptyMVar) xs
  forConcurrently_ most cells (\(x, cell) -> act x >>= putMVar cell)
  traverse (takeMVar . snd) cells

-- | 'forConcurrently' without results.
forConcurrently_ :: Foldable t => Int -> t a -> (a -> IO b) -> IO ()
forConcurrently_ most xs act = withScope $ \scope -> do
  left <- newIORef (toList xs)
  let worker = atomicModifyIORef' left (\rest -> (drop 1 rest, take 1 rest)) >>= mapM_ (\x -> act x `onException` writeIORef left [] >> worker)
  replicateM_ (length (take (max 1 most) (toList xs))) (fork scope worker)
