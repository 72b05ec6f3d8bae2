-- |
-- Going to sleep and being woken ("Weft.Core.Wake"): one sleeper that does what a
-- manager does, and two wakers.
module WakeScenario
  ( wakeTests,
  )
where

import Control.Monad
import Data.IORef
import Search
import Simulation
import Test.Tasty
import Weft.Core.Time (Instant (..))
import Weft.Core.Wake
import Weft.Sys

-- | The protocol, so that parts of it can be replaced by broken ones.
data Protocol = Protocol
  { doAnnounce :: Wake -> Instant -> IO Bool,
    doAwaken :: Wake -> IO (),
    doNotify :: Wake -> IO Bool,
    doNotifyBefore :: Wake -> Instant -> IO Bool,
    -- | Does the sleeper look at its inbox after it has announced?
    looksAgain :: Bool,
    -- | Does it read a word atomically before it does, as the manager does? (Its look is a plain read.)
    looksInOrder :: Bool
  }

production :: Protocol
production = Protocol announce retract notify notifyBefore True True

-- | How a waker publishes: whatever it is, at once; or work that is due then.
-- Or nothing that the sleeper sees when it looks again: it has to take a turn.
data Waker = AtOnce | DueAt Int | Turn

-- | The sleeper would wake by itself at 100.
bedtime :: Instant
bedtime = Instant 100

-- | Work that does not have to be seen before 'bedtime'.
late :: Waker -> Bool
late (DueAt t) = Instant (fromIntegral t) >= bedtime
late _ = False

scenario :: Protocol -> [Waker] -> IO Scenario
scenario p wakers = do
  w <- newWake
  inbox <- newRef []
  state <- newWordArray 1
  -- Not a point of the schedule, of which there are enough.
  asked <- newIORef []
  notified <- newIORef (0 :: Int)
  refused <- newIORef (0 :: Int)
  needless <- newIORef False
  kernel <- newEmptyMVar
  seen <- newIORef []
  sleeps <- newIORef (0 :: Int)
  signals <- newIORef (0 :: Int)
  let urgent = [n | (n, k) <- zip [0 ..] wakers, not (late k)]
      finished = (\found -> all (`elem` found) urgent) <$> readIORef seen
      sleeper = do
        work <- swapRef inbox []
        turns <- readIORef asked <* writeIORef asked []
        modifyIORef' seen ((work <> turns) <>)
        done <- finished
        unless done (turn >> sleeper)
      turn = do
        ok <- doAnnounce p w bedtime
        unless ok $ do
          modifyIORef' refused (+ 1)
          more <- (>) <$> readIORef refused <*> readIORef notified
          when more (writeIORef needless True)
        when ok $ do
          modifyIORef' sleeps (+ 1)
          when (looksInOrder p) (void (readWord state 0))
          news <- if looksAgain p then not . null <$> readRef inbox else pure False
          unless news (takeMVar kernel)
          doAwaken p w
      waker n kind = do
        case kind of
          Turn -> modifyIORef' asked (n :)
          _ -> void (updateRef inbox (n :))
        modifyIORef' notified (+ 1)
        needed <- case kind of
          AtOnce -> doNotify p w
          Turn -> doNotify p w
          DueAt t -> doNotifyBefore p w (Instant (fromIntegral t))
        when needed $ do
          modifyIORef' signals (+ 1)
          void (tryPutMVar kernel ())
      check stuck = do
        done <- finished
        asleep <- readIORef sleeps
        sent <- readIORef signals
        again <- readIORef needless
        pure $ case () of
          _
            | any (> 0) stuck -> Just "a waker is stuck"
            | not done -> Just "the sleeper sleeps on while there is work"
            | sent > asleep -> Just "more signals than sleeps"
            | again -> Just "the sleeper was kept awake, and nobody had asked for that"
            | otherwise -> Nothing
  pure (Scenario (sleeper : zipWith waker [0 :: Int ..] wakers) check)

wakeTests :: IO TestTree
wakeTests = do
  more <- large (holds "two timers before the sleeper would wake" 1000 (scenario production [DueAt 50, DueAt 60]))
  pure . testGroup "going to sleep and being woken" $
    [ holds "two wakers at once" 1000 (scenario production [AtOnce, AtOnce]),
      holds "one at once, one with a timer" 1000 (scenario production [AtOnce, DueAt 50]),
      holdsWithin 3 "one asks for a turn, without work" (scenario production [Turn]),
      holdsWithin 3 "one asks for a turn, one at once" (scenario production [Turn, AtOnce]),
      holdsWithin 2 "three wakers" (scenario production [AtOnce, DueAt 50, Turn]),
      holds "one timer that can wait" 1000 (scenario production [AtOnce, DueAt 200]),
      testGroup
        "on ARM"
        [ holdsOnArm 3 "two wakers at once" (scenario production [AtOnce, AtOnce]),
          holdsOnArm 3 "one at once, one with a timer" (scenario production [AtOnce, DueAt 50]),
          holdsOnArm 3 "two timers before the sleeper would wake" (scenario production [DueAt 50, DueAt 60]),
          holdsOnArm 2 "three wakers" (scenario production [AtOnce, DueAt 50, Turn]),
          isFoundOnArm 2 "broken on purpose: the look is a plain read after the announcement" $
            scenario production {looksInOrder = False} [DueAt 50]
        ],
      testGroup
        "broken on purpose"
        [ isFound "the inbox is not looked at after announcing" $
            scenario production {looksAgain = False} [AtOnce, DueAt 50],
          isFound "a notification is not signalled" $
            scenario production {doNotify = \w -> False <$ notify w} [AtOnce, AtOnce],
          isFound "a timer is not signalled" $
            scenario production {doNotifyBefore = \w t -> False <$ notifyBefore w t} [DueAt 50, DueAt 60],
          isFound "every waker signals" $
            scenario production {doNotify = \w -> True <$ notify w} [AtOnce, AtOnce]
        ]
    ]
      <> more
