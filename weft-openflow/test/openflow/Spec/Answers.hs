{-# LANGUAGE LambdaCase #-}
{-# LANGUAGE OverloadedStrings #-}

-- |
-- What the REST interface answers if this controller is a slave of the switch, and if the switch refuses a request,
-- gives a wrong answer, or has no such counter.
module Spec.Answers
  ( tests,

    -- * For other tests
    Asked,
    withNorthbound,
    withSwitch,
  )
where

import Control.Concurrent (forkIO, killThread)
import Control.Concurrent.Async (wait, withAsync)
import Control.Exception (bracket)
import Control.Monad (forM_)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as BC
import qualified Data.ByteString.Lazy as L
import Data.Maybe (fromMaybe)
import Network.HTTP.Types
import Peer
import Spec.Northbound (request)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Duration
import qualified Weft.Http as Http
import Weft.OpenFlow.Controller
import Weft.OpenFlow.Message
import Weft.OpenFlow.Northbound
import Weft.OpenFlow.Types
import Weft.OpenFlow.Wire
import Weft.Socket (SockAddr (..))

tests :: TestTree
tests =
  testGroup
    "answers of the northbound interface"
    [ testGroup "a slave" [slave V10, slave V13],
      testGroup "a switch that refuses" [wrongAnswer version what | version <- [V10, V13], what <- wrongAnswers version],
      testGroup "changes of flows" [confirmed version what | version <- [V10, V13], what <- flowChanges],
      noCounter
    ]

type Asked = Method -> String -> L.ByteString -> IO (Int, B.ByteString)

-- | A switch of that version, and requests to the REST interface for the part of its path behind its ID.
withSwitch :: Settings -> Version -> (Controller -> Peer -> Asked -> IO a) -> IO a
withSwitch settings version act = withNorthbound settings $ \c address asked -> withPeer address $ \p -> do
  switchHandshake c version 1 p
  act c p asked

-- | A controller, its address, and requests to its REST interface.
withNorthbound :: Settings -> (Controller -> SockAddr -> Asked -> IO a) -> IO a
withNorthbound settings act = withTestController (patient settings) $ \c address -> do
  side <- newNorthbound localClients c
  Http.withServer (Http.setHost "127.0.0.1" (Http.setPort 0 Http.defaultSettings)) (northbound side) $ \server -> case Http.serverAddress server of
    SockAddrInet port _ -> act c address (\method path body -> request method (fromIntegral port) path (Just body) [(hContentType, "application/json")])
    _ -> assertFailure "no port"

-- | Counters are polled meanwhile, too. Before the answer to an echo, a switch of 1.0 has received nothing.
slave :: Version -> TestTree
slave version = testCase (show version <> ": changes are refused, and a switch of 1.0 is not asked either") $
  withSwitch defaultSettings {settingsRole = const (pure (Just (RoleSlave, 1))), settingsPortStats = Just (milliseconds 10)} version $ \_ p asked -> do
    forM_ ["POST", "DELETE"] $ \method -> do
      (status, said) <- asked method "/v1/switches/1/flows" "{\"match\":{\"in_port\":1}}"
      (status, "slave" `B.isInfixOf` said) @?= (409, True)
    case version of
      V10 -> forM_ ["flows", "ports"] $ \what -> do
        (status, said) <- asked "GET" ("/v1/switches/1/" <> what) ""
        (status, "slave" `B.isInfixOf` said) @?= (409, True)
      V13 -> withAsync (asked "GET" "/v1/switches/1/flows" "") $ \result -> do
        (h, _) <- expect "the request" (\case StatsRequestMessage False (FlowStatsRequest f) -> Just f; _ -> Nothing) p
        sendMessageOf V13 (headerXid h) (StatsReplyMessage False (FlowStatsReply [])) p
        wait result >>= (@?= 200) . fst
    sendMessageOf version 9 (EchoRequest "behind them") p
    let untilEcho =
          nextFrom p >>= \case
            Just (_, EchoReply _) -> pure ()
            Just (_, m) -> do
              assertBool (show m) (version == V13 && not (changes m))
              untilEcho
            Nothing -> assertFailure "the connection ended"
    untilEcho
  where
    changes m = case m of
      FlowModMessage _ -> True
      PacketOutMessage _ -> True
      _ -> False

-- | Answers to a request for all flows, by the transaction ID, and what the error says.
wrongAnswers :: Version -> [(String, Xid -> B.ByteString, B.ByteString)]
wrongAnswers version =
  [ ("ERROR", \xid -> of' xid (Error 1 5 ""), "ERROR"),
    ("statistics of another kind", \xid -> of' xid (StatsReplyMessage False (PortStatsReply [])), "not those"),
    -- Its only flow has a length of 4 bytes.
    ("statistics that cannot be understood", \xid -> of' xid (StatsReplyMessage False (FlowStatsReply [])) `extended` B.pack [0, 4, 0, 0], "not understood"),
    ("statistics of 20 MB", \xid -> let part = of' xid (StatsReplyMessage True (FlowStatsReply (replicate 500 aFlow))) in B.concat (replicate (20000000 `div` B.length part) part), "16 MiB")
  ]
  where
    of' xid m = fromMaybe (error "unencodable") (encode version xid m)
    aFlow = FlowStats 0 1 0 1 0 0 0 0 0 0 [] []
    extended bytes more = B.concat [B.take 2 bytes, B.pack [0, fromIntegral (B.length bytes + B.length more)], B.drop 4 bytes, more]

-- | The client is told at once, and not after the five seconds in which the switch might answer.
wrongAnswer :: Version -> (String, Xid -> B.ByteString, B.ByteString) -> TestTree
wrongAnswer version (what, bytes, reason) = testCase (show version <> ": " <> what) . withSwitch defaultSettings {settingsPortStats = Nothing} version $ \c p asked -> do
  eventually "the role is known" (all infoActive <$> connectedSwitches c)
  withAsync (asked "GET" "/v1/switches/1/flows" "") $ \result -> do
    (h, _) <- expect "the request" (\case StatsRequestMessage False (FlowStatsRequest f) -> Just f; _ -> Nothing) p
    sendBytes p (bytes (headerXid h))
    (status, said) <- wait result
    assertEqual (show said) (502, True) (status, reason `B.isInfixOf` said)

-- | A method, the flow, and the status if the switch accepts it. A deletion of all flows adds one with 1.3.
flowChanges :: [(Method, L.ByteString, Int)]
flowChanges = [("POST", "{\"priority\":7}", 201), ("DELETE", "{\"priority\":7}", 200), ("DELETE", "{}", 200)]

-- | The switch has accepted a change if it answers the following BARRIER_REQUEST and has sent no ERROR for the change.
-- Errors for other messages do not matter.
confirmed :: Version -> (Method, L.ByteString, Int) -> TestTree
confirmed version (method, flow, accepted) = testCase (show version <> ": " <> BC.unpack method <> " " <> show flow) . withSwitch defaultSettings {settingsPortStats = Nothing} version $ \c p asked -> do
  eventually "the role is known" (all infoActive <$> connectedSwitches c)
  let change respond = withAsync (asked method "/v1/switches/1/flows" flow) $ \result -> do
        (h, _) <- expect "the change" (\case FlowModMessage f | flowPriority f == 7 || flowCommand f == FlowDelete && flowCookieMask f == 0 -> Just (); _ -> Nothing) p
        (b, _) <- expect "the barrier" (\m -> if m == BarrierRequest then Just () else Nothing) p
        () <- respond (headerXid h) (headerXid b)
        wait result
      failure xid = sendMessageOf version xid (Error 5 1 "") p
      barrier xid = sendMessageOf version xid BarrierReply p
  (status, _) <- change (\_ b -> failure 255 >> barrier b)
  status @?= accepted
  forM_ [\h b -> failure h >> barrier b, \_ b -> failure b] $ \refusal -> do
    (refused, said) <- change refusal
    assertEqual (show said) (502, True) (refused, "ERROR, type 5, code 1" `B.isInfixOf` said)

-- | Both specifications: all ones in a counter say that the switch does not have it.
noCounter :: TestTree
noCounter = testCase "a counter that the switch does not have" . withSwitch defaultSettings {settingsPortStats = Just (milliseconds 20)} V13 $ \c p asked -> do
  let answers = do
        (h, reply) <-
          expect
            "a request"
            ( \case
                StatsRequestMessage False (PortStatsRequest _) -> Just (PortStatsReply [PortStats (PortNo 1) (maxBound : 6 : maxBound : 7 : replicate 8 0) (0, 0)])
                StatsRequestMessage False (FlowStatsRequest _) -> Just (FlowStatsReply [FlowStats 0 1 0 1 0 0 0 0 maxBound 8 [] []])
                _ -> Nothing
            )
            p
        sendMessageOf V13 (headerXid h) (StatsReplyMessage False reply) p
        answers
  bracket (forkIO answers) killThread . const $ do
    eventually "counters" ((== 1) . length <$> portRates c (DatapathId 1))
    (_, samples) <- asked "GET" "/metrics" ""
    let ls = filter ("port=\"1\"" `B.isInfixOf`) (BC.lines samples)
    map (BC.takeWhile (/= '{')) ls @?= ["weft_openflow_port_sent_bytes_total"]
    (_, ports) <- asked "GET" "/v1/switches/1/ports" ""
    forM_ ["\"received_packets\":null", "\"received_bytes\":null", "\"sent_packets\":6", "\"sent_bytes\":7"] $ \text -> assertBool (show ports) (text `B.isInfixOf` ports)
    (_, flows) <- asked "GET" "/v1/switches/1/flows" ""
    forM_ ["null", "8"] $ \text -> assertBool (show flows) (any (`B.isInfixOf` flows) ["\"packets\":" <> text, "\"bytes\":" <> text])
