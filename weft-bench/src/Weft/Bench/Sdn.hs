{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : Benchmark @sdn@
--
-- A learning-switch controller under the load of Mio's paper (section 6.3): a hundred switches with a thousand hosts
-- each, and at most 512 unanswered packets for each switch. It is compared with the same program on GHC's own manager,
-- Open vSwitch's test controller and os-ken. The load is @weft-bench cbench@; an operation is the first answer to a
-- packet.
--
-- With 51,200 packets in flight, the queue determines their latency, and a read receives hundreds of them: the I/O
-- manager's share is below the noise. Therefore the controller's latency and the manager's cost are measured at
-- 500,000 packets a second (@rate@) and with four packets in flight for each switch. Instructions are counted by
-- callgrind with one switch and one packet at a time.
--
-- With as many capabilities as there are cores, the load has to share them with the controller (@load_cores@: shared).
-- The cost of an additional capability is therefore measured against a run with one capability on the same cores, not
-- against the one whose load has a core of its own (@load_cores@: own).
module Weft.Bench.Sdn (sdn) where

import Control.Concurrent (threadDelay)
import Control.Exception (IOException, bracket, try)
import Data.Aeson (FromJSON (..), withObject, (.:))
import qualified Data.Map.Strict as M
import Data.Text (Text)
import qualified Data.Text as T
import System.Environment (getExecutablePath)
import Weft.Bench.Bounds
import Weft.Bench.Callgrind (callgrindTool, underCallgrind)
import Weft.Bench.Child
import Weft.Bench.Server
import Weft.Bench.Types
import Weft.Socket (Family (..), SockAddr (..), SocketType (..), bind, close, connect, defaultProtocol, socket, socketPort, tupleToHostAddress)
import Weft.Tools.Proc

sdn :: Benchmark
sdn =
  Benchmark
    { benchName = "sdn",
      benchTitle = "a learning-switch controller of OpenFlow under cbench",
      benchCases = const [sdnCase setting subject | setting <- settings, subject <- subjects setting],
      benchTools = [],
      benchRts = [],
      benchIgnores = [],
      benchBounds = const bounds,
      benchColumns =
        ["ops_per_s", "cpu_us_per_op", "user_instructions_per_op", "p50_us", "p95_us", "p99_us", "mean_over_worst_switch", "alloc_bytes_per_op", "rss_bytes_per_idle", "max_rss_mb"],
      benchPlotted = id
    }

-- | The behaviour of the switches.
data Setting = Setting
  { settingMode :: !Text,
    settingSwitches :: !Int,
    settingInFlight :: !Int,
    settingCores :: !Int,
    -- | Packets a second; 0 means as many as are answered.
    settingRate :: !Int,
    -- | Where the controller and the load run.
    settingPlace :: !Place
  }

-- | The controller has the first cores, one for each capability, and the load has the others; or both share the given
-- number of first cores.
data Place = Apart | Together !Int
  deriving (Eq)

busy, busyTogether, busy2, steady, steadyTogether, steady2, few, brisk, single, alone, quiet :: Setting
busy = Setting "throughput" 100 512 1 0 Apart
busyTogether = busy {settingPlace = Together 2}
busy2 = busyTogether {settingCores = 2}
steady = Setting "throughput" 100 512 1 500000 Apart
steadyTogether = steady {settingPlace = Together 2}
steady2 = steadyTogether {settingCores = 2}
few = Setting "throughput" 16 512 1 0 Apart -- ovs-testcontroller takes no more switches
brisk = Setting "throughput" 100 4 1 0 Apart
single = Setting "latency" 100 1 1 0 Apart
alone = Setting "latency" 1 1 1 0 Apart
quiet = Setting "idle" 5000 0 1 0 Apart

settings :: [Setting]
settings = [busy, busyTogether, busy2, steady, steadyTogether, steady2, few, brisk, single, alone, quiet]

subjects :: Setting -> [Subject]
subjects setting
  | settingSwitches setting == 16 = own ++ [Subject "ovs-testcontroller" "ovs-testcontroller" CProgram]
  | settingMode setting /= "idle" && settingPlace setting == Apart && settingRate setting == 0 && settingSwitches setting > 1 = own ++ [Subject "os-ken" "os-ken-switch" CProgram]
  | otherwise = own
  where
    own = [Subject "weft" "sdn-weft" WeftProgram, Subject "ghc" "sdn-ghc" GhcProgram]

sdnParams :: Setting -> Params
sdnParams s =
  [("mode", Word (settingMode s)), ("switches", Count (settingSwitches s)), ("in_flight", Count (settingInFlight s)), ("capabilities", Count (settingCores s)), ("load_cores", Word (if settingPlace s == Apart then "own" else "shared"))]
    ++ [("rate", Count (settingRate s)) | settingRate s > 0]

sdnCase :: Setting -> Subject -> Case
sdnCase setting subject =
  Case
    { caseSubject = subject,
      caseParams = sdnParams setting,
      caseGroup = sdnParams setting,
      caseMeasure = \env -> withController env setting subject (measure env setting),
      caseCounts = [Counting callgrindTool "user_instructions_per_op" (\env -> countingInstructions env setting subject) | settingSwitches setting == 1]
    }

-- Controllers -----------------------------------------------------------------------------

-- | Our controllers print where they listen. The others get a port that was free, and have to accept connections there.
withController :: Env -> Setting -> Subject -> (Server -> IO a) -> IO a
withController env setting subject action = case subjectKind subject of
  CProgram -> do
    port <- freePort
    program <- subjectProgramWith env (settingCores setting) subject (arguments port)
    withChild env (placed program) $ \child -> do
      accepting child (subjectName subject) port 200
      action (Server (childPid child) port subject child)
  _ -> do
    program <- subjectProgramWith env (settingCores setting) subject ["--port", "0"]
    withChild env (placed program) $ \child -> listening child subject >>= action
  where
    placed program = case settingPlace setting of
      Apart -> program
      Together n -> program {programCores = firstCores env n}
    arguments port
      | subjectName subject == "os-ken" = [show port]
      | otherwise = ["--unixctl=none", "ptcp:" ++ show port ++ ":127.0.0.1"]

freePort :: IO Int
freePort = bracket (socket AF_INET Stream defaultProtocol) close $ \s -> do
  bind s loopbackAny
  fromIntegral <$> socketPort s

loopbackAny :: SockAddr
loopbackAny = SockAddrInet 0 (tupleToHostAddress (127, 0, 0, 1))

-- | Wait until the child accepts there, for that many tenths of a second at most, or until it has ended.
accepting :: Child -> Text -> Int -> Int -> IO ()
accepting child name port tries = do
  r <- try (bracket (socket AF_INET Stream defaultProtocol) close (`connect` SockAddrInet (fromIntegral port) (tupleToHostAddress (127, 0, 0, 1))))
  case r of
    Right () -> pure ()
    Left e -> do
      ended <- hasEnded child
      case () of
        _
          | Just why <- ended -> failWith (name <> " ended: " <> why)
          | tries <= 0 -> failWith (name <> " does not listen: " <> T.pack (show (e :: IOException)))
          | otherwise -> threadDelay 100000 >> accepting child name port (tries - 1)

-- Measuring -------------------------------------------------------------------------------

-- | The output of @weft-bench cbench@.
newtype Load = Load (M.Map Text Double)

instance FromJSON Load where
  parseJSON = withObject "cbench" $ \o -> do
    runs <- o .: "runs"
    case runs of
      [run] -> Load <$> withObject "run" (.: "metrics") run
      _ -> fail "one run"

measure :: Env -> Setting -> Server -> IO [Measured]
measure env setting server = do
  own <- getExecutablePath
  first <- report server
  resident <- residentBytes (serverPid server)
  cpu <- cpuSeconds (serverPid server)
  Load load <- withChild env (loading env setting server own warmup duration) (hearJson (warmup + duration + 120))
  cpu' <- cpuSeconds (serverPid server)
  peak <- peakResidentBytes (serverPid server)
  final <- report server
  let ops = M.findWithDefault 0 "total_unique_count" load
      idleSwitches = settingMode setting == "idle"
      perOp = [("cpu_us_per_op", 1e6 * (cpu' - cpu) / ops) | ops > 0]
      allocated = [("alloc_bytes_per_op", (reportAllocated b - reportAllocated a) / ops) | Just a <- [first], Just b <- [final], ops > 0]
      memory = [("rss_bytes_per_idle", (peak - resident) / fromIntegral (settingSwitches setting)) | idleSwitches]
  if M.findWithDefault 0 "lost_switches_count" load > 0 || (ops <= 0 && not idleSwitches)
    then failWith (subjectName (serverSubject server) <> ": switches were lost, or nothing was answered")
    else pure [(sdnParams setting, M.unions [M.fromList (perOp ++ allocated ++ memory ++ [("max_rss_mb", peak / 1e6), ("cpu_s", cpu' - cpu)]), M.filterWithKey (\k _ -> k `notElem` dropped) load])]
  where
    -- An echo is sent every ten seconds: allow for two, or for one if the rounds are short.
    duration
      | settingMode setting /= "idle" = planDuration (envPlan env)
      | planDuration (envPlan env) < 1 = 12
      | otherwise = max 25 (planDuration (envPlan env))
    -- The hosts are learnt first. At a fixed rate, what is late then would have to be caught up in the measured time;
    -- with many in flight, some switches would be served late.
    warmup = (if settingRate setting > 0 || settingInFlight setting > 4 then max 1 else id) (planWarmup (envPlan env))
    dropped = ["load_cpu_s", "lost_count", "best_switch_ratio", "worst_switch_ratio", "flows_ratio", "total_unique_count", "errors_count"]

-- | The arguments of @weft-bench cbench@.
loading :: Env -> Setting -> Server -> FilePath -> Double -> Double -> Program
loading env setting server own warmup duration =
  Program
    { programPath = own,
      programArguments =
        ["cbench", "--json", "-", "--controller", "127.0.0.1:" ++ show (serverPort server), "--mode", T.unpack (settingMode setting)]
          ++ ["--switches", show (settingSwitches setting), "--warmup", show warmup, "--seconds", show duration]
          ++ ["--outstanding", show (max 1 (settingInFlight setting))]
          ++ concat [["--rate", show (settingRate setting)] | settingRate setting > 0],
      programEnvironment = [],
      programCores = case settingPlace setting of
        Apart -> clientCores env (settingCores setting)
        Together n -> firstCores env n
    }

firstCores :: Env -> Int -> [Int]
firstCores env n = [0 .. min n (envCores env) - 1]

-- | The instructions for an answer in user space: the difference of two runs, divided by the difference of their
-- numbers of answers. With one packet at a time, each packet is read and answered separately, whatever else the machine
-- does.
countingInstructions :: Env -> Setting -> Subject -> IO [Measured]
countingInstructions env setting subject = do
  own <- getExecutablePath
  (few', before) <- counted own shorter
  (many, after) <- counted own (4 * shorter)
  if many > few'
    then pure [(sdnParams setting, M.singleton "user_instructions_per_op" ((after - before) / (many - few')))]
    else failWith "callgrind: the longer run had no more answers"
  where
    -- In less time there are so few answers that what happens at fixed times counts.
    shorter = max 1 (planTrace (envPlan env))
    counted own duration = do
      program <- subjectProgramWith env (settingCores setting) subject ["--port", "0"]
      underCallgrind env program $ \child -> do
        server <- listening child subject
        -- After a thousand packets the controller knows the hosts.
        Load load <- withChild env (loading env setting server own 0 duration) (hearJson 120)
        pure (M.findWithDefault 0 "total_unique_count" load)

-- Bounds ----------------------------------------------------------------------------------

bounds :: [Bound]
bounds =
  [ atMost "nanoseconds an answer, -N1: 500,000 a second" (weft busy "ns_per_op") 2000,
    atMost "nanoseconds an answer, 16 switches: weft / ovs-testcontroller" (weft few "ns_per_op" `Over` on "ovs-testcontroller" (sdnParams few) "ns_per_op") (1 / 3),
    atMost "nanoseconds an answer, -N1: weft / os-ken" (weft busy "ns_per_op" `Over` on "os-ken" (sdnParams busy) "ns_per_op") (1 / 50),
    atMost "median at 500,000 a second, microseconds" (weft steady "p50_us") 1000,
    atMost "95th percentile at 500,000 a second" (weft steady "p95_us") 10000,
    never "packets that could not be sent at 500,000 a second" (weft steady "unsent_count"),
    atMost "mean of the switches / worst switch, 500,000 a second" (weft steady "mean_over_worst_switch") 1.25,
    atMost "mean of the switches / worst switch" (weft busy "mean_over_worst_switch") 1.25,
    atMost "mean of the switches / worst switch, 500,000 a second, -N2" (weft steady2 "mean_over_worst_switch") 1.25,
    atMost "CPU an answer, load on the same cores: -N2 / -N1" (weft busy2 "cpu_us_per_op" `Over` weft busyTogether "cpu_us_per_op") 1.15,
    atMost "CPU an answer, 500,000 a second, load on the same cores: -N2 / -N1" (weft steady2 "cpu_us_per_op" `Over` weft steadyTogether "cpu_us_per_op") 1.15,
    atMost "CPU an answer, 500,000 a second: weft / ghc" (weft steady "cpu_us_per_op" `Over` on "ghc" (sdnParams steady) "cpu_us_per_op") 0.8,
    atMost "CPU an answer, four in flight a switch: weft / ghc" (weft brisk "cpu_us_per_op" `Over` on "ghc" (sdnParams brisk) "cpu_us_per_op") 0.8,
    atMost "CPU an answer, 51,200 in flight: weft / ghc" (weft busy "cpu_us_per_op" `Over` on "ghc" (sdnParams busy) "cpu_us_per_op") 1.05,
    atMost "instructions an answer, one at a time: weft / ghc" (weft alone "user_instructions_per_op" `Over` on "ghc" (sdnParams alone) "user_instructions_per_op") 0.8,
    never "idle switches lost" (weft quiet "lost_switches_count"),
    atMost "bytes resident an idle switch" (weft quiet "rss_bytes_per_idle") 8192
  ]
  where
    weft setting = on "weft" (sdnParams setting)
