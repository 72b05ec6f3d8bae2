-- |
-- Two cores over a simulated link: all data arrives unchanged, or a side reports that it gave up; no run hangs; the
-- same seed gives the same run.
module Spec.Simulated (tests) where

import Control.Monad (forM_, unless, when)
import qualified Data.ByteString as B
import Data.IORef
import Data.Word (Word32)
import Sim
import System.Environment (lookupEnv)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Tcp.Core
import Weft.Tcp.Core.Congestion (control)
import Weft.Tcp.Core.Congestion.NewReno (newReno)

tests :: TestTree
tests =
  testGroup
    "simulated"
    [ testGroup
        "byte-exact or a reported abort (WEFT_TCP_SEEDS for each, 100 by default)"
        [ testCase (show (fromIntegral loss / 10 :: Double) ++ " % loss, " ++ name) (many loss other)
          | loss <- [0, 1, 10, 50, 200],
            (name, other) <- [("otherwise clean", id), ("reordering, duplication, corruption", dirty)]
        ],
      testCase "the same seed, the same run" replayed,
      testCase "both open at once" simultaneous,
      testCase "a peer that vanishes is noticed" vanished,
      testCase "a receiver that stops for minutes" stopped
    ]
  where
    dirty l = l {duplication = 30, reordering = 50, corruption = 10, jitter = 3000}

-- | The scenario of a seed, which determines sizes, options, algorithms and initial sequence numbers. Most sequence
-- numbers wrap around during the run.
drawn :: Int -> (Link -> Link) -> Int -> Scenario
drawn loss other n = scenario s (other perfect {lossRate = loss, delay = pick 1 [100, 5000, 40000]}) a b
  where
    s = fromIntegral n * 7919 + fromIntegral loss
    draw i m = fromIntegral ((s * 2654435761 + i * 40503) `div` 8191) `mod` m :: Int
    pick i xs = xs !! draw i (length xs)
    size i = pick i [0, 1, 100, 1460, 20000, 150000]
    a = host 10 (size 2)
    b = host 20 (size 3)
    host i amount =
      plainHost
        { hostConfig =
            (hostConfig plainHost)
              { offerSack = draw (i + 1) 4 /= 0,
                offerTimestamps = draw (i + 2) 3 /= 0,
                offerScale = draw (i + 3) 3 /= 0,
                announcedMss = pick (i + 4) [1460, 536, 8960, 100],
                receiveBuffer = pick (i + 5) [1000, 20000, 65535, 1048576],
                sendBuffer = pick (i + 5) [500, 30000, 1048576],
                offloadBytes = pick (i + 6) [0, 0, 65000],
                firstChoices = Choices (draw (i + 7) 2 == 0) True Nothing 64 0,
                ackDelay = pick (i + 8) [0, millis 40],
                congestionControl = if draw (i + 9) 2 == 0 then control newReno else congestionControl defaultConfig
              },
          hostData = dataOf (s + i) amount,
          hostPiece = pick (i + 11) [1000, 65536, 300],
          hostPause = pick (i + 12) [0, 0, 0, 20000],
          hostIsn = 0xffffffff - fromIntegral (draw (i + 13) 30000) :: Word32
        }

check :: String -> Scenario -> Assertion
check name sc = case outcome r of
  Delivered -> do
    unless (gotA r == hostData (hostB sc)) (assertFailure (name ++ ": A got other bytes"))
    unless (gotB r == hostData (hostA sc)) (assertFailure (name ++ ": B got other bytes"))
  Gave _ _ -> do
    unless (gotA r `B.isPrefixOf` hostData (hostB sc) && gotB r `B.isPrefixOf` hostData (hostA sc)) (assertFailure (name ++ ": wrong bytes before giving up"))
  bad -> assertFailure (name ++ ": " ++ show bad ++ " at " ++ show (endedAt r) ++ " with " ++ show (B.length (gotA r), B.length (gotB r), packets r) ++ concatMap ("\n" ++) (reverse (take 25 history)))
  where
    (r, history) = runLogged sc

many :: Int -> (Link -> Link) -> Assertion
many loss other = do
  seeds <- maybe 100 read <$> lookupEnv "WEFT_TCP_SEEDS"
  aborted <- newIORef (0 :: Int)
  forM_ [1 .. seeds] $ \n -> do
    let sc = drawn loss other n
    check ("seed " ++ show n) sc
    when (outcome (run sc) /= Delivered) (modifyIORef' aborted (+ 1))
  gave <- readIORef aborted
  -- With losses of up to a fifth of the packets, at most one run in twenty may give up.
  when (gave * 20 > seeds) (assertFailure (show gave ++ " of " ++ show seeds ++ " gave up"))

replayed :: Assertion
replayed = forM_ [1 .. 20] $ \n -> do
  let sc = drawn 50 (\l -> l {duplication = 20, reordering = 50, jitter = 5000}) n
      r = run sc
  run sc @?= r
  assertBool "another seed, another run" (digest (run sc {seed = seed sc + 1}) /= digest r)

simultaneous :: Assertion
simultaneous = forM_ [1 .. 60] $ \n -> do
  let sc = drawn (if even n then 100 else 0) id n
      both = sc {hostA = (hostA sc) {hostOpens = True}, hostB = (hostB sc) {hostOpens = True}}
  check ("seed " ++ show n) both
  when (odd n) (outcome (run both) @?= Delivered)

vanished :: Assertion
vanished = forM_ [20000, 45000, 70000, 100000] $ \t -> do
  let big = plainHost {hostData = dataOf 1 3000000}
      r = run (scenario 5 perfect {rate = 1000} big plainHost) {cutAfter = t, limit = 3000000000}
  -- The side that sends detects the failure. The other side cannot detect it, because it has nothing to send.
  case outcome r of
    Gave TimedOut _ -> pure ()
    o -> assertFailure (show o)

stopped :: Assertion
stopped = do
  let slow = plainHost {hostPause = 60000000, hostPiece = 65536, hostConfig = (hostConfig plainHost) {receiveBuffer = 65535}}
      sc = (scenario 9 perfect {lossRate = 100} plainHost {hostData = dataOf 2 400000} slow) {limit = 7200000000}
  check "slow" sc
  outcome (run sc) @?= Delivered
