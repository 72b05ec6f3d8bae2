-- |
-- Parking and resuming a thread, and delivering another thread's exception
-- to it. For modules that implement system calls. Every function may be called from any
-- thread.
--
-- A parked thread is in one place: in the state of an MVar, at the queue of a descriptor,
-- in a timer. Taking it out of that place is one atomic move, and the thread that makes the move resumes it.
-- A thread that sends an exception does the same: it takes the parked thread out, or finds that
-- another thread was faster, and leaves the exception to be raised later. The moves of a thread
-- with an identity are at 'ThreadState'. A thread without an identity is only its continuation.
module Weft.Hybrid.Park
  ( -- * Places for threads that are ready
    Place,
    onLoop,
    toLoop,
    placeIn,
    homePlace,
    withHome,
    isHome,

    -- * Waiting
    Waiter (..),
    parkWith,
    resume,
    awaken,
    uninterruptibly,
    newNumber,

    -- * Identities
    newThread,
    identified,

    -- * The end
    isEarly,

    -- * Waiting in a shared state
    WaitQueue (..),
    Step (..),
    transact,
    numberedFrom,
    registerWait,
    ownedBy,
    lost,

    -- * Exceptions from elsewhere
    throwTo,
    throwInWait,
    takePending,
    retract,
    awaitException,
  )
where

import Control.Exception (BlockedIndefinitelyOnMVar (..), SomeException, toException)
import Control.Monad (unless, void, when)
import Data.Bits
import qualified Data.IntMap.Strict as IntMap
import Weft.Core.Manager (wakeManager)
import Weft.Core.Time (Instant)
import Weft.Hybrid.Blocked
import Weft.Hybrid.Ready
import Weft.Hybrid.Trace
import Weft.Sys

-- | Where to put a thread that is ready.
type Place = Context -> Task -> IO ()

