{-# LANGUAGE OverloadedStrings #-}

-- |
-- The REST interface, metrics, events, and the page in a browser.
module Spec.Northbound
  ( tests,

    -- * For other tests
    request,
    requestTo,
    withNetworkOf,
    withBrowser,
  )
where

import Control.Concurrent (forkIO, killThread, threadDelay)
import Control.Concurrent.Async (concurrently)
import Control.Exception (bracket, finally)
import Control.Monad (forM_, forever, unless, void, when)
import Data.Aeson
import qualified Data.Aeson.KeyMap as KeyMap
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as BC
import qualified Data.ByteString.Lazy as L
import Data.IORef
import Data.List (intersect, isInfixOf)
import qualified Data.Map.Strict as Map
import Data.Maybe (fromMaybe)
import Data.String (fromString)
import qualified Data.Text as T
import qualified Network.HTTP.Client as Client
import Network.HTTP.Types
import Network.Wai (Application, pathInfo, requestHeaders, responseLBS)
import Peer
import System.FilePath ((</>))
import System.IO (IOMode (WriteMode), withFile)
import System.Process
import System.Timeout (timeout)
import Test.Tasty
import Test.Tasty.HUnit hiding (testCase)
import qualified Weft.Http as Http
import Weft.OpenFlow.Controller
import Weft.OpenFlow.Lldp
import Weft.OpenFlow.Match
import Weft.OpenFlow.Message
import Weft.OpenFlow.Northbound
import Weft.OpenFlow.Topology
import Weft.OpenFlow.Types
import Weft.OpenFlow.Wire (headerXid)
import Weft.Socket (SockAddr (..))
import Weft.Test.Files (withFolder)
import Weft.Test.Skip (needProgram, testCase)

tests :: TestTree
tests = testGroup "northbound" [network, portsAlone V10, portsAlone V13, flows, allFlows, refusals, whatIsWrong, prerequisites, notInFlow, settable, contentTypes, heads, metrics, events, mostStreams, oneEncoding, manyHosts, browser "desktop" 1280, browser "phone" 390]

-- | Run with two switches that are linked, two hosts, and the northbound interface. The arguments: the reports of the
-- page that 'framing' adds, the controller, the interface's port, and the peers of the two switches.
withNetwork :: (IORef [T.Text] -> Controller -> Int -> Peer -> Peer -> IO a) -> IO a
withNetwork = withNetworkOf localClients "127.0.0.1"

-- | 'withNetwork' with the given access control, served at the given address.
withNetworkOf :: Access -> String -> (IORef [T.Text] -> Controller -> Int -> Peer -> Peer -> IO a) -> IO a
withNetworkOf access host act = withTestController settings $ \c address -> withPeer address $ \one -> withPeer address $ \two -> do
  switchHandshake c V10 1 one
  switchHandshake c V10 2 two
  lldp one (DatapathId 2) 1
  lldp two (DatapathId 1) 1
  packetFrom V10 5 (PortNo 2) 1 2 one
  packetFrom V10 5 (PortNo 2) 2 1 two
  eventually "the network" ((\t -> length (topologyLinks t) == 2 && Map.size (topologyHosts t) == 2) <$> controllerNetwork c)
  side <- newNorthbound access c
  seen <- newIORef []
  refused <- newIORef False
  Http.withServer (Http.setHost (fromString host) (Http.setPort 0 Http.defaultSettings)) (refusing refused (framing seen (northbound side))) $ \server ->
    case Http.serverAddress server of
      SockAddrInet p _ -> act seen c (fromIntegral p) one two
      _ -> assertFailure "no port"
  where
    -- The peers send one LLDP frame each, so the links have to last, also until a browser has started.
    settings = patient defaultSettings {settingsPortStats = Nothing, settingsLldpKey = Just lldpTestKey, settingsTopology = Just defaultTopologySettings {topologyLinkLife = 600000}}
    lldp p d n =
      sendMessageOf V10 0 (PacketInMessage (PacketIn noBuffer 60 (PortNo 1) 0 0 0 [] (lldpFrame lldpTestKey d (PortNo n) (MacAddress 3)))) p

lldpTestKey :: LldpKey
lldpTestKey = fromMaybe (error "16 bytes") (lldpKey "0123456789abcdef")

-- | The first request of a page for events is refused, as by a proxy whose controller is not running.
refusing :: IORef Bool -> Application -> Application
refusing refused app asked respond = do
  before <- readIORef refused
  if not before && lookup hAccept (requestHeaders asked) == Just "text/event-stream"
    then writeIORef refused True >> respond (responseLBS status502 [] "")
    else app asked respond

-- | Add a page that shows the interface's page in a frame of the given width, and reports the elements in it.
framing :: IORef [T.Text] -> Application -> Application
framing seen app asked respond = case pathInfo asked of
  ["frame", width] -> respond (responseLBS status200 [(hContentType, "text/html")] (frame width))
  "done" : rest -> modifyIORef' seen (T.intercalate "/" rest :) >> respond (responseLBS status200 [] "")
  _ -> app asked respond
  where
    frame width =
      "<!DOCTYPE html><iframe id=f src=/ style='width:" <> L.fromStrict (BC.pack (T.unpack width)) <> "px;height:800px;border:0'></iframe><script>"
        <> "const look = () => { const d = document.getElementById('f').contentDocument, q = s => d.querySelectorAll(s).length;"
        <> "if (q('#graph rect') < 2 || q('#graph circle') < 2) return setTimeout(look, 100);"
        <> "const e = d.documentElement, m = d.getElementById('map').getBoundingClientRect(), g = d.getElementById('graph').getBoundingClientRect();"
        <> "const columns = d.defaultView.getComputedStyle(d.querySelector('main')).gridTemplateColumns.split(' ').length;"
        <> "fetch(['/done', q('#graph rect'), q('#graph circle'), q('#graph line.tree'), q('#graph line.edge'), q('#switches tr'), q('#hosts tr'),"
        <> "e.scrollWidth <= e.clientWidth ? 'fits' : 'overflows', g.height > 300 && m.width > 300 ? 'visible' : 'hidden', 'columns' + columns, d.getElementById('state').textContent].join('/')); };"
        <> "look();</script>"

get' :: Int -> String -> IO (Int, B.ByteString)
get' port path = request "GET" port path Nothing []

request :: Method -> Int -> String -> Maybe L.ByteString -> RequestHeaders -> IO (Int, B.ByteString)
request = requestTo "127.0.0.1"

requestTo :: String -> Method -> Int -> String -> Maybe L.ByteString -> RequestHeaders -> IO (Int, B.ByteString)
requestTo host method port path body headers = do
  manager <- Client.newManager Client.defaultManagerSettings
  base <- Client.parseRequest ("http://" <> host <> ":" <> show port <> path)
  r <- Client.httpLbs base {Client.method = method, Client.requestHeaders = headers, Client.requestBody = Client.RequestBodyLBS (fromMaybe "" body)} manager
  pure (statusCode (Client.responseStatus r), L.toStrict (Client.responseBody r))

field :: Key -> B.ByteString -> Maybe Value
field k s = case decodeStrict s of
  Just (Object o) -> KeyMap.lookup k o
  _ -> Nothing

network :: TestTree
network = testCase "the network as JSON" . withNetwork $ \_ _ port _ _ -> do
  (status, body) <- get' port "/v1/network"
  status @?= 200
  fmap size (field "switches" body) @?= Just 2
  fmap size (field "links" body) @?= Just 2
  (_, hosts) <- get' port "/v1/hosts"
  decodeStrict hosts @?= field "hosts" body
  assertBool (show hosts) ("02:00:00:00:00:01" `isInfixOf` BC.unpack hosts)
  where
    size v = case v of
      Array a -> length a
      _ -> 0

-- | @weft controller --no-topology@. In 1.3 the ports are in the answer to a request, and in both versions PORT_STATUS
-- changes them.
portsAlone :: Version -> TestTree
portsAlone version = testCase (show version <> ": ports are shown without discovery of links") . withTestController (patient defaultSettings {settingsPortStats = Nothing, settingsTopology = Nothing}) $ \c address -> withPeer address $ \p -> do
  switchHandshake c version 1 p
  when (version == V13) $ do
    (h, ()) <- expect "the request for the ports" (\m -> if m == StatsRequestMessage False PortDescRequest then Just () else Nothing) p
    sendMessageOf V13 (headerXid h) (StatsReplyMessage False (PortDescReply [port i 0 | i <- [1 .. 4]])) p
  side <- newNorthbound localClients c
  Http.withServer (Http.setHost "127.0.0.1" (Http.setPort 0 Http.defaultSettings)) (northbound side) $ \server -> case Http.serverAddress server of
    SockAddrInet n _ -> do
      let shown = concatMap ports . fromMaybe [] . decodeStrict . snd <$> get' (fromIntegral n) "/v1/switches"
      eventually "the ports" ((== [(i, True) | i <- [1 .. 4]]) <$> shown)
      sendMessageOf version 0 (PortStatus PortModified (port 2 1)) p
      sendMessageOf version 0 (PortStatus PortDeleted (port 3 0)) p
      sendMessageOf version 0 (PortStatus PortAdded (port 9 0)) p
      eventually "the changes" ((== [(1, True), (2, False), (4, True), (9, True)]) <$> shown)
    _ -> assertFailure "no port"
  where
    port i state = Port (PortNo i) (MacAddress (fromIntegral i)) "p" 0 state (0, 0, 0, 0) (0, 0)
    ports :: Object -> [(Int, Bool)]
    ports o = [(i, up) | Just (Success ones) <- [fromJSON <$> KeyMap.lookup "ports" o], one <- ones, (Just (Success i), Just (Success up)) <- [(fromJSON <$> KeyMap.lookup "port" one, fromJSON <$> KeyMap.lookup "up" one)]]

flows :: TestTree
flows = testCase "flows are added, deleted and asked for" . withNetwork $ \_ _ port one _ -> do
  ((created, _), added) <- confirming one . send "POST" port $ "{\"priority\":7,\"match\":{\"eth_type\":2048,\"ipv4_dst\":\"10.1.0.0/16\",\"ip_proto\":6,\"tcp_dst\":80},\"actions\":[{\"output\":2}]}"
  created @?= 201
  [(flowCommand f, flowMatch f, flowInstructions f) | FlowModMessage f <- added, flowPriority f == 7] @?= [(FlowAdd, [EthType 0x800, IpProtocol 6, Ipv4Dst 0x0a010000 0xffff0000, TcpDst 80], [ApplyActions [output (PortNo 2)]])]
  ((deleted, _), got) <- confirming one $ send "DELETE" port "{\"match\":{\"eth_dst\":\"02:00:00:00:00:02\"}}"
  deleted @?= 200
  [flowMatch g | FlowModMessage g <- got, flowCommand g == FlowDelete] @?= [[EthDst (MacAddress 0x020000000002)]]
  -- A switch of 1.0 would delete all flows.
  forM_ ["{\"actions\":[{\"output\":2}]}", "{\"idle_timeout\":5}", "{\"cookie\":7}", "{\"table\":1}"] $ \body -> do
    (status, said) <- send "DELETE" port body
    (status, "does not select flows" `isInfixOf` BC.unpack said) @?= (400, True)
  -- With a priority they would be ignored.
  forM_ ["\"actions\":[{\"output\":2}]", "\"hard_timeout\":5", "\"cookie\":7", "\"table\":1"] $ \also -> do
    (status, said) <- send "DELETE" port ("{\"priority\":7," <> also <> "}")
    assertEqual (show said) (400, True) (status, "does not select flows" `isInfixOf` BC.unpack said)
  where
    send method port body = request method port "/v1/switches/0000000000000001/flows" (Just body) [(hContentType, "application/json")]

allFlows :: TestTree
allFlows = testCase "a switch of 1.3 still reports packets after deletions, and no request replaces the flow for it" . withTestController (patient defaultSettings {settingsPortStats = Nothing}) $ \c address -> withPeer address $ \p -> do
  switchHandshake c V13 1 p
  eventually "the role is known" (all infoActive <$> connectedSwitches c)
  side <- newNorthbound localClients c
  Http.withServer (Http.setHost "127.0.0.1" (Http.setPort 0 Http.defaultSettings)) (northbound side) $ \server -> case Http.serverAddress server of
    SockAddrInet port _ -> do
      let change method expected body = do
            ((status, said), got) <- confirming p (request method (fromIntegral port) "/v1/switches/1/flows" (Just body) [(hContentType, "application/json")])
            assertEqual (show (body, said)) expected status
            pure [f | FlowModMessage f <- got]
          delete expected body = dropWhile ((`notElem` [FlowDelete, FlowDeleteStrict]) . flowCommand) <$> change "DELETE" expected body
          restored fs = [(flowCommand f, flowTable f, flowPriority f, flowMatch f, flowInstructions f) | f <- drop 1 fs]
          tableMiss = [(FlowAdd, 0, 0, [], [ApplyActions [output portController]])]
      delete 400 "{\"actions\":[{\"output\":2}]}" >>= (@?= []) . map flowMatch
      some <- delete 200 "{\"cookie\":7}"
      [(flowMatch f, flowCookie f, flowCookieMask f) | f <- take 1 some] @?= [([], 7, maxBound)]
      forM_ ["{}", "{\"table\":0}", "{\"priority\":0}", "{\"priority\":0,\"table\":0}", "{\"priority\":0,\"match\":{},\"cookie\":0}"] $ \body ->
        delete 200 body >>= assertEqual (show body) tableMiss . restored
      -- These do not select it.
      forM_ ["{\"priority\":1}", "{\"table\":1}", "{\"priority\":0,\"table\":1}", "{\"priority\":0,\"match\":{\"in_port\":1}}"] $ \body ->
        delete 200 body >>= assertEqual (show body) [] . restored
      -- The same flow with other actions.
      forM_ ["{\"priority\":0}", "{\"priority\":0,\"match\":{},\"table\":0,\"actions\":[{\"output\":2}]}"] $ \body ->
        change "POST" 409 body >>= (@?= []) . map flowMatch
      forM_ ["{\"priority\":1}", "{\"priority\":0,\"table\":1}", "{\"priority\":0,\"match\":{\"in_port\":1}}"] $ \body ->
        change "POST" 201 body >>= assertEqual (show body) 1 . length
    _ -> assertFailure "no port"

refusals :: TestTree
refusals = testCase "requests that make no sense are refused" . withNetwork $ \_ _ port _ _ -> do
  let to path method body headers expected = do
        (status, said) <- request method port path body headers
        assertEqual (path <> " " <> show said) expected status
      one = "/v1/switches/1/flows"
      typed = [(hContentType, "application/json")]
  to one "POST" (Just "{}") [] 415
  to one "POST" (Just "{}") [(hContentType, "text/plain")] 415
  forM_ ["", "[]", "{", "{\"prioritee\":1}", "{\"match\":{\"in_prot\":1}}", "{\"match\":{\"ipv4_src\":\"10.0.0.256\"}}", "{\"actions\":[{}]}", "{\"priority\":70000}", "{\"actions\":[{\"output\":\"nowhere\"}]}"] $ \body ->
    to one "POST" (Just body) typed 400
  -- OpenFlow 1.0 has no groups.
  to one "POST" (Just "{\"actions\":[{\"group\":1}]}") typed 400
  to one "POST" (Just (L.replicate 70000 32)) typed 413
  to one "PUT" (Just "{}") typed 405
  to "/v1/switches/99/flows" "GET" Nothing [] 404
  to "/v1/switches/1/nothing" "GET" Nothing [] 404
  to "/v1/network" "POST" Nothing [] 405
  to "/elsewhere" "GET" Nothing [] 404

-- | An error names the field. It is short even if the request is long.
whatIsWrong :: TestTree
whatIsWrong = testCase "an error names the field" . withNetwork $ \_ _ port _ _ -> do
  let said body = do
        (status, answer) <- request "POST" port "/v1/switches/1/flows" (Just body) [(hContentType, "application/json")]
        status @?= 400
        pure (BC.unpack answer)
      names body what = said body >>= \answer -> assertBool answer (what `isInfixOf` answer)
  names "{\"match\":{\"in_port\":\"x\"}}" "match"
  names "{\"match\":{\"in_port\":\"x\"}}" "in_port"
  names "{\"match\":{\"eth_dst\":\"zz\"}}" "eth_dst"
  names "{\"priority\":70000}" "\"priority: expected a number from 0 to 65535\""
  names "{\"cookie\":1.5}" "\"cookie: expected a number from 0 to 18446744073709551615\""
  names "{\"match\":{\"ip_proto\":\"tcp\"}}" "\"match.ip_proto: expected a number from 0 to 255\""
  names "{\"actions\":[{\"output\":1},{\"set_queue\":-1}]}" "\"actions[1]: expected a number from 0 to 4294967295\""
  names "" "\"the body is not JSON: not enough input\""
  names "{\"priorty\":1}" "unknown field priorty"
  names "{\"actions\":\"drop\"}" "actions"
  -- null is no default, and above all not a match of all packets.
  forM_ ["match", "actions", "priority", "idle_timeout", "cookie"] $ \key ->
    names ("{\"" <> fromString key <> "\":null}") (key <> " is null")
  names "{\"match\":{\"in_port\":null}}" "in_port is null"
  names "{\"match\":{\"in_port\":\"flood\"}}" "no packet comes in at the port flood; expected the number of a port, or one of local, controller"
  names "{\"match\":{\"vlan_vid\":4096}}" "a VLAN ID is at most 4095"
  names "{\"actions\":[{\"output\":\"table\"}]}" "a flow sends nothing to the port table; expected the number of a port, or one of in_port, normal, flood"
  names "{\"match\":{\"eth_type\":2048,\"ipv4_dst\":\"010.0x1.0.1\"}}" "ipv4_dst"
  names "{\"match\":{\"eth_type\":2048,\"ipv4_dst\":\"10.0.0.5/0\"}}" "1 to 32"
  long <- said (L.replicate 60000 91)
  assertBool (show (length long)) (length long < 1000)

-- | Fields without their prerequisites, and one of each kind with them. The switch of 1.0 would ignore such a field, so
-- that the flow matched more packets than it says.
prerequisites :: TestTree
prerequisites = testCase "a field without its prerequisites is refused" . forM_ [V10, V13] $ \version ->
  withTestController (patient defaultSettings) $ \c address -> withPeer address $ \p -> do
    switchHandshake c version 1 p
    eventually "the role is known" (all infoActive <$> connectedSwitches c)
    side <- newNorthbound localClients c
    Http.withServer (Http.setHost "127.0.0.1" (Http.setPort 0 Http.defaultSettings)) (northbound side) $ \s -> case Http.serverAddress s of
      SockAddrInet port _ -> do
        let asked match = fst . fst <$> confirming p (request "POST" (fromIntegral port) "/v1/switches/1/flows" (Just ("{\"match\":{" <> match <> "}}")) [(hContentType, "application/json")])
            answers expected = mapM_ (\match -> asked match >>= assertEqual (show (version, match)) expected)
            ip = "\"eth_type\":2048,"
            arp = "\"eth_type\":2054,\"ipv4_src\":\"10.0.0.1\""
        answers 400 ["\"ipv4_src\":\"10.0.0.1\"", "\"eth_type\":35020,\"ipv4_dst\":\"10.0.0.1\"", "\"ip_proto\":6", "\"ip_dscp\":1", "\"vlan_vid\":\"none\",\"vlan_pcp\":1", "\"tcp_dst\":80", ip <> "\"tcp_dst\":80", ip <> "\"ip_proto\":17,\"tcp_src\":80", ip <> "\"ip_proto\":6,\"udp_src\":80", ip <> "\"icmpv4_type\":8"]
        answers 201 [ip <> "\"ipv4_src\":\"10.0.0.1\"", ip <> "\"ip_proto\":6,\"tcp_dst\":80", ip <> "\"ip_proto\":1,\"icmpv4_type\":8", ip <> "\"ip_dscp\":1", "\"vlan_vid\":5,\"vlan_pcp\":1"]
        answers (if version == V10 then 201 else 400) [arp, "\"vlan_pcp\":1"]
        answers (if version == V10 then 400 else 201) ["\"eth_type\":34525,\"ip_proto\":6,\"tcp_dst\":80"]
      _ -> assertFailure "no port"

heads :: TestTree
heads = testCase "HEAD is GET without a body, and a wrong method is told the right ones" . withNetwork $ \_ _ port _ _ -> do
  forM_ ["/", "/v1/network", "/v1/events", "/metrics"] $ \path -> do
    got <- timeout 30000000 (request "HEAD" port path Nothing [])
    assertEqual path (Just (200, "")) got
  (missing, _) <- request "HEAD" port "/v1/switches/99/flows" Nothing []
  missing @?= 404
  manager <- Client.newManager Client.defaultManagerSettings
  forM_ [("/v1/network", "GET, HEAD"), ("/v1/switches/1/flows", "GET, HEAD, POST, DELETE")] $ \(path, methods) -> do
    base <- Client.parseRequest ("http://127.0.0.1:" <> show port <> path)
    r <- Client.httpLbs base {Client.method = "PATCH"} manager
    (statusCode (Client.responseStatus r), lookup "Allow" (Client.responseHeaders r)) @?= (405, Just methods)

-- | Run with a switch of that version that has a master. The arguments: the status and the text of the answer to a
-- request that adds a flow.
withOne :: Version -> ((L.ByteString -> RequestHeaders -> IO (Int, String)) -> IO a) -> IO a
withOne version act = withTestController (patient defaultSettings {settingsPortStats = Nothing}) $ \c address -> withPeer address $ \p -> do
  switchHandshake c version 1 p
  eventually "the role is known" (all infoActive <$> connectedSwitches c)
  side <- newNorthbound localClients c
  Http.withServer (Http.setHost "127.0.0.1" (Http.setPort 0 Http.defaultSettings)) (northbound side) $ \s -> case Http.serverAddress s of
    SockAddrInet port _ -> act (\body headers -> fmap BC.unpack . fst <$> confirming p (request "POST" (fromIntegral port) "/v1/switches/1/flows" (Just body) headers))
    _ -> assertFailure "no port"

-- | A switch of 1.0 has one table, and the number 255 stands for all tables.
notInFlow :: TestTree
notInFlow = testCase "a flow is in one table that the switch has" . forM_ [(V10, "{\"table\":1}", "no tables"), (V10, "{\"table\":0}", "no tables"), (V13, "{\"table\":255}", "all tables")] $ \(version, body, why) ->
  withOne version $ \added -> do
    (status, said) <- added body [(hContentType, "application/json")]
    assertEqual said (400, True) (status, why `isInfixOf` said)

-- | OpenFlow 1.3.5, 7.2.5: no mask, no input port, and the field's prerequisites. An EtherType is not set, either.
settable :: TestTree
settable = testCase "a field that cannot be set is refused" . withOne V13 $ \added -> do
  let answers expected match actions = do
        (status, said) <- added ("{\"match\":{" <> match <> "},\"actions\":[" <> actions <> "]}") [(hContentType, "application/json")]
        assertEqual (show (match, actions, said)) expected status
      ip = "\"eth_type\":2048"
      tcp = ip <> ",\"ip_proto\":6"
      set f = "{\"set\":{" <> f <> "}}"
  answers 400 ip (set "\"ipv4_dst\":\"1.2.3.0/24\"")
  answers 400 "" (set "\"in_port\":1")
  answers 400 "" (set "\"eth_type\":5")
  answers 400 "\"vlan_vid\":5" (set "\"vlan_vid\":\"none\"")
  answers 400 "" (set "\"ipv4_dst\":\"1.2.3.4\"")
  answers 400 ip (set "\"tcp_dst\":80")
  answers 400 "" (set "\"vlan_pcp\":1")
  answers 201 ip (set "\"ipv4_dst\":\"1.2.3.4\"")
  answers 201 tcp (set "\"tcp_dst\":80")
  answers 201 "" ("{\"push_vlan\":33024}," <> set "\"vlan_vid\":5" <> "," <> set "\"vlan_pcp\":1")

contentTypes :: TestTree
contentTypes = testCase "the media type is compared as a whole" . withOne V13 $ \added ->
  forM_ [("application/json", 201), ("application/json; charset=utf-8", 201), ("Application/JSON ;charset=utf-8", 201), ("application/jsonp", 415), ("application/json-seq", 415)] $ \(kind, expected) -> do
    (status, _) <- added "{}" [(hContentType, kind)]
    assertEqual (show kind) expected status

metrics :: TestTree
metrics = testCase "metrics" . withNetwork $ \_ _ port _ _ -> do
  (status, body) <- get' port "/metrics"
  status @?= 200
  let ls = BC.lines body
  forM_ ["weft_openflow_switches 2", "weft_openflow_links 2", "weft_openflow_hosts 2", "weft_openflow_incidents_total 0"] $ \l -> assertBool (show l) (l `elem` ls)
  forM_ (filter (not . B.isPrefixOf "#") ls) $ \l -> length (BC.words l) @?= 2

-- | The first event comes at once, and later ones show changes.
events :: TestTree
events = testCase "server-sent events" . withNetwork $ \_ c port one _ -> do
  manager <- Client.newManager Client.defaultManagerSettings
  base <- Client.parseRequest ("http://127.0.0.1:" <> show port <> "/v1/events")
  Client.withResponse base manager $ \r -> do
    lookup hContentType (Client.responseHeaders r) @?= Just "text/event-stream"
    first <- next r B.empty
    fmap (BC.isPrefixOf "event: network\ndata: {") (Just first) @?= Just True
    sendMessageOf V10 0 (PortStatus PortDeleted (Port (PortNo 1) (MacAddress 1) "p" 0 0 (0, 0, 0, 0) (0, 0))) one
    eventually "the links are gone" (null . topologyLinks <$> controllerNetwork c)
    let until' n = do
          e <- next r B.empty
          unless ("\"links\":[]" `B.isInfixOf` e) (if n == (0 :: Int) then assertFailure "the event does not come" else until' (n - 1))
    until' 5
  where
    next r got
      | "\n\n" `B.isSuffixOf` got = pure got
      | otherwise = do
        s <- timeout 30000000 (Client.brRead (Client.responseBody r))
        case s of
          Just b | not (B.null b) -> next r (got <> b)
          _ -> assertFailure "the stream ended"

-- | Another stream is refused while 64 are open.
mostStreams :: TestTree
mostStreams = testCase "64 streams of events are open at most, and one that ends makes room" . withNetwork $ \_ _ port _ _ -> do
  manager <- Client.newManager Client.defaultManagerSettings
  base <- Client.parseRequest ("http://127.0.0.1:" <> show port <> "/v1/events")
  let stream act = Client.withResponse base manager (act . statusCode . Client.responseStatus)
      among :: Int -> Assertion -> Assertion
      among 0 act = act
      among n act = stream (\status -> (status @?= 200) >> among (n - 1) act)
  among 63 $ do
    among 1 (stream (@?= 503))
    eventually "there is room" (stream (pure . (== 200)))

-- | The bytes of that many events.
eventsOf :: Int -> Int -> IO [B.ByteString]
eventsOf port count = do
  manager <- Client.newManager Client.defaultManagerSettings
  base <- Client.parseRequest ("http://127.0.0.1:" <> show port <> "/v1/events")
  Client.withResponse base manager (\r -> go r count B.empty)
  where
    go _ 0 _ = pure []
    go r n got = case B.breakSubstring "\n\n" got of
      (one, rest) | not (B.null rest) -> (one :) <$> go r (n - 1) (B.drop 2 rest)
      _ -> do
        s <- timeout 30000000 (Client.brRead (Client.responseBody r))
        case s of
          Just b | not (B.null b) -> go r n (got <> b)
          _ -> assertFailure "the stream ended"

-- | The number of messages in the events changes all the time, so two streams have equal events only if these were
-- encoded once.
oneEncoding :: TestTree
oneEncoding = testCase "all streams of events share an encoding" . withNetwork $ \_ _ port one _ ->
  bracket (forkIO (forever (sendMessageOf V10 7 (EchoRequest "") one >> threadDelay 500))) killThread . const $ do
    both <- concurrently (eventsOf port 5) (threadDelay 300000 >> eventsOf port 5)
    assertBool "no event is in both" (not (null (uncurry intersect both)))

-- | Of 1,000 hosts.
manyHosts :: TestTree
manyHosts = testCase "an event has the first 500 hosts, and their number" . withNetwork $ \_ c port one _ -> do
  forM_ [(a, b) | a <- [1 .. 4], b <- [1 .. 250]] $ \(a, b) ->
    sendMessageOf V10 0 (PacketInMessage (PacketIn noBuffer 60 (PortNo 3) 0 0 0 [] (B.pack ([2, 0, 0, 0, 0, 9, 2, 1, 0, 0, a, b, 8, 0] ++ replicate 46 0)))) one
  eventually "the hosts" ((>= 1002) . Map.size . topologyHosts <$> controllerNetwork c)
  found <- eventsOf port 1
  forM_ found $ \e -> do
    let body = B.drop (B.length "event: network\ndata: ") e
    fmap size (field "hosts" body) @?= Just 500
    field "host_count" body @?= Just (Number 1002)
  (_, whole) <- get' port "/v1/network"
  fmap size (field "hosts" whole) @?= Just 1002
  where
    size v = case v of
      Array a -> length a
      _ -> 0

-- | Chromium shows the page in a frame of that width, although its first request for events is refused.
browser :: String -> Int -> TestTree
browser name width = testCase ("the page in a browser, " <> name) $ do
  needProgram "chromium"
  withNetwork $ \seen _ port _ _ -> withBrowser ("http://127.0.0.1:" <> show port <> "/frame/" <> show width) $ \written -> do
    void (timeout 150000000 (waitFor seen))
    said <- readIORef seen
    log' <- if null said then written else pure ""
    assertEqual log' [T.pack ("2/2/1/2/2/2/fits/visible/columns" <> (if width > 760 then "2" else "1") <> "/live")] said
  where
    waitFor seen = readIORef seen >>= \said -> if null said then threadDelay 50000 >> waitFor seen else pure ()

-- | Run an action while Chromium shows a page. The argument reads the last lines that it has written.
withBrowser :: String -> (IO String -> IO a) -> IO a
withBrowser url act = withFolder $ \dir ->
  withFile (dir </> "log") WriteMode $ \out ->
    withCreateProcess (proc "chromium" (arguments dir)) {std_out = UseHandle out, std_err = UseHandle out, create_group = True} $ \_ _ _ process ->
      act (unlines . lastOf 10 . lines . BC.unpack <$> B.readFile (dir </> "log"))
        `finally` (interruptProcessGroupOf process >> waitForProcess process)
  where
    lastOf n xs = drop (length xs - n) xs
    arguments dir =
      ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0", "--window-size=1400,900"]
        <> ["--user-data-dir=" <> dir </> "profile", url]
