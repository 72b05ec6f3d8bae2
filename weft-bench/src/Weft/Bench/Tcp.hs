{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : Benchmark @tcp@
--
-- TCP in user space, over a TUN device with an MTU of 1500 bytes: Weft's stack, compared with smoltcp and gVisor's
-- netstack on the same device, and with the kernel's own stack behind a relay of two TUN devices. The client is always
-- the kernel's, in a network namespace of its own on the second core; the stack runs on the first. Needs root, and
-- @\/dev\/net\/tun@.
--
-- With loss, every subject is behind the relay: 25 ms each way, and one packet in a hundred lost in each direction, by
-- the same three seeds. For the idle connections and the tail losses the peer is part of the program. The web server of
-- the 2007 paper is the example
-- @hybrid-web@, on Weft's stack and on the kernel's behind the relay, both with offload, with files that fit into its
-- cache.
module Weft.Bench.Tcp (tcp) where

import Control.Monad (forM, unless)
import qualified Data.Map.Strict as M
import Data.Text (Text)
import qualified Data.Text as T
import System.Directory (doesPathExist)
import System.Posix.User (getEffectiveUserID)
import Weft.Bench.Bounds
import Weft.Bench.Child
import Weft.Bench.Cold (manyFiles)
import Weft.Bench.Types

tcp :: Benchmark
tcp =
  Benchmark
    { benchName = "tcp",
      benchTitle = "TCP in the program over a TUN device, one core",
      benchCases = \plan -> concat [[trialCase s subject | subject <- subjectsOf s] | s <- settings] <> [webCase connections subject | connections <- webLoads, subject <- [weft, kernel]] <> [idleCase plan, tailCase],
      benchTools = ["tcp-peer", "unshare", "ip", "sysctl"],
      benchRts = [],
      benchIgnores = ["--rts", "--backend"],
      benchBounds = bounds,
      benchColumns = ["gbit_per_s", "ops_per_s", "p50_us", "p99_us", "cpu_us_per_op", "cpu_ns_per_kib", "live_bytes_per_idle", "idle_core_ratio", "tail_timeout_ratio", "syns_per_s", "unserved_ratio", "live_bytes_per_syn", "max_rss_mb"],
      benchPlotted = filter ((`elem` [[("mode", Word "bulk"), d] | d <- [("direction", Word "send"), ("direction", Word "receive")]]) . runParams)
    }

-- | A load: its name in the results, and the arguments of the client.
data Setting = Setting
  { settingParams :: !Params,
    settingArguments :: ![String],
    -- | Whether every subject is behind the relay.
    settingLossy :: !Bool,
    settingOffload :: !Bool
  }

bulk :: Bool -> Text -> Setting
bulk offload direction = Setting [("mode", Word (if offload then "bulk-offload" else "bulk")), ("direction", Word direction)] ["-m", T.unpack direction] False offload

rr :: Int -> Setting
rr connections = Setting [("mode", Word "rr"), ("connections", Count connections)] ["-m", "rr", "-c", show connections] False False

loss, flood :: Setting
loss = Setting [("mode", Word "loss")] ["-m", "send", "-d", "25", "-l", "0.01"] True False
flood = Setting [("mode", Word "synflood")] ["-m", "flood"] False False

settings :: [Setting]
settings = [bulk offload direction | offload <- [False, True], direction <- ["send", "receive"]] <> [rr 1, rr 64, loss, flood]

weft, smoltcp, netstack, kernel :: Subject
weft = Subject "weft" "tcp-weft" WeftProgram
smoltcp = Subject "smoltcp" "smoltcp-tcp" RustProgram
netstack = Subject "netstack" "netstack-tcp" GoProgram
kernel = Subject "kernel" "tcp-peer" CProgram

-- | The other stacks have no segmentation offload on a TUN device. The flood is measured only for our own stack.
subjectsOf :: Setting -> [Subject]
subjectsOf s
  | settingOffload s || settingLossy s = [weft, kernel]
  | settingParams s == settingParams flood = [weft]
  | otherwise = [weft, smoltcp, netstack, kernel]

trialCase :: Setting -> Subject -> Case
trialCase s subject =
  timedCase subject (settingParams s) $ \env -> do
    parts <- forM (if settingLossy s then [1, 2, 3 :: Int] else [1]) (trial env s subject)
    pure (M.map (/ fromIntegral (length parts)) (M.unionsWith (+) parts))

-- | A trial with one seed.
trial :: Env -> Setting -> Subject -> Int -> IO (M.Map Text Double)
trial env s subject seed = do
  server <- if kernelsOwn then pure "kernel" else found env (subjectProgram subject)
  underTrial env seconds (["-S", show seed] <> settingArguments s <> ["-o" | settingOffload s] <> ["-r" | kernelsOwn || settingLossy s] <> ["--", server])
  where
    kernelsOwn = subjectName subject == "kernel"
    -- A longer time, since the window takes time to grow after each loss.
    seconds = (if settingLossy s then 4 else 1) * planDuration (envPlan env)

found :: Env -> FilePath -> IO FilePath
found env name = locate env name >>= maybe (failWith (T.pack name <> " is missing")) pure

-- | Run @tcp-peer trial@ in a namespace of its own, with the given number of seconds of load.
underTrial :: Env -> Double -> [String] -> IO (M.Map Text Double)
underTrial env seconds arguments = do
  user <- getEffectiveUserID
  tun <- doesPathExist "/dev/net/tun"
  unless (user == 0 && tun) $ failWith "needs root and /dev/net/tun"
  peer <- found env "tcp-peer"
  unshare <- found env "unshare"
  withChild env (Program unshare (["-n", "--", peer, "trial", "-s", show seconds] <> arguments) [] []) (hearJson (seconds * 2 + 60))

-- | The numbers of concurrent connections of the web server.
webLoads :: [Int]
webLoads = [1, 16, 64]

webParams :: Int -> Params
webParams connections = [("mode", Word "web"), ("connections", Count connections)]

-- | 256 files of 16 KiB, requested at random.
webCase :: Int -> Subject -> Case
webCase connections subject =
  timedCase subject (webParams connections) $ \env -> do
    folder <- manyFiles 256 16
    server <- found env "examples/hybrid-web"
    underTrial env (planDuration (envPlan env)) (["-m", "web", "-c", show connections, "-o"] <> ["-k" | subjectName subject == "kernel"] <> ["--", server, folder])

tailParams :: Params
tailParams = [("mode", Word "tails")]

tailCase :: Case
tailCase = timedCase weft tailParams $ \env -> do
  path <- found env (subjectProgram weft)
  M.delete "tails" <$> withChild env (Program path ["tails", "3000"] [] [0]) (hearJson 60)

idleParams :: Plan -> Params
idleParams plan = [("mode", Word "idle"), ("connections", Count (planIdleTcp plan))]

idleCase :: Plan -> Case
idleCase plan = timedCase weft (idleParams plan) $ \env -> do
  path <- found env (subjectProgram weft)
  M.delete "connections" <$> withChild env (Program path ["idle", show (planIdleTcp (envPlan env))] [] [0]) (hearJson 170)

-- Bounds ----------------------------------------------------------------------------------

bounds :: Plan -> [Bound]
bounds plan =
  concat
    [ [ atMost ("bulk, " <> d <> ": smoltcp / weft") (rate smoltcp (bulk False d) `Over` rate weft (bulk False d)) 2,
        atMost ("bulk, " <> d <> ": netstack / weft") (rate netstack (bulk False d) `Over` rate weft (bulk False d)) 1,
        atMost ("bulk, " <> d <> ": without / with offload") (rate weft (bulk False d) `Over` rate weft (bulk True d)) 0.5,
        atMost ("bulk, " <> d <> ", with offload, ns a KiB: 4 Gbit/s") (Metric "weft" (settingParams (bulk True d)) "ns_per_kib") (1e9 / (4e9 / 8192))
      ]
      | d <- ["send", "receive"]
    ]
    <> concat
      [ [ atMost ("request and response, " <> n <> ": kernel / weft") (operations kernel s `Over` operations weft s) (1 / 0.6),
          atMost ("request and response, " <> n <> ": netstack / weft") (operations netstack s `Over` operations weft s) 1
        ]
        | (n, s) <- [("1 connection", rr 1), ("64 connections", rr 64)]
      ]
    <> [ atMost "50 ms, 1 % loss: kernel / weft" (rate kernel loss `Over` rate weft loss) (1 / 0.9),
         atMost "lost tails that waited for a timeout" (on "weft" tailParams "tail_timeout_ratio") 0.05,
         atMost "bytes of an idle connection" (on "weft" (idleParams plan) "live_bytes_per_idle") 1024,
         atMost "timers of idle connections, of a core" (on "weft" (idleParams plan) "idle_core_ratio") 0.05,
         atMost "SYN flood: clients that were not served" (on "weft" (settingParams flood) "unserved_ratio") 0.01,
         atMost "SYN flood: bytes a SYN" (on "weft" (settingParams flood) "live_bytes_per_syn") 1
       ]
    <> [ atMost ("the web server, " <> T.pack (show n) <> " connections: on the kernel's stack / on weft's") (on "kernel" (webParams n) "ops_per_s" `Over` on "weft" (webParams n) "ops_per_s") 1.5
         | n <- webLoads
       ]
  where
    rate subject s = on (subjectName subject) (settingParams s) "gbit_per_s"
    operations subject s = on (subjectName subject) (settingParams s) "ops_per_s"
