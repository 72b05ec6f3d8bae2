{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : Benchmark @disk@
--
-- Random reads of 4 KiB that bypass the page cache (2007, figure 17), by as many threads as reads in flight: on Weft
-- with GHC threads and with hybrid threads, by GHC's safe foreign call, and by @fio@ with io_uring and a process for
-- each core. The file is created in the directory for temporary files, which must be on a disk.
module Weft.Bench.Disk (disk) where

import Data.Aeson (FromJSON (..), eitherDecodeStrict', withObject, (.:))
import qualified Data.ByteString.Char8 as B
import Data.List (sort)
import qualified Data.Map.Strict as M
import Data.Text (Text)
import qualified Data.Text as T
import System.Process (readProcess)
import Weft.Bench.Bounds
import Weft.Bench.Child
import Weft.Bench.Folders
import Weft.Bench.Server
import Weft.Bench.Timing (selfMeasured)
import Weft.Bench.Types

disk :: Benchmark
disk =
  Benchmark
    { benchName = "disk",
      benchTitle = "random reads of 4 KiB past the page cache, -N2",
      benchCases = cases,
      benchTools = [],
      benchRts = [],
      benchIgnores = [],
      benchBounds = bounds,
      benchColumns = ["ops_per_s", "cpu_us_per_op", "alloc_bytes_per_op", "os_threads", "wall_s"],
      benchPlotted = id
    }

cases :: Plan -> [Case]
cases plan = [readCase plan n subject | n <- sort (compared <> many), subject <- [weft, hybrid, ghc], n `elem` compared || subject /= ghc] <> [fioCase n | n <- compared]
  where
    hybrid = Subject "weft-hybrid" "disk-hybrid" WeftProgram
    weft = Subject "weft" "disk-weft" WeftProgram
    ghc = Subject "ghc" "disk-ghc" GhcProgram

-- | Numbers of reads in flight: those that are compared with other subjects, and those at which more threads only wait.
compared, many :: [Int]
compared = [1, 64, 1024]
many = [256, 4096, 16000, 64000]

capabilities :: Int
capabilities = 2

inFlight :: Int -> Params
inFlight n = [("in_flight", Count n)]

-- | Faster subjects do more reads, so that all take a second or two.
readCase :: Plan -> Int -> Subject -> Case
readCase plan n subject =
  timedCase subject (inFlight n) $ \env -> do
    file <- bigFile env (planFileMiB plan)
    program <- subjectProgramWith env capabilities subject [file, show n, show (if n == 1 then planReads plan `div` 16 else planReads plan)]
    withChild env program (selfMeasured env)

fioCase :: Int -> Case
fioCase n =
  timedCase (Subject "fio" "fio" CProgram) (inFlight n) $ \env -> do
    file <- bigFile env (planFileMiB (envPlan env))
    said <- readProcess "fio" (arguments env file) ""
    case eitherDecodeStrict' (B.pack said) of
      Left problem -> failWith ("fio printed something else than its JSON: " <> T.pack problem)
      Right (Fio rate cpu count seconds) ->
        pure (M.fromList [("ops_per_s", rate), ("cpu_us_per_op", 1e6 * fromIntegral (jobs env) * cpu * seconds / count), ("wall_s", seconds)])
  where
    arguments env file =
      ["--name=reads", "--filename=" <> file, "--rw=randread", "--bs=4k", "--direct=1", "--ioengine=io_uring"]
        <> ["--numjobs=" <> show (jobs env), "--group_reporting", "--iodepth=" <> show (n `div` jobs env), "--time_based", "--output-format=json", "--randrepeat=1"]
        <> ["--runtime=" <> show (ceiling (planDuration (envPlan env)) :: Int)]

    jobs env = min n (envCores env)

-- | Reads a second, cores used by a process, total reads, seconds.
data Fio = Fio !Double !Double !Double !Double

instance FromJSON Fio where
  parseJSON = withObject "fio" $ \o -> do
    jobs <- o .: "jobs"
    case jobs of
      [job] -> do
        reads' <- job .: "read"
        user <- job .: "usr_cpu"
        system <- job .: "sys_cpu"
        millis <- reads' .: "runtime"
        Fio <$> reads' .: "iops" <*> pure ((user + system) / 100) <*> reads' .: "total_ios" <*> pure (millis / 1000 :: Double)
      _ -> fail "one job was expected"

bounds :: Plan -> [Bound]
bounds _ =
  [atMost ("reads a second, " <> number n <> " in flight: ghc / weft") (rate "ghc" n `Over` rate "weft" n) limit | (n, limit) <- [(1, 1 / 0.95), (64, 1), (1024, 1 / 1.3)]]
    <> [atMost ("reads a second, " <> number n <> " in flight: fio / weft") (rate "fio" n `Over` rate "weft" n) (1 / 0.95) | n <- [64, 1024]]
    <> [atMost ("CPU a read, " <> number n <> " in flight: weft / ghc") (at "weft" n "cpu_us_per_op" `Over` at "ghc" n "cpu_us_per_op") 0.80 | n <- compared, n > 1]
    <> [ atMost
           "OS threads, 1024 in flight, more than a program has that reads with one thread"
           (at "weft" 1024 "os_threads" `Minus` at "ghc" 1 "os_threads")
           (fromIntegral capabilities + 4),
         atMost
           "reads a second, 64 to 64000 threads: most / fewest"
           (Worst [rate "weft" a `Over` rate "weft" b | a <- upwards, b <- upwards, a /= b])
           (1 / 0.9),
         atMost
           "the same of hybrid threads"
           (Worst [rate "weft-hybrid" a `Over` rate "weft-hybrid" b | a <- upwards, b <- upwards, a /= b])
           (1 / 0.9)
       ]
    <> [atMost ("reads a second, " <> number n <> " hybrid threads: GHC's threads on Weft / them") (rate "weft" n `Over` rate "weft-hybrid" n) (1 / 0.95) | n <- upwards]
  where
    rate subject n = at subject n "ops_per_s"
    at :: Text -> Int -> Text -> Figure
    at subject n = on subject (inFlight n)
    upwards = filter (>= 64) (compared <> many)
    number = T.pack . show :: Int -> Text
