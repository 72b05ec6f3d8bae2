-- |
-- Threads that have an identity: they can be killed, waited for, labelled; and what a
-- thread carries with it. A thread gets its identity when it is forked with one or
-- first asks for it, about 200 bytes; others do without.
--
-- __Deadlocks.__ A parked thread is referred to only by what it waits for. When that
-- is garbage nothing can wake the thread, and it is garbage too. One that has handlers or an identity is
-- told so first: 'BlockedIndefinitelyOnMVar' is raised in it, so its handlers run. One with a label is
-- reported besides ('Weft.Hybrid.Scheduler.settingsOnDeadlock'). That happens when the collector comes by, as with GHC's own.
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

    -- * What a thread carries
    Local,
    newLocal,
    getLocal,
    setLocal,
    getPriority,
    setPriority,
  )
where

import Control.Exception (AsyncException (ThreadKilled), BlockedIndefinitelyOnMVar (..), Exception, SomeException, toException)
import Control.Monad (when)
import Control.Monad.Catch (throwM)
import qualified Data.IntMap.Strict as IntMap
import GHC.Exts (Any)
import Unsafe.Coerce (unsafeCoerce)
import Weft.Hybrid.Monad
import Weft.Hybrid.Park hiding (throwTo)
import qualified Weft.Hybrid.Park as Park
import Weft.Hybrid.Trace
import Weft.Hybrid.Weak (whenGarbage)
import Weft.Sys

-- Identity ------------------------------------------------------------------------------

-- | The calling thread's identity, which it gets if it has none.
myThread :: Hybrid Thread
myThread = call $ \l ctx k -> case contextIdentity ctx of
  Known t -> pure $! k t
  Anonymous -> do
    t <- newThread (loopScheduler l)
    pure (Enter (identified t ctx) (\() -> k t))

-- | Start a thread with an identity. What it inherits is as with 'fork'.
forkThread :: Hybrid () -> Hybrid Thread
forkThread = start ""

-- | 'forkThread' with a label, which reports of deadlocks and of uncaught exceptions name.
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

-- | Raise an exception in a thread: at once in the calling thread itself; where it waits, in
-- one that waits; at the next switch to it in one that is ready or runs, which it does
-- for a turn at most. As its masking allows: a masked thread gets it where it waits, or when it unmasks. Returns
-- without waiting for that. No effect on a thread that has ended.
throwTo :: Exception e => Thread -> e -> Hybrid ()
throwTo t e = call $ \l ctx k -> case contextIdentity ctx of
  Known self | self == t -> pure (Throw (toException e))
  _ -> do
    Park.throwTo (onLoop l) t (toException e)
    pure $! k ()

-- | Wait for the end of a thread. The exception that ended it, if one did, is raised here too, as @async@'s @wait@ does.
wait :: Thread -> Hybrid ()
wait t = waitCatch t >>= either throwM pure

-- | Wait for the end of a thread; the exception that ended it, if one did.
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
    -- Numbers of watchers begin with 1; 0 is the end's ("Weft.Hybrid.Shutdown").
    registeredKey = -1
    forget n (Watchers ws) | IntMap.member n ws = Just (Watchers (IntMap.delete n ws), pure ())
    forget _ _ = Nothing

-- | Have an action run when a thread ends, on its loop, or at once if it has. It must not block.
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

labelled :: Thread -> String -> IO ()
labelled t name = do
  before <- readRef (threadLabel t)
  writeRef (threadLabel t) name
  when (null before) (reportDeadlock t)

-- | The state's reference is the key: all that can wake the thread refers to it, and
-- the thread's own context does.
reportDeadlock :: Thread -> IO ()
reportDeadlock t = whenGarbage (threadState t) $ do
  state <- readRef (threadState t)
  stopped <- peekWord (schedulerStop (threadScheduler t)) 0
  case state of
    Waiting {} | stopped == 0 -> do
      name <- readRef (threadLabel t)
      guarded (schedulerOnDeadlock (threadScheduler t) name)
      reportDeadlock t
      place <- placeIn (threadScheduler t)
      Park.throwTo place t (toException BlockedIndefinitelyOnMVar)
    _ -> pure ()

-- What a thread carries -----------------------------------------------------------------------

-- | A variable of which each thread has its own value. A forked thread begins with the
-- value that its parent has then.
data Local a = Local !Int a

-- | A variable that has that value in threads that have not set it.
newLocal :: a -> IO (Local a)
newLocal a = (\n -> Local n a) <$> newNumber

-- | The calling thread's value.
getLocal :: Local a -> Hybrid a
getLocal (Local n def) = call $ \_ ctx k ->
  pure $! k (maybe def unsafeCoerce (IntMap.lookup n (extraLocals (extraOf ctx))))

-- | Set the calling thread's value. O(log variables that it has set).
setLocal :: Local a -> a -> Hybrid ()
setLocal (Local n _) a = modifyExtra (\x -> x {extraLocals = IntMap.insert n anything (extraLocals x)})
  where
    anything = unsafeCoerce a :: Any

-- | The calling thread's priority, for policies that look at it.
getPriority :: Hybrid Int
getPriority = call $ \_ ctx k -> pure $! k (contextPriority ctx)

-- | Set it. 0 is where every thread begins. It counts from the next switch.
setPriority :: Int -> Hybrid ()
setPriority p = modifyExtra (\x -> x {extraPriority = p})
