{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : @weft cbench@
--
-- A load generator for OpenFlow controllers, after cbench: many fake switches, each with many hosts, and a bound on the
-- probes without an answer. It works against any controller of OpenFlow 1.0 or 1.3.
module Weft.Tools.Cbench
  ( cbenchCommand,
  )
where

import Control.Concurrent (forkIO, threadDelay, yield)
import Control.Concurrent.MVar
import Control.Exception (SomeException, displayException, try)
import Control.Monad (forM, forM_, unless, void)
import Data.Aeson (Value, encode, object, toJSON, (.=))
import qualified Data.Aeson.Key as Key
import qualified Data.ByteString as B
import qualified Data.ByteString.Lazy.Char8 as L
import Data.IORef
import Data.Version (showVersion)
import GHC.Clock (getMonotonicTime, getMonotonicTimeNSec)
import GHC.Conc (getNumProcessors)
import Options.Applicative hiding (command)
import qualified Options.Applicative as Options
import qualified Paths_weft_tools
import System.CPUTime (getCPUTime)
import System.Exit (ExitCode (..), exitWith)
import System.IO
import System.Info (compilerVersion)
import Text.Printf (printf)
import Weft.OpenFlow.Types (Version (..))
import Weft.Socket
import Weft.Timer (sleep)
import Weft.Tools.Cbench.FakeSwitch
import Weft.Tools.Cbench.Histogram

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
cbenchCommand :: Mod CommandFields (IO ())
cbenchCommand = Options.command "cbench" (info (cbench <$> arguments) (progDesc text <> footer examples <> failureCode 2))
  where
    text = "Measure an OpenFlow controller: fake switches of OpenFlow 1.0 or 1.3 send it packets and count its answers"
    examples =
      "Examples: 'weft cbench' (100 switches of 1000 hosts, 512 packets each without an answer, against 127.0.0.1:6653); \
      \'weft cbench --mode latency --switches 1'; 'weft cbench --mode idle --switches 5000 --seconds 60'; \
      \'weft cbench --controller 10.0.0.1:6633 --json -'. An answer is the first FLOW_MOD or PACKET_OUT for a packet's \
      \buffer. Exit status: 0 it ran, 1 switches could not connect or lost their connection, 2 bad arguments."

arguments :: Parser Arguments
arguments =
  Arguments
    <$> option (eitherReader address) (long "controller" <> metavar "HOST:PORT" <> value ("127.0.0.1", "6653") <> help "The controller (127.0.0.1:6653)")
    <*> option (eitherReader version) (long "openflow" <> metavar "VERSION" <> value V10 <> help "What the switches speak, 1.0 or 1.3 (1.0)")
    <*> count "switches" 100 100000 "Fake switches (100)"
    <*> count "hosts" 1000 65536 "Hosts of each switch (1000)"
    <*> option (eitherReader power) (long "outstanding" <> metavar "N" <> value 512 <> help "Packets of a switch without an answer, at the most: a power of two (512)")
    <*> option (eitherReader mode) (long "mode" <> metavar "MODE" <> value Throughput <> help "throughput: as many packets as may be; latency: one at a time; idle: none, answer echoes (throughput)")
    <*> optional (option (eitherReader (bounded 100000000)) (long "rate" <> metavar "N" <> help "With --mode throughput: N packets a second, of all switches together, whatever the controller does; each switch sends its share every 4 ms, and latencies count from when a packet was due"))
    <*> seconds' "give-up" 0 "Send another packet in the place of one that has had no answer for that long, and count it as lost; 0 waits for ever (0)"
    <*> seconds' "warmup" 1 "Seconds before measuring (1)"
    <*> seconds' "seconds" 5 "Seconds of measuring (5)"
    <*> optional (strOption (long "json" <> metavar "FILE" <> help "Write the result there; - is the standard output"))
  where
    count name def most text = option (eitherReader (bounded most)) (long name <> metavar "N" <> value def <> help text)
    bounded :: Int -> String -> Either String Int
    bounded most s = case reads s of
      [(n, "")] | n >= 1 && n <= most -> Right n
      _ -> Left ("a number from 1 to " <> show most)
    power s = case bounded 65536 s of
      Right n | n `elem` takeWhile (<= 65536) (iterate (* 2) 1) -> Right n
      _ -> Left "a power of two up to 65536"
    seconds' name def text = option (eitherReader positive) (long name <> metavar "SECONDS" <> value def <> help text)
    positive s = case reads s of
      [(x, "")] | x >= 0 && x < 1e6 -> Right x
      _ -> Left "a number of seconds"
    mode s = maybe (Left "throughput, latency or idle") Right (lookup s [("throughput", Throughput), ("latency", Latency), ("idle", Idle)])
    version s = maybe (Left "1.0 or 1.3") Right (lookup s [("1.0", V10), ("1.3", V13)])
    address s = case break (== ':') (reverse s) of
      (port, ':' : host) | not (null port), not (null host) -> Right (reverse (filter (\x -> x /= '[' && x /= ']') host), reverse port)
      _ -> Left "HOST:PORT"

-- | Connect all switches, let them ask, count for a while, report.
cbench :: Arguments -> IO ()
cbench given = do
  hSetBuffering stdout LineBuffering
  found <- getAddrInfo (Just defaultHints {addrSocketType = Stream}) (Just (fst (argumentController given))) (Just (snd (argumentController given)))
  ai <- maybe (refuse "no such address") pure (firstOf found)
  lost <- newIORef []
  go <- newEmptyMVar
  connected <- forM [1 .. argumentSwitches given] (connectSwitch given ai lost go)
  let switches = map fst connected
  putMVar go ()
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
  forM_ (take 3 ended) (\(n, why) -> hPutStrLn stderr ("weft cbench: switch " <> show (n :: Int) <> ": " <> why))
  unless (null ended) (exitWith (ExitFailure 1))
  where
    firstOf xs = case xs of x : _ -> Just x; [] -> Nothing

refuse :: String -> IO a
refuse why = hPutStrLn stderr ("weft cbench: " <> why) >> exitWith (ExitFailure 1)

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
    Left e -> refuse ("switch " <> show n <> ": " <> displayException (e :: SomeException))
    Right (f, rest) -> do
      void . forkIO $ do
        -- Echoes must be answered while the others connect; packets wait for the last one.
        end <-
          try
            ( case (argumentMode given, argumentRate given) of
                (Idle, _) -> answerOnly f rest
                (Throughput, Just _) -> snd (paced f rest)
                _ -> readMVar go >> ask f rest
            )
        case end of
          Left e -> atomicModifyIORef' lost (\ls -> ((n, displayException (e :: SomeException)) : ls, ()))
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

-- | Every 4 ms the share of each switch, one switch after the other, for ever. What is late is sent at once.
pace :: Int -> [Int -> Int -> IO ()] -> IO ()
pace rate senders = do
  start <- fromIntegral <$> getMonotonicTimeNSec
  let n = length senders
      interval = 4000000 :: Int
      -- How many packets of a switch are due by its kth turn.
      share k = k * rate `div` (250 * n)
      -- When it is late the switches still have their share of this program.
      turn _ k [] = yield >> turn 0 (k + 1) senders
      turn i k (send : rest) = do
        let due = start + k * interval + i * interval `div` n
        await due
        send due (share (k + 1) - share k)
        turn (i + 1) k rest
      await due = do
        now <- fromIntegral <$> getMonotonicTimeNSec
        if now < due then sleep (nanoseconds (fromIntegral (max 100000 (due - now)))) >> await due else pure ()
  turn (0 :: Int) 0 senders

-- Results -----------------------------------------------------------------------------------

-- | Metrics by name, in order.
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
      us = (/ 1000) . fromIntegral :: Int -> Double
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
    <> concat [printf "  %-22s %14.2f\n" name x | (name, x) <- result]

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
  if file == "-" then L.putStrLn out else B.writeFile file (L.toStrict out <> B.singleton 10)
  where
    json :: Int -> String -> Value
    json cores kernel =
      object
        [ "bench" .= ("cbench" :: String),
          "machine" .= object ["cores" .= cores, "kernel" .= kernel, "ghc" .= showVersion compilerVersion, "weft" .= showVersion Paths_weft_tools.version],
          "runs"
            .= [ object
                   [ "subject" .= (fst (argumentController given) <> ":" <> snd (argumentController given)),
                     "params" .= object ["mode" .= modeName (argumentMode given), "openflow" .= versionName (argumentVersion given), "switches" .= argumentSwitches given, "hosts" .= argumentHosts given, "in_flight" .= outstanding given, "rate" .= argumentRate given],
                     "metrics" .= object [Key.fromString name .= toJSON x | (name, x) <- result]
                   ]
               ],
          "bounds" .= ([] :: [Value])
        ]
