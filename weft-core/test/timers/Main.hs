-- |
-- The timer wheel in lockstep with the priority search queue: random programs of
-- setting, cancelling, moving, sweeping and letting time pass.
module Main (main) where

import Control.Monad
import Data.IORef
import Data.Int (Int64)
import qualified Data.Map.Strict as Map
import SearchQueue (newSearchQueue)
import System.Environment (lookupEnv)
import qualified Test.QuickCheck as Q
import Test.Tasty hiding (after, defaultMain)
import Test.Tasty.HUnit
import Test.Tasty.QuickCheck
import Weft.Core.Time
import Weft.Core.Timer
import Weft.Core.Timer.Wheel (newWheel, tickLength)
import Weft.Test.Main (defaultMain)
import Prelude hiding (until)

main :: IO ()
main = do
  factor <- maybe 1 read <$> lookupEnv "WEFT_TEST_SCALE"
  let programs = max 1 (round (22000 * factor :: Double))
  counter <- newIORef 0
  defaultMain $
    testGroup
      "timers"
      [ times,
        testCaseSteps "the wheel does what the search queue does" $ \say -> do
          check programs (lockstep counter)
          n <- readIORef counter
          say (show n <> " commands")
          assertBool ("only " <> show n <> " commands") (n >= 40 * programs)
      ]
  where
    check n p = do
      r <- Q.quickCheckWithResult Q.stdArgs {Q.maxSuccess = n, Q.maxSize = 200, Q.chatty = False} p
      case r of
        Q.Success {} -> pure ()
        _ -> assertFailure (Q.output r)

-- | A step of a program. Timers are named by the order in which they were set.
data Command
  = -- | Due so long from now, which may be negative.
    Set Int64
  | Cancel Int
  | -- | Cancel, and set again so long from now if it was pending.
    Move Int Int64
  | Sweep
  | -- | Time passes.
    Advance Int64
  deriving (Show)

instance Arbitrary Command where
  arbitrary =
    frequency
      [ (8, Set <$> delays),
        (3, Cancel <$> arbitrary),
        (2, Move <$> arbitrary <*> delays),
        (1, pure Sweep),
        (6, Advance . abs <$> delays)
      ]
  shrink (Set d) = Set <$> shrink d
  shrink (Move n d) = Move n <$> shrink d
  shrink (Advance d) = Advance . abs <$> shrink d
  shrink _ = []

-- | From below a tick to decades, and often within a tick of where a level of the
-- wheel ends.
delays :: Gen Int64
delays =
  oneof
    [ choose (-100000, 100000),
      choose (0, 50000000),
      (\level off -> tick * 64 ^ level + off) <$> choose (0, 7 :: Int) <*> choose (-tick, tick),
      choose (0, 3600 * 1000000000),
      choose (0, 2000000000 * 1000000000)
    ]
  where
    Duration tick = tickLength

-- | One timer in both queues: they share nothing, since firing changes a timer.
data Pair = Pair !Timer !Timer

-- | What both have done so far: when each timer fired, by its name.
type Log = IORef (Map.Map Int Int64)

lockstep :: IORef Int -> [Command] -> Property
lockstep counter commands = ioProperty $ do
  modifyIORef' counter (+ length commands)
  wheel <- newWheel (Instant 1000000)
  model <- newSearchQueue
  byWheel <- newIORef Map.empty
  byModel <- newIORef Map.empty
  timers <- newIORef []
  clock <- newIORef 1000000
  faults <- forM commands $ \c -> do
    run wheel model byWheel byModel timers clock c
    judge wheel model byWheel byModel timers clock
  pure (conjoin [counterexample why False | Just why <- faults])

run :: Queue -> Queue -> Log -> Log -> IORef [Pair] -> IORef Int64 -> Command -> IO ()
run wheel model byWheel byModel timers clock command = case command of
  Set d -> set d
  Cancel n -> void (cancelled n)
  Move n d -> do
    won <- cancelled n
    when won (set d)
  Sweep -> queueSweep wheel isPending >> queueSweep model isPending
  Advance d -> do
    modifyIORef' clock (\t -> if t > maxBound `div` 2 - d then t else t + d)
    t <- readIORef clock
    queueExpire wheel (Instant t) (void . fireTimer)
    queueExpire model (Instant t) (void . fireTimer)
  where
    cancelled n = do
      ts <- readIORef timers
      if null ts then pure False else cancelPair (n `mod` length ts) (ts !! (n `mod` length ts))
    -- Within a tick of its due time a timer may have fired in the model alone: then
    -- this counts as its time in the wheel.
    cancelPair name (Pair a b) = do
      won <- defuseTimer a (pure False) (\_ -> pure True)
      wonToo <- defuseTimer b (pure False) (\_ -> pure True)
      when (won && not wonToo) (fires byWheel name)
      pure (won && wonToo)
    set d = do
      t <- readIORef clock
      name <- length <$> readIORef timers
      let due = after (Duration d) (Instant t)
      a <- newTimer nowhere due (fires byWheel name)
      b <- newTimer nowhere due (fires byModel name)
      modifyIORef' timers (<> [Pair a b])
      queueInsert wheel a
      queueInsert model b
    nowhere = TimerOwner (\_ -> pure ()) (\_ -> pure ())
    fires ref name = do
      t <- readIORef clock
      modifyIORef' ref (Map.insertWith (\_ _ -> -1) name t)

-- | What is wrong after a step.
judge :: Queue -> Queue -> Log -> Log -> IORef [Pair] -> IORef Int64 -> IO (Maybe String)
judge wheel model byWheel byModel timers clock = do
  t <- readIORef clock
  w <- readIORef byWheel
  m <- readIORef byModel
  ts <- readIORef timers
  Instant nextWheel <- queueNext wheel
  Instant nextModel <- queueNext model
  let due n = let Pair a _ = ts !! n; Instant d = timerDue a in d
      missing = [n | n <- Map.keys m, Map.notMember n w, due n + tick <= t]
      early = [n | (n, at) <- Map.toList w, at < due n]
      twice = [n | (n, -1) <- Map.toList w]
  pure $ case () of
    _
      | not (null early) -> Just ("fired early: " <> show early)
      | not (null twice) -> Just ("fired twice: " <> show twice)
      | not (null missing) -> Just ("late by more than a tick: " <> show missing)
      | nextModel < maxBound && nextWheel - tick > max t nextModel -> Just ("looks too late: " <> show (nextWheel, nextModel, t))
      | otherwise -> Nothing
  where
    Duration tick = tickLength

times :: TestTree
times =
  testGroup
    "times"
    [ testCase "sums of durations clamp" $ do
        maxBound <> nanoseconds 1 @?= maxBound
        minBound <> nanoseconds (-1) @?= (minBound :: Duration),
      testCase "units clamp" $ do
        microseconds maxBound @?= maxBound
        milliseconds minBound @?= minBound
        seconds 1e300 @?= maxBound
        seconds (0 / 0) @?= mempty,
      testCase "for ever after anything is never" $
        after maxBound (Instant 5) @?= never,
      testCase "a deadline that has passed is a negative time away" $
        until (Instant 5) (Instant 8) @?= nanoseconds (-3),
      testProperty "units agree" $ \n ->
        microseconds (1000 * (n `mod` 1000000)) === milliseconds (n `mod` 1000000)
    ]
