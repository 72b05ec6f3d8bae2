-- |
-- Threads with an identity, which can be killed, waited for and labelled; thread-local variables and priorities. A
-- thread gets an identity when 'forkThread' forks it, or when it first calls 'myThread'. It takes about 200 bytes;
-- other threads do not have one.
--
-- __Deadlocks.__ Only the object that a parked thread waits for refers to it. When that object
-- is garbage, nothing can wake the thread, and it is garbage too. If the thread has handlers or an identity,
-- @BlockedIndefinitelyOnMVar@ is raised in it, so that its handlers run. If it has a label, it is also
-- reported ('Weft.Hybrid.Scheduler.settingsOnDeadlock'). As with GHC's threads, this happens at a garbage collection.
--
-- @since 0.1.0
module Weft.Hybrid.Thread
  ( -- * Identity
    Thread,
    myThread,
    forkThread,
    forkLabelled,

    -- * Ending
    killThread,
    throwTo,
    wait,
    waitCatch,
    watch,

    -- * Labels
    label,
    setLabel,

    -- * Local variables and priorities
    Local,
    newLocal,
    getLocal,
    setLocal,
    getPriority,
    setPriority,
  )
where

import Control.Exception (AsyncException (ThreadKilled), Exception, SomeException, toException)
import Control.Monad (when)
import Control.Monad.Catch (throwM)
import qualified Data.IntMap.Strict as IntMap
import GHC.Exts (Any)
import Unsafe.Coerce (unsafeCoerce)
import Weft.Hybrid.Labels
import Weft.Hybrid.Monad
import Weft.Hybrid.Park hiding (throwTo)
import qualified Weft.Hybrid.Park as Park
import Weft.Hybrid.Trace
import Weft.Sys

-- Identity ------------------------------------------------------------------------------

-- | The calling thread's identity. It gets one if it has none.
myThread :: Hybrid Thread
myThread = call $ \l ctx k -> case contextIdentity ctx of
  Known t -> pure $! k t
  Anonymous -> do
    t <- newThread (loopScheduler l)
    pure (Enter (identified t ctx) (\() -> k t))

-- | 'fork' a thread with an identity.
forkThread :: Hybrid () -> Hybrid Thread
forkThread = start ""

-- | 'forkThread' with a label, which appears in reports of deadlocks and of uncaught exceptions.
forkLabelled :: String -> Hybrid () -> Hybrid Thread
forkLabelled = start

start :: String -> Hybrid () -> Hybrid Thread
start name body = call $ \l ctx k -> do
  t <- newThread (loopScheduler l)
  when (not (null name)) (labelled t name)
  let !inner = With (extraOf ctx) {extraHandlers = NoHandlers, extraThread = Known t}
  onLoop l inner (taskOf body)
  pure $! k t

-- Ending ----------------------------------------------------------------------------------

-- | Raise 'ThreadKilled' in a thread; see 'throwTo'.
killThread :: Thread -> Hybrid ()
killThread t = throwTo t ThreadKilled

-- | Raise an exception in a thread: at once if it is the calling thread, or if the thread waits; otherwise
-- when the thread is switched to next, at the end of its turn at the latest. A masked thread gets it where it waits, or
-- when it unmasks. Returns
-- without waiting for that. No effect if the thread has ended.
throwTo :: Exception e => Thread -> e -> Hybrid ()
throwTo t e = call $ \l ctx k -> case contextIdentity ctx of
  Known self | self == t -> pure (Throw (toException e))
  _ -> do
    Park.throwTo (onLoop l) t (toException e)
    pure $! k ()

-- | Wait until a thread has ended. If an exception ended it, that is raised here too, as by @async@'s @wait@.
wait :: Thread -> Hybrid ()
wait t = waitCatch t >>= either throwM pure

-- | Wait until a thread has ended. 'Left' is the exception that ended it.
waitCatch :: Thread -> Hybrid (Either SomeException ())
waitCatch t = call $ \l ctx k -> do
  number <- newNumber
  transact queue l ctx $ \watchers -> case watchers of
    Ended outcome -> Go watchers (pure $! k outcome)
    Watchers ws -> Wait number (\w -> Watchers (IntMap.insert number (Joins l w k) ws))
  where
    queue =
      WaitQueue
        { queueState = threadWatchers t,
          queueRemove = const forget,
          queueWaiters = \watchers -> case watchers of
            Watchers ws -> [(n, w) | (n, Joins _ w _) <- IntMap.toList ws]
            Ended _ -> [],
          queueRegistered = \watchers -> case watchers of
            Watchers ws -> IntMap.member registeredKey ws
            Ended _ -> True,
          queueSetRegistered = \b watchers -> case watchers of
            Watchers ws
              | b -> Watchers (IntMap.insert registeredKey (Hears (const (pure ()))) ws)
              | otherwise -> Watchers (IntMap.delete registeredKey ws)
            ended -> ended
        }
    -- Numbers of watchers begin with 1; 0 is that of "Weft.Hybrid.Shutdown".
    registeredKey = -1
    forget n (Watchers ws) | IntMap.member n ws = Just (Watchers (IntMap.delete n ws), pure ())
    forget _ _ = Nothing

-- | Run an action when a thread ends, on the thread's loop; at once if it has ended. The action must not block. Any
-- thread may call this.
watch :: Thread -> (Either SomeException () -> IO ()) -> IO ()
watch t act = newNumber >>= go
  where
    go n = do
      watchers <- readRef (threadWatchers t)
      case watchers of
        Ended outcome -> act outcome
        Watchers ws -> do
          ok <- casRef (threadWatchers t) watchers (Watchers (IntMap.insert n (Hears act) ws))
          if ok then pure () else go n

-- Labels ------------------------------------------------------------------------------------

-- | A thread's label; empty if it has none.
label :: Thread -> Hybrid String
label t = nonBlocking (readRef (threadLabel t))

-- | Label the calling thread.
setLabel :: String -> Hybrid ()
setLabel name = myThread >>= \t -> nonBlocking (labelled t name)

-- Local variables and priorities ----------------------------------------------------------------

-- | A thread-local variable. A forked thread begins with the
-- value that its parent has at that moment.
data Local a = Local !Int a

-- | A new variable, with its value in threads that have not set it.
newLocal :: a -> IO (Local a)
newLocal a = (\n -> Local n a) <$> newNumber

-- | The calling thread's value.
getLocal :: Local a -> Hybrid a
getLocal (Local n def) = call $ \_ ctx k ->
  pure $! k (maybe def unsafeCoerce (IntMap.lookup n (extraLocals (extraOf ctx))))

-- | Set the calling thread's value. O(log n) in the number of variables that it has set.
setLocal :: Local a -> a -> Hybrid ()
setLocal (Local n _) a = modifyExtra (\x -> x {extraLocals = IntMap.insert n anything (extraLocals x)})
  where
    anything = unsafeCoerce a :: Any

-- | The calling thread's priority, for the policies that use it ("Weft.Hybrid.Policy").
getPriority :: Hybrid Int
getPriority = call $ \_ ctx k -> pure $! k (contextPriority ctx)

-- | Set the calling thread's priority, from its next switch on. The initial priority is 0; a forked thread inherits its
-- parent's.
setPriority :: Int -> Hybrid ()
setPriority p = modifyExtra (\x -> x {extraPriority = p})
