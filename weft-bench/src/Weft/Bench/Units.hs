{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : What metrics mean
--
-- Pure. A metric's name ends in its unit. This module has the description, the unit, and whether higher is better.
module Weft.Bench.Units
  ( describe,
    withUnit,
    higherIsBetter,
    isTotal,
  )
where

import Data.Maybe (fromMaybe, listToMaybe)
import Data.Text (Text)
import qualified Data.Text as T
import Weft.Tools.Numbers (renderNumber)

-- | A metric in words.
describe :: Text -> Text
describe metric = fromMaybe (T.replace "_" " " metric) (lookup metric known)
  where
    known =
      [ ("wall_s", "wall-clock time"),
        ("cpu_s", "CPU time"),
        ("ops_per_s", "operations a second"),
        ("cpu_us_per_op", "CPU time an operation"),
        ("ns_per_op", "time an operation"),
        ("p50_us", "median latency"),
        ("p90_us", "latency, 90th percentile"),
        ("p95_us", "latency, 95th percentile"),
        ("p99_us", "latency, 99th percentile"),
        ("p999_us", "latency, 99.9th percentile"),
        ("max_us", "largest latency"),
        ("max_rss_mb", "peak memory"),
        ("rss_bytes_per_idle", "resident memory an idle connection"),
        ("live_bytes_per_thread", "live memory a thread"),
        ("live_bytes_per_idle", "live memory an idle connection"),
        ("alloc_bytes_per_op", "bytes allocated an operation"),
        ("syscalls_per_op", "system calls an operation"),
        ("user_instructions_per_op", "instructions an operation"),
        ("mb_per_cpu_s", "data a second of CPU time"),
        ("gbit_per_s", "throughput"),
        ("start_ms", "start and end of the program"),
        ("os_threads", "threads of the operating system")
      ]

-- | A value with its unit.
withUnit :: Text -> Double -> Text
withUnit metric v
  | metric == "mb_per_cpu_s" = renderNumber (v / 1000) <> " GB/s"
  | metric == "mb_per_s" = renderNumber v <> " MB/s"
  | metric == "gbit_per_s" = renderNumber v <> " Gbit/s"
  | "_per_s" `T.isSuffixOf` metric = grouped v <> "/s"
  | otherwise = case listToMaybe [larger unit | (part, unit) <- units, part `elem` T.splitOn "_" metric] of
    Just (n, "bytes") -> grouped n <> " bytes"
    Just (n, unit) -> renderNumber n <> " " <> unit
    Nothing -> if v >= 10000 then grouped v else renderNumber v
  where
    -- From a thousand on, the next larger unit is used.
    larger unit = case lookup unit [("ns", "\181s"), ("\181s", "ms"), ("ms", "s"), ("MB", "GB")] of
      Just next | v >= 1000 -> let (n, unit') = (v / 1000, next) in if unit' == "ms" && n >= 1000 then (n / 1000, "s") else (n, unit')
      _ -> (v, unit)
    units = [("us", "\181s"), ("ns", "ns"), ("ms", "ms"), ("mb", "MB"), ("bytes", "bytes"), ("s", "s")]

-- | A whole number with commas as thousands separators.
grouped :: Double -> Text
grouped v
  | v < 1000 = renderNumber v
  | otherwise = T.intercalate "," (reverse (map T.reverse (T.chunksOf 3 (T.reverse (T.pack (show (round v :: Integer)))))))

-- | Rates, throughput, and what was done in a given time; for all other metrics less is better.
higherIsBetter :: Text -> Bool
higherIsBetter metric = any (`T.isSuffixOf` metric) ["_per_s", "mb_per_cpu_s"] || metric `elem` ["answered", "received_mb"]

-- | Whether it is counted, or passes, in the measured time: twice the time makes about twice the figure.
isTotal :: Text -> Bool
isTotal metric =
  "errors_" `T.isPrefixOf` metric
    || ("_count" `T.isSuffixOf` metric && metric /= "open_count")
    || metric `elem` ["answered", "collections", "cpu_s", "errors", "late", "opened", "received_mb", "unsent", "wakeups", "wall_s"]
