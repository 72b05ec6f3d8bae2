{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : What each capability did, when
--
-- Pure: converts the entries of a log to spans of time, with a row for each capability; to the wake-ups between rows;
-- and to the times for which threads were ready but not running. Times are in nanoseconds.
module Weft.Tools.Trace.Timeline
  ( Timeline (..),
    Span (..),
    Activity (..),
    Arrow (..),
    Depth (..),
    timelineOf,
    activityName,
    busyShare,
  )
where

import Data.Int (Int64)
import Data.List (foldl', sortOn)
import qualified Data.Map.Strict as M
import Data.Maybe (fromMaybe)
import Data.Text (Text)
import qualified Data.Text as T
import Weft.Tools.Trace.Log

-- | The activity of a capability in a span. 'Blocked' refers to its manager; other threads may run in the meantime.
data Activity = Running | Dispatching | Collecting | Blocked
  deriving (Eq, Ord, Show, Enum, Bounded)

-- | Start, end, activity, and thread.
data Span = Span
  { spanFrom :: !Int64,
    spanTo :: !Int64,
    spanActivity :: !Activity,
    spanThread :: !Text
  }
  deriving (Eq, Show)

-- | A thread became ready on one capability and ran on the same or another one: when and where.
data Arrow = Arrow
  { arrowFrom :: !Int64,
    arrowFromRow :: !Int,
    arrowTo :: !Int64,
    arrowToRow :: !Int
  }
  deriving (Eq, Show)

-- | The number of file requests in a ring during a span. Spans without requests are left out.
data Depth = Depth
  { depthFrom :: !Int64,
    depthTo :: !Int64,
    depthRequests :: !Int
  }
  deriving (Eq, Show)

-- | The timeline of a whole log.
data Timeline = Timeline
  { timelineEnd :: !Int64,
    -- | By capability. A collection is in all of them, since it stops them all.
    timelineRows :: !(M.Map Int [Span]),
    -- | From becoming ready to running; their lengths are the latencies.
    timelineArrows :: ![Arrow],
    -- | The requests in each capability's ring.
    timelineDepths :: !(M.Map Int [Depth]),
    -- | The number of markers of each kind; and, under @events handed@ and @timers fired@, the sums of their arguments.
    timelineCounts :: !(M.Map Text Int)
  }

-- | The spans that are still open while the log is read. All maps are keyed by capability or by thread.
data OpenSpans = OpenSpans
  { running :: !(M.Map Int (Int, Int64)),
    collecting :: !(M.Map Int Int64),
    sleeping :: !(M.Map Int Int64),
    ready :: !(M.Map Int (Int64, Int)),
    labels :: !(M.Map Int Text),
    rows :: !(M.Map Int [Span]),
    arrows :: ![Arrow],
    -- | The number of requests in each ring, and the instant since which it has been that number.
    inFlight :: !(M.Map Int (Int, Int64)),
    depths :: !(M.Map Int [Depth]),
    counts :: !(M.Map Text Int)
  }

-- | The timeline of a log. O(n log n) in its entries.
timelineOf :: [Entry] -> Timeline
timelineOf entries = Timeline end (pausing (M.map reverse (rows final))) (reverse (arrows final)) (M.map reverse (depths final)) (counts final)
  where
    end = maximum (0 : map entryTime entries)
    final = close end (foldl' step (OpenSpans M.empty M.empty M.empty M.empty names M.empty [] M.empty M.empty M.empty) entries)
    -- A thread has its label from the start, even if it was labelled later.
    names = M.fromList [(t, l) | Entry _ _ (Labelled t l) <- entries]

-- | Give every row the collections, in order. The log has one only for the capabilities that take part in it: with
-- a sequential collector that is one, and with a parallel one as many as there are cores. The others stand still, too,
-- until a thread runs on them: the end of a collection is noted after they are released.
pausing :: M.Map Int [Span] -> M.Map Int [Span]
pausing found = M.map (\spans -> released (sortOn spanFrom (filter (not . collects) spans <> pauses))) found
  where
    collects s = spanActivity s == Collecting
    released (s : more)
      | collects s = s {spanTo = minimum (spanTo s : map spanFrom (filter runs (takeWhile ((< spanTo s) . spanFrom) more)))} : released more
      | otherwise = s : released more
    released [] = []
    runs s = spanActivity s `elem` [Running, Dispatching]
    pauses = joined (sortOn spanFrom (concatMap (filter collects) (M.elems found)))
    joined (a : b : more)
      | spanFrom b < spanTo a = joined (a {spanTo = max (spanTo a) (spanTo b)} : more)
      | otherwise = a : joined (b : more)
    joined short = short

step :: OpenSpans -> Entry -> OpenSpans
step s (Entry time cap what) = case what of
  Runs t ->
    let s' = s {running = M.insert cap (t, time) (running s)}
     in case M.lookup t (ready s) of
          Just (since, from) -> s' {ready = M.delete t (ready s), arrows = Arrow since from time cap : arrows s}
          Nothing -> s'
  Stops t -> case M.lookup cap (running s) of
    Just (t', since) | t == t' -> add cap (threadSpan s t since time) s {running = M.delete cap (running s)}
    _ -> s
  Wakes t _ -> s {ready = M.insertWith (\_ old -> old) t (time, cap) (ready s)}
  Labelled _ _ -> s
  CollectionBegins -> s {collecting = M.insert cap time (collecting s)}
  CollectionEnds -> case M.lookup cap (collecting s) of
    Just since -> add cap (Span since time Collecting "") s {collecting = M.delete cap (collecting s)}
    Nothing -> s
  Marked marker -> marked time cap marker s

marked :: Int64 -> Int -> Marker -> OpenSpans -> OpenSpans
marked time cap marker s = case marker of
  Sleeping -> counted "sleeps" 1 s {sleeping = M.insert cap time (sleeping s)}
  Woken n -> counted "events handed" n (wakes (counted "wake-ups of managers" 1 s))
  Handed n -> counted "events handed" n (counted "polls that found events" 1 s)
  Fired n -> counted "timers fired" n s
  Signalled _ -> counted "signals sent" 1 s
  Waited -> counted "waits" 1 s
  Submitted ring -> counted "file requests submitted" 1 (deeper ring 1 s)
  Finished n -> counted "file requests done" n (deeper cap (negate n) s)
  where
    counted name n st = st {counts = M.insertWith (+) name n (counts st)}
    wakes st = case M.lookup cap (sleeping st) of
      Just since -> add cap (Span since time Blocked "") st {sleeping = M.delete cap (sleeping st)}
      Nothing -> st

    -- A log may begin in the middle, so the count is kept from becoming negative.
    deeper ring n st =
      let (before, since) = M.findWithDefault (0, time) ring (inFlight st)
       in (endDepth time ring before since st) {inFlight = M.insert ring (max 0 (before + n), time) (inFlight st)}

endDepth :: Int64 -> Int -> Int -> Int64 -> OpenSpans -> OpenSpans
endDepth time ring n since s
  | n == 0 || since == time = s
  | otherwise = s {depths = M.insertWith (++) ring [Depth since time n] (depths s)}

add :: Int -> Span -> OpenSpans -> OpenSpans
add cap one s = s {rows = M.insertWith (++) cap [one] (rows s)}

threadSpan :: OpenSpans -> Int -> Int64 -> Int64 -> Span
threadSpan s t since time = Span since time (if dispatcher then Dispatching else Running) name
  where
    name = fromMaybe ("thread " <> T.pack (show t)) (M.lookup t (labels s))
    -- Weft's, and those of GHC's own manager.
    dispatcher = any (`T.isPrefixOf` name) ["weft dispatcher", "IOManager on cap", "TimerManager"]

-- | Close the spans that are open at the end of the log.
close :: Int64 -> OpenSpans -> OpenSpans
close end s = foldl' (\st (cap, one) -> add cap one st) rings (threads <> collections <> sleeps)
  where
    rings = foldl' (\st (ring, (n, since)) -> endDepth end ring n since st) s (M.toList (inFlight s))
    threads = [(cap, threadSpan s t since end) | (cap, (t, since)) <- M.toList (running s)]
    collections = [(cap, Span since end Collecting "") | (cap, since) <- M.toList (collecting s)]
    sleeps = [(cap, Span since end Blocked "") | (cap, since) <- M.toList (sleeping s)]

-- | A name for legends.
activityName :: Activity -> Text
activityName activity = case activity of
  Running -> "running threads"
  Dispatching -> "dispatching"
  Collecting -> "collecting garbage"
  Blocked -> "manager blocked in the kernel"

-- | The share of the total time that a row spends in an activity.
busyShare :: Timeline -> Int -> Activity -> Double
busyShare timeline cap activity =
  fromIntegral (sum [spanTo s - spanFrom s | s <- M.findWithDefault [] cap (timelineRows timeline), spanActivity s == activity])
    / fromIntegral (max 1 (timelineEnd timeline))
