{-# LANGUAGE OverloadedStrings #-}

-- |
-- The northbound interface of a controller, as a WAI application: a REST interface, metrics, server-sent events and a
-- page that draws the network. It runs on any WAI server.
--
-- @
-- GET    \/                            the page
-- GET    \/v1\/network                  switches, links, hosts
-- GET    \/v1\/switches, \/v1\/hosts      parts of \/v1\/network
-- GET    \/v1\/switches\/ID\/flows        the flow table, requested from the switch
-- POST   \/v1\/switches\/ID\/flows        add a flow
-- DELETE \/v1\/switches\/ID\/flows        delete flows with this match or a narrower one; with a priority, one flow
-- GET    \/v1\/switches\/ID\/ports        port counters, requested from the switch
-- GET    \/v1\/events                   \/v1\/network with at most 500 hosts every second, as server-sent events
-- GET    \/metrics                     Prometheus
-- @
--
-- A request that changes the network must have the type @application\/json@, which a page of another site cannot send,
-- and must be authorised, as must any request but that for the page, which is the same for all: see 'Access'.
--
-- @since 0.1.0
module Weft.OpenFlow.Northbound
  ( northbound,
    Northbound,
    newNorthbound,

    -- * Access control
    Access (..),
    localClients,
    bearerToken,
    readToken,
  )
where

import Control.Concurrent.MVar
import Control.Exception (bracket, evaluate)
import Control.Monad (forever, when)
import Data.Aeson
import Data.Aeson.Encoding (encodingToLazyByteString)
import qualified Data.Aeson.KeyMap as KeyMap
import Data.Bifunctor (first)
import qualified Data.ByteString as B
import Data.ByteString.Builder
import qualified Data.ByteString.Char8 as BC
import qualified Data.ByteString.Lazy as L
import Data.CaseInsensitive (CI, mk)
import Data.IORef
import qualified Data.Map.Strict as Map
import Data.Maybe (fromMaybe)
import Data.Text (Text)
import qualified Data.Text as T
import Network.HTTP.Types
import Network.Wai
import Weft.Duration
import Weft.OpenFlow.App (Millis)
import Weft.OpenFlow.Controller
import Weft.OpenFlow.Controller.Connection (tableMissFlow)
import Weft.OpenFlow.Controller.Errors (problemText)
import Weft.OpenFlow.Controller.Types (currentMillis)
import Weft.OpenFlow.Message
import Weft.OpenFlow.Northbound.Access
import Weft.OpenFlow.Northbound.Flow
import Weft.OpenFlow.Northbound.Json
import Weft.OpenFlow.Northbound.Page
import Weft.OpenFlow.Topology
import Weft.OpenFlow.Types
import Weft.Timer (sleep)

-- | A northbound interface: the controller, the access control, the number of open event streams, and the last event.
-- The event is held by the stream that encodes it; the others wait for it.
data Northbound = Northbound !Controller !Access !(IORef Int) !(MVar Event)

-- | When an event was encoded, and its bytes.
data Event = Event !Millis !L.ByteString

-- | The northbound interface of a running controller.
newNorthbound :: Access -> Controller -> IO Northbound
newNorthbound access c = Northbound c access <$> newIORef 0 <*> newMVar (Event minBound L.empty)

-- | The response to a request that is refused; 'Nothing' if it is not.
refused :: Access -> Purpose -> Request -> Maybe Response
refused access purpose request = response <$> refusal access purpose request
  where
    response why = case why of
      NeedsToken -> mapResponseHeaders (("WWW-Authenticate", "Bearer realm=\"weft controller\"") :) (failed status401 (what <> " the header Authorization: Bearer TOKEN"))
      OtherHost -> failed status403 (what <> " a token if they come from other hosts, and this controller has none (weft controller --northbound-token-file)")
      OtherName -> failed status403 "without a token, requests have to be sent to localhost, 127.0.0.1 or [::1]"
    what = if purpose == Reads then "requests that read need" else "changes need"

-- | The maximum number of concurrent event streams.
mostStreams :: Int
mostStreams = 64

-- | The maximum size of a request body in bytes.
mostBody :: Int
mostBody = 65536

-- | The application. A JSON response with status 400 or above has a field @error@.
northbound :: Northbound -> Application
northbound n@(Northbound c access _ _) request respond = case (asked, pathInfo request) of
  ("GET", []) -> respond pageResponse
  ("GET", ["v1", "network"]) -> reading (network c >>= respond . answer status200)
  ("GET", ["v1", "switches"]) -> reading (network c >>= respond . answer status200 . part "switches")
  ("GET", ["v1", "hosts"]) -> reading (network c >>= respond . answer status200 . part "hosts")
  ("GET", ["v1", "events"])
    | requestMethod request == "HEAD" -> reading (respond (responseLBS status200 eventHeaders ""))
    | otherwise -> reading (events n respond)
  ("GET", ["metrics"]) -> reading (metrics c >>= respond)
  (method, ["v1", "switches", name, what]) | Just d <- readDatapathId (T.unpack name) ->
    permitted (if method `elem` ["POST", "DELETE"] then Changes else Reads) $ do
      known <- Map.lookup d <$> connectedSwitches c
      maybe (pure (failed status404 "no such switch")) (\i -> onSwitch c d (infoVersion i) method what request) known >>= respond
  (_, path)
    | path `elem` [[], ["metrics"], ["v1", "network"], ["v1", "switches"], ["v1", "hosts"], ["v1", "events"]] -> respond (notAllowed ["GET", "HEAD"])
  _ -> respond (failed status404 "no such resource")
  where
    -- The server leaves out the body of the response (RFC 9110, 9.3.2).
    asked = if requestMethod request == "HEAD" then "GET" else requestMethod request
    reading = permitted Reads
    permitted purpose act = maybe act respond (refused access purpose request)

onSwitch :: Controller -> DatapathId -> Version -> Method -> Text -> Request -> IO Response
onSwitch c d version method what request = case (method, what) of
  ("GET", "flows") -> asked (FlowStatsRequest everyFlow) (\parts -> [flowStatsJson version f | FlowStatsReply fs <- parts, f <- fs])
  ("GET", "ports") -> asked (PortStatsRequest portAny) (\parts -> [portStatsJson p | PortStatsReply ps <- parts, p <- ps])
  ("POST", "flows") -> changed FlowAdd status201
  ("DELETE", "flows") -> changed FlowDelete status200
  (_, "flows") -> pure (notAllowed ["GET", "HEAD", "POST", "DELETE"])
  (_, "ports") -> pure (notAllowed ["GET", "HEAD"])
  _ -> pure (failed status404 "no such resource")
  where
    asked question form = either unanswered (answer status200 . form) <$> askSwitch c d question
    changed command done
      | fmap mediaType (lookup hContentType (requestHeaders request)) /= Just "application/json" =
        pure (failed status415 "send application/json")
      | otherwise = do
        body <- bodyOf request
        case body of
          Nothing -> pure (failed status413 "a flow has at most 65536 bytes")
          Just bytes -> case first (("the body is not JSON: " <>) . T.unpack . reason) (eitherDecodeStrict bytes) >>= flowFromJson version command of
            Left why -> pure (failed status400 (reason why))
            Right flow
              | flowCommand flow == FlowAdd && includesTableMiss flow ->
                pure (failed status409 "a flow for all packets with priority 0 in table 0 would replace the controller's flow by which the switch reports packets; use priority 1")
              | otherwise -> do
                let again = [tableMissFlow | includesTableMiss flow]
                either unanswered (const (answer done (object ["sent" .= True]))) <$> sendConfirmed c d (FlowModMessage flow : again)

    -- Whether a change concerns the flow by which a switch of 1.3 reports packets: it is in table 0, has priority 0 and
    -- matches all packets.
    includesTableMiss flow = version == V13 && null (flowMatch flow) && flowTable flow `elem` [0, tableAll] && (flowCommand flow == FlowDelete || flowPriority flow == 0)

-- | The response to a request that the switch did not receive or did not answer.
unanswered :: RequestFailure -> Response
unanswered why = case why of
  NotConnected -> failed status503 "the switch has disconnected"
  NotMaster -> failed status409 "this controller is a slave of the switch, or its role is not known yet; send the request to the master"
  NotInVersion -> failed status400 "the switch's version of OpenFlow has no such flow"
  TooManyRequests -> failed status503 "too many requests are under way at this switch"
  NoReply -> failed status504 "the switch did not answer"
  RepliedError t code -> failed status502 ("the switch answered ERROR, type " <> number t <> ", code " <> number code)
  ReplyTooLong -> failed status502 "the switch's answer is longer than 16 MiB"
  OtherReply -> failed status502 "the switch answered with statistics that are not those requested"
  ReplyNotUnderstood problem -> failed status502 ("the switch's answer was not understood: " <> T.pack (problemText problem))
  where
    number = T.pack . show

-- | The media type without its parameters (RFC 9110, 8.3.1).
mediaType :: B.ByteString -> CI B.ByteString
mediaType = mk . BC.strip . BC.takeWhile (/= ';')

-- | The whole body, or 'Nothing' if it is too long.
bodyOf :: Request -> IO (Maybe B.ByteString)
bodyOf request = go [] 0
  where
    go parts size
      | size > mostBody = pure Nothing
      | otherwise = do
        s <- getRequestBodyChunk request
        if B.null s then pure (Just (B.concat (reverse parts))) else go (s : parts) (size + B.length s)

answer :: (ToJSON a) => Status -> a -> Response
answer status v = responseLBS status [(hContentType, "application/json"), (hCacheControl, "no-store")] (encodingToLazyByteString (toEncoding v) <> "\n")

failed :: Status -> Text -> Response
failed status = answer status . problemJson

-- | The methods that the resource has (RFC 9110, 15.5.6).
notAllowed :: [B.ByteString] -> Response
notAllowed methods = mapResponseHeaders (("Allow", list) :) (failed status405 ("allowed methods: " <> T.pack (BC.unpack list)))
  where
    list = B.intercalate ", " methods

-- | aeson's error message for a request, with the path of the value in dots and without brackets and quotes, such as
-- @match.in_port@. It is truncated, since it may be longer than the request (for nested lists it is).
reason :: String -> Text
reason why = if T.length short > 300 then T.take 300 short <> "..." else short
  where
    text = T.pack (take 1000 why)
    short = fromMaybe text $ do
      (path, message) <- T.breakOn ": " <$> T.stripPrefix "Error in $" text
      let plain = T.dropWhile (== '.') (T.replace "']" "" (T.replace "['" "." path))
      pure (if T.null plain then T.drop 2 message else plain <> message)

part :: Key -> Value -> Value
part name v = case v of
  Object o -> fromMaybe Null (KeyMap.lookup name o)
  _ -> Null

-- | The current network.
network :: Controller -> IO Value
network = networkOf Nothing

networkOf :: Maybe Int -> Controller -> IO Value
networkOf most c = do
  t <- controllerNetwork c
  infos <- connectedSwitches c
  rates <- Map.traverseWithKey (\d _ -> portRates c d) infos
  pure (networkJson most t infos rates)

pageResponse :: Response
pageResponse = responseLBS status200 headers (L.fromStrict page)
  where
    headers =
      [ (hContentType, "text/html; charset=utf-8"),
        (hCacheControl, "no-cache"),
        ("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:"),
        ("X-Content-Type-Options", "nosniff")
      ]

-- | Respond with a stream that sends the network every second until the client disconnects.
events :: Northbound -> (Response -> IO ResponseReceived) -> IO ResponseReceived
events n@(Northbound _ _ open _) respond = bracket enter leave $ \free ->
  if free
    then respond . responseStream status200 eventHeaders $ \write flush -> forever $ do
      currentEvent n >>= write . lazyByteString
      flush
      sleep (seconds 1)
    else respond (failed status503 "too many streams of events")
  where
    enter = atomicModifyIORef' open (\k -> if k < mostStreams then (k + 1, True) else (k, False))
    leave free = when free (atomicModifyIORef' open (\k -> (k - 1, ())))

-- | An event that is at most a second old. All streams share it: a network of many switches takes long to encode.
currentEvent :: Northbound -> IO L.ByteString
currentEvent (Northbound c _ _ held) = modifyMVar held $ \old@(Event made bytes) -> do
  time <- currentMillis
  if made > minBound && time - made < 1000
    then pure (old, bytes)
    else do
      v <- networkOf (Just mostHosts) c
      let new = "event: network\ndata: " <> encode v <> "\n\n"
      -- Evaluated here, and not by each stream that waits.
      _ <- evaluate (L.length new)
      pure (Event time new, new)

-- | The maximum number of hosts in an event: what the page lists.
mostHosts :: Int
mostHosts = 500

eventHeaders :: ResponseHeaders
eventHeaders = [(hContentType, "text/event-stream"), (hCacheControl, "no-store")]

-- | The counters in Prometheus' text format.
metrics :: Controller -> IO Response
metrics c = do
  totals <- controllerCounters c
  t <- controllerNetwork c
  infos <- connectedSwitches c
  rates <- Map.traverseWithKey (\d _ -> portRates c d) infos
  incidents <- controllerIncidents c
  let one name kind text value = "# HELP " <> name <> " " <> text <> "\n# TYPE " <> name <> " " <> kind <> "\n" <> name <> " " <> intDec value <> "\n"
      counters i name text =
        "# HELP " <> name <> " " <> text <> "\n# TYPE " <> name <> " counter\n"
          <> mconcat
            [ name <> "{switch=\"" <> string7 (show d) <> "\",port=\"" <> string7 (show p) <> "\"} " <> word64Dec (portStatsCounters (rateStats r) !! i) <> "\n"
              | (d, ports) <- Map.toList rates,
                (p, r) <- Map.toList ports,
                -- All ones: the switch does not have this counter.
                portStatsCounters (rateStats r) !! i /= maxBound
            ]
  pure . responseBuilder status200 [(hContentType, "text/plain; version=0.0.4; charset=utf-8")] $
    one "weft_openflow_switches" "gauge" "Switches that are connected." (Map.size infos)
      <> one "weft_openflow_links" "gauge" "Links, each direction by itself." (length (topologyLinks t))
      <> one "weft_openflow_hosts" "gauge" "Hosts that are known." (Map.size (topologyHosts t))
      <> one "weft_openflow_messages_received_total" "counter" "Messages received." (totalReceived totals)
      <> one "weft_openflow_packets_received_total" "counter" "PACKET_IN messages received." (totalPackets totals)
      <> one "weft_openflow_replies_sent_total" "counter" "Messages sent by applications." (totalReplies totals)
      <> one "weft_openflow_faults_total" "counter" "Messages that were not understood, and connections that ended for one." (totalFaults totals)
      <> one "weft_openflow_forged_lldp_total" "counter" "LLDP frames without a valid tag, which were ignored." (totalForged totals)
      <> one "weft_openflow_incidents_total" "counter" "Incidents with switches, logged or not." incidents
      <> counters 2 "weft_openflow_port_received_bytes_total" "Bytes received by ports."
      <> counters 3 "weft_openflow_port_sent_bytes_total" "Bytes sent by ports."
