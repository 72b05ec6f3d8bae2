{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : Benchmark @web@
--
-- What applications do, on one core: a WAI application on Weft and on Warp, and the same on hyper and on Go's net/http.
-- Modes over HTTP/1.1:
--
-- * @baseline@, a GET with a query, and POSTs with a length and in chunks, in turn;
-- * @short@, a connection for each ten of them;
-- * @json@ and @json-gzip@, fifty items made into JSON for each request;
-- * @database@, up to fifty rows from PostgreSQL, made into JSON;
-- * @upload@, bodies of 500 KB to 20 MB;
-- * @websocket@, an echo.
--
-- Over HTTP/2 without TLS: @h2c@, the GET of the baseline; @grpc@, a unary call.
module Weft.Bench.Web (web) where

import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import Data.Text (Text)
import Numeric (showHex)
import System.FilePath ((</>))
import Weft.Bench.Bounds
import Weft.Bench.H2load
import Weft.Bench.Load
import Weft.Bench.Postgres (withPostgres)
import Weft.Bench.Server
import Weft.Bench.Types
import Weft.Bench.Workload

web :: Benchmark
web =
  Benchmark
    { benchName = "web",
      benchTitle = "what applications do: forms, JSON, uploads, WebSockets, gRPC, one core",
      benchCases = const [modeCase mode subject | mode <- [minBound ..], subject <- subjects mode],
      benchTools = [loadTool, h2loadTool],
      benchRts = ["-A4m"],
      benchIgnores = [],
      benchBounds = const (concatMap bounds [minBound ..]),
      benchColumns = ["cpu_us_per_op", "ops_per_s", "p50_us", "p99_us", "max_rss_mb"],
      benchPlotted = id
    }

data Mode = Baseline | Short | Json | JsonGzip | Database | Upload' | WebSocket | H2c | Grpc
  deriving (Eq, Bounded, Enum)

modeName :: Mode -> Text
modeName mode = case mode of
  Baseline -> "baseline"
  Short -> "short"
  Json -> "json"
  JsonGzip -> "json-gzip"
  Database -> "database"
  Upload' -> "upload"
  WebSocket -> "websocket"
  H2c -> "h2c"
  Grpc -> "grpc"

-- | hyper has neither compression nor WebSockets of its own, and no database here.
subjects :: Mode -> [Subject]
subjects mode =
  [weft, Subject "warp" "web-warp" GhcProgram]
    <> [Subject "hyper" "hyper-web" RustProgram | mode `notElem` [JsonGzip, Database, WebSocket]]
    <> [Subject "go-http" (if mode == Database then "go-database" else "go-web") GoProgram]
  where
    weft = Subject "weft" "web-weft" WeftProgram

connectionsOf :: Mode -> Int
connectionsOf mode = case mode of
  Upload' -> 8
  H2c -> 16
  Grpc -> 16
  _ -> 64

webParams :: Mode -> Params
webParams mode = ("mode", Word (modeName mode)) : params (connectionsOf mode) 1

modeCase :: Mode -> Subject -> Case
modeCase mode subject = case mode of
  H2c -> timed (overHttp2 (H2load (connectionsOf mode) streams (sumPath 13 42)) Nothing)
  Grpc -> timed (overHttp2 (H2load (connectionsOf mode) streams "/weft.Bench/Sum") (Just call))
  -- The database and the clients are on other cores than the server.
  Database -> plain {caseMeasure = \env -> withPostgres env (clientCores env 1) $ \folder -> caseMeasure (loaded work {workArguments = \_ _ -> pure ["--database", folder]}) env}
  _ -> plain
  where
    plain = loaded work
    timed = timedCase subject (webParams mode)
    loaded given = (workloadCase (webParams mode) given subject) {caseCounts = []}
    work = (onePage (connectionsOf mode) 1) {workPath = if mode == WebSocket then "/echo" else "/", workScript = script mode, workRenew = mode == Short, workMessage = if mode == WebSocket then Just 100 else Nothing}
    streams = 32
    -- A message of two numbers of four bytes, which is not compressed.
    call = B.pack [0, 0, 0, 0, 8, 0, 0, 0, 13, 0, 0, 0, 42]
    overHttp2 load body env = withServer env 1 subject $ \server -> do
      file <- traverse (\bytes -> let path = envScratch env </> "call" in path <$ B.writeFile path bytes) body
      answering (envPlan env) server (connectionsOf mode * streams) $
        runCleartext env (clientCores env 1) (serverPort server) file . load

sumPath :: Int -> Int -> String
sumPath a b = "/sum?a=" <> show a <> "&b=" <> show b

-- Requests -------------------------------------------------------------------------------

-- | What each connection sends in turn.
script :: Mode -> [ByteString]
script mode = case mode of
  Baseline -> baseline
  Short -> take 10 (cycle baseline)
  Json -> [get ("/items?m=" <> C.pack (show m)) [] | m <- [1 .. 7 :: Int]]
  JsonGzip -> [get ("/items?m=" <> C.pack (show m)) ["Accept-Encoding: gzip, deflate, br"] | m <- [1 .. 7 :: Int]]
  Database -> [get (C.pack ("/database?min=" <> show least <> "&max=" <> show (least + 2000))) [] | least <- [100, 2700 .. 30000 :: Int]]
  Upload' -> [post "/upload" ("Content-Length: " <> C.pack (show size)) (B.replicate size 120) | size <- [500000, 2000000, 20000000, 10000000]]
  _ -> []
  where
    baseline = [get (C.pack (sumPath 13 42)) [], post path "Content-Length: 2" "20", post path "Transfer-Encoding: chunked" (chunk "20" <> chunk "")]
    path = C.pack (sumPath 13 42)
    chunk bytes = C.pack (showHex (B.length bytes) "") <> "\r\n" <> bytes <> "\r\n"
    get target fields = "GET " <> target <> " HTTP/1.1\r\nHost: localhost\r\n" <> B.concat [field <> "\r\n" | field <- fields] <> "\r\n"
    post target framing body = "POST " <> target <> " HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n" <> framing <> "\r\n\r\n" <> body

-- Bounds ---------------------------------------------------------------------------------

bounds :: Mode -> [Bound]
bounds mode = [cpu "hyper" 1.15 | "hyper" `elem` map subjectName (subjects mode)] <> [cpu "warp" 0.75]
  where
    cpu peer = atMost ("CPU, " <> modeName mode <> ": weft / " <> peer) (on "weft" (webParams mode) "cpu_us_per_op" `Over` on peer (webParams mode) "cpu_us_per_op")
