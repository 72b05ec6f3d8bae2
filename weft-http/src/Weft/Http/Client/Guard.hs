-- |
-- Limits on the waits of a connection, which has one wait at a time: until when something has to come, and until when
-- somebody is interested in it. A connection has one timer ("Weft.IdleTimer"), kept with it from request to request. A
-- wait that ends soon writes a few words and sets no timer of a manager, where a deadline of its own would set and
-- cancel one.
module Weft.Http.Client.Guard
  ( Guard,
    newGuard,
    guarding,
    Ending (..),
  )
where

import Control.Concurrent
import Control.Exception
import Control.Monad (when)
import Data.IORef
import GHC.Conc (labelThread)
import Weft.Core.Time (Duration (..), Instant, never)
import qualified Weft.Core.Time as Time
import Weft.Duration (seconds)
import Weft.Http.Client.Types (abandonedAfter)
import Weft.Runtime.IdleTimer
import Weft.Sys (Ref, casRef, newRef, now, readRef, swapRef)
import Weft.Transport (Connection, connAbort)

-- | The guard of a connection. Its timer runs while a wait is under way, and then decides by what this wait says, not by
-- what the timer was set for.
data Guard = Guard
  { guardTimer :: !IdleTimer,
    -- | The wait that is under way. Written by the thread that waits, before the timer is set and after it is paused;
    -- read by the dispatcher when the timer is due.
    guardWait :: !(IORef Wait)
  }

-- | A wait: until when, until when somebody is interested, and how it is. A new one for each.
data Wait
  = NoWait
  | Wait !Instant !(Maybe (IO ())) !(Ref State)

-- | How a wait is. Everybody who ends the connection has changed the state of the wait before, by compare-and-swap; so
-- what was decided about a wait never concerns the next one, whenever the timer, the dispatcher or the watcher come to
-- act.
--
-- @
--   Waiting -> Watched   the watcher, a thread that the dispatcher forked, before it watches
--   Waiting -> Expired   the dispatcher, after the limit; then the connection is aborted
--   Watched -> Expired   the same
--   Watched -> Deserted  the watcher, when nobody is interested; then it aborts the connection
--   all     -> Over      the thread that waits, for good, by a swap; it ends a watcher that watches
-- @
--
-- A watcher that runs for the first time after the wait finds 'Over' and ends.
data State
  = Waiting
  | Watched !Watcher
  | -- | With the watcher, if it had begun to watch.
    Expired !(Maybe Watcher)
  | Deserted
  | Over

-- | A thread, and its end.
data Watcher = Watcher !ThreadId !(MVar ())

-- | How a wait has ended.
data Ending a
  = -- | By what was waited for.
    Came !a
  | -- | By an error of the connection.
    Disturbed !IOException
  | -- | The limit has passed.
    Late
  | -- | Nobody is interested any more.
    Unwanted

-- | A guard that aborts the connection when a wait has lasted too long. Needs no end: between waits no timer is set.
newGuard :: Connection -> IO Guard
newGuard c = do
  wait <- newIORef NoWait
  timer <- newDecidingIdleTimer abandonedAfter (decide c wait)
  pure (Guard timer wait)

-- | Run an action that waits for something to come from the connection, given the present time and the limit, not
-- earlier. When the limit has passed, or an action that runs in a thread beside it from 'abandonedAfter' on has returned
-- (an 'IOError' counts as returning; it is killed when the wait ends, which waits for its end), the connection is
-- aborted, so that the wait ends; it is of no use any more. One thread at a time. Interruptible where it waits.
guarding :: Guard -> Instant -> Instant -> Maybe (IO ()) -> IO a -> IO (Ending a)
guarding guard t limit unless' act = mask_ $ do
  state <- newRef Waiting
  writeIORef current (Wait limit unless' state)
  resetFor timer (maybe id (const (min abandonedAfter)) unless' (Time.until limit t))
  result <- try act
  pause timer
  writeIORef current NoWait
  before <- swapRef state Over
  case before of
    Waiting -> ended result
    _ -> disturbed before result (ended result)
  where
    timer = guardTimer guard
    current = guardWait guard
{-# INLINE guarding #-}

ended :: Either SomeException a -> IO (Ending a)
ended result = case result of
  Right a -> pure (Came a)
  Left e -> maybe (throwIO e) (pure . Disturbed) (fromException e)

-- | The end of a wait that was watched, or that somebody else has ended. An exception that was thrown to the thread comes
-- first.
disturbed :: State -> Either SomeException a -> IO (Ending a) -> IO (Ending a)
disturbed before result otherwise' = do
  case before of
    Watched watcher -> dismiss watcher
    Expired watcher -> mapM_ dismiss watcher
    _ -> pure ()
  case (result, before) of
    (Left e, _) | Just (SomeAsyncException _) <- fromException e -> throwIO e
    (_, Expired _) -> pure Late
    (_, Deserted) -> pure Unwanted
    _ -> otherwise'
  where
    -- Not interruptible: an exception would leave the thread behind.
    dismiss (Watcher thread over) = uninterruptibleMask_ (killThread thread >> readMVar over)
{-# NOINLINE disturbed #-}

-- | What to do when the timer is due: by the dispatcher, which must not block.
decide :: Connection -> IORef Wait -> Duration -> IO WhenDue
decide c current late = do
  wait <- readIORef current
  case wait of
    -- It has ended just now, and its thread pauses the timer, or has set it for the next one.
    NoWait -> pure (Later abandonedAfter)
    Wait limit unless' state -> do
      t <- now
      case () of
        _
          | t < limit -> watch unless' state >> pure (Later (if limit == never then Duration maxBound else Time.until limit t))
          -- What has come while the process did not run is received first.
          | ranLate late -> pure (Later (seconds 1))
          | otherwise -> do
            mine <- moved state expire
            pure (if mine then Expire (forked "weft http client: a wait is over" (\_ -> connAbort c)) else Later abandonedAfter)
  where
    expire before = case before of
      Waiting -> Just (Expired Nothing)
      Watched watcher -> Just (Expired (Just watcher))
      _ -> Nothing
    watch unless' state = do
      before <- readRef state
      case (before, unless') of
        (Waiting, Just gone) -> forked "weft http client: whether somebody is interested" (\restore -> watching c state (restore gone))
        _ -> pure ()

-- | Make a move, if there is one from the present state. (Not inlined: a state is compared by its pointer, and GHC takes
-- apart and builds again what it sees built.)
moved :: Ref State -> (State -> Maybe State) -> IO Bool
moved state move = do
  before <- readRef state
  case move before of
    Nothing -> pure False
    Just next -> casRef state before next >>= \done -> if done then pure True else moved state move
{-# NOINLINE moved #-}

-- | Fork a thread that runs masked, and can unmask.
forked :: String -> ((IO () -> IO ()) -> IO ()) -> IO ()
forked label act = mask_ $ do
  thread <- forkIOWithUnmask (\unmask -> unmask (mask_ (act unmask)))
  labelThread thread label

-- | The watcher's life. Masked, except for the action that it is given.
watching :: Connection -> Ref State -> IO () -> IO ()
watching c state gone = do
  over <- newEmptyMVar
  watcher <- (`Watcher` over) <$> myThreadId
  begun <- moved state (\before -> case before of Waiting -> Just (Watched watcher); _ -> Nothing)
  when begun . (`finally` putMVar over ()) $ do
    gone `catch` \e -> const (pure ()) (e :: IOException)
    mine <- moved state (\before -> case before of Watched _ -> Just Deserted; _ -> Nothing)
    when mine (connAbort c)
