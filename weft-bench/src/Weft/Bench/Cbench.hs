{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : @weft-bench cbench@
--
-- A load generator for OpenFlow controllers, after cbench: many fake switches, each with many hosts, and a bound on the
-- probes without an answer. It works against any controller of OpenFlow 1.0 or 1.3.
module Weft.Bench.Cbench
  ( cbenchCommand,
  )
where

import Control.Concurrent (forkIO, threadDelay, yield)
import Control.Concurrent.MVar
import Control.Exception (SomeException, displayException, fromException, try)
import Control.Monad (forM, forM_, unless, void, when)
import Data.Aeson (Value, encode, object, toJSON, (.=))
import qualified Data.Aeson.Key as Key
import Data.ByteString.Builder (char7, lazyByteString)
import qualified Data.ByteString.Lazy.Char8 as L
import Data.IORef
import Data.Maybe (isJust, maybeToList)
import Data.Version (showVersion)
import GHC.Clock (getMonotonicTime, getMonotonicTimeNSec)
import GHC.Conc (getNumProcessors)
import GHC.IO.Exception (IOException (ioe_description, ioe_filename))
import Options.Applicative hiding (command)
import qualified Paths_weft_bench
import System.CPUTime (getCPUTime)
import System.Exit (ExitCode (..), exitWith)
import System.IO
import System.Info (compilerVersion)
import Text.Printf (printf)
import Weft.Bench.Cbench.FakeSwitch
import Weft.Bench.Cbench.Histogram
import Weft.OpenFlow.Types (Version (..))
import Weft.Socket
import Weft.Timer (sleep)
import Weft.Tools.Output (checkOutputs, writeOut)
import Weft.Tools.Serve.Values (hostAndPort)
import Weft.Tools.StandardError (reportLine)
import Weft.Tools.Subcommand (Subcommand, subcommand)

data Mode = Throughput | Latency | Idle
  deriving (Eq)

data Arguments = Arguments
  { argumentController :: (HostName, ServiceName),
    argumentVersion :: Version,
    argumentSwitches :: Int,
    argumentHosts :: Int,
    argumentOutstanding :: Int,
    argumentMode :: Mode,
    argumentRate :: Maybe Int,
    argumentGiveUp :: Double,
    argumentWarmup :: Double,
    argumentSeconds :: Double,
    argumentJson :: Maybe FilePath
  }

-- | The subcommand.
cbenchCommand :: Subcommand
cbenchCommand = subcommand "cbench" (info (cbench <$> arguments) (progDesc text <> footer examples <> failureCode 2))
  where
    text = "Measure an OpenFlow controller: fake switches of OpenFlow 1.0 or 1.3 send it packets and count its answers"
    examples =
      "Examples: 'weft-bench cbench' (100 switches of 1000 hosts, 512 packets each without an answer, against 127.0.0.1:6653); \
      \'weft-bench cbench --mode latency --switches 1'; 'weft-bench cbench --mode idle --switches 5000 --seconds 60'; \
      \'weft-bench cbench --controller 10.0.0.1:6633 --json -'. An answer is the first FLOW_MOD or PACKET_OUT for a packet's \
      \buffer. Exit status: 0 it ran, 1 switches could not connect or lost their connection, 2 bad arguments."

arguments :: Parser Arguments
arguments =
  Arguments
    <$> option (eitherReader address) (long "controller" <> metavar "HOST:PORT" <> value ("127.0.0.1", "6653") <> help "The controller (127.0.0.1:6653)")
    <*> option (eitherReader version) (long "openflow" <> metavar "VERSION" <> value V10 <> help "Version of OpenFlow, 1.0 or 1.3 (1.0)")
    <*> count "switches" 100 100000 "Number of fake switches (100)"
    <*> count "hosts" 1000 65536 "Number of hosts of each switch (1000)"
    <*> option (eitherReader power) (long "outstanding" <> metavar "N" <> value 512 <> help "Largest number of unanswered packets of a switch: a power of two (512)")
    <*> option (eitherReader mode) (long "mode" <> metavar "MODE" <> value Throughput <> help "throughput: up to --outstanding packets at once; latency: one at a time; idle: none, only answers to echo requests (throughput)")
    <*> optional (option (eitherReader (bounded 100000000)) (long "rate" <> metavar "N" <> help "With --mode throughput: N packets a second from all switches together, independent of the answers. The switches take turns, each sends what is due every 4 ms, and latencies count from the time at which a packet was due"))
    <*> seconds' "give-up" 0 "0" "Time after which an unanswered packet counts as lost, and another one is sent; 0 means never (0)"
    <*> seconds' "warmup" 1 "0" "Seconds before measuring (1)"
    <*> seconds' "seconds" 5 "0.001" "Seconds of measuring, at least 0.001 (5)"
    <*> optional (strOption (long "json" <> metavar "FILE" <> help "Write the result to a file; - means standard output"))
  where
    count name def most text = option (eitherReader (bounded most)) (long name <> metavar "N" <> value def <> help text)
    bounded :: Int -> String -> Either String Int
    bounded most s = case reads s of
      [(n, "")] | n >= 1 && n <= most -> Right n
      _ -> Left ("expected a number from 1 to " <> show most <> ", not " <> show s)
    power s = case bounded 65536 s of
      Right n | n `elem` takeWhile (<= 65536) (iterate (* 2) 1) -> Right n
      _ -> Left ("expected a power of two up to 65536, not " <> show s)
    seconds' name def least text = option (eitherReader (secondsFrom least)) (long name <> metavar "SECONDS" <> value def <> help text)
    secondsFrom least s = case reads s of
      [(x, "")] | x >= read least && x < 1e6 -> Right x
      _ -> Left ("expected a number of seconds from " <> least <> " to 1000000, not " <> show s)
    mode s = maybe (Left ("expected throughput, latency or idle, not " <> show s)) Right (lookup s [("throughput", Throughput), ("latency", Latency), ("idle", Idle)])
    version s = maybe (Left ("expected 1.0 or 1.3, not " <> show s)) Right (lookup s [("1.0", V10), ("1.3", V13)])
    address s = case hostAndPort s of
      Right (Just host, port) | any (/= '0') port -> Right (host, port)
      _ -> Left ("expected HOST:PORT, with a port from 1 to 65535, not " <> show s)

-- | Connect all switches, let them send packets, count for the given time, and report.
cbench :: Arguments -> IO ()
cbench given = do
  hSetBuffering stdout LineBuffering
  when (isJust (argumentRate given) && argumentMode given /= Throughput) $
    reportLine "weft-bench cbench: --rate goes with --mode throughput" >> exitWith (ExitFailure 2)
  checkOutputs "weft-bench cbench" (filter (/= "-") (maybeToList (argumentJson given)))
  found <- getAddrInfo (Just defaultHints {addrSocketType = Stream}) (Just (fst (argumentController given))) (Just (snd (argumentController given)))
  ai <- maybe (refuse "the controller's name has no address") pure (firstOf found)
  lost <- newIORef []
  go <- newEmptyMVar
  connected <- forM [1 .. argumentSwitches given] (connectSwitch given ai lost go)
  let switches = map fst connected
  putMVar go ()
  sleep (startInterval given)
  forM_ (argumentRate given) (\rate -> forkIO (pace rate (map snd connected)))
  threadDelay (round (argumentWarmup given * 1e6))
  before <- mapM tally switches
  mapM_ restart switches
  start <- (,) <$> getMonotonicTime <*> getCPUTime
  threadDelay (round (argumentSeconds given * 1e6))
  after <- mapM tally switches
  end <- (,) <$> getMonotonicTime <*> getCPUTime
  ended <- readIORef lost
  times <- newHistogram
  forM_ switches (mergeInto times . latencies)
  result <- resultOf given (zip before after) (fst end - fst start) (fromIntegral (snd end - snd start) * 1e-12) (length ended) times
  unless (argumentJson given == Just "-") (putStr (rendered given result))
  forM_ (argumentJson given) (writeJson given result)
  when (argumentMode given /= Idle && all ((== 0) . tallyUnique) after) $
    reportLine "weft-bench cbench: no packet was answered by a FLOW_MOD or PACKET_OUT with the packet's buffer"
  forM_ (take 3 ended) (\(n, why) -> reportLine ("weft-bench cbench: switch " <> show (n :: Int) <> ": " <> why))
  unless (null ended) (exitWith (ExitFailure 1))
  where
    firstOf xs = case xs of x : _ -> Just x; [] -> Nothing

refuse :: String -> IO a
refuse why = reportLine ("weft-bench cbench: " <> why) >> exitWith (ExitFailure 1)

-- | An 'IOException' without the function that threw it.
reason :: SomeException -> String
reason e = case fromException e of
  Just failed -> maybe "" (<> ": ") (ioe_filename failed) <> ioe_description failed
  Nothing -> displayException e

connectSwitch :: Arguments -> AddrInfo -> IORef [(Int, String)] -> MVar () -> Int -> IO (FakeSwitch, Int -> Int -> IO ())
connectSwitch given ai lost go n = do
  made <- try $ do
    sock <- openSocket ai
    connect sock (addrAddress ai)
    setSocketOption sock NoDelay 1
    f <- newFakeSwitch shape n sock
    rest <- handshake f
    pure (f, rest)
  case made of
    Left e -> refuse ("switch " <> show n <> ": " <> reason e)
    Right (f, rest) -> do
      void . forkIO $ do
        -- A connected switch answers echoes at once, and sends packets when the last switch is connected.
        end <-
          try
            ( case (argumentMode given, argumentRate given) of
                (Idle, _) -> answerOnly f rest
                (Throughput, Just _) -> snd (paced f rest)
                _ -> answerUntil f (startInterval given) go rest >>= ask f
            )
        case end of
          Left e -> atomicModifyIORef' lost (\ls -> ((n, reason e) : ls, ()))
          Right () -> pure ()
      pure (f, \due most -> try (fst (paced f rest) due most) >>= either (\e -> const (pure ()) (e :: SomeException)) pure)
  where
    shape =
      Shape
        { shapeVersion = argumentVersion given,
          shapeHosts = argumentHosts given,
          shapeOutstanding = case argumentMode given of Throughput -> argumentOutstanding given; _ -> 1,
          shapeGiveUp = round (argumentGiveUp given * 1e9)
        }

-- | The time between two looks of a connected switch at whether the last one is connected. The more switches, the
-- longer, so that they leave most of the processor to the connecting.
startInterval :: Arguments -> Duration
startInterval given = milliseconds (max 50 (argumentSwitches given `div` 20))

-- | Every 4 ms send the packets that are due, for ever. The switches take turns, each at its own time within the 4 ms.
-- The first packet is sent at the beginning, and late packets are sent at once.
pace :: Int -> [Int -> Int -> IO ()] -> IO ()
pace rate senders = do
  start <- fromIntegral <$> getMonotonicTimeNSec
  let n = length senders
      interval = 4000000 :: Int
      -- How many packets of all switches are due before their kth turn, and how many of these are the ith switch's.
      ofAll k = (k * rate + 249) `div` 250
      share i k = (ofAll k + n - 1 - i) `div` n
      -- If the sender is late, it still yields to the threads of the switches.
      turn _ k [] = yield >> turn 0 (k + 1) senders
      turn i k (send : rest) = do
        let due = start + k * interval + i * interval `div` n
        await due
        send due (share i (k + 1) - share i k)
        turn (i + 1) k rest
      await due = do
        now <- fromIntegral <$> getMonotonicTimeNSec
        if now < due then sleep (nanoseconds (fromIntegral (max 100000 (due - now)))) >> await due else pure ()
  turn (0 :: Int) 0 senders

-- Results -----------------------------------------------------------------------------------

-- | Metrics by name, in order. Without answers there are no latencies (NaN, which is null in JSON).
type Result = [(String, Double)]

resultOf :: Arguments -> [(Tally, Tally)] -> Double -> Double -> Int -> Histogram -> IO Result
resultOf given tallies wall cpu lost times = do
  p50 <- percentile times 0.5
  p95 <- percentile times 0.95
  p99 <- percentile times 0.99
  most <- largest times
  let each = map (fromIntegral . delta tallyUnique) tallies :: [Double]
      unique = sum each
      mean = unique / fromIntegral (length each)
      over x = if mean > 0 then x / mean else 0
      us n = if unique > 0 then fromIntegral n / 1000 else 0 / 0 :: Double
      answers =
        [ ("ops_per_s", unique / wall),
          ("ns_per_op", if unique > 0 then 1e9 * wall / unique else 0),
          ("p50_us", us p50),
          ("p95_us", us p95),
          ("p99_us", us p99),
          ("max_us", us most),
          ("flows_ratio", if unique > 0 then fromIntegral (sum (map (delta tallyFlows) tallies)) / unique else 0),
          ("worst_switch_ratio", over (minimum each)),
          ("best_switch_ratio", over (maximum each)),
          ("mean_over_worst_switch", mean / max 1 (minimum each)),
          ("total_unique_count", fromIntegral (sum (map (tallyUnique . snd) tallies))),
          ("unique_count", unique),
          ("other_answers_count", fromIntegral (sum (map (tallyOthers . snd) tallies))),
          ("unsent_count", fromIntegral (sum (map (delta tallyUnsent) tallies))),
          ("lost_count", fromIntegral (sum (map (tallyLost . snd) tallies))),
          ("open_count", fromIntegral (sum (map (open . snd) tallies)))
        ]
  pure $
    [("wall_s", wall)]
      ++ (if argumentMode given == Idle then [] else answers)
      ++ [ ("echoes_count", fromIntegral (sum (map (tallyEchoes . snd) tallies))),
           ("errors_count", fromIntegral (sum (map (tallyErrors . snd) tallies))),
           ("lost_switches_count", fromIntegral lost),
           ("load_cpu_s", cpu)
         ]
  where
    delta field (a, b) = field b - field a
    open t = tallyProbes t - tallyUnique t - tallyLost t

modeName :: Mode -> String
modeName m = case m of
  Throughput -> "throughput"
  Latency -> "latency"
  Idle -> "idle"

rendered :: Arguments -> Result -> String
rendered given result =
  printf "%s, OpenFlow %s, %d switches of %d hosts, %s outstanding\n" (modeName (argumentMode given)) (versionName (argumentVersion given)) (argumentSwitches given) (argumentHosts given) (show (outstanding given))
    <> concat [if isNaN x then printf "  %-22s %14s\n" name ("-" :: String) else printf "  %-22s %14.2f\n" name x | (name, x) <- result]

versionName :: Version -> String
versionName v = case v of
  V10 -> "1.0"
  V13 -> "1.3"

outstanding :: Arguments -> Int
outstanding given = case argumentMode given of
  Throughput -> argumentOutstanding given
  Latency -> 1
  Idle -> 0

writeJson :: Arguments -> Result -> FilePath -> IO ()
writeJson given result file = do
  cores <- getNumProcessors
  kernel <- either (\e -> const "" (e :: SomeException)) (takeWhile (/= '\n')) <$> try (readFile "/proc/sys/kernel/osrelease")
  let out = encode (json cores kernel)
  if file == "-" then L.putStrLn out else writeOut file (lazyByteString out <> char7 '\n')
  where
    json :: Int -> String -> Value
    json cores kernel =
      object
        [ "bench" .= ("cbench" :: String),
          "machine" .= object ["cores" .= cores, "kernel" .= kernel, "ghc" .= showVersion compilerVersion, "weft" .= showVersion Paths_weft_bench.version],
          "runs"
            .= [ object
                   [ "subject" .= (fst (argumentController given) <> ":" <> snd (argumentController given)),
                     "params" .= object ["mode" .= modeName (argumentMode given), "openflow" .= versionName (argumentVersion given), "switches" .= argumentSwitches given, "hosts" .= argumentHosts given, "in_flight" .= outstanding given, "rate" .= argumentRate given],
                     "metrics" .= object [Key.fromString name .= toJSON x | (name, x) <- result]
                   ]
               ],
          "bounds" .= ([] :: [Value])
        ]
