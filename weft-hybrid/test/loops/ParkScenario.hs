-- |
-- Parking a thread while another thread sends it an exception ("Weft.Hybrid.Park"), without loops: small enough for
-- deeper searches than those of "LoopScenario".
module ParkScenario
  ( parkTests,
  )
where

import Control.Exception (AsyncException (ThreadKilled), SomeException, fromException, toException)
import Data.IORef
import Search
import Simulation (Scenario (..))
import Test.Tasty
import Weft.Core.Time (milliseconds)
import Weft.Hybrid.Park
import Weft.Hybrid.Trace
import Weft.Sys

-- | A place where one thread can wait. The number counts the transitions.
data Place' = Free !Int | Taken !Int !Waiter

-- | A thread parks, another one sends it an exception, and, if the flag is set, a third one resumes it. Afterwards the
-- thread has continued exactly once, with the result or the exception; with the exception if no thread has resumed it.
-- (After a result, the exception stays pending.)
scenario :: Bool -> IO Scenario
scenario resumed = do
  scheduler <- still
  t <- newThread scheduler
  ref <- newRef (Free 0)
  wentOn <- newIORef []
  let ctx = identified t Plain
      goOn _ task = modifyIORef wentOn (shown (task ()) :)
      shown next = case next of
        Throw e | Just ThreadKilled <- fromException e -> "exception"
        Ret -> "result"
        _ -> "something else"
      swapIf f = do
        found <- readRef ref
        case f found of
          Nothing -> pure Nothing
          Just (new, w) -> casRef ref found new >>= \ok -> if ok then pure (Just w) else swapIf f
      takeOut = swapIf (\p -> case p of Taken n w -> Just (Free (n + 1), w); Free _ -> Nothing)
      insert w = maybe False (const True) <$> swapIf (\p -> case p of Free n -> Just (Taken (n + 1) w, ()); Taken _ _ -> Nothing)
      park = parkWith ctx (maybe False (const True) <$> takeOut) insert park
      parker = do
        next <- park
        case next of
          Parked -> pure ()
          _ -> goOn ctx (const next)
      sender = throwTo goOn t killed
      resumer = takeOut >>= mapM_ (\w -> resume goOn w (const Ret))
      check _ = do
        how <- readIORef wentOn
        state <- readRef (threadState t)
        p <- readRef ref
        let parked = case p of Taken _ _ -> True; Free _ -> False
            sent = case state of Active _ es -> length es; Waiting _ es _ _ -> length es; Finished -> 0
        pure $ case how of
          ["exception"] -> Nothing
          ["result"] | resumed && sent == 1 -> Nothing
          [] | parked -> Just ("it waits, and " <> show sent <> " exceptions with it")
          _ -> Just ("it went on with " <> show how <> ", and " <> show sent <> " exceptions are left")
  pure (Scenario ([parker, sender] <> [resumer | resumed]) check)
  where
    killed = toException ThreadKilled :: SomeException

-- | A scheduler without loops.
still :: IO Scheduler
still = do
  loops <- newRef =<< newBoxedArray 0 (error "ParkScenario: no loops")
  Scheduler loops
    <$> newAtomicWords 1
    <*> newAtomicWords 2
    <*> newAtomicWords 3
    <*> newAtomicWords 1
    <*> pure (milliseconds 1)
    <*> newEmptyMVar
    <*> pure (\_ _ -> pure ())
    <*> pure (\_ -> pure ())
    <*> pure (\_ _ -> pure ())
    <*> newAtomicWords 1
    <*> newEmptyMVar
    <*> forkGeneration
    <*> pure 1

parkTests :: TestTree
parkTests =
  testGroup
    "parking, against an exception"
    [ holdsWithin 4 "sent" (scenario False),
      holdsWithin 4 "sent, and resumed" (scenario True),
      holdsOnArm 4 "sent, on ARM" (scenario False),
      holdsOnArm 4 "sent, and resumed, on ARM" (scenario True)
    ]