-- | Put a thread into the loop's own queue. For the loop's thread only.
onLoop :: Loop -> Place
onLoop = pushReady . loopReady
{-# INLINE onLoop #-}

-- | Put a thread into a loop's inbox. For any thread. One compare-and-swap; a wake-up if the inbox was empty, which
-- is a system call when the loop sleeps. The loop takes its inbox before it sleeps, so one wake-up serves all that is
-- in it. A GHC thread has masked exceptions: between the two the loop may fall asleep, and whoever comes next does
-- not wake it.
toLoop :: Loop -> Place
toLoop l ctx task = do
  before <- updateRef (loopInbox l) (Mail ctx task)
  case before of
    NoMail -> wakeManager (loopManager l)
    Mail {} -> pure ()

-- | Where a GHC thread puts threads that are ready: into the loop of its capability.
placeIn :: Scheduler -> IO Place
placeIn scheduler = do
  slots <- readRef (schedulerLoops scheduler)
  cap <- myCapability
  toLoop <$> readBoxedArray slots (cap `mod` sizeBoxedArray slots)

-- | The place of a waiter ('withHome'), if this loop resumes it: the given place if it is a thread of the loop's
-- scheduler, else a loop of its own scheduler. One whose scheduler has ended is dropped.
homePlace :: Loop -> Place -> Waiter -> IO Place
homePlace l place w
  | isHome l w = pure place
  | otherwise = schedulerOf (homeNumber w) >>= maybe (pure (\_ _ -> pure ())) placeIn
{-# INLINE homePlace #-}

-- | Whether a waiter ('withHome') is a thread of the loop's scheduler.
isHome :: Loop -> Waiter -> Bool
isHome l w = homeNumber w == schedulerNumber (loopScheduler l)
{-# INLINE isHome #-}

homeNumber :: Waiter -> Int
homeNumber (Waiter ctx n) = case contextIdentity ctx of
  Known t -> schedulerNumber (threadScheduler t)
  Anonymous -> n

-- | The waiter of a thread on that loop, with the scheduler's number, so that it can be resumed there ('homePlace').
withHome :: Loop -> Waiter -> Waiter
withHome l w@(Waiter ctx _) = case contextIdentity ctx of
  Known _ -> w
  Anonymous -> Waiter ctx (schedulerNumber (loopScheduler l))
{-# INLINE withHome #-}

-- Waiting -----------------------------------------------------------------------------

-- | Let a thread that was taken out of the place where it waited go on with that. Only
-- for the one who took it out.
resume :: Place -> Waiter -> Task -> IO ()
resume place w@(Waiter ctx _) task = awaken w >> place ctx task
{-# INLINE resume #-}

-- | It does not wait any more. (Who sends it an exception may have said so before.)
awaken :: Waiter -> IO ()
awaken (Waiter ctx n) = case contextIdentity ctx of
  Anonymous -> pure ()
  Known t -> go t
  where
    go t = do
      state <- readRef (threadState t)
      case state of
        Waiting m es _ _ | m == n -> do
          ok <- casRef (threadState t) state (Active n es)
          if ok then pure () else go t
        _ -> pure ()
{-# INLINE awaken #-}

-- | The context in which an interrupted thread's exception cannot push aside what it
-- is resumed with: nothing is raised until it enters its own context again.
uninterruptibly :: Context -> Context
uninterruptibly (With x) = With x {extraMask = Uninterruptible}
uninterruptibly ctx = ctx

-- | Park a thread. The second argument puts it into the place where it waits; 'False': it
-- is not needed there any more, and the thread goes on with the third. The first takes
-- it out again: 'False' when it is not there. Both may be interrupted by nothing.
--
-- A thread for which an exception has been sent already raises that instead.
parkWith :: Context -> IO Bool -> (Waiter -> IO Bool) -> IO Trace -> IO Trace
parkWith ctx withdraw insert again = case contextIdentity ctx of
  Anonymous -> do
    parked <- insert (Waiter ctx 0)
    if parked then pure Parked else again
  Known t -> begin t
  where
    begin t = do
      state <- readRef (threadState t)
      case state of
        Active n (e : es)
          | contextMask ctx < Uninterruptible -> do
            ok <- casRef (threadState t) state (Active n es)
            if ok then pure (Throw e) else begin t
        Active n es -> do
          let !n' = n + 1
          ok <- casRef (threadState t) state (Waiting n' es ctx withdraw)
          if ok then place t (Waiter ctx n') n' else begin t
        -- Only the thread itself parks, and it runs.
        _ -> pure Ret
    -- Another thread may have sent an exception before the waiter was in its place, and not have found it there.
    place t w n = do
      parked <- insert w
      if not parked
        then awaken w >> again
        else do
          inOrder t
          state <- readRef (threadState t)
          case state of
            Waiting m _ _ _ | m == n -> pure Parked
            _ -> do
              back <- withdraw
              if back then again else pure Parked
{-# INLINE parkWith #-}

-- | A barrier between a compare-and-swap and a read of what the other side did. A thread that parks enters its place
-- and then reads its state. A thread that sends an exception changes the state and then reads the place. One of them
-- has to see the other. Both use plain reads, which on ARM may be done before others see the compare-and-swap, but
-- not before an atomic read.
inOrder :: Thread -> IO ()
inOrder t = void (readWord (schedulerStop (threadScheduler t)) 0)
{-# INLINE inOrder #-}

-- | An identity for a thread of that scheduler.
newThread :: Scheduler -> IO Thread
newThread scheduler =
  Thread <$> newRef (Active 0 []) <*> newRef "" <*> newRef (Watchers IntMap.empty) <*> pure scheduler

-- | The context with an identity.
identified :: Thread -> Context -> Context
identified t ctx = With (extraOf ctx) {extraThread = Known t}

-- | A number that was not there before; not 0.
newNumber :: IO Int
newNumber = (+ 1) <$> addWord numbers 0 1

numbers :: WordArray
numbers = globalWords "Weft.Hybrid.Park.numbers" 1
{-# NOINLINE numbers #-}

-- | For what a timer does: does it run before its time, as the loop ends ("Weft.Hybrid.Shutdown")?
isEarly :: Loop -> Instant -> IO Bool
isEarly l due = do
  stop <- peekWord (schedulerStop (loopScheduler l)) 0
  if stop == 0 then pure False else (< due) <$> now
{-# INLINE isEarly #-}

-- | A state in which threads may wait. It must be evaluated, as pointers to it are
-- compared and swapped.
data WaitQueue s = WaitQueue
  { queueState :: !(Ref s),
    -- | Take out the one with that number: the state after that, and what is to be done then, from any
    -- thread, given where to put threads that can go on.
    queueRemove :: Place -> Int -> s -> Maybe (s, IO ()),
    -- | The waiting threads, by number.
    queueWaiters :: s -> [(Int, Waiter)],
    -- | Is it in the registry of "Weft.Hybrid.Blocked"? Part of the state.
    queueRegistered :: s -> Bool,
    queueSetRegistered :: Bool -> s -> s
  }

-- | One step of an operation on a shared state.
data Step s
  = -- | The next state, and what the thread goes on with.
    Go !s (IO Trace)
  | -- | The thread has to wait: its number in the state, which must be new, and the next state.
    Wait !Int (Waiter -> s)

-- | An operation of a thread that may have to wait. The function is called again if another thread
-- has changed the state. The thread that takes the waiter out of the state has to 'resume' it.
transact :: WaitQueue s -> Loop -> Context -> (s -> Step s) -> IO Trace
transact q l ctx step = attempt'
  where
    attempt' = do
      s <- look
      case step s of
        Go s' act -> swap s s' >>= \ok -> if ok then act else attempt'
        Wait _ _ -> do
          ticket <- newWordArray 1
          -- No thread's number; numbers begin with 0.
          writeWord ticket 0 minBound
          parkWith ctx (withdraw ticket) (insert ticket . ownedBy l) attempt'
    look = readRef (queueState q)
    swap = casRef (queueState q)
    insert ticket w = do
      s <- look
      case step s of
        Go _ _ -> pure False
        Wait n next
          | hasContext ctx && not (queueRegistered q s) -> registerQueue q >> insert ticket w
          | otherwise -> do
            let !s' = next w
            ok <- swap s s'
            -- Once the thread is in the state: until then the number may become another thread's, which an interrupter
            -- would take out instead. One that comes in between takes nothing out, and this thread withdraws itself.
            if ok then True <$ writeWord ticket 0 n else insert ticket w
    withdraw ticket = readWord ticket 0 >>= takeFrom q (toLoop l)
{-# INLINE transact #-}

takeFrom :: WaitQueue s -> Place -> Int -> IO Bool
takeFrom q place n = go
  where
    go = do
      s <- readRef (queueState q)
      case queueRemove q place n s of
        Nothing -> pure False
        Just (!s', after) -> casRef (queueState q) s s' >>= \ok -> if ok then True <$ after else go
{-# INLINE takeFrom #-}

hasContext :: Context -> Bool
hasContext Plain = False
hasContext _ = True
{-# INLINE hasContext #-}

-- | The numbers of waiters, for a queue that keeps in the lowest bit of the next one whether it is
-- registered. They go up by two.
numberedFrom :: Bool -> Int -> Int
numberedFrom True n = n .|. 1
numberedFrom False n = n + (n .&. 1)

-- | The waiter, as one of that loop's scheduler: who finds it in the registry needs to know.
ownedBy :: Loop -> Waiter -> Waiter
ownedBy l w@(Waiter ctx _) = case ctx of
  Plain -> w
  With Extra {extraThread = Known _} -> w
  _ -> Waiter ctx (schedulerNumber (loopScheduler l))
{-# INLINE ownedBy #-}

-- Registered before the state says so: two that are faster than each other register it twice, which does
-- no harm.
registerQueue :: WaitQueue s -> IO ()
registerQueue q = do
  register (queueState q) (Blocked candidates) whenLost
  set True
  where
    whenLost = do
      set False
      stay <- or <$> (candidates >>= mapM lost)
      stay <$ when stay (set True)
    candidates = map candidate . queueWaiters q <$> readRef (queueState q)
    candidate (n, w) = Candidate w (\place -> takeFrom q place n)
    set b = do
      s <- readRef (queueState q)
      let !s' = queueSetRegistered q b s
      ok <- casRef (queueState q) s s'
      if ok then pure () else set b
{-# NOINLINE registerQueue #-}

-- | Register a wait outside of such queues, for as long as the reference lives, if the waiter has a
-- context. The action takes it out.
registerWait :: Ref a -> Waiter -> IO Bool -> IO ()
registerWait key w@(Waiter ctx _) leaveQueue = when (hasContext ctx) (register key (Blocked (pure [candidate])) (lost candidate))
  where
    candidate = Candidate w (const leaveQueue)

-- | Nothing can wake the thread any more: raise 'BlockedIndefinitelyOnMVar' where it waits, so that its handlers
-- run. 'True' means not now, call again: its scheduler is about to stop and will kill it, or it has a label and
-- is reported for that reason ("Weft.Hybrid.Thread").
lost :: Candidate -> IO Bool
lost (Candidate (Waiter ctx n) leaveQueue) = schedulerOf number >>= maybe (pure False) raiseIn
  where
    number = case contextIdentity ctx of
      Known t -> schedulerNumber (threadScheduler t)
      Anonymous -> n
    raiseIn scheduler = do
      place <- placeIn scheduler
      stop <- readWord (schedulerStop scheduler) 0
      if stop /= 0 then pure True else raise place
    raise place = case contextIdentity ctx of
      Known t -> do
        name <- readRef (threadLabel t)
        state <- readRef (threadState t)
        case state of
          Waiting m _ _ _ | m == n -> if null name then False <$ throwInWait n place t blocked else pure True
          _ -> pure False
      Anonymous -> fmap (const False) . when (contextMask ctx < Uninterruptible) $ do
        mine <- leaveQueue place
        when mine (place (uninterruptibly ctx) (\() -> Throw blocked))
    -- In this wait or not at all: a thread that was found with it may just have handled its own exception, and woken it.
    blocked = toException BlockedIndefinitelyOnMVar

-- Exceptions from elsewhere -------------------------------------------------------------

-- | Send a thread an exception: raised where it waits, or at its next system call at
-- which it is rescheduled, as its masking allows. Does not wait for that. No effect
-- on a thread that has ended.
throwTo :: Place -> Thread -> SomeException -> IO ()
throwTo = throwWhere (const True)

-- | 'throwTo' as long as the thread is in the wait of that number, and this is interruptible.
throwInWait :: Int -> Place -> Thread -> SomeException -> IO ()
throwInWait n = throwWhere $ \state -> case state of
  Waiting m _ ctx _ -> m == n && contextMask ctx < Uninterruptible
  _ -> False

-- | 'throwTo', as long as the thread is in such a state.
throwWhere :: (ThreadState -> Bool) -> Place -> Thread -> SomeException -> IO ()
throwWhere wanted place t e = go
  where
    ref = threadState t
    go = do
      state <- readRef ref
      case state of
        _ | not (wanted state) -> pure ()
        Finished -> pure ()
        Active n es -> retry (casRef ref state (Active n (es <> [e])))
        Waiting n es ctx withdraw
          | contextMask ctx == Uninterruptible ->
            retry (casRef ref state (Waiting n (es <> [e]) ctx withdraw))
          | otherwise -> do
            ok <- casRef ref state (Active n es)
            if ok then interrupt ctx withdraw else go
    retry act = act >>= \ok -> if ok then pure () else go
    interrupt ctx withdraw = do
      inOrder t
      withdrawn <- withdraw
      if withdrawn then goesOn >> place (uninterruptibly ctx) (\() -> Throw e) else go
    -- The thread may have found the exception missing and parked again at the same place before it was withdrawn: then
    -- it is this second wait that has ended.
    goesOn = do
      state <- readRef ref
      case state of
        Waiting n es _ _ -> casRef ref state (Active n es) >>= \ok -> unless ok goesOn
        _ -> pure ()

-- | The exception to be raised in a running thread now, if its masking lets any in.
takePending :: Context -> IO (Maybe SomeException)
takePending ctx = case contextIdentity ctx of
  Known t | contextMask ctx == Unmasked -> go t
  _ -> pure Nothing
  where
    go t = do
      state <- readRef (threadState t)
      case state of
        Active n (e : es) -> do
          ok <- casRef (threadState t) state (Active n es)
          if ok then pure (Just e) else go t
        _ -> pure Nothing
{-# INLINE takePending #-}

-- | Take back the exceptions that satisfy the predicate and have not been raised in the thread yet.
retract :: Thread -> (SomeException -> Bool) -> IO ()
retract t unwanted = do
  state <- readRef (threadState t)
  case state of
    Active n es | any unwanted es -> do
      ok <- casRef (threadState t) state (Active n (filter (not . unwanted) es))
      unless ok (retract t unwanted)
    _ -> pure ()

-- | Park for an exception that is known to be on its way, and is raised here.
awaitException :: Context -> IO Trace
awaitException ctx = parkWith ctx (pure True) (\_ -> pure True) (pure Parked)
