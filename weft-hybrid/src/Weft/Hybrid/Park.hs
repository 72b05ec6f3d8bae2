-- |
-- How a thread is put away and resumed, and how another thread's exception reaches
-- it. For those who write system calls; every function may be called from any
-- thread.
--
-- A parked thread is in one place: in the state of an MVar, at the gate of a descriptor,
-- in a timer. Whoever takes it out of there, which is one atomic move, resumes it. So
-- does a thread that sends an exception: it takes it out ('withdraw'), or finds that
-- somebody was faster, and leaves the exception to be raised later. The moves of a thread
-- with an identity are at 'State'; one without is its continuation and nothing else.
module Weft.Hybrid.Park
  ( -- * Places for threads that are ready
    Place,
    onLoop,
    toLoop,

    -- * Waiting
    Waiter (..),
    parkWith,
    resume,
    awaken,
    sheltered,
    newNumber,

    -- * Identities
    newThread,
    identified,

    -- * The end
    isEarly,

    -- * Waiting in a shared state
    Step (..),
    transact,

    -- * Exceptions from elsewhere
    throwTo,
    takePending,
    awaitException,
  )
where

import Control.Exception (SomeException)
import qualified Data.IntMap.Strict as IntMap
import System.IO.Unsafe (unsafePerformIO)
import Weft.Core.Manager (wakeManager)
import Weft.Core.Time (Instant)
import Weft.Hybrid.Ready
import Weft.Hybrid.Trace
import Weft.Sys

-- | Where to put a thread that is ready.
type Place = Context -> Task -> IO ()

-- | Into the loop's own queue; for the loop's thread.
onLoop :: Loop -> Place
onLoop = pushReady . loopReady
{-# INLINE onLoop #-}

-- | Into its inbox; for any thread. One compare-and-swap; a wake-up when the inbox was
-- empty, which is a system call when the loop sleeps. The loop takes its inbox
-- before it sleeps, so one wake-up serves all that is in it.
toLoop :: Loop -> Place
toLoop l ctx task = do
  before <- updateRef (loopInbox l) (Mail ctx task)
  case before of
    NoMail -> wakeManager (loopManager l)
    Mail {} -> pure ()

-- Waiting -----------------------------------------------------------------------------

-- | A parked thread: the context to go on in, and which of its waits it is.
data Waiter = Waiter !Context !Int

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
sheltered :: Context -> Context
sheltered (With x) = With x {extraMask = Uninterruptible}
sheltered ctx = ctx

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
    -- Somebody may have sent an exception before the waiter was in its place, and not have found it there.
    place t w n = do
      parked <- insert w
      if not parked
        then awaken w >> again
        else do
          state <- readRef (threadState t)
          case state of
            Waiting m _ _ _ | m == n -> pure Parked
            _ -> do
              back <- withdraw
              if back then again else pure Parked
{-# INLINE parkWith #-}

-- | An identity for a thread of that scheduler.
newThread :: World -> IO Thread
newThread world =
  Thread <$> newRef (Active 0 []) <*> newRef "" <*> newRef (Watchers IntMap.empty) <*> pure world

-- | The context with an identity.
identified :: Thread -> Context -> Context
identified t ctx = With (extraOf ctx) {extraThread = Known t}

-- | A number that was not there before; not 0.
newNumber :: IO Int
newNumber = (+ 1) <$> addCell numbers 0 1

numbers :: Cells
numbers = unsafePerformIO (newCells 1)
{-# NOINLINE numbers #-}

-- | For what a timer does: does it run before its time, as the loop ends ("Weft.Hybrid.Ending")?
isEarly :: Loop -> Instant -> IO Bool
isEarly l due = do
  stop <- peekCell (worldStop (loopWorld l)) 0
  if stop == 0 then pure False else (< due) <$> now
{-# INLINE isEarly #-}

-- | One step of an operation on a shared state.
data Step s
  = -- | The next state, and what the thread goes on with.
    Go !s (IO Trace)
  | -- | The thread has to wait: its number in the state, which must be new, and the next state.
    Wait !Int (Waiter -> s)

-- | An operation on a state that is moved by compare-and-swap (of pointers: what is put
-- there must be evaluated), for a thread that may have
-- to wait in it. The function is asked again when somebody else was faster. Who takes
-- the waiter out of the state has to 'resume' it. The third argument takes out a thread
-- that is interrupted; the state after that, and what is to be done then, from any thread.
transact :: IO s -> (s -> s -> IO Bool) -> (Int -> s -> Maybe (s, IO ())) -> Context -> (s -> Step s) -> IO Trace
transact look swap remove ctx step = attempt'
  where
    attempt' = do
      s <- look
      case step s of
        Go s' act -> swap s s' >>= \ok -> if ok then act else attempt'
        Wait _ _ -> do
          ticket <- newCells 1
          parkWith ctx (withdraw ticket) (insert ticket) attempt'
    insert ticket w = do
      s <- look
      case step s of
        Go _ _ -> pure False
        Wait n next -> do
          writeCell ticket 0 n
          let !s' = next w
          ok <- swap s s'
          if ok then pure True else insert ticket w
    withdraw ticket = do
      n <- readCell ticket 0
      s <- look
      case remove n s of
        Nothing -> pure False
        Just (!s', after) -> swap s s' >>= \ok -> if ok then True <$ after else withdraw ticket
{-# INLINE transact #-}

-- Exceptions from elsewhere -------------------------------------------------------------

-- | Send a thread an exception: raised where it waits, or at its next system call at
-- which it is rescheduled, as its masking allows. Does not wait for that. No effect
-- on a thread that has ended.
throwTo :: Place -> Thread -> SomeException -> IO ()
throwTo place t e = go
  where
    ref = threadState t
    go = do
      state <- readRef ref
      case state of
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
      withdrawn <- withdraw
      if withdrawn then place (sheltered ctx) (\() -> Throw e) else go

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

-- | Park for an exception that is known to be on its way, and is raised here.
awaitException :: Context -> IO Trace
awaitException ctx = parkWith ctx (pure True) (\_ -> pure True) (pure Parked)
