-- |
-- The throughput of the core over simulated links of 10 Mbit/s and 20 ms, for combinations of loss, buffer size and
-- congestion control, compared with a table in a file. @WEFT_TCP_GOLDEN=write@ writes the table anew.
module Spec.Throughput (tests) where

import Control.Monad (unless, when)
import Data.List (intercalate)
import Sim
import System.Environment (lookupEnv)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Tcp.Core
import Weft.Tcp.Core.Congestion (Control, control)
import Weft.Tcp.Core.Congestion.Cubic (cubic)
import Weft.Tcp.Core.Congestion.NewReno (newReno)

tests :: TestTree
tests = testGroup "throughput" [testCase "is within a tenth of the table" compareTable, testCase "SACK repairs a lost tail without a timeout" tails, testCase "reordering without loss" reordered, testCase "most acknowledgments are lost" acknowledgmentsLost]

golden :: FilePath
golden = "test/tcp/throughput.txt"

-- | The rows of the table: loss in tenths of a percent, buffer size, algorithm, SACK; and kbit/s.
measured :: [(String, Double)]
measured =
  [ (unwords [show loss, show buffer, name, if sack then "sack" else "nosack"], speed loss buffer algorithm sack)
    | loss <- [0, 1, 10, 50, 200],
      buffer <- [8192, 32768, 262144],
      (name, algorithm) <- algorithms,
      sack <- [True, False],
      -- These runs take long and add no information.
      sack || loss < 200
  ]

algorithms :: [(String, Control)]
algorithms = [("newreno", control newReno), ("cubic", control cubic)]

-- | The throughput of three runs with different seeds, in kbit/s.
speed :: Int -> Int -> Control -> Bool -> Double
speed loss buffer algorithm sack = fromIntegral (3 * 8 * size) / fromIntegral (sum (map one [1 .. 3])) * 1000
  where
    size = if loss >= 200 then 60000 else 600000
    host amount = plainHost {hostData = dataOf 5 amount, hostConfig = (hostConfig plainHost) {receiveBuffer = buffer, sendBuffer = buffer, congestionControl = algorithm, offerSack = sack, timeWaitTime = 1}}
    one s = endedAt (run (scenario s perfect {lossRate = loss, rate = 1250, delay = 10000, queueLimit = 40} (host size) (host 0)))

compareTable :: Assertion
compareTable = do
  let table = [(k, fromIntegral (round v :: Int)) | (k, v) <- measured]
  mode <- lookupEnv "WEFT_TCP_GOLDEN"
  when (mode == Just "write") . writeFile golden $ unlines [k ++ " " ++ show (round v :: Int) | (k, v) <- table]
  kept <- map (\l -> let w = words l in (unwords (init w), read (last w) :: Double)) . lines <$> readFile golden
  let off = [k ++ ": " ++ show v ++ ", in the table " ++ show w | (k, v) <- table, Just w <- [lookup k kept], abs (v - w) > w / 10]
  map fst table @?= map fst kept
  unless (null off) (assertFailure (intercalate "\n" off))

-- | Bursts of which random segments are lost, also the last ones. A timeout would add at least 200 ms.
tails :: Assertion
tails = do
  let host amount = plainHost {hostData = dataOf 9 amount, hostConfig = (hostConfig plainHost) {timeWaitTime = 1}}
      times = [endedAt (run (scenario s perfect {lossRate = 30, delay = 10000} (host 14600) (host 0))) | s <- [1 .. 200]]
      late = length (filter (> 260000) times)
  -- A lost SYN or SYN-ACK is repaired only by a timeout. Each of them is lost in 3 % of the runs.
  assertBool (show late ++ " of 200 waited for a timeout") (late <= 26)

-- | Where 70 % of what the receiver sends is lost, it does not matter much whether segments reach it one by one or in
-- batches of up to 40: of 50 transfers about as many end within 30 s. (Some begin late, since their SYN-ACK is lost.)
acknowledgmentsLost :: Assertion
acknowledgmentsLost = do
  let arrived interval = length (filter (ended interval) [1 .. 50])
      ended interval s = gotB (run (transfer interval s)) == dataOf 5 size
      (single, batched) = (arrived 0, arrived 5000)
  assertBool (show (single, batched)) (4 * batched >= 3 * single)
  where
    size = 300000
    host amount = plainHost {hostData = dataOf 5 amount, hostConfig = (hostConfig plainHost) {receiveBuffer = 1000000, sendBuffer = 1000000, timeWaitTime = 1}}
    transfer interval s = (scenario s perfect {rate = 12500, delay = 10000} (host size) (host 0) {hostLoss = 700, hostReads = interval}) {limit = 30000000}

-- | Segments that are late are not lost: the window stays near what it is without reordering. In tenths of a percent,
-- those that are late by one to two delays; the most by which all are late, in microseconds; and the least throughput,
-- as a share of that without reordering.
reordered :: Assertion
reordered = do
  let off = [show (late, jittery, share) | (late, jittery, least) <- links, let share = speed' late jittery / speed' 0 0, share < least]
  unless (null off) (assertFailure (unlines off))
  where
    links = [(10, 0, 0.85), (50, 0, 0.65), (0, 5000, 0.75), (0, 20000, 0.4), (50, 5000, 0.55)] :: [(Int, Int, Double)]
    size = 3000000
    host amount = plainHost {hostData = dataOf 5 amount, hostConfig = (hostConfig plainHost) {receiveBuffer = 1000000, sendBuffer = 1000000, timeWaitTime = 1}}
    speed' late jittery = 1 / fromIntegral (sum [endedAt (run (scenario s perfect {rate = 12500, delay = 10000, queueLimit = 1000, reordering = late, jitter = jittery} (host size) (host 0))) | s <- [1 .. 3]]) :: Double
