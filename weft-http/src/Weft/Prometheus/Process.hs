{-# LANGUAGE OverloadedStrings #-}

-- |
-- Metrics of the process, with the names that Prometheus' client libraries use, and of the
-- Haskell run-time system. Linux: proc(5).
module Weft.Prometheus.Process
  ( processFamilies,
    runtimeFamilies,
  )
where

import Control.Exception (IOException, try)
import Data.ByteString (ByteString)
import qualified Data.ByteString.Char8 as C
import Data.Maybe (catMaybes, listToMaybe)
import GHC.Stats
import System.Directory (listDirectory)
import System.Posix.Resource (Resource (ResourceOpenFiles), ResourceLimit (..), ResourceLimits (..), getResourceLimit)
import System.Posix.Unistd (SysVar (ClockTick), getSysVar)
import Weft.Blocking (blocking)
import Weft.Prometheus.Text

-- | Memory, CPU time, descriptors. Values that cannot be determined are left out.
processFamilies :: IO [Family]
processFamilies = blocking $ do
  ticks <- fromIntegral <$> getSysVar ClockTick
  stat <- contents "/proc/self/stat"
  status <- contents "/proc/self/status"
  system <- contents "/proc/stat"
  descriptors <- try (listDirectory "/proc/self/fd") :: IO (Either IOException [FilePath])
  limits <- getResourceLimit ResourceOpenFiles
  -- The second field, the program's name in parentheses, may contain any character. The third
  -- field follows the last parenthesis.
  let fields = C.words (snd (C.breakEnd (== ')') stat))
      field n = listToMaybe (drop (n - 3) fields) >>= number
      seconds n = (/ ticks) . fromIntegral <$> field n :: Maybe Double
      inBytes name = (1024 *) <$> keyed name status
  pure $
    catMaybes
      [ gauge "process_resident_memory_bytes" "Resident memory of the process." . Whole <$> inBytes "VmRSS:",
        gauge "process_virtual_memory_bytes" "Virtual memory of the process." . Whole <$> inBytes "VmSize:",
        counter "process_cpu_seconds_total" "User and system time of the process." . Real
          <$> ((+) <$> seconds 14 <*> seconds 15),
        -- One of them is the descriptor of the directory itself.
        gauge "process_open_fds" "Number of open file descriptors." . Whole . subtract 1 . length <$> either (const Nothing) Just descriptors,
        case softLimit limits of
          ResourceLimit n -> Just (gauge "process_max_fds" "Limit on open file descriptors." (Whole (fromInteger n)))
          _ -> Nothing,
        gauge "process_start_time_seconds" "Start time of the process, in seconds since 1970." . Real
          <$> ((+) <$> seconds 22 <*> (fromIntegral <$> keyed "btime" system))
      ]
  where
    keyed name text = listToMaybe [n | l <- C.lines text, key : n' : _ <- [C.words l], key == name, Just n <- [number n']]

number :: ByteString -> Maybe Int
number text = case C.readInt text of
  Just (n, "") -> Just n
  _ -> Nothing

contents :: FilePath -> IO ByteString
contents path = either (\e -> const "" (e :: IOException)) id <$> try (C.readFile path)

-- | Metrics of the garbage collector; empty unless the program runs with @+RTS -T@.
runtimeFamilies :: IO [Family]
runtimeFamilies = do
  enabled <- getRTSStatsEnabled
  if not enabled
    then pure []
    else do
      s <- getRTSStats
      pure
        [ counter "ghc_gcs_total" "Garbage collections." (whole (gcs s)),
          counter "ghc_major_gcs_total" "Major garbage collections." (whole (major_gcs s)),
          counter "ghc_allocated_bytes_total" "Bytes allocated in the heap." (Whole (fromIntegral (allocated_bytes s))),
          gauge "ghc_live_bytes" "Live bytes at the last major garbage collection." (Whole (fromIntegral (gcdetails_live_bytes (gc s)))),
          counter "ghc_copied_bytes_total" "Bytes copied by garbage collections." (Whole (fromIntegral (copied_bytes s))),
          gauge "ghc_max_live_bytes" "Largest number of live bytes at a major garbage collection." (Whole (fromIntegral (max_live_bytes s))),
          gauge "ghc_max_heap_bytes" "Largest size of the heap in memory." (Whole (fromIntegral (max_mem_in_use_bytes s))),
          gauge "ghc_heap_bytes" "Size of the heap in memory." (Whole (fromIntegral (gcdetails_mem_in_use_bytes (gc s)))),
          counter "ghc_gc_cpu_seconds_total" "Processor time of garbage collections." (time (gc_cpu_ns s)),
          counter "ghc_gc_wall_seconds_total" "Wall-clock time of garbage collections." (time (gc_elapsed_ns s)),
          gauge "ghc_gc_last_pause_seconds" "Wall-clock time of the last garbage collection." (time (gcdetails_elapsed_ns (gc s))),
          counter "ghc_mutator_cpu_seconds_total" "Processor time of the program without garbage collections." (time (mutator_cpu_ns s))
        ]
  where
    whole = Whole . fromIntegral
    time ns = Real (fromIntegral ns / 1e9)
