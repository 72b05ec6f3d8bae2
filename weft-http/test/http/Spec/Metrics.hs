{-# LANGUAGE OverloadedStrings #-}

-- |
-- The metrics of a server, as Prometheus reads them.
module Spec.Metrics (tests) where

import Application (application, portOf, quiet)
import Client
import Configurations (Configuration, testOn)
import Control.Concurrent.Async (forConcurrently_)
import Control.Exception (IOException, catch, try)
import Control.Monad (forM, forM_, replicateM_)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Builder as BB
import qualified Data.ByteString.Char8 as C
import qualified Data.ByteString.Lazy as L
import Data.IORef
import Data.List (nub, sort)
import qualified Data.Map as Map
import Network.HTTP.Types (status200, status304, status503)
import Network.Wai (defaultRequest, responseLBS)
import Network.Wai.Internal (ResponseReceived (..))
import Test.Tasty
import Test.Tasty.HUnit
import Text.Read (readMaybe)
import Weft.Exchange
import Weft.Http
import Weft.Prometheus

tests :: Configuration -> TestTree
tests on =
  testGroup
    "metrics"
    [ testOn on "every request is counted" . counted $ \port -> do
        forConcurrently_ [1 .. 8 :: Int] $ \_ -> withClient port $ \client -> replicateM_ 50 (get client "/hello")
        withClient port $ \client -> do
          _ <- get client "/none"
          say client "HEAD /hello HTTP/1.1\r\nHost: test\r\n\r\n"
          _ <- hearAnswerToHead client
          _ <- get client "/large?n=100000"
          -- A client receives its response before the request is counted.
          eventually "all are counted" ((== Just 403) . Map.lookup "http_request_duration_seconds_count" <$> scrape client)
          page <- scrape client
          forM_
            [ ("http_requests_total{method=\"GET\",status=\"2xx\"}", 401),
              ("http_requests_total{method=\"GET\",status=\"4xx\"}", 1),
              ("http_requests_total{method=\"HEAD\",status=\"2xx\"}", 1),
              -- Requests for the page of metrics are not counted.
              ("http_requests_in_flight", 0),
              ("http_requests_aborted_total", 0),
              ("http_request_duration_seconds_count", 403),
              ("http_request_duration_seconds_bucket{le=\"+Inf\"}", 403),
              ("http_response_body_bytes_total", 400 * 5 + 8 + 100000)
            ]
            $ \(name, n) -> assertEqual (show name) (Just n) (Map.lookup name page),
      testOn on "the page is well formed, and has metrics of the process" . counted $ \port -> withClient port $ \client -> do
        page <- scrape client
        let buckets = [v | (name, v) <- Map.toList page, "http_request_duration_seconds_bucket" `B.isPrefixOf` name]
        assertBool "buckets" (length buckets > 10)
        forM_ ["process_resident_memory_bytes", "process_cpu_seconds_total", "process_open_fds", "process_start_time_seconds"] $ \name ->
          assertBool (show name) (maybe False (> 0) (Map.lookup name page))
        -- Each histogram of each capability: the buckets are cumulative, and the last one equals the count.
        forM_ ["weft_wake_latency_seconds", "weft_timer_lateness_seconds"] $ \name -> do
          let counts = [(rest, v) | (key, v) <- Map.toList page, Just rest <- [B.stripPrefix (name <> "_count") key]]
          assertBool (show name) (not (null counts))
          forM_ counts $ \(labels, n) -> do
            let part = name <> "_bucket" <> C.init labels <> ",le=\""
                upTo = sort [(bound, v) | (key, v) <- Map.toList page, Just rest <- [B.stripPrefix part key], let le = C.takeWhile (/= '"') rest, Just bound <- [if le == "+Inf" then Just (1 / 0) else readMaybe (C.unpack le)]] :: [(Double, Double)]
            length upTo @?= 26
            map snd upTo @?= sort (map snd upTo)
            snd (last upTo) @?= n
            assertBool "a sum" (Map.member (name <> "_sum" <> labels) page)
        assertBool "the back end of each manager" (or [v == 1 | (name, v) <- Map.toList page, "weft_backend_info{capability=" `B.isPrefixOf` name, ",backend=\"" `B.isInfixOf` name])
        assertBool "descriptors by capability" (or [v > 0 | (name, v) <- Map.toList page, "weft_capability_descriptors{capability=" `B.isPrefixOf` name])
        -- The suite runs with -T, which the runtime's statistics need.
        forM_ ["weft_watchdog_stalls_total", "ghc_gc_last_pause_seconds"] $ \name ->
          assertBool (show name) (Map.member name page)
        assertBool "waits by capability" (or [v > 0 | (name, v) <- Map.toList page, "weft_waits_total{capability=" `B.isPrefixOf` name]),
      testCase "each request is reported once, with any outcome" $ do
        let page = responseLBS status200 [("Content-Length", "3")] "abc"
            sorry = responseLBS status503 [("Content-Length", "5")] "sorry"
            gone = ioError (userError "gone")
            well _ = pure ResponseReceived
            badly _ = gone
            -- The first call fails.
            atLast tries _ = do
              n <- readIORef tries
              writeIORef tries (n + 1)
              if n == (0 :: Int) then gone else pure ResponseReceived
            hiding :: IO a -> IO a -> IO a
            hiding other act = act `catch` \e -> const other (e :: IOException)
        tries <- newIORef 0
        told <- forM
          [ (\_ respond -> respond page, well),
            (\_ respond -> respond page, badly),
            (\_ respond -> respond (responseLBS status304 [] ""), badly),
            (\_ respond -> respond page <* gone, well),
            (\_ _ -> gone, well),
            (\_ respond -> hiding (respond sorry) (respond page), atLast tries),
            (\_ respond -> hiding (pure ResponseReceived) (respond page), badly)
          ]
          $ \(app, respond) -> do
            heard <- newIORef []
            _ <- try (observing (pure ()) (\_ e -> modifyIORef heard (e :)) app defaultRequest respond) :: IO (Either IOException ResponseReceived)
            map (\e -> (exchangeStatus e, exchangeBytes e, exchangeAborted e)) <$> readIORef heard
        told
          @?= [ [(200, Just 3, False)],
                [(200, Nothing, True)],
                [(304, Just 0, True)],
                [(200, Just 3, False)],
                [(500, Nothing, True)],
                [(503, Just 5, False)],
                [(200, Nothing, True)]
              ],
      testOn on "a client that is not permitted gets a 404 for the page of metrics" $ do
        requests <- newRequestCounters
        withServer local (metricsPage (const (pure False)) (requestFamilies requests) application) $ \server ->
          withClient (portOf (serverAddress server)) $ \client -> get client "/metrics" >>= (@?= 404) . answerStatus,
      testOn on "the health page follows its check" $ do
        well <- newIORef True
        withServer local (healthPage (readIORef well) application) $ \server ->
          withClient (portOf (serverAddress server)) $ \client -> do
            get client "/healthz" >>= \answer -> (answerStatus answer, answerBody answer) @?= (200, "ok\n")
            writeIORef well False
            get client "/healthz" >>= (@?= 503) . answerStatus
            get client "/hello" >>= (@?= 200) . answerStatus,
      testOn on "refusals are counted" $ do
        requests <- newRequestCounters
        mapM_ (countRefusal requests) [BadRequest, BadRequest, TooManyConnections]
        page <- parsed . text <$> requestFamilies requests
        map (`Map.lookup` page) ["http_refused_total{reason=\"bad_request\"}", "http_refused_total{reason=\"too_many_connections\"}", "http_refused_total{reason=\"head_too_slow\"}"]
          @?= [Just 2, Just 1, Just 0],
      testOn on "labels and help texts are escaped" $
        text [Family "a_total" "One\ntwo \\ \"." Counter [Sample "" [("l", "\"\\\n")] (Whole 3)], gauge "b" "B." (Real 0.5)]
          @?= "# HELP a_total One\\ntwo \\\\ \".\n# TYPE a_total counter\na_total{l=\"\\\"\\\\\\n\"} 3\n# HELP b B.\n# TYPE b gauge\nb 0.5\n"
    ]
  where
    text = L.toStrict . BB.toLazyByteString . exposition
    local = setHost "127.0.0.1" (setPort 0 (quiet defaultSettings))
    counted act = do
      requests <- newRequestCounters
      let families = concat <$> sequence [requestFamilies requests, processFamilies, runtimeFamilies, managerFamilies]
      withServer local (metricsPage (pure . fromLoopback) families (countRequests requests application)) $ \server ->
        act (portOf (serverAddress server))

scrape :: Client -> IO (Map.Map ByteString Double)
scrape client = do
  answer <- get client "/metrics"
  answerStatus answer @?= 200
  header "content-type" answer @?= Just "text/plain; version=0.0.4; charset=utf-8"
  wellFormed (answerBody answer)
  pure (parsed (answerBody answer))

-- | Each family occurs once and has a help text and a type. Each sample belongs to the family above it.
wellFormed :: ByteString -> Assertion
wellFormed page = do
  let names = [name | l <- C.lines page, ["#", "TYPE", name, _] <- [C.words l]]
  names @?= nub names
  assertBool "no end of line" ("\n" `B.isSuffixOf` page)
  go "" (C.lines page)
  where
    go family ls = case ls of
      help : kind : rest | "# HELP " `B.isPrefixOf` help -> do
        let name = C.words help !! 2
        take 3 (C.words kind) @?= ["#", "TYPE", name]
        go name rest
      l : rest -> do
        assertBool (show l) (not (B.null family) && family `B.isPrefixOf` l)
        assertBool (show l) (Map.size (parsed l) == 1)
        go family rest
      [] -> pure ()

parsed :: ByteString -> Map.Map ByteString Double
parsed page = Map.fromList [(C.init name, number) | l <- C.lines page, not ("#" `B.isPrefixOf` l), let (name, v) = C.breakEnd (== ' ') l, Just number <- [readMaybe (C.unpack v)]]
