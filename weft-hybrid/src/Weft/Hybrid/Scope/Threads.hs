-- |
-- A set of hybrid threads that end together: the bookkeeping below "Weft.Hybrid.Scope", as "Weft.Scope.Threads" is for
-- GHC's threads. All threads of a set are told to end before any of them is awaited.
--
-- Hybrid threads of any loop may start threads in a set; one at a time tells them to end and waits for that, the set's
-- owner.
module Weft.Hybrid.Scope.Threads
  ( Threads,
    newThreads,

    -- * Starting
    Run (..),
    startThread,

    -- * Ending
    tellAll,
    endWork,
    awaitWork,
    awaitAll,
    orTwice,
  )
where

import Control.Exception (AsyncException (ThreadKilled), BlockedIndefinitelyOnMVar, SomeException, toException)
import Control.Monad (unless, void, when)
import Control.Monad.Catch (catch, finally)
import qualified Data.IntMap.Strict as IntMap
import Weft.Core.Time (Duration, after, never)
import Weft.Hybrid.Flag
import Weft.Hybrid.Labels
import Weft.Hybrid.Monad
import Weft.Hybrid.Park hiding (Waiter)
import Weft.Hybrid.Trace hiding (Waiter)
import Weft.Scope.Types (Child (..), Kind (..), Overdue (..))
import qualified Weft.Scope.Types as Scope
import Weft.Sys (Ref, newRef, now, readBoxedArray, readRef, sizeBoxedArray, swapRef, updateRef)

-- | A set of threads. Changed atomically ('change'), by its threads as they end, by those that start threads in it, and
-- by its owner.
--
-- The states of a thread:
--
-- > (not there) --'startThread'--> entered, unless the set has been told to end
-- > entered     --its end-------> (not there), by the loop that ends it
--
-- A hybrid thread has its identity before it begins, so an entry can be told to end as soon as it is there: the thread
-- then gets the exception when it begins. 'tellAll' takes the list of entries in the change after which there are no
-- more of them, so none is missed.
newtype Threads = Threads (Ref State)

data State = State
  { -- | The number of the next thread.
    stateNext :: !Int,
    -- | Threads of the kind 'Work' that have not ended.
    stateWorking :: !Int,
    -- | All threads that have not ended, by their numbers.
    stateEntries :: !(IntMap.IntMap Thread),
    stateEnd :: !End
  }

-- | How the set ends, and who waits: what a thread that begins or ends leaves as it is.
data End = End
  { -- | Written by the owner.
    endTold :: !Bool,
    -- | Whether 'awaitWork' waits no more. Written by threads that fail.
    endWorkOver :: !Bool,
    -- | What the owner waits for. Written by the owner.
    endWaiter :: !Waiter
  }

-- | The flag is raised when the condition holds. The waiter of an owner that has gone on meanwhile stays until the next
-- one replaces it.
data Waiter = NoWaiter | ForWork !Flag | ForAll !Flag

-- | A set without threads.
newThreads :: IO Threads
newThreads = Threads <$> newRef (State 0 0 IntMap.empty (End False False NoWaiter))

