-- |
-- Parking a thread while another thread sends it an exception ("Weft.Hybrid.Park"), without loops: small enough for
-- deeper searches than those of "LoopScenario".
module ParkScenario
  ( parkTests,
  )
where

import Control.Exception (AsyncException (ThreadKilled), SomeException, fromException, toException)
import Control.Monad (void)
import Data.IORef
import qualified Data.IntMap.Strict as IntMap
import Search
import Simulation (Scenario (..))
import Test.Tasty
import Weft.Core.Time (milliseconds)
import Weft.Hybrid.Park
import Weft.Hybrid.Trace
import Weft.Sys

-- | A queue in which threads wait, and nothing resumes them: the number of the next one, and those that wait.
data Line = Line !Int !(IntMap.IntMap Waiter)

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
            waits = case state of Waiting {} -> True; _ -> False
            sent = case state of Active _ es -> length es; Waiting _ es _ _ -> length es; Finished -> 0
        pure $ case how of
          [_] | waits -> Just ("it went on with " <> show how <> ", and its state says that it waits")
          ["exception"] -> Nothing
          ["result"] | resumed && sent == 1 -> Nothing
          [] | parked -> Just ("it waits, and " <> show sent <> " exceptions with it")
          _ -> Just ("it went on with " <> show how <> ", and " <> show sent <> " exceptions are left")
  pure (Scenario ([parker, sender] <> [resumer | resumed]) check)

-- | Where the other thread of 'besideAnother' comes from.
data Other = WaitsAlready | Arrives

-- | A thread without an identity is the first in a queue, with the number 0, or arrives at the same time on another
-- loop, so that either may get that number. A second thread, with an identity, is about to wait there too when an
-- exception is sent to it. Afterwards the first one waits as before, and the second one has continued exactly once, with
-- the exception.
besideAnother :: Other -> IO Scenario
besideAnother from = do
  scheduler <- still
  t <- newThread scheduler
  line <- newRef $! Line 0 IntMap.empty
  wentOn <- newIORef []
  let ctx = identified t Plain
      goOn _ task = modifyIORef wentOn (shown (task ()) :)
      enter next ws w = Line (next + 1) (IntMap.insert next w ws)
      waits c = transact (lineOf line) noLoop c $ \(Line next ws) -> Wait next (enter next ws)
      other = void (waits Plain)
      parker = do
        next <- waits ctx
        case next of
          Parked -> pure ()
          _ -> goOn ctx (const next)
      threads = case from of
        WaitsAlready -> [other >> parker]
        Arrives -> [parker, other]
      check _ = do
        how <- readIORef wentOn
        Line _ ws <- readRef line
        pure $ case (how, IntMap.toList ws) of
          (["exception"], [(_, Waiter Plain _)]) -> Nothing
          (_, left) -> Just ("it went on with " <> show how <> ", and those with the numbers " <> show (map fst left) <> " wait")
  pure (Scenario (threads <> [throwTo goOn t killed]) check)

lineOf :: Ref Line -> WaitQueue Line
lineOf line =
  WaitQueue
    { queueState = line,
      queueRemove = \_ n (Line next ws) -> if IntMap.member n ws then Just (Line next (IntMap.delete n ws), pure ()) else Nothing,
      queueWaiters = \(Line _ ws) -> IntMap.toList ws,
      queueRegistered = const True,
      queueSetRegistered = const id
    }

-- | Threads in such a queue do not need one.
noLoop :: Loop
noLoop = error "ParkScenario: no loop"

-- | What a thread goes on with.
shown :: Trace -> String
shown next = case next of
  Throw e | Just ThreadKilled <- fromException e -> "exception"
  Ret -> "result"
  _ -> "something else"

killed :: SomeException
killed = toException ThreadKilled

-- | A scheduler without loops.
still :: IO Scheduler
still = do
  loops <- newRef =<< newBoxedArray 0 (error "ParkScenario: no loops")
  Scheduler loops
    <$> newWordArray 1
    <*> newWordArray 2
    <*> newWordArray 3
    <*> newWordArray 1
    <*> pure (milliseconds 1)
    <*> newEmptyMVar
    <*> pure (\_ _ -> pure ())
    <*> pure (\_ -> pure ())
    <*> pure (\_ _ -> pure ())
    <*> newWordArray 1
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
      holdsOnArm 4 "sent, and resumed, on ARM" (scenario True),
      holdsWithin 3 "sent, beside another thread that waits" (besideAnother WaitsAlready),
      holdsOnArm 3 "sent, beside another thread that waits, on ARM" (besideAnother WaitsAlready),
      holdsWithin 4 "sent, beside another thread that arrives" (besideAnother Arrives),
      holdsOnArm 4 "sent, beside another thread that arrives, on ARM" (besideAnother Arrives)
    ]
