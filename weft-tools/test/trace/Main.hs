{-# LANGUAGE OverloadedStrings #-}

-- | The event log, end to end: this program runs itself as a small workload with @+RTS -l@, reads the log, and
-- compares its counts with those of "Weft.Metrics". Other tests cover the pure parts.
module Main (main) where

import Control.Concurrent
import Control.Monad
import Data.Aeson (Value, decode)
import Data.Bits (complement)
import qualified Data.ByteString as B
import Data.ByteString.Builder (toLazyByteString)
import qualified Data.ByteString.Lazy as L
import Data.List (sortOn)
import qualified Data.Map.Strict as M
import qualified Data.Set as S
import qualified Data.Text as T
import qualified Data.Text.Encoding as T
import System.Directory (getTemporaryDirectory, removePathForcibly)
import System.Environment (getArgs, getExecutablePath)
import System.Exit (ExitCode (..))
import System.FilePath ((</>))
import System.IO (hClose, openTempFile)
import System.Posix.Temp (mkdtemp)
import System.Process (readProcessWithExitCode)
import System.Timeout (timeout)
import Test.Tasty hiding (defaultMain)
import Test.Tasty.HUnit hiding (testCase)
import Weft.File (FileEngine (..), RingMetrics (..), preferFiles, readRingMetrics, sync, writing)
import qualified Weft.File as Weft
import Weft.Metrics
import Weft.Socket
import Weft.Socket.ByteString (recv, sendAll)
import Weft.Test.Browser (inBrowser)
import Weft.Test.Main (defaultMain)
import Weft.Test.Skip (testCase)
import Weft.Timer (sleep)
import Weft.Tools.Trace.Chrome
import Weft.Tools.Trace.Log
import Weft.Tools.Trace.Page
import Weft.Tools.Trace.Sequence
import Weft.Tools.Trace.Timeline

main :: IO ()
main = do
  arguments <- getArgs
  case arguments of
    "workload" : _ -> workload
    _ -> defaultMain (testGroup "trace" [recorded, damages, timelines])

-- | A hundred turns of two threads over a socket pair, twenty timers, and ten requests to a file. Prints waits,
-- events, fired timers, and requests that went through a ring.
workload :: IO ()
workload = do
  (a, b) <- socketPair AF_UNIX Stream defaultProtocol
  done <- newEmptyMVar
  _ <- forkIO (replicateM_ 100 (recv b 1 >>= sendAll b) >> putMVar done ())
  replicateM_ 100 $ do
    sendAll a (B.singleton 1)
    _ <- recv a 1
    yield
  takeMVar done
  timers <- forM [1 .. 20 :: Int] $ \_ -> do
    fired <- newEmptyMVar
    _ <- forkIO (sleep (milliseconds 2) >> putMVar fired ())
    pure fired
  mapM_ takeMVar timers
  preferFiles Rings
  folder <- getTemporaryDirectory
  (path, handle) <- openTempFile folder "weft-trace-file"
  hClose handle
  Weft.withFile writing path $ \file -> replicateM_ 10 (sync file)
  removePathForcibly path
  metrics <- readMetrics
  rings <- readRingMetrics
  print (map (`total` metrics) [metricsWaits, metricsDispatched, metricsTimersFired] <> [sum (map ringRequests rings)])

recorded :: TestTree
recorded =
  testGroup
    "a recorded program"
    ( testCase "an argument of the program that is not in UTF-8" (compared 1 ["caf\xDCE9"]) :
        [ testCase ("counts match those of Weft.Metrics, -N" <> show n) (compared n []) | n <- [1, 2 :: Int]
        ]
    )

-- | With further arguments of the program.
compared :: Int -> [String] -> Assertion
compared n more = do
  own <- getExecutablePath
  temporary <- getTemporaryDirectory
  folder <- mkdtemp (temporary </> "weft-trace-")
  let file = folder </> "log"
  ran <- timeout 60000000 (readProcessWithExitCode own (["workload", "+RTS", "-l-asgu", "-ol" <> file, "-N" <> show n, "-RTS"] <> more) "")
  case ran of
    Just (ExitSuccess, out, _) -> do
      Recording entries end <- readLog file >>= either (assertFailure . T.unpack) pure
      end @?= Complete
      checkLog file >>= (@?= Right Complete)
      -- The first half of it is a recording, too.
      bytes <- B.readFile file
      B.writeFile (file <> ".half") (B.take (B.length bytes `div` 2) bytes)
      Recording some half <- readLog (file <> ".half") >>= either (assertFailure . T.unpack) pure
      half @?= CutOff
      assertBool "half a log" (not (null some) && length some < length entries)
      let timeline = timelineOf entries
          counted name = M.findWithDefault 0 name (timelineCounts timeline)
      case read out of
        [waits, dispatched, fired, requests] -> do
          -- Both are 0 where the kernel refuses io_uring.
          counted "file requests submitted" @?= requests
          counted "file requests done" @?= requests
          counted "waits" @?= waits
          counted "timers fired" @?= fired
          -- The program reads its counters before its last sleep ends.
          assertBool (show (counted "events handed", dispatched)) (abs (counted "events handed" - dispatched) <= 2)
        other -> assertFailure (show (other :: [Int]))
      assertBool "a dispatcher runs" (any ((== Dispatching) . spanActivity) (concat (M.elems (timelineRows timeline))))
      assertBool "threads are woken" (length (timelineArrows timeline) >= 100)
      assertBool "JSON" (maybe False (const True) (decode (toLazyByteString (chromeTrace "a log" timeline)) :: Maybe Value))
      assertBool "a page" ("manager blocked" `T.isInfixOf` timelinePage "a log" [] timeline)
    other -> assertFailure (show other)
  removePathForcibly folder

-- | Logs that are damaged: what the decoder does not read to its end is not taken for complete.
damages :: TestTree
damages = testCase "a damaged log is read up to the damage" $ do
  own <- getExecutablePath
  temporary <- getTemporaryDirectory
  folder <- mkdtemp (temporary </> "weft-trace-")
  let file = folder </> "log"
      spoiled = folder </> "spoiled"
  (code, _, _) <- readProcessWithExitCode own ["workload", "+RTS", "-l-asgu", "-ol" <> file, "-N1", "-RTS"] ""
  code @?= ExitSuccess
  bytes <- B.readFile file
  Recording entries _ <- readLog file >>= either (assertFailure . T.unpack) pure
  let begin = B.length (fst (B.breakSubstring "datb" bytes)) + 4
      -- Another byte at this place.
      flipped at = B.concat [B.take at bytes, B.map complement (B.take 1 (B.drop at bytes)), B.drop (at + 1) bytes]
      spoil content = B.writeFile spoiled content >> checkLog spoiled
      check name content = do
        B.writeFile spoiled content
        Recording some end <- readLog spoiled >>= either (assertFailure . T.unpack) pure
        checked <- checkLog spoiled
        checked @?= Right end
        assertBool (name <> ": " <> show end) (case end of DamagedAt at -> at >= fromIntegral begin && at < fromIntegral (B.length content); _ -> False)
        assertBool (name <> ": a time") (all ((<= maximum (map entryTime entries)) . entryTime) some)
        pure (length some)
  -- The marker of the first block has its type, time, size and the time of its end; the first event follows.
  forM_ [("the type of a block", 0), ("the time of its end", 14), ("the type of an event", 24), ("the time of an event", 26)] $ \(name, at) ->
    check name (flipped (begin + at)) >>= (@?= 0)
  _ <- check "the size of a block" (flipped (begin + 10))
  -- Behind the first events, so that these are read.
  forM_ (spread 20 (filter (> begin + 1000) (telling begin bytes))) $ \at -> do
    B.writeFile spoiled (flipped at)
    Recording some end <- readLog spoiled >>= either (assertFailure . T.unpack) pure
    assertBool ("byte " <> show at <> ": " <> show end) (end /= Complete && not (null some))
  quiet <- filterM (fmap (== Right Complete) . spoil . flipped) (spread 100 (telling begin bytes))
  quiet @?= []
  -- All over the events; those of a text and the low bytes of a time are not noticed. It ends, and throws nothing.
  mapM_ (spoil . flipped) (spread 50 [begin .. B.length bytes - 1])
  _ <- check "a log behind it" (bytes <> bytes)
  _ <- check "zeros behind it" (bytes <> B.replicate 1000 0)
  removePathForcibly folder

-- | So many elements, or all if there are fewer, with the same distance between them.
spread :: Int -> [a] -> [a]
spread n xs = [x | (i, x) <- zip [0 :: Int ..] xs, i * n `mod` length xs < n]

-- | The places of a log where another byte is always noticed, given where its events begin. Of an event's type, which
-- has two bytes, those that make one that the log does not have; the upper half of its time, which is then past the end
-- of its block by minutes; of a block its type and size; of a capability's threads that run and stop in turn their
-- numbers, apart from the first and last ones (rts\/EventLogFormat.h).
telling :: Int -> B.ByteString -> [Int]
telling begin bytes = concatMap places events
  where
    number at count = B.foldl' (\n byte -> 256 * n + fromIntegral byte) (0 :: Int) (B.take count (B.drop at bytes))
    -- The sizes of the kinds of events; 65535 stands for one with a size of its own.
    kinds = M.fromList (kindsFrom (B.length (fst (B.breakSubstring "etb\0" bytes))))
    kindsFrom at
      | B.take 4 (B.drop at bytes) == "etb\0" = (number (at + 4) 2, number (at + 6) 2) : kindsFrom (afterText (afterText (at + 8)) + 4)
      | otherwise = []
    afterText at = at + 4 + number at 4
    events = eventsFrom begin
    eventsFrom at = case M.lookup (number at 2) kinds of
      Just size | at < B.length bytes -> (at, number at 2) : eventsFrom (at + 10 + (if size == 65535 then 2 + number (at + 10) 2 else size))
      _ -> []
    turns = [at | (at, kind) <- events, kind `elem` [1, 2]]
    inside = S.fromList (drop 1 (take (length turns - 1) turns))
    places (at, kind)
      | kind == 18 = [at, at + 1, at + 10, at + 11]
      | otherwise = [at] <> [at + 1 | M.notMember (255 - kind) kinds] <> [at + 2 .. at + 5] <> [at + 10 + i | S.member at inside, i <- [0 .. 3]]

timelines :: TestTree
timelines =
  testGroup
    "timelines"
    [ testCase "what can follow what in a log" $ do
        let right entries = maybe False (const True) (foldM follows nothingKnown entries)
            rows =
              [ ("threads one after the other" :: String, True, [Entry 1 0 (Runs 1), Entry 2 0 (Stops 1), Entry 2 0 (Runs 2), Entry 3 0 (Stops 2)]),
                ("the beginning in the middle of a thread", True, [Entry 1 0 (Stops 1), Entry 2 0 (Runs 1)]),
                ("each capability by itself", True, [Entry 5 0 (Runs 1), Entry 1 1 (Runs 2), Entry 2 1 (Stops 2), Entry 6 0 (Stops 1)]),
                ("a collection that is noted later", True, [Entry 5 0 (Runs 1), Entry 4 0 CollectionBegins, Entry 5 0 (Stops 1)]),
                ("a time that is earlier", False, [Entry 5 0 (Runs 1), Entry 4 0 (Wakes 2 0)]),
                ("a thread that runs while another one does", False, [Entry 1 0 (Runs 1), Entry 2 0 (Runs 2)]),
                ("another thread stops", False, [Entry 1 0 (Runs 1), Entry 2 0 (Stops 2)]),
                ("a thread that does not run stops", False, [Entry 1 0 (Runs 1), Entry 2 0 (Stops 1), Entry 3 0 (Stops 1)])
              ]
        [(name, right entries) | (name, _, entries) <- rows] @?= [(name, expected) | (name, expected, _) <- rows],
      testCase "spans, wake-ups and their latencies" $ do
        let timeline =
              timelineOf
                [ Entry 0 0 (Labelled 1 "weft dispatcher 0"),
                  Entry 10 0 (Runs 1),
                  Entry 12 0 (Wakes 2 1),
                  Entry 15 0 (Marked Sleeping),
                  Entry 16 0 (Stops 1),
                  Entry 20 1 (Runs 2),
                  Entry 30 1 (Stops 2),
                  Entry 31 1 CollectionBegins,
                  Entry 40 1 CollectionEnds,
                  Entry 50 0 (Marked (Woken 3))
                ]
        M.lookup 0 (timelineRows timeline) @?= Just [Span 10 16 Dispatching "weft dispatcher 0", Span 15 50 Blocked "", Span 31 40 Collecting ""]
        M.lookup 1 (timelineRows timeline) @?= Just [Span 20 30 Running "thread 2", Span 31 40 Collecting ""]
        timelineArrows timeline @?= [Arrow 12 0 20 1]
        M.toList (timelineCounts timeline) @?= [("events handed", 3), ("sleeps", 1), ("wake-ups of managers", 1)],
      testCase "a collection is a pause of every capability, also of those that take no part in it" $ do
        let timeline =
              timelineOf
                [ Entry 1 0 (Runs 1),
                  Entry 2 2 (Runs 2),
                  Entry 5 0 (Stops 1),
                  Entry 6 2 (Stops 2),
                  Entry 10 0 CollectionBegins,
                  Entry 11 1 CollectionBegins,
                  Entry 18 1 CollectionEnds,
                  Entry 19 2 (Runs 3),
                  Entry 20 2 (Stops 3),
                  Entry 20 0 CollectionEnds,
                  Entry 20 1 CollectionBegins,
                  Entry 30 1 CollectionEnds,
                  Entry 40 1 CollectionBegins
                ]
            pauses = [Span 10 20 Collecting "", Span 20 30 Collecting "", Span 40 40 Collecting ""]
        timelineRows timeline
          @?= M.fromList [(0, Span 1 5 Running "thread 1" : pauses), (1, pauses), (2, Span 2 6 Running "thread 2" : Span 10 19 Collecting "" : Span 19 20 Running "thread 3" : drop 1 pauses)]
        map (\cap -> busyShare timeline cap Collecting) [0, 1, 2] @?= [0.5, 0.5, 0.475],
      testCase "requests in rings, on the page and in the JSON" $ do
        let timeline =
              timelineOf
                [ Entry 10 0 (Marked (Submitted 1)),
                  Entry 20 1 (Marked (Submitted 1)),
                  Entry 30 1 (Marked (Finished 2)),
                  -- These were under way when the log began.
                  Entry 40 1 (Marked (Finished 5)),
                  Entry 50 0 (Marked (Submitted 0)),
                  Entry 60 0 (Runs 1)
                ]
        M.toList (timelineDepths timeline) @?= [(0, [Depth 50 60 1]), (1, [Depth 10 20 1, Depth 20 30 2])]
        M.toList (timelineCounts timeline) @?= [("file requests done", 7), ("file requests submitted", 3)]
        let page = timelinePage "t" [] timeline
        assertBool "in the page" ("files:[0,50,60,1,1,10,20,1,1,20,30,2],filesColour:" `T.isInfixOf` page && "deepest:2," `T.isInfixOf` page)
        assertBool "in the JSON" ("\"in flight\":2" `T.isInfixOf` T.decodeUtf8 (L.toStrict (toLazyByteString (chromeTrace "a log" timeline)))),
      testCase "in the JSON the process has a name, and every wake-up begins and ends within a span" $ do
        -- Thread 2 is woken by thread 1; threads 3 and 4 by nobody that the log knows.
        let timeline =
              timelineOf
                [Entry 10 0 (Runs 1), Entry 20 0 (Wakes 2 1), Entry 25 1 (Runs 2), Entry 30 0 (Stops 1), Entry 40 0 (Wakes 3 1), Entry 45 1 (Stops 2), Entry 50 1 (Runs 3), Entry 55 1 (Stops 3), Entry 60 2 (Wakes 4 1), Entry 70 1 (Runs 4), Entry 80 1 (Stops 4)]
            json = T.decodeUtf8 (L.toStrict (toLazyByteString (chromeTrace "a log" timeline)))
        length (timelineArrows timeline) @?= 3
        T.count "\"ph\":\"s\"" json @?= 1
        assertBool "the process" ("{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":1,\"tid\":0,\"args\":{\"name\":\"a log\"}}" `T.isInfixOf` json),
      testCase "the page says first what its recording lacks" $
        assertBool "" ("<p><b>The recording is &lt;damaged&gt;</b></p>" `T.isInfixOf` timelinePage "t" ["The recording is <damaged>"] (timelineOf [])),
      testCase "threads of GHC's own manager dispatch too" $
        [spanActivity s | label <- ["weft dispatcher 1", "IOManager on cap 1", "TimerManager", "worker"], list <- M.elems (timelineRows (timelineOf [Entry 0 1 (Labelled 7 label), Entry 1 1 (Runs 7), Entry 2 1 (Stops 7)])), s <- list]
          @?= [Dispatching, Dispatching, Dispatching, Running],
      testCase "a span that is open at the end of the log ends there" $
        M.elems (timelineRows (timelineOf [Entry 1 0 (Runs 7), Entry 9 0 CollectionBegins])) @?= [[Span 1 9 Running "thread 7", Span 9 9 Collecting ""]],
      testCase "markers" $
        map markerOf ["weft:sleep", "weft:submit 1", "weft:done 2", "weft:woken 3", "weft:signal -1", "weft:woken", "weft:woken x", "other"]
          @?= [Just Sleeping, Just (Submitted 1), Just (Finished 2), Just (Woken 3), Just (Signalled (-1)), Nothing, Nothing, Nothing],
      testCase "of more spans and wake-ups than are drawn, the first in time of all capabilities are" $ do
        let turns = 80000
            cap c = concat [[Entry (t + c) (fromIntegral c) (Runs (fromIntegral c)), Entry (t + c + 1) (fromIntegral c) (Stops (fromIntegral c)), Entry (t + c + 2) (1 - fromIntegral c) (Wakes (fromIntegral c) (fromIntegral c))] | i <- [0 .. turns - 1], let t = 10 * i]
            page = timelinePage "t" [] (timelineOf (sortOn entryTime (cap 0 <> cap 1)))
        assertBool "spans" ("Only the first 150000 of 160000 spans are drawn" `T.isInfixOf` page)
        assertBool "wake-ups" ("Only the first 20000 of 159998 wake-ups are drawn" `T.isInfixOf` page)
        assertBool "both capabilities" (all (`T.isInfixOf` page) ["spans:[0,0,1,0,0,", ",1,749991,749992,0,1],arrows:"]),
      testCase "latencies by classes" $ latencyClasses [100, 300, 900] @?= [(250, 1), (500, 1), (1000, 1)],
      testCase "text cannot end the script" $
        assertBool "" (not ("</script><b>" `T.isInfixOf` timelinePage "t" [] (timelineOf [Entry 0 0 (Labelled 1 "</script><b>"), Entry 1 0 (Runs 1), Entry 2 0 (Stops 1)]))),
      browsed,
      testCase "a file that is not an event log is refused" $ readLog "/etc/passwd" >>= either (const (pure ())) (const (assertFailure "read"))
    ]

-- | In a browser, on a desktop and on a telephone: the rows are drawn, buttons, keys and Ctrl with the wheel zoom,
-- dragging and the sideways wheel move, the wheel and a finger that moves up or down scroll the page, and pointing at a
-- span says what it is.
browsed :: TestTree
browsed = testCase "a browser draws the page, zooms, moves, and says what a span is" . forM_ [1280, 390] $ \width -> do
  -- The dispatcher runs in the second tenth of a millisecond; the other capability collects in the last half.
  let timeline =
        timelineOf
          [ Entry 0 0 (Labelled 1 "weft dispatcher 0"),
            Entry 100000 0 (Runs 1),
            Entry 150000 0 (Wakes 2 1),
            Entry 200000 0 (Stops 1),
            Entry 250000 1 (Runs 2),
            Entry 400000 1 (Stops 2),
            Entry 500000 1 CollectionBegins,
            Entry 1000000 1 CollectionEnds
          ]
  seen <- inBrowser width (T.unpack (timelinePage "a log" [] timeline)) (concat script)
  map (map (\c -> if c == '_' then ' ' else c)) seen
    @?= ["true", "a log", "0,114,178", "230,159,0", "0 ns to 1.000 ms", "0 ns to 500.0 \181s", "0 ns to 1.000 ms", "the same", "false", "narrower", "true", "sideways", "true", "moved", "dragged", "let go", "pan-y pinch-zoom", "dispatching: weft dispatcher 0, 100.0 \181s from 100.0 \181s", "collecting garbage, 500.0 \181s from 500.0 \181s"]
  where
    script =
      [ "const c = d.getElementById('c'), g = c.getContext('2d'), r = w.devicePixelRatio, box = c.getBoundingClientRect();",
        "const x = t => 34 + t * (c.clientWidth - 34), where = () => d.getElementById('where').textContent, tip = () => d.getElementById('tip').textContent;",
        "const at = (t, y) => ({clientX: box.left + x(t), clientY: box.top + y, bubbles: true, cancelable: true, pointerId: 1});",
        "const drawn = g.getImageData(0, 0, c.width, c.height).data;",
        "const pixel = (t, y) => { const i = 4 * (Math.round(y * r) * c.width + Math.round(x(t) * r)); return Array.from(drawn.slice(i, i + 3)).join() };",
        "const press = name => d.querySelector('[data-do=' + name + ']').click(), said = [d.documentElement.scrollWidth <= d.documentElement.clientWidth, d.querySelector('h1').textContent];",
        "said.push(pixel(0.15, 40), pixel(0.75, 22 + 58 + 12), where());",
        "press('in'); press('left'); press('left'); said.push(where());",
        "press('all'); said.push(where());",
        -- The page scrolls by what the canvas does not take.
        "const taken = how => !c.dispatchEvent(new w.WheelEvent('wheel', {...at(0.5, 40), ...how}));",
        "const changed = (name, act) => { const before = where(); act(); said.push(where() === before ? 'the same' : name) };",
        "let took; changed('narrower', () => took = taken({deltaY: -120})); said.push(took);",
        "changed('narrower', () => took = taken({deltaY: -120, ctrlKey: true})); said.push(took);",
        "changed('sideways', () => took = taken({deltaX: 20, deltaY: 1})); said.push(took);",
        "changed('moved', () => w.dispatchEvent(new w.KeyboardEvent('keydown', {key: 'ArrowRight'})));",
        "c.setPointerCapture = () => {}; press('all'); press('in');",
        "changed('dragged', () => { c.dispatchEvent(new w.PointerEvent('pointerdown', at(0.5, 40))); c.dispatchEvent(new w.PointerEvent('pointermove', at(0.4, 40))) });",
        "const kept = where(); c.dispatchEvent(new w.PointerEvent('pointercancel', at(0.4, 40))); c.dispatchEvent(new w.PointerEvent('pointermove', at(0.2, 40))); said.push(where() === kept ? 'let go' : 'held');",
        "said.push(w.getComputedStyle(c).touchAction);",
        "press('all'); c.dispatchEvent(new w.PointerEvent('pointermove', at(0.15, 40))); said.push(tip());",
        "c.dispatchEvent(new w.PointerEvent('pointermove', at(0.75, 22 + 58 + 12))); said.push(tip());",
        "return said.map(s => String(s).replace(/ /g, '_')).join(' ')"
      ]
