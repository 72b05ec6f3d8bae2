{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : A timeline for Perfetto and chrome:\/\/tracing
--
-- Pure: the Trace Event Format, with complete events (@X@) for spans, flow events (@s@ and @f@) for wake-ups, counters
-- (@C@) for file requests, and names for the process and the rows. A capability has two rows: what runs on it, and its
-- manager's sleep. A flow event has to lie within a span of its row; wake-ups of which one end does not, such as those
-- by the run-time system between two threads, are left out.
module Weft.Tools.Trace.Chrome
  ( chromeTrace,
  )
where

import Data.Aeson.Encoding
import Data.ByteString.Builder (Builder)
import Data.Int (Int64)
import qualified Data.Map.Strict as M
import Data.Text (Text)
import qualified Data.Text as T
import Weft.Tools.Trace.Timeline

-- | The document; the text names the process.
chromeTrace :: Text -> Timeline -> Builder
chromeTrace process timeline = fromEncoding (pairs (pair "traceEvents" (list id events) <> pair "displayTimeUnit" (text "ns")))
  where
    events =
      [naming "process_name" 0 process]
        <> concat [[rowName (2 * cap) ("capability " <> shown cap), rowName (2 * cap + 1) ("manager " <> shown cap)] | cap <- M.keys (timelineRows timeline)]
        <> [complete cap s | (cap, spans) <- M.toList (timelineRows timeline), s <- spans]
        <> concat [[level cap (depthFrom d) (depthRequests d), level cap (depthTo d) 0] | (cap, ds) <- M.toList (timelineDepths timeline), d <- ds]
        <> concat (zipWith flow [0 ..] [a | a <- timelineArrows timeline, arrowFromRow a /= arrowToRow a, within (arrowFromRow a) (arrowFrom a), within (arrowToRow a) (arrowTo a)])
    within cap time = maybe False ((>= time) . snd) (M.lookup cap runs >>= M.lookupLE time)
    runs = M.map (\spans -> M.fromListWith max [(spanFrom s, spanTo s) | s <- spans, spanActivity s /= Blocked]) (timelineRows timeline)

shown :: Int -> Text
shown = T.pack . show

rowName :: Int -> Text -> Encoding
rowName = naming "thread_name"

-- | A name for a row, or for the process.
naming :: Text -> Int -> Text -> Encoding
naming what row name = pairs (pair "name" (text what) <> pair "ph" (text "M") <> common row <> pair "args" (pairs (pair "name" (text name))))

common :: Int -> Series
common row = pair "pid" (int 1) <> pair "tid" (int row)

complete :: Int -> Span -> Encoding
complete cap s =
  pairs $
    pair "name" (text (if T.null (spanThread s) then activityName (spanActivity s) else spanThread s))
      <> pair "cat" (text (activityName (spanActivity s)))
      <> pair "ph" (text "X")
      <> pair "ts" (micro (spanFrom s))
      <> pair "dur" (micro (spanTo s - spanFrom s))
      <> common (2 * cap + (if spanActivity s == Blocked then 1 else 0))

-- | The number of requests in a ring from that instant on. Of two events at the same instant the later one counts.
level :: Int -> Int64 -> Int -> Encoding
level cap time n =
  pairs $
    pair "name" (text ("requests to files, capability " <> shown cap))
      <> pair "ph" (text "C")
      <> pair "ts" (micro time)
      <> common (2 * cap)
      <> pair "args" (pairs (pair "in flight" (int n)))

flow :: Int -> Arrow -> [Encoding]
flow number arrow = [end "s" (arrowFrom arrow) (arrowFromRow arrow) mempty, end "f" (arrowTo arrow) (arrowToRow arrow) (pair "bp" (text "e"))]
  where
    end phase time row more =
      pairs (pair "name" (text "wake-up") <> pair "cat" (text "wake-up") <> pair "ph" (text phase) <> pair "id" (int number) <> pair "ts" (micro time) <> common (2 * row) <> more)

-- | Nanoseconds as microseconds, exactly.
micro :: Int64 -> Encoding
micro ns = double (fromIntegral ns / 1000)
