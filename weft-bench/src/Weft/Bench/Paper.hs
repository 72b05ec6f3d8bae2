{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : The figures of the papers, measured here
--
-- Pure: each figure of the three papers as a benchmark of the existing subjects. The quantity on the figure's axis is a
-- parameter, up to what the machine allows. If a figure cannot be measured, there is a reason instead. The managers of
-- GHC that the papers compare with no longer exist: @ghc@ is the manager of the compiler in use, which descends from
-- that of 2010 and contains Mio.
module Weft.Bench.Paper
  ( PaperFigure (..),
    paperFigures,
    figureNamed,
  )
where

import Data.List (find, nub)
import Data.Text (Text)
import qualified Data.Text as T
import Weft.Bench.Delay (delayTrials)
import Weft.Bench.Disk (disk)
import Weft.Bench.DiskWeb (diskWeb)
import Weft.Bench.Echo (echo)
import Weft.Bench.Folders (rootArguments, smallFolder)
import Weft.Bench.Hybrid (fifo, hybridMemory)
import Weft.Bench.Idle (idleCase, idleParams, idleTools)
import Weft.Bench.Load (loadTool)
import Weft.Bench.Sdn (sdn)
import Weft.Bench.Timing (Trial (..), selfMeasured, trialCase)
import Weft.Bench.Types
import Weft.Bench.Workload

-- | A figure.
data PaperFigure = PaperFigure
  { -- | The name on the command line.
    figureName :: !Text,
    -- | The figure's number in the paper.
    figurePlace :: !Text,
    figureTitle :: !Text,
    -- | The paper's result.
    figureFinding :: !Text,
    -- | How our measurement differs, given the number of cores.
    figureNote :: Int -> Text,
    -- | The benchmark, or why there is none, given the number of cores.
    figureBench :: Int -> Either Text Benchmark
  }

-- | Look up a figure by its name.
figureNamed :: Text -> Maybe PaperFigure
figureNamed name = find ((== name) . figureName) paperFigures

-- | All figures, in the order of the papers.
paperFigures :: [PaperFigure]
paperFigures = y2010 <> y2007 <> mio

-- 2010 -----------------------------------------------------------------------------------------

-- The figures are numbered as in the draft; the final version combines pairs of them.
y2010 :: [PaperFigure]
y2010 =
  [ figure "2010-1" "2010, figure 1 (final: 1, top)" "requests a second of pong and file, all clients busy" "Epoll as fast as GHC's manager of that time where that works, and far more clients." (const "") $
      \_ -> Right (clients ["ops_per_s"]),
    figure "2010-2" "2010, figure 2 (final: 1, bottom)" "latency of pong and file, all clients busy" "Latencies like those of the old manager, growing with the clients." (const "") $
      \_ -> Right (clients ["p50_us", "p99_us"]),
    figure "2010-3" "2010, figure 3 (final: 2, top)" "requests a second of 64 clients beside idle connections" "The epoll back end is solid up to 50,000 idle connections." (const "") $
      \_ -> Right (idlers ["ops_per_s", "rss_bytes_per_idle"]),
    figure "2010-4" "2010, figure 4 (final: 2, bottom)" "latency of 64 clients beside idle connections" "As in figure 3." (const "") $
      \_ -> Right (idlers ["p50_us", "p99_us"]),
    figure "2010-5" "2010, figure 5 (final: 3, top)" "threadDelay on GHC's own manager" "Quadratic in the number of threads." (const "GHC's manager of today has a priority search queue; a million threads need 10 GB.") $
      \_ -> Right (delays "ghc" [("ghc", 2)] (filter (<= 1000000) . planDelays)),
    figure "2010-6" "2010, figure 6 (final: 3, bottom)" "threadDelay on the rewritten manager" "No degradation up to three million threads." (const "") $
      \_ -> Right (delays "weft" [("weft", 2)] planDelays),
    figure "2010-7" "2010, figure 7 (final: 4)" "threadDelay on both, few threads" "The new manager is faster from the smallest number on." (const "") $
      \_ -> Right (delays "both" [("weft", 2), ("ghc", 2)] (\plan -> [planDelaysBound plan `div` k | k <- [100, 50, 20, 10]])),
    figure "2010-8" "2010, figure 8" "threadDelay by the number of cores" "Two cores are fastest, for reasons that the paper does not know." ofCores $
      \cores -> Right (delays "cores" [("weft", n) | n <- coreCounts cores] (\plan -> [planDelaysBound plan]))
  ]

-- | Both programs with increasing numbers of clients.
clients :: [Text] -> Benchmark
clients columns =
  (server columns)
    { benchCases = const [timed (c n s) | c <- [pongCase, fileCase], n <- [16, 64, 256, 1024], s <- [weft, ghc]]
    }
  where
    weft = "weft" :: Text
    ghc = "ghc" :: Text
    pongCase n name = workloadCase (program "pong" : params n 1) (onePage n 1) (if name == weft then Subject weft "pong-weft" WeftProgram else Subject ghc "pong-ghc" GhcProgram)
    fileCase n name =
      workloadCase
        (program "file" : params n 1)
        (onePage n 1) {workPath = "/4332", workArguments = \env subject -> rootArguments subject <$> smallFolder env}
        (if name == weft then Subject weft "weft" CProgram else Subject ghc "static-ghc" GhcProgram)
    program :: Text -> (Text, ParamValue)
    program name = ("program", Word name)

-- | Cases of the benchmark @idle@ for several numbers of idle connections, each with its own measurement without idle
-- connections.
idlers :: [Text] -> Benchmark
idlers columns =
  (server columns)
    { benchCases = \plan -> [relabelled n (idleCase n s) | n <- counts plan, s <- subjects],
      benchTools = idleTools
    }
  where
    counts plan = nub [max 1 (planIdle plan `div` k) | k <- [16, 4, 1]]
    subjects = [Subject "weft" "pong-weft" WeftProgram, Subject "ghc" "pong-ghc" GhcProgram, Subject "c-epoll" "c-epoll" CProgram]
    relabelled n c = c {caseGroup = idleParams n}

delays :: Text -> [(Text, Int)] -> (Plan -> [Int]) -> Benchmark
delays name subjects sizes =
  (blank ["wall_s", "ns_per_op", "max_rss_mb"])
    { benchName = name,
      benchRts = ["-A16m"],
      benchIgnores = ["--duration"],
      benchCases = \plan -> [trialCase selfMeasured t | n <- sizes plan, (subject, cores) <- subjects, t <- trials plan {planDelays = [n], planDelaysBound = n} subject cores]
    }
  where
    trials plan subject cores =
      take 1 [resized cores t | t <- delayTrials plan, subjectName (trialSubject t) == subject]
    resized cores t = t {trialCapabilities = cores, trialParams = [if k == "capabilities" then (k, Count cores) else (k, v) | (k, v) <- trialParams t]}

-- 2007 -----------------------------------------------------------------------------------------

y2007 :: [PaperFigure]
y2007 =
  [ figure "2007-memory" "2007, section 5.1" "memory of threads that loop on yield" "48 bytes of live memory a thread, ten million threads." (const "") $
      \_ -> Right (only [] hybridMemory),
    figure "2007-17" "2007, figure 17" "random reads of 4 KiB by many threads, O_DIRECT" "Slightly ahead of kernel threads from 100 threads on, steady up to 64 K threads." (const "Kernel threads are those of GHC's safe foreign calls; the disk is what the machine has.") $
      \_ -> Right (only ["ops_per_s"] disk),
    figure "2007-18" "2007, figure 18" "128 pairs over FIFO pipes beside idle threads" "30 % more throughput than kernel threads, and none lost to idle threads." (const "") $
      \_ -> Right (only ["gbit_per_s"] fifo),
    figure "2007-19" "2007, figure 19" "a web server under disk-intensive load" "Compares favourably with Apache 2.0.55; 70 to 85 % CPU with 1,024 connections." (const "The peer is nginx. The files are in the page cache once they were read: the rate grows with the length of the run.") $
      \_ -> Right (only ["mb_per_s", "ops_per_s"] diskWeb)
  ]

-- Mio ------------------------------------------------------------------------------------------

mio :: [PaperFigure]
mio =
  [ figure "mio-5" "Mio, figure 5" "requests a second of SimpleServer by the number of cores" "37,000 at most with GHC's manager of that time, 668,000 on 20 cores with Mio." loadBeside $
      \cores -> Right (server ["ops_per_s", "cpu_us_per_op"]) {benchCases = const [timed (serverCase 400 n s) | n <- coreCounts cores, s <- bare n]},
    figure "mio-13" "Mio, figure 13" "requests a second of acme, mighty and nginx by the number of cores" "340,000 a second for acme and 195,000 for mighty with Mio, 30,000 at most without; mighty is within a factor of 2.5 of nginx." (\cores -> loadBeside cores <> " acme is the bare pong; mighty is the WAI application, on Weft and on Warp; nginx serves a file of 1 KiB on one core.") $
      \cores ->
        Right
          (server ["ops_per_s", "cpu_us_per_op"])
            { benchCases = const ([timed (serverCase 400 n s) | n <- coreCounts cores, s <- bare n <> wai] <> [timed (small 400 nginx)])
            },
    figure "mio-14" "Mio, figure 14" "the distribution of response times of acme with 400 clients" "On average 1.1 ms with Mio at 12 cores and 11.3 ms without; 95 % below 3.1 and 13.9 ms." (const "Percentiles stand for the curve.") $
      \cores -> Right (server ["p50_us", "p95_us", "p99_us", "max_us"]) {benchCases = const [timed (serverCase 400 n s) | n <- nub [1, maximum (coreCounts cores)], s <- bare n]},
    figure "mio-15" "Mio, figure 15" "requests a second on FreeBSD" "acme and mighty grow up to 7 and 8 cores with Mio." (const "") $
      const (Left "it needs FreeBSD and its kqueue; this program was built for Linux. (The back end kqueue is tested on Linux over libkqueue, which is not what the figure is about.)"),
    figure "mio-16" "Mio, figure 16" "requests a second of SDN controllers by the number of cores" "McNettle on Mio: 20 million a second on 40 cores, ahead of Beacon and NOX-MT." (\cores -> ofCores cores <> " Beacon and NOX-MT are no longer maintained: the peers are GHC's manager, Open vSwitch's test controller and os-ken.") $
      \_ -> Right ((only ["ops_per_s", "cpu_us_per_op"] sdn) {benchCases = \plan -> [c | c <- withMode "throughput" sdn plan, lookup "rate" (caseParams c) == Nothing, lookup "in_flight" (caseParams c) == Just (Count 512)]}),
    figure "mio-17" "Mio, figure 17" "latency of SDN controllers" "With 30 cores a median of 1 ms, and 95 % below 10 ms; the others 4 and 17 ms." (const "") $
      \_ -> Right ((only ["p50_us", "p95_us", "p99_us"] sdn) {benchCases = \plan -> withMode "throughput" sdn plan <> withMode "latency" sdn plan}),
    figure "mio-18" "Mio, figure 18" "the distribution of response times of an echo server, one client" "On average 63 us on the non-threaded run-time system, 69 on the threaded one with Mio, 84 without; 99 % below 73, 83 and 119 us." (const "Percentiles stand for the curve.") $
      \_ -> Right (only ["p50_us", "p95_us", "p99_us", "max_us"] echo)
  ]
  where
    bare n =
      [Subject "weft" "pong-weft" WeftProgram, Subject "ghc" "pong-ghc" GhcProgram]
        <> [Subject "c-epoll" "c-epoll" CProgram | n == 1]
        <> [Subject "go" "go-pong" GoProgram]
    wai = [Subject "weft-wai" "wai-weft" WeftProgram, Subject "warp" "warp-ghc" GhcProgram]
    nginx = Subject "nginx" "nginx-static" CProgram
    small n =
      workloadCase (("size_kib", Count 1) : params n 1) (onePage n 1) {workPath = "/1k", workArguments = \env subject -> rootArguments subject <$> smallFolder env}
    withMode mode bench plan = [c | c <- benchCases bench plan, lookup "mode" (caseParams c) == Just (Word mode)]

-- Common ---------------------------------------------------------------------------------------

-- | Arguments: name, number, title, the paper's result, the note, and the benchmark.
figure :: Text -> Text -> Text -> Text -> (Int -> Text) -> (Int -> Either Text Benchmark) -> PaperFigure
figure name place title finding note bench = PaperFigure name place title finding note (fmap named . bench)
  where
    named b = b {benchName = name, benchTitle = place <> ": " <> title, benchBounds = const []}

ofCores, loadBeside :: Int -> Text
ofCores cores = "This machine has " <> T.pack (show cores) <> (if cores == 1 then " core." else " cores.")
loadBeside cores = ofCores cores <> " Where the server has all of them the load shares them with it."

-- | From one to the number of cores, by doubling.
coreCounts :: Int -> [Int]
coreCounts cores = nub (takeWhile (< cores) (iterate (* 2) 1) <> [max 1 cores])

-- | An existing benchmark, with the figure's metrics if they are given.
only :: [Text] -> Benchmark -> Benchmark
only names b = if null names then b else b {benchColumns = names}

-- | A benchmark without cases.
blank :: [Text] -> Benchmark
blank names =
  Benchmark
    { benchName = "",
      benchTitle = "",
      benchCases = const [],
      benchTools = [],
      benchRts = [],
      benchIgnores = [],
      benchBounds = const [],
      benchColumns = names,
      benchPlotted = id
    }

-- | A case without counting system calls.
timed :: Case -> Case
timed c = c {caseCounts = []}

-- | A benchmark of servers under the load.
server :: [Text] -> Benchmark
server names = (blank names) {benchTools = [loadTool]}
