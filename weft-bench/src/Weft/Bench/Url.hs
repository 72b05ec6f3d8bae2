{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : @weft-bench url@
--
-- A load generator for any HTTP/1.1 server, with or without TLS. With a rate, requests are due at fixed instants
-- whatever the server does, and any free connection sends the next one. A latency is measured from the instant at which
-- the request was due, so if a server stops for a second, all requests of that second count as slow. Without a rate
-- each connection sends its next request when it has received its answer, and the output says what that leaves out.
-- Exit status: 0 if requests were answered, 1 if none was, 2 for bad arguments, 130 if a signal ended it (SIGINT,
-- SIGTERM, SIGHUP, SIGQUIT); the results until then are printed.
module Weft.Bench.Url
  ( urlCommand,
    urlLoad,
    tallyMetrics,
  )
where

import Control.Concurrent (setNumCapabilities)
import Control.Exception (IOException, try)
import Control.Monad (forM_, when)
import qualified Data.CaseInsensitive as CI
import Data.Char (isAlphaNum)
import qualified Data.Map.Strict as M
import Data.Text (Text)
import qualified Data.Text as T
import qualified Data.Text.Encoding as T
import qualified Data.Text.Encoding.Error as T
import qualified Data.Text.IO as T
import GHC.IO.Exception (ioe_description)
import Network.HTTP.Types (hAuthorization, hCookie)
import Numeric (showFFloat)
import Options.Applicative hiding (Failure, columns)
import System.CPUTime (getCPUTime)
import System.Exit (ExitCode (..), exitWith)
import Weft.Bench.Json
import Weft.Bench.Latency
import Weft.Bench.Options (defaultPlan)
import Weft.Bench.Runner (Failure (..), Outcome (..))
import Weft.Bench.Setup (endAsByInterrupt, machineFacts, raiseOpenFiles)
import Weft.Bench.Types
import Weft.Bench.UrlLoad
import Weft.Bench.UrlLoad.Tally
import Weft.Http.Client (Url (..), hostAndPort, parseUrlOrSocket)
import Weft.Socket (AddrInfo, getAddrInfo)
import Weft.Tools.Numbers (columns, longestTime, noMoreThan, notNegative, positive, renderNumber)
import Weft.Tools.Output
import Weft.Tools.Serve.Values (anyField)
import Weft.Tools.StandardError (reportText)
import Weft.Tools.Subcommand (Subcommand, subcommand)
import Weft.Tools.Trust

-- | The subcommand of @weft-bench@.
urlCommand :: Subcommand
urlCommand =
  subcommand "url" $
    info
      (runLoad <$> threads <*> optional (strOption (long "json" <> metavar "FILE" <> help "Write the result as JSON")) <*> load)
      ( progDesc "Put an HTTP server under load: latency percentiles, errors by kind, bytes"
          <> footer
            "Example: weft-bench url http://127.0.0.1:8080/ --connections 64 --rate 5000 --duration 10. With --rate, latencies count \
            \from the instant at which a request was due, so that a server's pauses are not left out (no coordinated \
            \omission); requests that timed out, or were due and could not be sent, count with the time for which they had waited. \
            \Answers are counted that arrive in the measured time; the latencies count of all requests that were due in it. A \
            \connection is kept for as long as the server keeps it; where one has to be opened, that and the handshake are part of \
            \the latency. Bytes that belong to no request are an error (surplus bytes). Redirects are not followed. Exit status: 0 requests were answered, 1 none was, 2 bad arguments, 130 \
            \it was ended by Ctrl-C or by SIGTERM, SIGHUP or SIGQUIT, after which it prints the results until then; requests in flight count with the time that they \
            \had waited."
      )
  where
    threads = option positive (long "threads" <> metavar "N" <> value 1 <> showDefault <> help "Cores that the generator may use")
    load =
      Load
        <$> argument (eitherReader parseUrlOrSocket) (metavar "URL" <> help "http://HOST:PORT/PATH, https, or unix:FILE:/PATH")
        <*> option positive (long "connections" <> metavar "N" <> value 64 <> showDefault <> help "Number of connections")
        <*> optional (option (noMoreThan 1e7 positive) (long "rate" <> metavar "R" <> help "Requests a second, at most ten millions, at fixed times; without it each connection sends its next request after a response (a closed loop)"))
        <*> option (noMoreThan longestTime positive) (long "duration" <> metavar "SECONDS" <> value 10 <> showDefault <> help "Measured time")
        <*> option (noMoreThan longestTime notNegative) (long "warmup" <> metavar "SECONDS" <> value 1 <> showDefault <> help "Load before the measured time")
        <*> option (noMoreThan longestTime positive) (long "timeout" <> metavar "SECONDS" <> value 10 <> showDefault <> help "Time limit of a request; one that takes longer counts as an error")
        <*> many (option (eitherReader anyField) (long "header" <> metavar "FIELD" <> help "Header field to send with each request, such as 'Accept: */*'; Host replaces that of the URL"))
        <*> switch (long "no-keep-alive" <> help "Open a new connection for each request, as a field 'Connection: close' does, whatever the server answers")
        <*> trustOption

runLoad :: Int -> Maybe FilePath -> Load -> IO ()
runLoad threads json given = do
  checkOutputs "weft-bench url" (maybe [] pure json)
  raiseOpenFiles
  endAsByInterrupt
  setNumCapabilities threads
  before <- getCPUTime
  trust <- trustFor (loadTarget load) (loadTrust load) >>= either (\why -> reportText ("weft-bench url: " <> T.pack why) >> exitWith (ExitFailure 2)) pure
  findHost (loadTarget load)
  (tally, wall, interrupted) <- generate load {loadTrust = trust}
  when (interrupted && wall <= 0) $ reportText "weft-bench url: interrupted before the measured time" >> exitWith (ExitFailure 130)
  after <- getCPUTime
  let busy = fromIntegral (after - before) / 1e12 / (wall + loadWarm load)
      metrics = tallyMetrics wall tally
  T.putStr (render load wall tally metrics)
  when (busy > 0.9 * fromIntegral threads) . T.putStrLn $
    "note: the generator used " <> renderNumber busy <> " cores of " <> number threads <> ": it may have been the limit (--threads)"
  machine <- machineFacts
  forM_ json $ \file ->
    writeOut file $
      outcomeJson machine (Settings once [] Nothing False (settingsOf threads load)) urlLoad (Outcome [Run "server" (paramsOf load) (M.singleton 0 metrics)] [] [] [cutShort wall | interrupted])
  when interrupted $ reportText "weft-bench url: interrupted" >> exitWith (ExitFailure 130)
  when (tallyAnswered tally + tallyLate tally == 0) $ reportText "weft-bench url: no request was answered with a status below 400" >> exitWith (ExitFailure 1)
  where
    load = given {loadFresh = loadFresh given || asksToClose (loadFields given)}
    cutShort wall = Failure "server" (paramsOf load) ("A signal ended it after " <> renderNumber wall <> " of " <> renderNumber (loadSeconds load) <> " s")
    once = defaultPlan {planRounds = 1, planDuration = loadSeconds load, planWarmup = loadWarm load}

-- | The description of its results. It is in no registry: it has no cases of its own.
urlLoad :: Benchmark
urlLoad = Benchmark "url" "a load of a server" (const []) [] [] ["--rts"] (const []) ["p50_us", "p99_us", "p999_us", "ops_per_s"] id

-- | Ends the program if the host has no address, instead of at each connection.
findHost :: Url -> IO ()
findHost target = case urlUnix target of
  Just _ -> pure ()
  Nothing -> do
    found <- try (getAddrInfo Nothing (Just (urlHost target)) (Just (urlPort target)))
    case found :: Either IOException [AddrInfo] of
      Right _ -> pure ()
      Left e -> do
        reportText ("weft-bench url: no address of " <> T.pack (urlHost target) <> ": " <> T.pack (ioe_description e))
        exitWith (ExitFailure 1)

number :: Int -> Text
number = T.pack . show

-- | Parameters of the result; the mode is the kind of loop. Results with other parameters are not compared.
paramsOf :: Load -> Params
paramsOf load =
  [("mode", Word (maybe "closed-loop" (const "rate") (loadRate load))), ("connections", Count (loadClients load))]
    <> [("tls", Word "yes") | urlSecure (loadTarget load)]
    <> [("keep_alive", Word "no") | loadFresh load]
    <> [("rate", asGiven rate) | Just rate <- [loadRate load]]
    <> [("path", Word (T.decodeLatin1 (urlPath (loadTarget load))))]

-- | Settings that the result keeps.
settingsOf :: Int -> Load -> Params
settingsOf threads load =
  [("url", Word (urlOf (loadTarget load))), ("threads", Count threads), ("timeout_s", asGiven (loadPatience load))]
    <> [("headers", Word (T.intercalate "; " (map kept (loadFields load)))) | not (null (loadFields load))]
  where
    kept (name, content) = said (CI.original name) <> ": " <> if name `elem` [hAuthorization, hCookie, "Proxy-Authorization"] then "(not kept)" else said content
    said = T.decodeUtf8With T.lenientDecode

-- | The URL of a target, with its port.
urlOf :: Url -> Text
urlOf target = server <> T.decodeLatin1 (urlPath target)
  where
    server = T.pack $ case urlUnix target of
      Just file -> "unix:" <> file <> ":"
      Nothing -> (if urlSecure target then "https://" else "http://") <> hostAndPort target

-- | A number without an exponent.
asGiven :: Double -> ParamValue
asGiven n
  | n == fromIntegral whole = Count whole
  | otherwise = Word (T.pack (showFFloat Nothing n ""))
  where
    whole = round n

-- ---------------------------------------------------------------------------------------------------------------
-- Results

-- | The metrics of a load that was measured for this many seconds.
tallyMetrics :: Double -> Tally -> Metrics
tallyMetrics wall tally =
  M.fromList $
    [ ("wall_s", wall),
      ("ops_per_s", fromIntegral (tallyAnswered tally) / wall),
      ("answered", fromIntegral (tallyAnswered tally)),
      ("late", fromIntegral (tallyLate tally)),
      ("errors", fromIntegral (sum (tallyErrors tally))),
      ("unsent", fromIntegral (tallyUnsent tally)),
      ("in_flight", fromIntegral (tallyInFlight tally)),
      ("opened", fromIntegral (tallyOpened tally)),
      ("received_mb", fromIntegral (tallyBytes tally) / 1e6)
    ]
      <> [("warmup_errors", fromIntegral failed) | let failed = sum (tallyWarmErrors tally), failed > 0]
      <> [("errors_" <> T.map asName kind, fromIntegral n) | (kind, n) <- M.toList (tallyErrors tally)]
      <> [(name, micro ns) | (name, percent) <- percentiles, Just ns <- [percentileOf percent latencies]]
      <> [("max_us", micro (largest latencies)) | samples latencies > 0]
      <> [("lag_p99_us", micro ns) | Just ns <- [percentileOf 99 (tallyLag tally)]]
  where
    latencies = tallyLatencies tally
    micro ns = fromIntegral ns / 1000
    asName c = if isAlphaNum c then c else '_'

percentiles :: [(Text, Rational)]
percentiles = [("p50_us", 50), ("p90_us", 90), ("p95_us", 95), ("p99_us", 99), ("p999_us", 99.9)]

render :: Load -> Double -> Tally -> Metrics -> Text
render load wall tally metrics =
  T.unlines $
    [ "GET " <> T.decodeLatin1 (urlPath target) <> " of " <> maybe (T.pack (hostAndPort target)) T.pack (urlUnix target)
        <> (", " <> number (loadClients load) <> " connections, ")
        <> maybe "closed loop" (\rate -> renderNumber rate <> " requests a second") (loadRate load)
        <> (", " <> renderNumber wall <> " s"),
      ""
    ]
      <> columns
        [ ["answered", whole "answered" <> " (" <> figure "ops_per_s" <> " a second, " <> figure "received_mb" <> " MB of bodies)"],
          ["latency, us", T.intercalate ", " [spoken name <> " " <> figure name | (name, _) <- percentiles <> [("max_us", 0)]]],
          ["connections opened", whole "opened"],
          ["errors", if M.null (tallyErrors tally) then "none" else kinds (tallyErrors tally)]
        ]
      <> [""]
      <> notes
  where
    target = loadTarget load
    spoken name = if name == "p999_us" then "p99.9" else T.dropEnd 3 name
    figure name = maybe "-" renderNumber (M.lookup name metrics)
    whole name = maybe "-" (number . round) (M.lookup name metrics)
    kinds found = T.intercalate ", " [kind <> ": " <> number n | (kind, n) <- M.toList found]
    notes = unfinished <> warmOnes <> lateOnes <> [number (tallyRedirected tally) <> " answers were redirects, which are not followed: measure the address that they name" | tallyRedirected tally > 0] <> kindOfLoop
    unfinished =
      [ number (tallyInFlight tally) <> " requests were in flight when a signal ended it; they count with the time for which they had waited"
        | tallyInFlight tally > 0
      ]
    warmOnes = ["requests of the warm-up failed, and are not among the errors (" <> kinds (tallyWarmErrors tally) <> ")" | not (M.null (tallyWarmErrors tally))]
    lateOnes = [number (tallyLate tally) <> " answers came after the end: their latencies count, and they are not among those answered" | tallyLate tally > 0]
    kindOfLoop = case loadRate load of
      Nothing ->
        [ "note: in a closed loop a connection waits for its answer before it asks again. While the server pauses nothing is sent, \
          \so the percentiles leave out what clients of their own would have waited; --rate R counts it."
        ]
      Just _ ->
        ["latencies count from the instants at which requests were due; the generator sent 99 % of them within " <> figure "lag_p99_us" <> " us of that or of a free connection"]
          <> [ number (tallyUnsent tally) <> " requests were due and could not be sent before the end; they count with the time for which they had waited"
               | tallyUnsent tally > 0
             ]
