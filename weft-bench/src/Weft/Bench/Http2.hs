{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : Benchmark @http2@
--
-- HTTP/2 over TLS, on one core. Modes: @get@, files from @weft serve@, nginx, h2o, Go's net/http and hyper; @pong@, a
-- small answer of a WAI application; @post@, the time of an upload over a connection with a round trip of 50 ms.
module Weft.Bench.Http2 (http2) where

import Control.Monad (unless)
import qualified Data.ByteString as B
import qualified Data.Map.Strict as M
import Data.Text (Text)
import qualified Data.Text as T
import System.Directory (doesFileExist, renameFile)
import System.FilePath ((</>))
import System.IO (IOMode (WriteMode), withBinaryFile)
import Weft.Bench.Bounds
import Weft.Bench.Certificates
import Weft.Bench.Child
import Weft.Bench.H2load
import Weft.Bench.Server
import Weft.Bench.Types
import Weft.Tools.Proc (peakResidentBytes)

http2 :: Benchmark
http2 =
  Benchmark
    { benchName = "http2",
      benchTitle = "HTTP/2 over TLS: files, a WAI application, an upload over 50 ms, one core",
      benchCases = \plan ->
        [loadCase files s | files <- getLoads, s <- [serve, nginx, h2o, goHttp, hyper]]
          <> [loadCase pong s | s <- [wai, goHttp, hyper]]
          <> [uploadCase (planUploadMiB plan) s | s <- [wai, nginx, goHttp, hyper]],
      benchTools = [h2loadTool, relayTool, "openssl"],
      benchRts = ["-A4m"],
      benchIgnores = [],
      benchBounds = bounds . planUploadMiB,
      benchColumns = ["cpu_us_per_op", "ops_per_s", "wall_s", "max_rss_mb"],
      benchPlotted = id
    }
  where
    serve = Subject "weft" "weft" CProgram
    wai = Subject "weft" "wai-weft" WeftProgram
    nginx = Subject "nginx" "nginx-static" CProgram
    h2o = Subject "h2o" "h2o-static" CProgram
    goHttp = Subject "go-http" "go-http" GoProgram
    hyper = Subject "hyper-rustls" "hyper-tls" RustProgram

relayTool :: FilePath
relayTool = "delay-relay"

-- | Mode, size in KiB if it is a file's, connections, and streams of each.
data Load = Load !Text !(Maybe Int) !Int !Int

getLoads :: [Load]
getLoads = [small, medium, large]

small, medium, large, pong :: Load
small = Load "get" (Just 1) 16 32
medium = Load "get" (Just 16) 16 32
large = Load "get" (Just 1024) 4 8
pong = Load "pong" Nothing 16 32

loadParams :: Load -> Params
loadParams (Load mode size connections streams) =
  ("mode", Word mode) : [("size_kib", Count kib) | Just kib <- [size]] <> [("connections", Count connections), ("streams", Count streams), ("capabilities", Count 1)]

loadCase :: Load -> Subject -> Case
loadCase load@(Load _ size connections streams) subject =
  timedCase subject (loadParams load) $ \env ->
    secureFiles 1 P256 env subject >>= \arguments -> withServerOf env 1 subject arguments $ \server ->
      answering (envPlan env) server (connections * streams) $
        runH2load env (clientCores env 1) (serverPort server) . H2load connections streams path
  where
    path = case size of
      Just 1024 -> "/1m"
      Just kib -> "/" <> show kib <> "k"
      Nothing -> "/"

uploadParams :: Int -> Params
uploadParams mib = [("mode", Word "post"), ("size_kib", Count (1024 * mib)), ("capabilities", Count 1)]

-- | The time from the beginning of the connection to the answer, which the server gives when it has read everything.
uploadCase :: Int -> Subject -> Case
uploadCase mib subject =
  timedCase subject (uploadParams mib) $ \env ->
    secureFiles 1 P256 env subject >>= \arguments -> withServerOf env 1 subject arguments $ \server -> do
      file <- uploadFile env mib
      relay <- locate env relayTool >>= maybe (failWith ("missing: " <> T.pack relayTool)) pure
      withChild env (Program relay ["--to", show (serverPort server), "--ms", "25", "--port", "0"] [] (clientCores env 1)) $ \child -> do
        between <- listening child subject
        result <- runH2load env (clientCores env 1) (serverPort between) (H2load 1 1 "/upload" (Upload file))
        peak <- peakResidentBytes (serverPid server)
        pure (M.fromList [("wall_s", summarySeconds result), ("max_rss_mb", peak / 1e6)])

-- | A file of this many MiB to be sent, which need not be on the disk.
uploadFile :: Env -> Int -> IO FilePath
uploadFile env mib = do
  there <- doesFileExist file
  unless there $ do
    withBinaryFile unfinished WriteMode $ \handle -> mapM_ (const (B.hPut handle (B.replicate 1048576 120))) [1 .. mib]
    renameFile unfinished file
  pure file
  where
    file = envScratch env </> "upload"
    unfinished = file <> ".unfinished"

bounds :: Int -> [Bound]
bounds mib =
  [ cpu "1 KiB, 16 x 32 streams" small "nginx" 0.6,
    cpu "16 KiB, 16 x 32 streams" medium "nginx" 0.9,
    cpu "1 MiB, 4 x 8 streams" large "nginx" 1,
    cpu "WAI pong, 16 x 32 streams" pong "hyper-rustls" 1.1,
    atMost ("time of an upload of " <> T.pack (show mib) <> " MiB over 50 ms: weft / nginx") (ratio "nginx" (uploadParams mib) "wall_s") 1.1
  ]
  where
    cpu what load peer = atMost ("CPU, " <> what <> ": weft / " <> peer) (ratio peer (loadParams load) "cpu_us_per_op")
    ratio peer given metric = on "weft" given metric `Over` on peer given metric
