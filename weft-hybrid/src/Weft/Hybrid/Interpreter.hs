{-# OPTIONS_GHC -fno-block-layout-cfg #-}
{-# OPTIONS_GHC -fno-spec-constr #-}

-- |
-- The machine that runs traces (Li and Zdancewic 2007, section 4.2): it takes a thread from the
-- queue and performs its system calls, many of them, until it parks, yields, ends or
-- the turn is over.
--
-- A turn is at most 'turnSteps' system calls or about 'turnLength', whichever comes
-- first. The clock is read every 64 steps; after a step that took long, sooner, down
-- to every step, and later again when steps are short. So what a turn exceeds its
-- length by is the time of one step, or of 64 when short steps turn into long ones.
-- A step is what a thread does between two system calls; it is never interrupted.
module Weft.Hybrid.Interpreter
  ( runTurn,
    lastLook,
  )
where

import Control.Exception (SomeException, catch, fromException)
import qualified Control.Exception as E
import Control.Monad (unless)
import GHC.Exts (lazy)
import Weft.Core.Boundary (contained)
import Weft.Core.Time (Instant (..))
import Weft.Hybrid.Park
import Weft.Hybrid.Ready
import Weft.Hybrid.Trace
import Weft.Sys hiding (yield)

-- | The most system calls of a turn.
turnSteps :: Int
turnSteps = stride * 64

-- | The length of a turn in nanoseconds, half a millisecond. After a turn the loop checks events and timers.
turnLength :: Int
turnLength = 500000

-- | The most steps between two looks at the clock.
stride :: Int
stride = 64

-- Words of 'loopClock': the steps to the next look at the clock, when the last was,
-- when the turn began, looks left.
wordStride, wordSeen, wordEnd, wordLooks :: Int
wordStride = 0
wordSeen = 1
wordEnd = 2
wordLooks = 3

-- | Run ready threads until there are none, or the turn is over: then 'True'. What a
-- thread throws ends the turn, and is raised in the thread in one of the next.
runTurn :: Loop -> IO Bool
runTurn l = do
  steps <- beginTurn l
  case loopReady l of
    RoundRobin q -> (withFifo l q steps `catch` failed) <* tidyFifo q
    Custom q -> withQueue l q steps `catch` failed
  where
    failed e = True <$ thrown l e

-- The machine, compiled twice: with the code of the built-in queue in its place, and for any
-- queue. (The option above keeps the blocks of its code in the order in which the source has them: the
-- usual way through a yield jumps less often then, for a tenth of its time.)

withFifo :: Loop -> Fifo -> Int -> IO Bool
withFifo !l !q = machine l (pushFifoIn q) (popFifo q) (exchangeFifoIn q)
{-# NOINLINE withFifo #-}

withQueue :: Loop -> Queue -> Int -> IO Bool
withQueue !l !q = machine l (queuePush q) (queuePop q) (\ctx t -> queuePush q ctx t >> queuePop q)
{-# NOINLINE withQueue #-}

-- | Take threads and perform their system calls; with what puts one into the queue, what takes one out,
-- and what does both. What is at hand all the time (the loop, the
-- queue) is saved around each step of a thread, so there is little of it.
machine :: Loop -> (Context -> Task -> IO ()) -> IO Task -> (Context -> Task -> IO Task) -> Int -> IO Bool
machine l push pop exchange = next
  where
    setContext = noteContext l

    -- The next thread. (The argument: steps to the next look at the clock.)
    next :: Int -> IO Bool
    next 0 = do
      steps <- look l
      if steps == 0 then pure True else next steps
    next n = pop >>= start n

    start :: Int -> Task -> IO Bool
    start !n task = perform plainly n Plain (task ())

    away :: Int -> Context -> IO Bool
    away !n Plain = next (n - 1)
    away !n _ = setContext Plain >> next (n - 1)
    {-# INLINE away #-}

    -- Continue a thread, unless the turn is over: one without a context, one with a context, and one
    -- for which this has to be checked.
    plainly :: Int -> Trace -> IO Bool
    plainly !n t
      | n > 1 = perform plainly (n - 1) Plain t
      | otherwise = atLook Plain t

    within :: Context -> Int -> Trace -> IO Bool
    within ctx !n t
      | n > 1 = perform (within ctx) (n - 1) ctx t
      | otherwise = atLook ctx t

    onward :: Int -> Context -> Trace -> IO Bool
    onward !n Plain t = plainly n t
    onward !n ctx t = within ctx n t

    atLook :: Context -> Trace -> IO Bool
    atLook ctx !t = do
      steps <- look l
      if steps > 0
        then onward (steps + 1) ctx t
        else case t of
          Ret -> onward 2 ctx t
          Parked -> onward 2 ctx t
          -- A task in the queue has no other context before it than its own: the end of the
          -- scheduler relies on that.
          Enter ctx' k -> push ctx' k >> away 1 ctx
          -- An exception from another thread does not push it aside.
          Throw _ -> push (uninterruptibly ctx) (const t) >> away 1 ctx
          _ -> push ctx (const t) >> away 1 ctx

    -- The next system call, and with what is given the one after that. In place in each of the
    -- three that use it.
    perform :: (Int -> Trace -> IO Bool) -> Int -> Context -> Trace -> IO Bool
    perform continue !n ctx t = case t of
      Yield k
        | n > 1, Plain <- ctx -> exchange ctx k >>= start (n - 1)
        | otherwise -> push ctx k >> away n ctx
      NonBlocking io -> io >>= continue n
      Call f -> f l ctx >>= continue n
      Fork child k -> do
        let !inner = inherited ctx
        push inner child
        continue n (k ())
      Ret -> case ctx of
        Plain -> next (n - 1)
        _ -> endThread l ctx (Right ()) >> away n ctx
      Parked -> away n ctx
      Idle -> pure False
      other -> control n ctx other
    {-# INLINE perform #-}

    -- Changes of context.
    control :: Int -> Context -> Trace -> IO Bool
    control !n ctx t = case t of
      Enter ctx' k -> switch n ctx' (\_ -> k ())
      Catch body h -> do
        let !x = extraOf ctx
            !ctx' = withExtra x {extraHandlers = Handler h (extraMask x) (extraHandlers x)}
        setContext ctx'
        onward n ctx' (body ())
      Uncatch k -> do
        let !ctx' = withoutHandler ctx
        setContext ctx'
        onward n ctx' (k ())
      Throw e -> case contextHandlers ctx of
        Handler h before rest ->
          switch n (withExtra (extraOf ctx) {extraHandlers = rest, extraMask = before}) (\_ -> h e)
        _ -> endThread l ctx (Left e) >> away n ctx
      _ -> onward n ctx t

    switch :: Int -> Context -> Task -> IO Bool
    switch !n ctx k = do
      setContext ctx
      pending <- takePending ctx
      case pending of
        Nothing -> onward n ctx (k ())
        Just e -> onward n ctx (Throw e)
{-# INLINE machine #-}

-- | The running thread's context. Neither inlined nor ready to take the loop apart: the
-- machine would hold the reference beside the loop, and save it around each step.
noteContext :: Loop -> Context -> IO ()
noteContext l = writeRef (loopContext (lazy l))
{-# NOINLINE noteContext #-}

-- | The context of a new thread, from that of the thread that forks it.
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
  pokeWord clock wordSeen (fromIntegral t)
  pokeWord clock wordEnd (fromIntegral t + turnLength)
  pokeWord clock wordLooks (turnSteps `div` stride)
  max 1 <$> peekWord clock wordStride
  where
    clock = loopClock l

-- | Read the clock. The result is the number of steps until the next reading, or 0 when the turn is over.
look :: Loop -> IO Int
look l = do
  Instant t <- now
  let t' = fromIntegral t
  seen <- peekWord clock wordSeen
  end <- peekWord clock wordEnd
  left <- peekWord clock wordLooks
  steps <- max 1 <$> peekWord clock wordStride
  let steps'
        | t' - seen > turnLength `div` 4 = max 1 (steps `div` 8)
        | t' - seen < turnLength `div` 32 = min stride (steps * 2)
        | otherwise = steps
  pokeWord clock wordSeen t'
  pokeWord clock wordLooks (left - 1)
  pokeWord clock wordStride steps'
  pure (if left <= 1 || t' >= end then 0 else steps')
  where
    -- As in 'noteContext'.
    clock = loopClock (lazy l)
{-# NOINLINE look #-}

-- | When the loop's machine last looked at the clock, in nanoseconds; from any thread. It changes with every turn.
lastLook :: Loop -> IO Int
lastLook l = peekWord (loopClock l) wordSeen

-- | The running thread threw. It comes to its handlers in another turn, so that
-- threads that only throw cannot keep the loop from its events.
thrown :: Loop -> SomeException -> IO ()
thrown l e = do
  ctx <- readRef (loopContext l)
  writeRef (loopContext l) Plain
  let !ctx' = uninterruptibly ctx
  pushReady (loopReady l) ctx' (\() -> Throw e)

-- | A thread has ended: notify its watchers.
endThread :: Loop -> Context -> Either SomeException () -> IO ()
endThread l ctx outcome = do
  label <- case contextIdentity ctx of
    Anonymous -> pure Nothing
    Known t -> do
      writeRef (threadState t) Finished
      watchers <- swapRef (threadWatchers t) (Ended outcome)
      case watchers of
        Watchers ws -> mapM_ (notifyWatcher outcome) ws
        Ended _ -> pure ()
      found <- readRef (threadLabel t)
      pure (if null found then Nothing else Just found)
  case outcome of
    -- As in 'noteContext'.
    -- The exception may be undefined, so it is looked at inside.
    Left e -> contained (unless (expected e) (schedulerOnException (loopScheduler (lazy l)) label e))
    Right () -> pure ()
  where
    expected e = case fromException e of
      Just E.ThreadKilled -> True
      _ -> maybe False (const True) (fromException e :: Maybe E.BlockedIndefinitelyOnMVar)

notifyWatcher :: Either SomeException () -> Watcher -> IO ()
notifyWatcher outcome w = case w of
  Hears act -> contained (act outcome)
  Joins l waiter k -> resume (toLoop l) waiter (\() -> k outcome)
