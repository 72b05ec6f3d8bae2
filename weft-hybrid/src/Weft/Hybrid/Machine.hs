{-# OPTIONS_GHC -fno-spec-constr #-}

-- |
-- The machine that runs traces (2007, section 4.2): it takes a thread from the
-- queue and performs its system calls, many of them, until it parks, yields, ends or
-- the turn is over.
--
-- A turn is at most 'turnSteps' system calls or about 'turnLength', whichever comes
-- first. The clock is read every 64 steps; after a step that took long, sooner, down
-- to every step, and later again when steps are short. So what a turn exceeds its
-- length by is the time of one step, or of 64 when short steps turn into long ones.
-- A step is what a thread does between two system calls; it is never interrupted.
module Weft.Hybrid.Machine
  ( runTurn,
    turnSteps,
    turnLength,
    endThread,
  )
where

import Control.Exception (SomeException, catch, fromException)
import qualified Control.Exception as E
import Control.Monad (unless)
import Weft.Core.Time (Instant (..))
import Weft.Hybrid.Park
import Weft.Hybrid.Ready
import Weft.Hybrid.Trace
import Weft.Sys hiding (yield)

-- | The most system calls of a turn.
turnSteps :: Int
turnSteps = stride * 64

-- | In nanoseconds, half a millisecond: after that events and timers are looked at.
turnLength :: Int
turnLength = 500000

-- | The most steps between two looks at the clock.
stride :: Int
stride = 64

-- Cells of 'loopPace': the steps to the next look at the clock, when the last was,
-- when the turn began, looks left.
cellStride, cellSeen, cellEnd, cellLooks :: Int
cellStride = 0
cellSeen = 1
cellEnd = 2
cellLooks = 3

-- | Run ready threads until there are none, or the turn is over: then 'True'. What a
-- thread throws ends the turn, and is raised in the thread in one of the next.
runTurn :: Loop -> IO Bool
runTurn l = case loopReady l of
  RoundRobin q -> turn l (\ctx task -> pushFifo q (inContext ctx task)) (popFifo q) <* tidyFifo q
  Custom q -> turn l (queuePush q) (queuePop q)

-- | Written once and compiled twice: with the round-robin queue's code in its place, and for any.
turn :: Loop -> (Context -> Task -> IO ()) -> IO Task -> IO Bool
turn l push pop = do
  steps <- beginTurn l
  next steps `catch` \e -> True <$ thrown l e
  where
    setContext = writeRef (loopContext l)

    -- The next thread. (The argument: steps to the next look at the clock.)
    next :: Int -> IO Bool
    next 0 = do
      steps <- look l
      if steps == 0 then pure True else next steps
    next n = do
      task <- pop
      step n Plain (task ())

    away :: Int -> Context -> IO Bool
    away n Plain = next (n - 1)
    away n _ = setContext Plain >> next (n - 1)

    -- The thread goes on, unless the turn is over.
    continue :: Int -> Context -> Trace -> IO Bool
    continue !n !ctx !t
      | n > 1 = step (n - 1) ctx t
      | otherwise = do
        steps <- look l
        if steps > 0
          then step steps ctx t
          else case t of
            Ret -> step 1 ctx t
            Parked -> step 1 ctx t
            -- A task in the queue has no other context before it than its own: the end of the
            -- scheduler relies on that.
            Enter ctx' k -> push ctx' k >> away 1 ctx
            _ -> push ctx (const t) >> away 1 ctx

    step :: Int -> Context -> Trace -> IO Bool
    step !n !ctx !t = case t of
      Yield k -> push ctx k >> away n ctx
      NonBlocking io -> io >>= continue n ctx
      Call f -> f l ctx >>= continue n ctx
      Fork child k -> do
        let !inner = inherited ctx
        push inner child
        continue n ctx (k ())
      Ret -> case ctx of
        Plain -> next (n - 1)
        _ -> endThread l ctx (Right ()) >> away n ctx
      Parked -> away n ctx
      Idle -> pure False
      other -> control n ctx other

    -- Changes of context.
    control :: Int -> Context -> Trace -> IO Bool
    control !n !ctx !t = case t of
      Enter ctx' k -> switch n ctx' (\_ -> k ())
      Catch body h -> do
        let !x = extraOf ctx
            !ctx' = withExtra x {extraHandlers = Handler h (extraMask x) (extraHandlers x)}
        setContext ctx'
        continue n ctx' (body ())
      Uncatch k -> do
        let !ctx' = withoutHandler ctx
        setContext ctx'
        continue n ctx' (k ())
      Throw e -> case contextHandlers ctx of
        Handler h before rest ->
          switch n (withExtra (extraOf ctx) {extraHandlers = rest, extraMask = before}) (\_ -> h e)
        _ -> endThread l ctx (Left e) >> away n ctx
      _ -> step n ctx t

    switch :: Int -> Context -> Task -> IO Bool
    switch n ctx k = do
      setContext ctx
      pending <- takePending ctx
      case pending of
        Nothing -> continue n ctx (k ())
        Just e -> continue n ctx (Throw e)
{-# INLINE turn #-}

-- | What a forked thread begins with.
inherited :: Context -> Context
inherited Plain = Plain
inherited (Handling _) = Plain
inherited (With x) = withExtra x {extraHandlers = NoHandlers, extraThread = Anonymous}

withoutHandler :: Context -> Context
withoutHandler ctx = case ctx of
  With x@Extra {extraHandlers = Handler _ _ rest} -> withExtra x {extraHandlers = rest}
  Handling (Handler _ _ rest@Handler {}) -> Handling rest
  Handling _ -> Plain
  _ -> ctx

-- | Steps until the clock is looked at first.
beginTurn :: Loop -> IO Int
beginTurn l = do
  Instant t <- now
  pokeCell pace cellSeen (fromIntegral t)
  pokeCell pace cellEnd (fromIntegral t + turnLength)
  pokeCell pace cellLooks (turnSteps `div` stride)
  max 1 <$> peekCell pace cellStride
  where
    pace = loopPace l

-- | Look at the clock: the steps to the next look, or 0 when the turn is over.
look :: Loop -> IO Int
look l = do
  Instant t <- now
  let t' = fromIntegral t
  seen <- peekCell pace cellSeen
  end <- peekCell pace cellEnd
  left <- peekCell pace cellLooks
  steps <- max 1 <$> peekCell pace cellStride
  let steps'
        | t' - seen > turnLength `div` 4 = max 1 (steps `div` 8)
        | t' - seen < turnLength `div` 32 = min stride (steps * 2)
        | otherwise = steps
  pokeCell pace cellSeen t'
  pokeCell pace cellLooks (left - 1)
  pokeCell pace cellStride steps'
  pure (if left <= 1 || t' >= end then 0 else steps')
  where
    pace = loopPace l
{-# NOINLINE look #-}

-- | The running thread threw. It comes to its handlers in another turn, so that
-- threads that only throw cannot keep the loop from its events.
thrown :: Loop -> SomeException -> IO ()
thrown l e = do
  ctx <- readRef (loopContext l)
  writeRef (loopContext l) Plain
  let !ctx' = sheltered ctx
  pushReady (loopReady l) ctx' (\() -> Throw e)

-- | A thread is over: tell those who want to know.
endThread :: Loop -> Context -> Either SomeException () -> IO ()
endThread l ctx outcome = do
  label <- case contextIdentity ctx of
    Anonymous -> pure Nothing
    Known t -> do
      writeRef (threadState t) Finished
      watchers <- swapRef (threadWatchers t) (Ended outcome)
      case watchers of
        Watchers ws -> mapM_ (\w -> guarded (w outcome)) ws
        Ended _ -> pure ()
      found <- readRef (threadLabel t)
      pure (if null found then Nothing else Just found)
  case outcome of
    Left e -> unless (expected e) (guarded (worldOnException (loopWorld l) label e))
    Right () -> pure ()
  where
    expected e = case fromException e of
      Just E.ThreadKilled -> True
      _ -> maybe False (const True) (fromException e :: Maybe E.BlockedIndefinitelyOnMVar)
