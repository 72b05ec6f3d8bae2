{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : Benchmark @https@
--
-- A file of 1 KiB over TLS 1.3 from @weft serve@ and from nginx (OpenSSL), each on one core with the same certificate
-- (ECDSA, P-256): over persistent connections, and with a connection and a full handshake for each request. The client,
-- @wrk@, does not resume sessions.
module Weft.Tools.Bench.Https (https) where

import Control.Monad (unless)
import qualified Data.Map.Strict as M
import qualified Data.Text as T
import System.Directory (doesFileExist)
import System.Exit (ExitCode (ExitSuccess))
import System.FilePath ((</>))
import System.Process (readProcessWithExitCode)
import Text.Read (readMaybe)
import Weft.Tools.Bench.Child
import Weft.Tools.Bench.Folders
import Weft.Tools.Bench.Proc (cpuSeconds)
import Weft.Tools.Bench.Server
import Weft.Tools.Bench.Types

https :: Benchmark
https =
  Benchmark
    { benchName = "https",
      benchTitle = "a small file over TLS, kept connections and handshakes, one core",
      benchCases = const [tlsCase mode s | mode <- [Saved, Handshake], s <- subjects],
      benchTools = [client],
      benchRts = [],
      benchIgnores = ["--rts"],
      benchBounds = const [],
      benchColumns = ["cpu_us_per_op", "ops_per_s"],
      benchPlotted = id
    }
  where
    subjects = [Subject "weft" "weft" CProgram, Subject "nginx" "nginx-static" CProgram]

-- | Whether a connection is kept open for the next request.
data Mode = Saved | Handshake
  deriving (Eq)

tlsParams :: Mode -> Params
tlsParams mode = [("mode", Word (if mode == Saved then "kept" else "handshake")), ("connections", Count connections), ("capabilities", Count 1)]

connections :: Int
connections = 64

client :: FilePath
client = "wrk"

tlsCase :: Mode -> Subject -> Case
tlsCase mode subject =
  Case
    { caseSubject = subject,
      caseParams = tlsParams mode,
      caseGroup = tlsParams mode,
      caseMeasure = measure,
      caseCounts = []
    }
  where
    measure env = do
      root <- smallFolder env
      (chain, key) <- certificate env
      withServerOf env 1 subject (rootArguments subject root <> ["--certificate", chain, "--key", key]) $ \server -> do
        let plan = envPlan env
        (few, before, short) <- asked env mode server (planWarmup plan)
        (many, after, long) <- asked env mode server (wholeSeconds (planWarmup plan) + planDuration plan)
        unless (many > few) (failWith "the longer run answered no more requests")
        -- Both runs include the costs at the beginning, such as handshakes, so the difference does not.
        pure [(tlsParams mode, M.fromList [("cpu_us_per_op", 1e6 * (after - before) / (many - few)), ("ops_per_s", (many - few) / (long - short))])]

-- | Put a server under load for the given number of seconds. Returns the requests, the server's CPU time, and the
-- seconds.
asked :: Env -> Mode -> Server -> Double -> IO (Double, Double, Double)
asked env mode server seconds = do
  path <- locate env client >>= maybe (failWith ("missing: " <> T.pack client)) pure
  before <- cpuSeconds (serverPid server)
  found <- withChild env (Program path arguments [] (clientCores env 1)) untilSummary
  after <- cpuSeconds (serverPid server)
  pure (found, after - before, whole)
  where
    whole = wholeSeconds seconds
    arguments =
      ["-t", "1", "-c", show connections, "-d", show (round whole :: Int) <> "s"]
        <> ["-H" <> "Connection: close" | mode == Handshake]
        <> ["https://127.0.0.1:" <> show (serverPort server) <> "/1k"]
    untilSummary child = do
      line <- hearLine (whole + 20) child
      case T.words line of
        number : "requests" : "in" : _ | Just n <- readMaybe (T.unpack number) -> fromIntegral (n :: Int) <$ onlyAnswers child
        _ -> untilSummary child
    -- After the summary: the errors, if there are any, and the rates. An error page is not an answer.
    onlyAnswers child = do
      line <- hearLine 20 child
      case T.words line of
        "Non-2xx" : _ -> failWith (T.pack client <> ": " <> T.strip line)
        "Requests/sec:" : _ -> pure ()
        _ -> onlyAnswers child

-- | The client accepts only whole seconds.
wholeSeconds :: Double -> Double
wholeSeconds seconds = fromIntegral (max 1 (ceiling seconds :: Int))

-- | A certificate for localhost and its key.
certificate :: Env -> IO (FilePath, FilePath)
certificate env = do
  there <- doesFileExist key
  unless there $ do
    (code, _, err) <- readProcessWithExitCode "openssl" arguments ""
    unless (code == ExitSuccess) (failWith ("openssl: " <> T.pack err))
  pure (chain, key)
  where
    chain = envScratch env </> "chain.pem"
    key = envScratch env </> "key.pem"
    arguments =
      ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "30"]
        <> ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", chain]