-- | Change the state; the state before.
change :: Threads -> (State -> State) -> IO State
change (Threads ref) = updateRef ref
{-# INLINE change #-}

-- Starting -----------------------------------------------------------------------------

-- | What a thread does.
data Run = Run
  { -- | Runs unmasked. Its last node is 'Ret'.
    runBody :: Task,
    -- | Runs masked, with the exception that ended the body, or that it has no result.
    runFailed :: SomeException -> Hybrid (),
    -- | Whether it has a result, or has run 'runFailed'. Read when the thread has ended.
    runSettled :: IO Bool,
    -- | For a body that ends by 'ret', without a result.
    runNoResult :: SomeException
  }

-- | Start a thread; 'Nothing' if the set has been told to end. It inherits priority and thread-local values of the
-- calling thread, whose loop and context are given, and is counted until it has ended, in whatever way. Part of a step,
-- so it is not interrupted. O(log n) for n threads of the set.
startThread :: Loop -> Context -> Threads -> Child -> Run -> IO (Maybe Thread)
startThread l ctx threads (Child kind place name) run = do
  t <- newThread (loopScheduler l)
  before <- change threads $ \st ->
    if endTold (stateEnd st)
      then st
      else
        st
          { stateNext = stateNext st + 1,
            stateWorking = stateWorking st + weight kind,
            stateEntries = IntMap.insert (stateNext st) t (stateEntries st)
          }
  if endTold (stateEnd before)
    then pure Nothing
    else do
      let n = stateNext before
          -- The handler is there, and exceptions are let in, from the first moment on.
          !inner =
            With
              (extraOf ctx)
                { extraHandlers = Handler (\e -> unHybrid (runFailed run e) (\() -> Ret)) Masked NoHandlers,
                  extraMask = Unmasked,
                  extraThread = Known t
                }
      -- Nobody else watches it before it has begun.
      _ <- swapRef (threadWatchers t) (Watchers (IntMap.singleton ownKey (Hears (const (over t n)))))
      mapM_ (labelled t) name
      case place of
        Scope.Here -> onLoop l inner (runBody run)
        Scope.On c -> do
          loops <- readRef (schedulerLoops (loopScheduler l))
          target <- readBoxedArray loops (c `mod` sizeBoxedArray loops)
          toLoop target inner (runBody run)
      pure (Just t)
  where
    -- By the loop on which the thread has ended.
    over t n = do
      settled <- runSettled run
      if settled then endNumber threads kind n else withoutResult t n
    -- The thread's end goes on in another thread.
    withoutResult t n = do
      next <- placeIn (threadScheduler t)
      next (With (extraOf Plain) {extraMask = Uninterruptible}) . taskOf $
        runFailed run (runNoResult run) `finally` nonBlocking (endNumber threads kind n)
{-# INLINE startThread #-}

-- | The key of the watcher that counts. Numbers of watchers begin with 1, -1 is that of registered queues
-- ("Weft.Hybrid.Thread"), and 0 that of "Weft.Hybrid.Shutdown", which is to come after this one: an owner that is
-- resumed by it is counted until then.
ownKey :: Int
ownKey = -2

-- | The thread with that number has ended.
endNumber :: Threads -> Kind -> Int -> IO ()
endNumber threads kind n =
  changeAndWake threads $ \st ->
    st {stateWorking = stateWorking st - weight kind, stateEntries = IntMap.delete n (stateEntries st)}
{-# NOINLINE endNumber #-}

-- | What a thread adds to 'stateWorking'.
weight :: Kind -> Int
weight kind = case kind of
  Work -> 1
  Daemon -> 0

-- | Change the state, and wake the owner if what it waits for holds now. It may be woken again later, which has no
-- effect.
changeAndWake :: Threads -> (State -> State) -> IO ()
changeAndWake threads f = do
  before <- change threads f
  let wake waiter flag = when (reached (f before) waiter) (raiseFlag flag)
  case endWaiter (stateEnd before) of
    NoWaiter -> pure ()
    waiter@(ForWork flag) -> wake waiter flag
    waiter@(ForAll flag) -> wake waiter flag
{-# INLINE changeAndWake #-}

reached :: State -> Waiter -> Bool
reached st waiter = case waiter of
  NoWaiter -> False
  ForWork _ -> endWorkOver (stateEnd st) || stateWorking st == 0
  ForAll _ -> IntMap.null (stateEntries st)

-- Ending -------------------------------------------------------------------------------

-- | Tell all threads to end, by 'ThreadKilled'. It may not have arrived yet when this returns. No thread can be started
-- in the set any more. A second call has no effect. For the owner, uninterruptibly; a step for each thread.
tellAll :: Threads -> Hybrid ()
tellAll threads = do
  before <- nonBlocking (change threads (atEnd (\end -> end {endTold = True})))
  unless (endTold (stateEnd before)) (mapM_ tell (stateEntries before))
  where
    tell t = call $ \l _ k -> throwTo (onLoop l) t (toException ThreadKilled) >> (pure $! k ())

-- | Let 'awaitWork' return at once, now and later. Any thread may call this.
endWork :: Threads -> IO ()
endWork threads = changeAndWake threads (atEnd (\end -> end {endWorkOver = True}))

atEnd :: (End -> End) -> State -> State
atEnd f st = st {stateEnd = f (stateEnd st)}

-- | Wait until no thread of the kind 'Work' is left, or 'endWork' was called. Interruptible. For the owner.
awaitWork :: Threads -> Hybrid ()
awaitWork threads = void (await ForWork maxBound threads)

-- | Wait until no thread is left. If they have not ended after the given duration, the function is called, with the
-- labels and numbers of those that are left, and decides; it is called once, on the loop's thread. For the owner.
awaitAll :: Duration -> ([String] -> IO Overdue) -> Threads -> Hybrid ()
awaitAll patience overdue threads@(Threads ref) = do
  gone <- await ForAll patience threads
  unless gone $ do
    left <- nonBlocking (readRef ref >>= mapM named . IntMap.toList . stateEntries)
    decision <- nonBlocking (overdue left)
    when (decision == WaitOn) (void (await ForAll maxBound threads))
  where
    named (n, t) = do
      name <- readRef (threadLabel t)
      pure ((if null name then "thread" else name) <> " (hybrid thread " <> show n <> " of its scope)")

-- | Wait until a condition holds; 'False' if it does not after the given duration.
await :: (Flag -> Waiter) -> Duration -> Threads -> Hybrid Bool
await condition patience threads@(Threads ref) = do
  flag <- nonBlocking newFlag
  let waiter = condition flag
  before <- nonBlocking (change threads (atEnd (\end -> end {endWaiter = waiter})))
  if reached before waiter
    then pure True
    else do
      due <- if patience == maxBound then pure never else nonBlocking (after patience <$> now)
      raised <- persistently (awaitFlagUntil due flag)
      if raised then pure True else nonBlocking ((`reached` waiter) <$> readRef ref)

-- | Wait again if the collector finds that nothing can end the wait. It finds threads that wait for one another all at
-- once, and sends each the exception: a thread of the set, say, and the owner, which waits for its end.
persistently :: Hybrid a -> Hybrid a
persistently act = act `catch` \e -> const (persistently act) (e :: BlockedIndefinitelyOnMVar)

-- | 'persistently', but only once: threads that wait for one another in a circle are to find out.
orTwice :: Hybrid a -> Hybrid a
orTwice act = act `catch` \e -> const act (e :: BlockedIndefinitelyOnMVar)
