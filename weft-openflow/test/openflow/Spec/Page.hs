{-# LANGUAGE OverloadedStrings #-}

-- |
-- The page: the one that programs have, and what it shows in a browser while the controller does not answer.
module Spec.Page (tests) where

import Control.Concurrent (threadDelay)
import Control.Monad (forM_, unless, when)
import Data.ByteString.Builder (byteString)
import qualified Data.ByteString.Char8 as BC
import qualified Data.ByteString.Lazy as L
import Data.IORef
import qualified Network.HTTP.Client as Client
import Network.HTTP.Types
import Network.Wai (Application, pathInfo, responseLBS, responseStream, strictRequestBody)
import Peer
import Spec.Northbound (withBrowser)
import System.Timeout (timeout)
import Test.Tasty
import Test.Tasty.HUnit hiding (testCase)
import qualified Weft.Http as Http
import Weft.OpenFlow.Controller
import Weft.OpenFlow.Northbound
import Weft.Socket (SockAddr (..))
import Weft.Test.Browser (inBrowser)
import Weft.Test.Skip (needProgram, testCase)

tests :: TestTree
tests = testGroup "the page" [embedded, unfolded, legible, asksForToken, noAnswer]

-- | Fails in a program that was built with an earlier page.
embedded :: TestTree
embedded = testCase "is data/index.html" . withTestController defaultSettings $ \c _ -> do
  side <- newNorthbound localClients c
  Http.withServer (Http.setHost "127.0.0.1" (Http.setPort 0 Http.defaultSettings)) (northbound side) $ \server -> case Http.serverAddress server of
    SockAddrInet port _ -> do
      answer <- Client.newManager Client.defaultManagerSettings >>= Client.httpLbs (Client.parseRequest_ ("http://127.0.0.1:" <> show port <> "/"))
      page <- L.readFile "data/index.html"
      assertBool "the page is another one" (Client.responseBody answer == page)
    _ -> assertFailure "no port"

-- | Twelve switches in a row, of which each third one follows in the order of their numbers; their links are discovered
-- later. The page runs without a controller. No link is longer than a quarter of the row.
unfolded :: TestTree
unfolded = testCase "switches move when their links are discovered" $ do
  page <- readFile "data/index.html"
  said <- inBrowser 1000 (noEvents <> page) row
  case map read said :: [Double] of
    [longest, whole] -> assertBool (show said) (longest < whole / 4)
    _ -> assertFailure (show said)
  where
    noEvents = "<script>window.fetch = () => new Promise(() => {});</script>"
    row =
      concat
        [ "const id = n => String(n * 5 % 12).padStart(16, '0'), all = [...Array(12).keys()];",
          "const switches = all.map(n => ({ switch: id(n), openflow: '1.3', ports: [] }));",
          "const links = all.slice(1).map(n => ({ from: { switch: id(n - 1), port: 1 }, to: { switch: id(n), port: 2 }, two_way: true, in_tree: true, bits_per_s: 0 }));",
          "const net = links => ({ version: 1, switches, links, hosts: [], host_count: 0 });",
          "w.update(net([])); w.update(net(links));",
          "const lengths = [...d.querySelectorAll('line')].map(l => Math.hypot(l.getAttribute('x1') - l.getAttribute('x2'), l.getAttribute('y1') - l.getAttribute('y2')));",
          "const places = [...d.querySelectorAll('rect')].map(r => [+r.getAttribute('x'), +r.getAttribute('y')]);",
          "const whole = Math.max(...places.flatMap(([x, y]) => places.map(([a, b]) => Math.hypot(x - a, y - b))));",
          "return lengths.length === 11 ? Math.max(...lengths) + ' ' + whole : 'no links';"
        ]

-- | 24 switches with six hosts each, and rates at all links. Labels have the same size on the screen at any scale, do
-- not overlap, and are above all lines; those that have no room are there when a switch is clicked, or the picture is
-- enlarged.
legible :: TestTree
legible = testCase "a large network has labels that can be read, a scale, and a legend" $ do
  page <- readFile "data/index.html"
  said <- inBrowser 1000 ("<script>window.fetch = () => new Promise(() => {});</script>" <> page) large
  map read said @?= ([1, 0, 1, 1, 1, 1, 1, 1] :: [Int])
  where
    large =
      concat
        [ "const all = [...Array(24).keys()], id = n => String(n + 1).padStart(16, '0');",
          "const switches = all.map(n => ({ switch: id(n), openflow: '1.3', ports: [{ port: 'local', up: false }, { port: 1, up: true }, { port: 2, up: true }, { port: 3, up: false }] }));",
          "const links = all.slice(1).map(n => ({ from: { switch: id((n - 1) / 3 | 0), port: n }, to: { switch: id(n), port: 99 }, two_way: true, in_tree: n % 5 > 0, bits_per_s: 1234567 }));",
          "const hosts = [...Array(144).keys()].map(n => ({ address: '02:00:00:00:00:' + n, ipv4: '10.0.' + n % 24 + '.' + (n / 24 | 0), switch: id(n % 24), port: 5 }));",
          "w.update({ version: 1, switches, links, hosts, host_count: 144 });",
          "for (let n = 0; n < 200; n++) w.step(); w.draw();",
          "const texts = () => [...d.querySelectorAll('svg text')], boxes = texts().map(t => t.getBoundingClientRect());",
          "const high = r => r.height > 11 && r.height < 25, cut = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 3 && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 5;",
          "const overlapping = boxes.filter((a, i) => boxes.some((b, j) => j < i && cut(a, b))).length;",
          "const drawn = [...d.querySelectorAll('#graph > *')].map(e => e.tagName), above = drawn.lastIndexOf('line') < drawn.indexOf('text');",
          "const hostsOf = n => texts().filter(t => t.textContent.startsWith('10.0.' + n + '.')).length;",
          "const g = d.querySelector('g.node[data-key=s' + id(2) + ']'), at = type => { const r = g.getBoundingClientRect(); d.querySelector('#graph').setPointerCapture = () => {}; return new w.PointerEvent(type, { bubbles: true, pointerId: 1, clientX: r.x + r.width / 2, clientY: r.y + r.height / 2 }); };",
          "g.dispatchEvent(at('pointerdown')); d.getElementById('graph').dispatchEvent(at('pointerup')); const clicked = hostsOf(2) === 6;",
          "const width = () => +d.getElementById('graph').getAttribute('viewBox').split(' ')[2], before = width(); d.getElementById('in').click(); d.getElementById('in').click();",
          "const zoomed = width() < before * 0.7 && texts().every(t => high(t.getBoundingClientRect())); d.getElementById('whole').click();",
          "const legend = ['tree', 'blocked', 'host'].every(word => d.getElementById('legend').textContent.includes(word));",
          "const ports = d.querySelector('#switches tr td:nth-child(3)').textContent === '2/3';",
          "return [boxes.length >= 24 && boxes.every(high), overlapping, above, clicked, zoomed, width() === before, legend, ports].map(Number).join(' ');"
        ]

-- | The first request for events is answered by 401. The token that is entered goes with the next one.
asksForToken :: TestTree
asksForToken = testCase "asks for the token, and sends it" $ do
  page <- readFile "data/index.html"
  said <-
    inBrowser 1000 ("<script>window.asked = []; window.fetch = (url, options) => { asked.push(options.headers.Authorization || 'none'); return Promise.resolve({ status: 401 }); };</script>" <> page) $
      concat
        [ "const login = d.getElementById('login'), shown = w.getComputedStyle(login).display;",
          "d.getElementById('token').value = 'SECRET'; login.dispatchEvent(new w.Event('submit', { cancelable: true }));",
          "return [shown, ...w.asked, d.getElementById('state').textContent].join(' ');"
        ]
  said @?= words "flex none Bearer SECRET the controller needs its token"

-- | How requests for events are answered: by an event every half a second, by an error, or not at all.
data Events = Sent | Refused | Withheld
  deriving (Eq, Show)

-- | The state, its class, the text with the time of the last answer, and the class of the figures.
type Shown = [String]

-- | A controller that has ended closes its connections; one that is stopped keeps them, silently.
noAnswer :: TestTree
noAnswer = testCase "shows that the controller does not answer, and since when" $ do
  needProgram "chromium"
  how <- newIORef Sent
  reports <- newIORef []
  withTestController defaultSettings $ \c _ -> do
    side <- newNorthbound localClients c
    Http.withServer (Http.setHost "127.0.0.1" (Http.setPort 0 Http.defaultSettings)) (around how reports (northbound side)) $ \server -> case Http.serverAddress server of
      SockAddrInet port _ -> withBrowser ("http://127.0.0.1:" <> show port <> "/frame") $ \written -> do
        let awaited wanted = do
              found <- timeout 120000000 (untilM ((wanted `elem`) . map (take 2) <$> readIORef reports))
              log' <- written
              said <- readIORef reports
              assertEqual (show (wanted, take 5 said) <> "\n" <> log') (Just ()) found
              let matching = filter ((== wanted) . take 2) said
              writeIORef reports []
              pure (drop 2 (head' matching))
            live = awaited ["live", ""] >>= (@?= "") . concat . drop 1
        live
        forM_ [Refused, Withheld] $ \failing -> do
          writeIORef how failing
          said <- awaited ["the controller does not answer", "lost"]
          assertBool (show (failing, said)) (take 12 (concat said) == "last answer " && drop 1 said == ["old"])
          writeIORef how Sent
          live
      _ -> assertFailure "no port"
  where
    head' xs = case xs of
      x : _ -> x
      [] -> []
    untilM done = done >>= \ok -> unless ok (threadDelay 50000 >> untilM done)

-- | Answer requests for events in the given way, and add a page that shows the interface's page in a frame and reports
-- each change of its state.
around :: IORef Events -> IORef [Shown] -> Application -> Application
around how reports app asked respond = case pathInfo asked of
  ["frame"] -> respond (responseLBS status200 [(hContentType, "text/html")] frame)
  ["report"] -> do
    said <- strictRequestBody asked
    modifyIORef' reports (lines (BC.unpack (L.toStrict said)) :)
    respond (responseLBS status200 [] "")
  ["v1", "events"] -> do
    now <- readIORef how
    case now of
      Sent -> respond . responseStream status200 [(hContentType, "text/event-stream")] $ \write flush ->
        let sent = do
              later <- readIORef how
              when (later == Sent) (write (byteString event) >> flush >> threadDelay 500000 >> sent)
         in sent >> silent
      Refused -> respond (responseLBS status502 [] "")
      Withheld -> silent >> respond (responseLBS status502 [] "")
  _ -> app asked respond
  where
    silent = readIORef how >>= \now -> when (now == Withheld) (threadDelay 50000 >> silent)
    event = "event: network\ndata: {\"version\":1,\"switches\":[],\"links\":[],\"host_count\":0,\"hosts\":[]}\n\n"
    frame =
      "<!DOCTYPE html><iframe id=f src=/></iframe><script>let before = '';"
        <> "setInterval(() => { const d = document.getElementById('f').contentDocument, s = d && d.getElementById('state'); if (!s) return;"
        <> "const now = s.textContent + '\\n' + s.className; if (now === before) return; before = now;"
        <> "fetch('/report', { method: 'POST', body: now + '\\n' + (d.getElementById('answered') || s).textContent + '\\n' + d.querySelector('main').className }); }, 50);</script>"
