-- |
-- Delays and time limits for hybrid threads, by the timers of the loop that runs the thread. Nothing fires
-- early. A sleeping thread consists of its continuation and a timer.
--
-- @since 0.1.0
module Weft.Hybrid.Timer
  ( sleep,
    within,
    callAt,

    -- * Durations
    module Weft.Duration,
  )
where

import Control.Exception (Exception (..), asyncExceptionFromException, asyncExceptionToException)
import Control.Monad (unless, when)
import Control.Monad.Catch (mask, uninterruptibleMask_)
import Weft.Core.Manager (addOwnTimer)
import Weft.Core.Time (Instant, after)
import Weft.Core.Timer (Timer, cancelTimer)
import Weft.Duration
import Weft.Hybrid.Flag
import Weft.Hybrid.Monad
import Weft.Hybrid.Park
import Weft.Hybrid.Thread (myThread)
import Weft.Hybrid.Trace
import Weft.Sys hiding (uninterruptibleMask_, yield)

-- | Wait for at least the given duration. Zero or less returns at once; 'maxBound' never returns.
sleep :: Duration -> Hybrid ()
sleep d
  | d <= mempty = pure ()
  | otherwise = call $ \l ctx k -> do
    due <- after d <$> now
    sleepUntil l ctx due k
{-# INLINE sleep #-}

sleepUntil :: Loop -> Context -> Instant -> Task -> IO Trace
sleepUntil l ctx due k = case contextIdentity ctx of
  Anonymous -> Parked <$ addOwnTimer (loopManager l) due (onLoop l ctx . unlessEarly =<< isEarly l due)
  Known _ -> do
    place <- newRef Nothing
    let insert w = do
          timer <- addOwnTimer (loopManager l) due (resume (onLoop l) w . unlessEarly =<< isEarly l due)
          writeRef place (Just timer)
          pure True
        withdraw = readRef place >>= maybe (pure False) cancelTimer
    parkWith ctx withdraw insert (sleepUntil l ctx due k)
  where
    -- Early: the scheduler is being stopped. The thread sleeps again, and is killed as it does.
    unlessEarly True = \() -> Call (\l' ctx' -> sleepUntil l' ctx' due k)
    unlessEarly False = k

-- | Run an action with a time limit; 'Nothing' if it took longer and was
-- interrupted, as by 'Weft.Hybrid.Thread.throwTo'. Calls nest; other exceptions pass through; after the call has
-- returned, its exception cannot arrive any more. An action that ends in spite of the exception, because it catches
-- it or is masked, has its own result. 'maxBound' is no limit; zero or less gives 'Nothing' without running
-- the action. "Weft.Hybrid.Deadline" has the form that most operations take.
within :: Duration -> Hybrid a -> Hybrid (Maybe a)
within d act
  | d == maxBound = Just <$> act
  | d <= mempty = pure Nothing
  | otherwise = mask $ \restore -> do
    t <- myThread
    number <- nonBlocking (addWord timeouts 0 1)
    -- 0: under way; 1: the time ran out first; 2: the action ended first.
    phase <- nonBlocking (newWordArray 1)
    -- Raised when the time ran out and the exception has been sent.
    sent <- nonBlocking newFlag
    timer <- startAlarm d t (TimedOut number) phase sent
    r <- attemptAny (restore act)
    found <- nonBlocking (casWord phase 0 0 2 <* cancelTimer timer)
    case r of
      Left e | isOurs number e -> pure Nothing
      _ -> do
        -- The action has caught the exception, or it is pending, or another loop is sending it now. It must not arrive
        -- while this thread waits for it to be sent.
        when (found /= 0) (uninterruptibleMask_ (awaitFlag sent) >> nonBlocking (retract t (isOurs number)))
        either throw (pure . Just) r
  where
    attemptAny m = (Right <$> m) `catchAny` (pure . Left)
    isOurs number e = case fromException e of
      Just (TimedOut n) -> n == number
      Nothing -> False
    startAlarm limit t e phase sent = callAt limit $ \place -> do
      found <- casWord phase 0 0 1
      when (found == 0) (throwTo place t (toException e) >> raiseFlag sent)

-- | Run an action after the given duration, on the loop that runs the caller. It is given the place of threads that
-- it makes ready, and must not block.
callAt :: Duration -> (Place -> IO ()) -> Hybrid Timer
callAt d act = call $ \l _ k -> do
  due <- after d <$> now
  timer <- addOwnTimer (loopManager l) due (isEarly l due >>= \early -> unless early (act (onLoop l)))
  pure $! k timer

newtype TimedOut = TimedOut Int
  deriving (Eq)

instance Show TimedOut where
  show _ = "<<timeout>>"

-- An asynchronous exception, as it comes from outside of the action.
instance Exception TimedOut where
  toException = asyncExceptionToException
  fromException = asyncExceptionFromException

timeouts :: WordArray
timeouts = globalWords "Weft.Hybrid.Timer.timeouts" 1
{-# NOINLINE timeouts #-}
