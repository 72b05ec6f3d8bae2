{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : Benchmark @client@
--
-- Programs that connect to others, each on one core: the CPU time of a request for a small answer over 64 kept
-- connections, by Weft's client beside Go's (@get@), and by the package @http-client@ on Weft's connections beside its
-- own (@http-client@); the CPU time of looking a name up, beside Go's resolver (@names@); how late a dial is whose addresses do not answer (@dial-refused@, @dial-silent@, @dial-dead@);
-- and the time to fork a thread and to await its result (@await@).
module Weft.Bench.Client (client) where

import Data.Text (Text)
import qualified Data.Text as T
import Weft.Bench.Bounds
import Weft.Bench.Child
import Weft.Bench.Folders
import Weft.Bench.Server
import Weft.Bench.Timing
import Weft.Bench.Types

client :: Benchmark
client =
  Benchmark
    { benchName = "client",
      benchTitle = "programs that connect to others: requests over kept connections, dials, threads that are awaited; one core",
      benchCases = cases,
      benchTools = [subjectProgram behind, "name-server"],
      benchRts = [],
      benchIgnores = [],
      benchBounds = const bounds,
      benchColumns = ["cpu_us_per_op", "ops_per_s", "alloc_bytes_per_op", "ns_per_op", "late_us", "max_us", "max_rss_mb"],
      benchPlotted = id
    }

weft, ghc, go :: Subject
weft = Subject "weft" "client-weft" WeftProgram
ghc = Subject "ghc" "client-ghc" GhcProgram
go = Subject "go-http" "go-client" GoProgram

-- | The server that is asked.
behind :: Subject
behind = Subject "behind" "nginx-static" CProgram

cases :: Plan -> [Case]
cases plan =
  [getting (max 100 (round (planDuration plan * 500))) mode subject | (mode, subject) <- [("get", weft), ("get", go), ("http-client", weft), ("http-client", ghc)]]
    ++ [lookingUp subject | subject <- [weft, go]]
    ++ [trialCase selfMeasured (Trial weft [T.unpack mode, show dials] 1 (modeParams mode)) | (mode, _, _) <- diallings]
    ++ [trialCase selfMeasured (Trial subject ["await", show forks] 1 (modeParams "await")) | subject <- [weft, ghc]]
  where
    -- A dial behind a silent address takes a quarter of a second.
    dials = max 5 (round (planDuration plan * 7)) :: Int
    forks = max 100000 (round (planDuration plan * 500000)) :: Int

-- | This many requests of each connection.
getting :: Int -> Text -> Subject -> Case
getting each mode subject =
  timedCase subject (getParams mode) $ \env -> do
    root <- behindFolder env
    withServerOn (clientCores env 1) env 1 behind ["--root", root] $ \server -> do
      program <- subjectProgramWith env 1 subject [T.unpack mode, show (serverPort server), show size, show connections, show each]
      withChild env program (selfMeasured env)

-- | 10,000 look-ups of 1,000 names, a hundred at once. The name server has the other cores.
lookingUp :: Subject -> Case
lookingUp subject =
  timedCase subject (modeParams "names") $ \env ->
    withServerOn (clientCores env 1) env 1 (Subject "names" "name-server" CProgram) [] $ \server -> do
      program <- subjectProgramWith env 1 subject ["names", show (serverPort server), "10000", "100"]
      withChild env program (selfMeasured env)

connections, size :: Int
connections = 64
size = 1

getParams :: Text -> Params
getParams mode = [("mode", Word mode), ("size_kib", Count size), ("connections", Count connections), ("capabilities", Count 1)]

modeParams :: Text -> Params
modeParams mode = [("mode", Word mode), ("capabilities", Count 1)]

-- | The modes of dialling: what is late, and by how many microseconds it may be. (RFC 8305, section 5: the next address
-- is tried after 250 ms, of which a twentieth is allowed.)
diallings :: [(Text, Text, Double)]
diallings =
  [ ("dial-refused", "first address refuses, time to connect, us", 1000),
    ("dial-silent", "first address is silent, time to connect beyond 250 ms, us", 12500),
    ("dial-dead", "all addresses are silent, time beyond the deadline, us", 5000)
  ]

bounds :: [Bound]
bounds =
  [ atMost "GET of 1 KiB, CPU: weft / go-http" (cpu "weft" "get" `Over` cpu "go-http" "get") 0.6,
    atMost "GET of 1 KiB by http-client, CPU: weft / ghc" (cpu "weft" "http-client" `Over` cpu "ghc" "http-client") 0.9
  ]
    ++ [atMost "looking a name up, CPU: weft / go-http" (on "weft" (modeParams "names") "cpu_us_per_op" `Over` on "go-http" (modeParams "names") "cpu_us_per_op") 1]
    ++ [atMost ("dial, " <> what) (on "weft" (modeParams mode) "late_us") limit | (mode, what, limit) <- diallings]
    ++ [atMost "fork and await, CPU: weft / ghc" (forked "weft" `Over` forked "ghc") 1.3]
  where
    cpu subject mode = on subject (getParams mode) "cpu_us_per_op"
    forked subject = on subject (modeParams "await") "cpu_us_per_op"
