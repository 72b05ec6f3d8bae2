{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : @weft tcp connections@
--
-- Metrics of the program's TCP stack, for @\/metrics@. Metrics of each connection are on a separate page,
-- @\/metrics\/connections@, in the same format: on the first page, a monitoring system would store a series for every
-- connection there ever was. The command reads the separate page and prints a table. Exit status of the command: 0, 1
-- if the page cannot be read, 2 for wrong arguments.
module Weft.Tools.Tcp.Connections
  ( stackFamilies,
    connectionsPage,
    connectionsCommand,
  )
where

import Control.Concurrent (threadDelay)
import Control.Monad (unless)
import Data.ByteString (ByteString)
import Data.ByteString.Builder (toLazyByteString)
import qualified Data.ByteString.Char8 as B
import Data.List (nub, sortOn)
import qualified Data.Map.Strict as M
import Data.Maybe (fromMaybe)
import Data.Text (Text)
import qualified Data.Text as T
import qualified Data.Text.IO as T
import Network.HTTP.Types (methodGet, status200)
import Network.Wai (Middleware, Request, rawPathInfo, requestMethod, responseLBS)
import Numeric (showFFloat)
import Options.Applicative hiding (columns)
import System.IO (hFlush, stdout)
import Weft.Http.Client (Url (..), parseUrlOrSocket)
import Weft.Prometheus
import Weft.Tcp
import Weft.Tcp.Core (Micros (..), State (TimeWait), stateName)
import Weft.Tls (Trust)
import Weft.Tools.Numbers (columns, positive)
import Weft.Tools.Subcommand (Subcommand, subcommand)
import Weft.Tools.Top (readPage, reportingPages, trusted)
import Weft.Tools.Top.Readings (Reading)
import Weft.Tools.Trust (trustOption)

-- | Metrics of a stack as a whole.
stackFamilies :: Stack -> IO [Family]
stackFamilies st = do
  size <- tableSize st
  counts <- mapM (readCounter st) [minBound ..]
  pure (gauge "weft_tcp_connections" "Connections of the TCP stack, including those in TIME-WAIT." (Whole size) : zipWith family [minBound ..] counts)
  where
    family c n = let (name, text) = described c in counter ("weft_tcp_" <> name <> "_total") text (Whole n)

described :: Counter -> (ByteString, ByteString)
described c = case c of
  PacketsIn -> ("packets_received", "Packets received from the device.")
  PacketsOut -> ("packets_sent", "Packets passed to the device, before it splits them if it offloads segmentation.")
  Malformed' -> ("malformed", "Packets that could not be decoded.")
  BadChecksums -> ("bad_checksums", "Segments with a wrong checksum.")
  NotForUs -> ("not_for_us", "Packets that are not for an address of the stack, or of unknown protocols.")
  ResetsOut -> ("resets_sent", "Resets sent in response to segments that belong to no connection.")
  CookiesSent -> ("cookies_sent", "SYNs answered with a SYN cookie.")
  CookiesTaken -> ("cookies_taken", "Connections opened with a SYN cookie.")
  SynsIgnored -> ("syns_ignored", "SYNs that were not answered.")
  HalfOpenEvicted -> ("half_open_evicted", "Half-open connections that made room for a newer one.")
  Accepted -> ("accepted", "Connections that were opened by a peer.")
  Connects -> ("connects", "Connections that were opened by this program.")
  CallbackErrors -> ("callback_errors", "Exceptions of the callbacks for packet logs and for soft errors.")
  AnswersLimited -> ("answers_limited", "Resets, echo replies and ICMP errors that were not sent, as there were too many.")

-- | Serve @\/metrics\/connections@ for requests that the function allows, if there is a stack.
connectionsPage :: (Request -> IO Bool) -> IO (Maybe Stack) -> Middleware
connectionsPage allowed stackNow app request respond
  | rawPathInfo request /= "/metrics/connections" || requestMethod request /= methodGet = app request respond
  | otherwise = do
    may <- allowed request
    found <- if may then stackNow else pure Nothing
    case found of
      Nothing -> app request respond
      Just st -> do
        (rows, left) <- connectionTable st mostRows
        respond (responseLBS status200 [("Content-Type", "text/plain; version=0.0.4; charset=utf-8"), ("Cache-Control", "no-store")] (toLazyByteString (exposition (rowFamilies rows left))))

-- | The maximum number of connections on the page.
mostRows :: Int
mostRows = 10000

rowFamilies :: [Row] -> Int -> [Family]
rowFamilies rows left =
  gauge "weft_tcp_connections_left_out" "Connections that are not on this page." (Whole left) :
  Family "weft_tcp_connection_info" "A connection; its state is a label." Gauge [Sample "" (labels f <> [("state", B.pack (stateName (maybe TimeWait summaryState s)))]) (Whole 1) | Row f s <- rows] :
    [Family name text kind [Sample "" (labels f) (figure s) | Row f (Just s) <- rows] | (name, text, kind, figure) <- figures]
  where
    labels f = [("peer", place (remoteAddress f) (remotePort f)), ("local", place (localAddress f) (localPort f))]
    place a p = B.pack (case a of V4 _ -> showAddress a <> ":" <> show p; V6 _ _ -> "[" <> showAddress a <> "]:" <> show p)
    figures =
      [ ("weft_tcp_connection_rtt_seconds", "Smoothed round-trip time; 0 before the first measurement.", Gauge, micros . summaryRtt),
        ("weft_tcp_connection_cwnd_bytes", "Congestion window.", Gauge, Whole . summaryCwnd),
        ("weft_tcp_connection_in_flight_bytes", "Bytes that were sent and are neither acknowledged nor lost.", Gauge, Whole . summaryInFlight),
        ("weft_tcp_connection_unsent_bytes", "Bytes that the program has written and that were not sent yet.", Gauge, Whole . summaryUnsent),
        ("weft_tcp_connection_unread_bytes", "Bytes that were received and not read by the program yet.", Gauge, Whole . summaryUnread),
        ("weft_tcp_connection_sent_bytes_total", "Bytes that were sent and acknowledged.", Counter, Whole . summarySent),
        ("weft_tcp_connection_received_bytes_total", "Bytes that were received in order.", Counter, Whole . summaryReceived)
      ]
    micros (Micros n) = Real (fromIntegral n / 1000000)

-- | The subcommand.
connectionsCommand :: Subcommand
connectionsCommand =
  subcommand "connections" $
    info
      ( connectionsOf <$> trustOption
          <*> argument (eitherReader (fmap page . parseUrlOrSocket)) (metavar "URL" <> help "The server: http://HOST:PORT (/metrics/connections is added), or unix:FILE")
          <*> option positive (long "interval" <> metavar "SECONDS" <> value 1 <> showDefault <> help "Time between two tables")
          <*> option positive (long "count" <> metavar "N" <> value 1 <> showDefault <> help "Number of tables, after which the command ends")
          <*> option positive (long "rows" <> metavar "N" <> value 40 <> showDefault <> help "Largest number of rows of a table; connections with most bytes come first")
      )
      ( progDesc "Show the connections of a server on a stack of its own: state, round-trip time, windows, bytes"
          <> footer "The server must allow this client to read its metrics, as by weft serve --stack ... --metrics-listen 127.0.0.1:9090. For connections of the kernel's stack use ss(8)."
          <> failureCode 2
      )
  where
    page target = if urlPath target == "/" then target {urlPath = "/metrics/connections"} else target

connectionsOf :: Trust -> Url -> Double -> Int -> Int -> IO ()
connectionsOf trust target interval times most = reportingPages "weft tcp connections" (trusted target trust >>= go times)
  where
    go n known = do
      found <- readPage known target
      mapM_ T.putStrLn (connectionLines most found)
      hFlush stdout
      unless (n <= 1) (T.putStrLn "" >> threadDelay (round (interval * 1000000)) >> go (n - 1) known)

-- | The lines of the table, with at most the given number of connections.
connectionLines :: Int -> Reading -> [Text]
connectionLines most found =
  columns (["state", "peer", "local", "rtt ms", "cwnd", "in flight", "unsent", "unread", "sent", "received"] : map row (take most ranked))
    <> [T.pack (show unseen) <> " more" | unseen > 0]
  where
    connectionsThere = nub [labels | ((name, labels), _) <- M.toList found, name == "weft_tcp_connection_info"]
    ranked = sortOn (\labels -> negate (bytes labels)) connectionsThere
    bytes labels = sum (concat [maybe [] pure (figure name labels) | name <- ["sent_bytes_total", "received_bytes_total"]])
    unseen = max 0 (length connectionsThere - most) + maybe 0 round (M.lookup ("weft_tcp_connections_left_out", []) found)
    figure :: Text -> [(Text, Text)] -> Maybe Double
    figure name labels = M.lookup ("weft_tcp_connection_" <> name, [l | l <- labels, fst l /= "state"]) found
    row labels =
      [label "state", label "peer", label "local", maybe "-" (\s -> T.pack (showFFloat (Just 3) (s * 1000) "")) (figure "rtt_seconds" labels)]
        <> [maybe "-" (T.pack . show . (round :: Double -> Int)) (figure name labels) | name <- ["cwnd_bytes", "in_flight_bytes", "unsent_bytes", "unread_bytes", "sent_bytes_total", "received_bytes_total"]]
      where
        label name = fromMaybe "-" (lookup name labels)
