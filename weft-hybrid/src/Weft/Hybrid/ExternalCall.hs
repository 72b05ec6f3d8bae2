-- |
-- Waiting for somebody outside of the loops: a GHC thread, the kernel, a library that
-- calls back. For those who write system calls.
--
-- Who waits and who works share one cell:
--
-- @
--   0 under way    -> 1 (the worker, with the result: it resumes the thread)
--                  -> 2 (who interrupts the thread, which leaves: the result is nobody's)
--                  -> 3 (who interrupts it, when it has to stay for the end)
--   3 to be ended  the worker, with the result, resumes the thread, which then raises
--                  the exception
-- @
--
-- What gives the work up is put into a reference by the thread, when it has begun, and taken
-- out by who interrupts; the thread looks at the cell after that, and takes it out itself if it
-- was too late for the other. Whoever has it runs it, so it runs once.
module Weft.Hybrid.ExternalCall
  ( outside,
    Interrupted (..),
    Promise (..),
  )
where

import Control.Exception (SomeException, try)
import Control.Monad (join, when)
import Weft.Hybrid.Park
import Weft.Hybrid.Trace
import Weft.Hybrid.Weak (touchRef)
import Weft.Sys

-- | What becomes of a thread that is interrupted while somebody works for it.
data Interrupted a
  = -- | It goes at once. A result that comes nevertheless is disposed of.
    Leaves (a -> IO ())
  | -- | It waits for the result, which this is told, and goes then.
    Stays (a -> IO ())

-- | What the worker has. Both from any thread.
data Promise a = Promise
  { -- | Give the result, or the exception to be raised. Only the first time counts. 'False':
    -- nobody wanted it any more.
    fulfil :: Either SomeException a -> IO Bool,
    -- | Is it still wanted?
    wanted :: IO Bool
  }

-- | Park a thread until somebody has a result for it. The last argument starts the work and
-- returns what gives it up, which runs once if the thread is interrupted, must not block, and may
-- find that the work has just ended. What starting throws is raised in the thread.
outside :: Loop -> Context -> (a -> Trace) -> Interrupted a -> (Promise a -> IO (IO ())) -> IO Trace
outside l ctx k interrupted begin = do
  cell <- newAtomicWords 1
  giveUp <- newRef (pure ())
  let stopOnce = join (swapRef giveUp (pure ()))
      withdraw = do
        found <- casWord cell 0 0 leaving
        when (found == 0) (stopOnce >> when (leaving == 2) gone)
        pure (found == 0 && leaving == 2)
      insert w = do
        _ <- addWord (schedulerOutside (loopScheduler l)) 0 1
        when (leaving == 2) (registerWait giveUp (ownedBy l w) withdraw)
        begun <- try (begin (Promise (finish w) ((== 0) <$> readWord cell 0)))
        case begun of
          Left e -> True <$ finish w (Left e)
          Right stop -> do
            _ <- swapRef giveUp stop
            state <- readWord cell 0
            True <$ when (state >= 2) stopOnce
      finish w r = do
        -- Alive as long as there may be a result.
        touchRef giveUp
        found <- casWord cell 0 0 1
        case found of
          0 -> True <$ back w (\() -> either Throw k r)
          3 -> do
            again <- casWord cell 0 3 1
            when (again == 3) (unwanted r >> back w (\() -> Call (const awaitException)))
            pure False
          2 -> do
            again <- casWord cell 0 2 1
            False <$ when (again == 2) (unwanted r)
          _ -> pure False
  parkWith ctx withdraw insert (outside l ctx k interrupted begin)
  where
    (leaving, dispose) = case interrupted of
      Leaves f -> (2, f)
      Stays f -> (3, f)
    gone = () <$ addWord (schedulerOutside (loopScheduler l)) 0 (-1)
    -- In its loop's inbox before it is not counted any more.
    back w task = resume (toLoop l) w task >> gone
    unwanted = either (const (pure ())) (guarded . dispose)
