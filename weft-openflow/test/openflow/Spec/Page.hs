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
tests = testGroup "the page" [embedded, unfolded, noAnswer]

-- | Fails in a program that was built with an earlier page.
embedded :: TestTree
embedded = testCase "is data/index.html" . withTestController defaultSettings $ \c _ -> do
  side <- newNorthbound LocalClients c
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
    noEvents = "<script>window.EventSource = class { addEventListener() {} close() {} };</script>"
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
    side <- newNorthbound LocalClients c
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
