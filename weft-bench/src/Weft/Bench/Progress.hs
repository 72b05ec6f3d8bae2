{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : Progress of a benchmark
--
-- On a terminal, one line of standard error that is overwritten; otherwise, or if @TERM@ is @dumb@, a line for each
-- step.
module Weft.Bench.Progress
  ( Progress,
    withProgress,
    step,
    progressLine,
    partLine,
    furtherLine,
    duration,
  )
where

import Control.Exception (finally)
import Control.Monad (when)
import Data.IORef
import Data.Text (Text)
import qualified Data.Text as T
import qualified Data.Text.IO as T
import GHC.Clock (getMonotonicTime)
import System.IO (hFlush, stderr)
import Weft.Tools.StandardError (reportText)
import Weft.Tools.Surroundings (screenOn)

-- | Used only by the thread that runs the benchmark.
data Progress = Progress
  { progressTotal :: !Int,
    progressBegun :: !Double,
    progressTerminal :: !Bool,
    -- | Steps begun so far.
    progressSteps :: !(IORef Int)
  }

-- | Report the progress of this many steps.
withProgress :: Int -> (Progress -> IO a) -> IO a
withProgress total action = do
  terminal <- screenOn stderr
  begun <- getMonotonicTime
  steps <- newIORef 0
  action (Progress total begun terminal steps)
    `finally` when terminal (T.hPutStr stderr "\r\ESC[K" >> hFlush stderr)

-- | The next step begins; the text describes it.
step :: Progress -> Text -> IO ()
step progress what = do
  done <- atomicModifyIORef' (progressSteps progress) (\n -> (n + 1, n))
  now <- getMonotonicTime
  let line = progressLine (progressTotal progress) done (now - progressBegun progress) what
  if progressTerminal progress
    then T.hPutStr stderr ("\r\ESC[K" <> T.take 118 line)
    else reportText line
  hFlush stderr

-- | A progress bar, the count, the current step, and the estimated time for the rest.
progressLine :: Int -> Int -> Double -> Text -> Text
progressLine total done elapsed what =
  "[" <> T.replicate filled "#" <> T.replicate (width - filled) "." <> "] " <> count <> "  " <> what <> left
  where
    width = 20
    filled = if total <= 0 then 0 else min width (width * done `div` total)
    count = T.justifyRight (T.length whole) ' ' (T.pack (show (done + 1))) <> "/" <> whole
    whole = T.pack (show total)
    left
      | done < 1 || done >= total = ""
      | otherwise = "  " <> duration (elapsed * fromIntegral (total - done) / fromIntegral done) <> " left"

-- | A line for the beginning of a part: its number, the number of parts, its name, the seconds since the first part
-- began, and the seconds left, if there is a limit.
partLine :: Int -> Int -> Text -> Double -> Maybe Double -> Text
partLine place total name elapsed left =
  "== " <> T.pack (show place) <> "/" <> T.pack (show total) <> "  " <> name <> (if place > 1 then ", after " <> duration elapsed else "") <> maybe "" (\s -> ", about " <> duration s <> " left") left

-- | A line for a further round of a part: its name, and the seconds left, if there is a limit.
furtherLine :: Text -> Maybe Double -> Text
furtherLine name left = "== " <> name <> ", a further round" <> maybe "" (\s -> ", about " <> duration s <> " left") left

-- | A duration in seconds as readable text.
duration :: Double -> Text
duration seconds
  | whole < 60 = shown whole <> " s"
  | whole < 600 = shown (whole `div` 60) <> " min " <> shown (whole `mod` 60) <> " s"
  | otherwise = shown ((whole + 30) `div` 60) <> " min"
  where
    whole = ceiling seconds :: Int
    shown = T.pack . show
