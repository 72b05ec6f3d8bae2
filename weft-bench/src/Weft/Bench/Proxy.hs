{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : Benchmark @proxy@
--
-- Small answers through a reverse proxy on one core, over HTTP and over TLS 1.3 to the clients: @weft serve --proxy@,
-- nginx and HAProxy, each with connections to the server behind that are kept. That server is nginx with files, for
-- all.
module Weft.Bench.Proxy (proxy) where

import Data.Text (Text)
import Weft.Bench.Bounds
import Weft.Bench.Certificates
import Weft.Bench.Folders
import Weft.Bench.Load
import Weft.Bench.Server
import Weft.Bench.Types
import Weft.Bench.Workload

proxy :: Benchmark
proxy =
  Benchmark
    { benchName = "proxy",
      benchTitle = "answers of another server through a reverse proxy, over HTTP and TLS, connections kept, one core",
      benchCases = const [loadCase load subject | load <- loads, subject <- subjects],
      benchTools = [loadTool, "openssl", subjectProgram behind],
      benchRts = [],
      benchIgnores = ["--rts"],
      benchBounds = const bounds,
      benchColumns = ["cpu_us_per_op", "ops_per_s", "p50_us", "p99_us", "syscalls_per_op", "max_rss_mb"],
      benchPlotted = id
    }
  where
    subjects = [Subject "weft" "weft" CProgram, Subject "nginx" "nginx-proxy" CProgram, Subject "haproxy" "haproxy-proxy" CProgram]

-- | The server behind the proxies.
behind :: Subject
behind = Subject "behind" "nginx-static" CProgram

-- | The size of the answers in KiB, whether the clients speak TLS, and how many requests come in a second: the next one
-- after each answer, or, for the latencies at half of what nginx can do, so many.
data Load = Load !Int !Bool !(Maybe Int)

loads :: [Load]
loads = [Load size secure Nothing | size <- [1, 64], secure <- [False, True]] <> [atHalf]

atHalf :: Load
atHalf = Load 1 False (Just 10000)

loadParams :: Load -> Params
loadParams (Load size secure rate) =
  ("mode", Word (if secure then "https" else "http")) : ("size_kib", Count size) : [("rate", Count n) | Just n <- [rate]] <> params 64 1

loadCase :: Load -> Subject -> Case
loadCase load@(Load size secure rate) subject = workloadCaseBeside server (loadParams load) work subject
  where
    work =
      (onePage 64 1)
        { workPath = "/" <> show size <> "k",
          workTls = if secure then Just Kept else Nothing,
          workRate = rate,
          workArguments = \env _ -> if secure then secureArguments P256 env else pure []
        }
    server env act = do
      root <- behindFolder env
      withServerOn (clientCores env 1) env 1 behind ["--root", root] (act . arguments . serverPort)
    arguments port
      | subjectName subject == "weft" = ["serve", "--cores", "1", "--keep-alive-requests", "0", "--proxy", "/=http://127.0.0.1:" <> show port]
      | otherwise = ["--to", show port]

bounds :: [Bound]
bounds =
  [cpu ("CPU, " <> what <> ": weft / " <> peer) load peer limit | (what, load) <- named, (peer, limit) <- [("nginx", 1), ("haproxy", 1.1)]]
    <> [atMost "99th percentile, 1 KiB, 10,000 a second: weft / nginx" (on "weft" (loadParams atHalf) "p99_us" `Over` on "nginx" (loadParams atHalf) "p99_us") 1.5]
  where
    named = [("1 KiB", Load 1 False Nothing), ("64 KiB", Load 64 False Nothing), ("1 KiB over HTTPS", Load 1 True Nothing), ("64 KiB over HTTPS", Load 64 True Nothing)] :: [(Text, Load)]
    cpu what load peer = atMost what (on "weft" (loadParams load) "cpu_us_per_op" `Over` on peer (loadParams load) "cpu_us_per_op")
