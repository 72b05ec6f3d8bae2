-- |
-- Waiting for work outside the loops: of a GHC thread, the kernel, or a library that
-- calls back. For modules that implement system calls.
--
-- The waiting thread and the worker share one word:
--
-- @
--   0 in progress  -> 1 (the worker, with the result: it resumes the thread)
--                  -> 2 (the interrupter, if the thread can leave: the result is dropped)
--                  -> 3 (the interrupter, if the thread has to stay until the end)
--   3 to be ended  the worker, with the result, resumes the thread, which then raises
--                  the exception
-- @
--
-- When the work has begun, the thread puts the action that cancels it into a reference. The
-- interrupter takes the action out. After putting it in, the thread checks the word, and takes the action out
-- itself if it was too late for the interrupter. The one that takes it out runs it, so it runs once. That may be
-- another thread than the one that waits, or a loop between turns; so the action's exceptions are raised in none of
-- them, but go to the program's handler for uncaught exceptions.
module Weft.Hybrid.ExternalCall
  ( outside,
    Interrupted (..),
    Promise (..),
  )
where

import Control.Exception (SomeException, try)
import Control.Monad (join, when)
import Weft.Core.Boundary (contained)
import Weft.Hybrid.Park
import Weft.Hybrid.Trace
import Weft.Hybrid.Weak (touchRef)
import Weft.Sys

-- | What happens to a thread that is interrupted during an external call.
data Interrupted a
  = -- | It goes at once. A result that comes nevertheless is disposed of.
    Leaves (a -> IO ())
  | -- | It waits for the result, which this is told, and goes then.
    Stays (a -> IO ())

-- | The worker's functions. Any thread may call both.
data Promise a = Promise
  { -- | Give the result, or the exception to be raised. Only the first time counts. 'False':
    -- nobody wanted it any more.
    fulfil :: Either SomeException a -> IO Bool,
    -- | Is it still wanted?
    wanted :: IO Bool
  }

-- | Park a thread until the worker has a result for it. The last argument starts the work and
-- returns the action that cancels it. That action runs once if the thread is interrupted; it must not block, and the
-- work may just have ended. If it throws, the thread is interrupted all the same, and the exception goes to the
-- program's handler for uncaught exceptions. An exception from starting the work is raised in the thread.
outside :: Loop -> Context -> (a -> Trace) -> Interrupted a -> (Promise a -> IO (IO ())) -> IO Trace
outside l ctx k interrupted begin = do
  word <- newWordArray 1
  giveUp <- newRef (pure ())
  let stopOnce = contained (join (swapRef giveUp (pure ())))
      withdraw = do
        found <- casWord word 0 0 leaving
        when (found == 0) (stopOnce >> when (leaving == 2) gone)
        pure (found == 0 && leaving == 2)
      insert w = do
        _ <- addWord (schedulerOutside (loopScheduler l)) 0 1
        when (leaving == 2) (registerWait giveUp (ownedBy l w) withdraw)
        begun <- try (begin (Promise (finish w) ((== 0) <$> readWord word 0)))
        case begun of
          Left e -> True <$ finish w (Left e)
          Right stop -> do
            _ <- swapRef giveUp stop
            state <- readWord word 0
            True <$ when (state >= 2) stopOnce
      -- Masked: the thread that has changed the word has to resume the thread.
      finish w r = mask_ $ do
        -- Alive as long as there may be a result.
        touchRef giveUp
        found <- casWord word 0 0 1
        case found of
          0 -> True <$ back w (\() -> either Throw k r)
          3 -> do
            again <- casWord word 0 3 1
            when (again == 3) (unwanted r >> back w (\() -> Call (const awaitException)))
            pure False
          2 -> do
            again <- casWord word 0 2 1
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
    unwanted = either (const (pure ())) (contained . dispose)
