{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : Benchmark @http@
--
-- A small WAI application on Weft's HTTP engine, compared with the same application on Warp and GHC's manager, hyper on
-- tokio, Go's net/http, and Weft's bare pong, which parses nothing. Modes: @pong@; @browser@, with ten request fields
-- and five response fields; @post@, with a body of 64 KiB that is returned.
module Weft.Bench.Http (http) where

import Data.Text (Text)
import qualified Data.Text as T
import Weft.Bench.Bounds
import Weft.Bench.Callgrind (callgrindTool)
import Weft.Bench.Load (loadTool)
import Weft.Bench.Types
import Weft.Bench.Workload

http :: Benchmark
http =
  Benchmark
    { benchName = "http",
      benchTitle = "a small WAI application, at saturation",
      benchCases = const [httpCase at subject | at@(mode, _, _) <- settings, subject <- subjects mode],
      benchTools = [loadTool],
      -- The allocation area that GHC 9.2 and later have by default: 9.0's of 1 MB is collected too often with 400
      -- connections.
      benchRts = ["-A4m"],
      benchIgnores = [],
      benchBounds = const (concatMap pongBounds pongs ++ others ++ lean),
      benchColumns =
        [ "cpu_us_per_op",
          "ops_per_s",
          "p50_us",
          "p99_us",
          "alloc_bytes_per_op",
          "user_instructions_per_op",
          "syscalls_per_op",
          "max_rss_mb"
        ],
      benchPlotted = id
    }

-- | Mode, connections, capabilities.
type Setting = (Mode, Int, Int)

data Mode = Pong | Browser | Post
  deriving (Eq)

modeName :: Mode -> Text
modeName mode = case mode of
  Pong -> "pong"
  Browser -> "browser"
  Post -> "post"

settings, pongs :: [Setting]
settings = pongs ++ [(mode, 64, cores) | mode <- [Browser, Post], cores <- [1, 2]]
pongs = [(Pong, connections, cores) | cores <- [1, 2], connections <- [64, 400]]

subjects :: Mode -> [Subject]
subjects mode =
  [Subject "weft" "wai-weft" WeftProgram]
    ++ [Subject "weft-bare" "pong-weft" WeftProgram | mode == Pong]
    ++ [Subject "warp" "warp-ghc" GhcProgram, Subject "hyper" "hyper-pong" RustProgram, Subject "go-http" "go-http" GoProgram]

httpParams :: Setting -> Params
httpParams (mode, connections, cores) = ("mode", Word (modeName mode)) : params connections cores

httpCase :: Setting -> Subject -> Case
httpCase at@(mode, connections, cores) subject = plain {caseCounts = caseCounts plain ++ counts}
  where
    given = httpParams at
    plain = workloadCase given work subject
    work = case mode of
      Pong -> onePage connections cores
      Browser -> (onePage connections cores) {workPath = "/browser", workBrowser = True}
      Post -> (onePage connections cores) {workPath = "/echo", workPost = Just 65536}
    -- Instructions are counted only if there is a bound for them, since valgrind runs one thread at a time.
    counts =
      [ Counting callgrindTool "user_instructions_per_op" (\env -> (\found -> [(given, found)]) <$> countingInstructions env work subject [])
        | (mode, connections, cores) == (Pong, 64, 1) && subjectName subject /= "go-http"
      ]

cpu, p99 :: Text -> Setting -> Figure
cpu subject at = on subject (httpParams at) "cpu_us_per_op"
p99 subject at = on subject (httpParams at) "p99_us"

settingName :: Setting -> Text
settingName (mode, connections, cores) =
  modeName mode <> " -N" <> number cores <> ", " <> number connections <> " connections"
  where
    number = T.pack . show

ratio :: Text -> Setting -> Double -> Bound
ratio peer at = atMost ("CPU " <> settingName at <> ": weft / " <> peer) (cpu "weft" at `Over` cpu peer at)

-- | On two cores hyper itself takes 0.72 to 0.80 of Warp.
pongBounds :: Setting -> [Bound]
pongBounds at@(_, _, cores) =
  [ratio "hyper" at 1.10, ratio "warp" at (if cores == 1 then 0.85 else 0.80), ratio "weft-bare" at 1.20]

others :: [Bound]
others =
  [ratio "hyper" (Browser, 64, cores) 1.15 | cores <- [1, 2]]
    ++ concat [[ratio "hyper" at 1.2, ratio "warp" at 0.8] | cores <- [1, 2], let at = (Post, 64, cores)]
    ++ [atMost ("99th percentile " <> settingName shared <> ": weft / hyper") (p99 "weft" shared `Over` p99 "hyper" shared) 3]
  where
    shared = (Pong, 64, 2)

lean :: [Bound]
lean =
  [ atMost "bytes allocated a request, worst of the pongs" (Worst [on "weft" (httpParams at) "alloc_bytes_per_op" | at <- pongs]) 1800,
    atMost "instructions in user space a request" (on "weft" (httpParams (Pong, 64, 1)) "user_instructions_per_op") 7000
  ]
