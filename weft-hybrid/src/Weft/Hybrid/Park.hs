-- |
-- How a thread is put away and resumed, and how another thread's exception reaches
-- it. For those who write system calls; every function may be called from any
-- thread.
--
-- A thread without an identity is its continuation and nothing else: whoever finds
-- it in the place where it waits resumes it. One with an identity may also be
-- interrupted there, so whoever wants to resume it has to 'claim' it; the moves are
-- at 'State'.
module Weft.Hybrid.Park
  ( -- * Places for threads that are ready
    Place,
    onLoop,
    toLoop,

    -- * Waiting
    Waiter (..),
    suspend,
    claim,
    stillWaits,
    resume,
    sheltered,

    -- * Exceptions from elsewhere
    throwTo,
    takePending,
  )
where

import Control.Exception (SomeException)
import Weft.Core.Manager (wakeManager)
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
  before <- updateRef (loopInbox l) (News ctx task)
  case before of
    NoNews -> wakeManager (loopManager l)
    News {} -> pure ()

-- Waiting -----------------------------------------------------------------------------

-- | A parked thread: the context to go on in, and which of its waits it is.
data Waiter = Waiter !Context !Int

-- | Begin a wait, on the loop that runs the thread. The first action withdraws the
-- wait when the thread is interrupted; it may run as soon as this is called, from
-- any thread, even before the continuation has put the waiter anywhere, which
-- therefore looks at 'stillWaits' afterwards. It answers 'False' when the wait has come to its end
-- after all: then the thread is resumed by the other side, whatever 'claim' says.
--
-- A thread for which an exception has been sent already raises that instead.
suspend :: Context -> IO Bool -> (Waiter -> IO Trace) -> IO Trace
suspend ctx withdraw wait = case contextIdentity ctx of
  Anonymous -> wait (Waiter ctx 0)
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
          if ok then wait (Waiter ctx n') else begin t
        -- Only the thread itself parks, and it runs.
        _ -> pure Ret
{-# INLINE suspend #-}

-- | Has it not been interrupted, and is now the caller's to resume?
claim :: Waiter -> IO Bool
claim (Waiter ctx n) = case contextIdentity ctx of
  Anonymous -> pure True
  Known t -> go t
  where
    go t = do
      state <- readRef (threadState t)
      case state of
        Waiting m es _ _ | m == n -> do
          ok <- casRef (threadState t) state (Active n es)
          if ok then pure True else go t
        _ -> pure False
{-# INLINE claim #-}

-- | Does it wait still? Not to be asked of a thread without an identity.
stillWaits :: Waiter -> IO Bool
stillWaits (Waiter ctx n) = case contextIdentity ctx of
  Anonymous -> pure True
  Known t -> waits <$> readRef (threadState t)
  where
    waits (Waiting m _ _ _) = m == n
    waits _ = False

-- | Let a thread that was claimed go on with that.
resume :: Place -> Waiter -> Task -> IO ()
resume place (Waiter ctx _) = place ctx
{-# INLINE resume #-}

-- | The context in which an interrupted thread's exception cannot push aside what it
-- is resumed with: nothing is raised until it enters its own context again.
sheltered :: Context -> Context
sheltered Plain = Plain
sheltered (With x) = With x {extraMask = Uninterruptible}

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
