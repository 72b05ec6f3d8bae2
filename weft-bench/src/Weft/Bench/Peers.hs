{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : Settings of subjects
--
-- Pure: how the programs of a benchmark are set up, where that matters to a figure. Results, tables and reports show
-- it. The options of the run-time system that all Haskell subjects of a benchmark get are not repeated here.
module Weft.Bench.Peers
  ( settingsOf,
    settingsAmong,
  )
where

import Data.List (nub)
import Data.Text (Text)

-- | The settings of a subject, given the names of the benchmark and of the subject. 'Nothing' if it runs with its
-- defaults.
settingsOf :: Text -> Text -> Maybe Text
settingsOf bench subject = case (subject, bench) of
  ("nginx", "proxy") -> Just "one worker, proxy_pass with keepalive 128, HTTP/1.1, proxy_buffers 16 8k, no access log"
  ("haproxy", "proxy") -> Just "one thread, http-reuse always, tune.bufsize 16384, no log"
  ("go-http", "client") -> Just "net/http, a Transport that keeps 64 connections, GOMAXPROCS is the number of capabilities"
  ("nginx", _) | secure -> Just (nginx <> ", TLS 1.2 and 1.3 by OpenSSL, tickets and a cache of sessions; a worker for each core")
  ("weft", "http2") -> Just (serve <> "; pong and uploads: a WAI application, +RTS -ki1600 -kc3k -kb512")
  ("h2o", _) -> Just "one thread, no access log, TLS by OpenSSL, the key in the process"
  ("go-http", _) | secure -> Just "net/http, crypto/tls, answers from memory, GOMAXPROCS is the number of capabilities"
  ("hyper-rustls", _) -> Just "hyper 1 on tokio, rustls with ring, answers from memory, TCP_NODELAY, a worker for each core"
  ("nginx", _)
    | coldFiles -> Just (nginx <> ", aio threads")
    | otherwise -> Just nginx
  ("weft", _)
    | coldFiles -> Just (serve <> ", a cache of 100 MB")
    | bench `elem` ["static", "https", "proxy", "rude"] -> Just serve
    | bench == "tcp" -> Just "+RTS -N1 -T -A16m -I0"
    | bench `elem` ["http", "web"] -> Just "+RTS -ki1600 -kc3k -kb512"
  ("weft-serve", _) -> Just (serve <> ", any number of connections, 600 s for a head")
  ("weft-hybrid", _)
    | coldFiles -> Just "the example hybrid-web, +RTS -A4m, a cache of 100 MB"
    | bench == "hybrid-idle" -> Just "+RTS -c"
  ("ghc", "static") -> Just "wai-app-static on Warp, defaults of both, +RTS -T -N1"
  (_, "sdn") | subject `elem` ["weft", "ghc"] -> Just "+RTS -ki1600 -kc1600 -kb512 -c -F1.5"
  ("hyper", "web") -> Just "hyper 1 on tokio, serde_json, TCP_NODELAY, the current-thread runtime"
  ("go-http", "web") -> Just "net/http, encoding/json, lib/pq, GOMAXPROCS is the number of capabilities"
  ("warp", _) -> Just "Warp's defaults"
  ("hyper", _) -> Just "hyper 1 on tokio, TCP_NODELAY, a worker for each core (with one, the current-thread runtime)"
  ("go", _) -> Just "GOMAXPROCS is the number of capabilities"
  ("go-http", _) -> Just "net/http, GOMAXPROCS is the number of capabilities"
  ("c-epoll", _) -> Just "for each core a thread with a loop and a listener (SO_REUSEPORT)"
  ("c-uring", _) -> Just "one thread, multishot accept and receive into provided buffers"
  ("c-threads", _) -> Just "a kernel thread for each end of a pair"
  ("fio", _) -> Just "io_uring, O_DIRECT, a job for each core"
  ("smoltcp", _) -> Just "CUBIC, buffers of 1 MiB, no segmentation offload"
  ("netstack", _) -> Just "gVisor's TCP, GOMAXPROCS=1, no segmentation offload"
  ("kernel", _) -> Just "CUBIC, behind a relay between two TUN devices"
  _ -> Nothing
  where
    -- Figure 19 of 2007 is that benchmark.
    secure = bench `elem` ["https", "http2"]
    coldFiles = bench `elem` ["disk-web", "2007-19"]
    serve = "weft serve, one core, +RTS -A2m -AL4m -ki1600 -kc3k -kb1k -c"
    nginx = "one worker, sendfile, tcp_nopush, open_file_cache, no access log"

-- | The settings of each of these subjects that has any.
settingsAmong :: Text -> [Text] -> [(Text, Text)]
settingsAmong bench subjects = [(subject, text) | subject <- nub subjects, Just text <- [settingsOf bench subject]]
