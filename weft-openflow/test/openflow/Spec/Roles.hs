{-# LANGUAGE LambdaCase #-}
{-# LANGUAGE OverloadedStrings #-}

-- |
-- The controller's role at a switch ("Weft.OpenFlow.Controller.Roles"): how it is asked for, given and refused, and
-- what the applications get when it changes.
module Spec.Roles (tests) where

import Control.Concurrent.MVar
import Control.Monad (forM_, void, when)
import qualified Data.ByteString as B
import Data.IORef
import Data.Int (Int64)
import qualified Data.Map.Strict as Map
import Data.Word (Word64)
import Peer
import Spec.Peers (plain, withWitness)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.OpenFlow.App
import Weft.OpenFlow.Controller
import Weft.OpenFlow.Match
import Weft.OpenFlow.Message
import Weft.OpenFlow.Types
import Weft.OpenFlow.Wire

tests :: TestTree
tests = testGroup "roles" [roles, tableMissDeleted, tableMissReplaced, roleMeanwhile, staleGeneration, refusedRole, portsOfTakenOver V10, portsOfTakenOver V13, timeOver V10, timeOver V13]

roles :: TestTree
roles = testCase "a slave says nothing, a master does again" . withWitness plain $ \c address -> withPeer address $ \p -> do
  switchHandshake c V13 1 p
  setRole c (DatapathId 1) RoleSlave 7
  (_, r) <- expect "ROLE_REQUEST" role p
  r @?= (RoleSlave, 7)
  packetFrom V13 5 (PortNo 1) 1 2 p
  sendMessageOf V13 6 (EchoRequest "still there") p
  m <- expect "ECHO_REPLY and no answer before it" (\case EchoReply _ -> Just True; PacketOutMessage _ -> Just False; _ -> Nothing) p
  snd m @?= True
  setRole c (DatapathId 1) RoleMaster 8
  (_, r') <- expect "ROLE_REQUEST" role p
  r' @?= (RoleMaster, 8)
  packetFrom V13 7 (PortNo 1) 1 2 p
  void (expect "an answer" (\case PacketOutMessage _ -> Just (); _ -> Nothing) p)
  where
    role m = case m of
      RoleRequest r g -> Just (r, g)
      _ -> Nothing

-- | The removals of other flows are the applications', and those of 1.0, which has no such flow.
tableMissDeleted :: TestTree
tableMissDeleted = testCase "a master installs the table-miss flow again when it is removed, and a slave does not" $ do
  forM_ [V10, V13] $ \version -> withTestControllerOf (patient plain) (perSwitch echo) $ \c address -> withPeer address $ \p -> do
    switchHandshake c version 1 p
    eventually "the role is known" (all infoActive <$> connectedSwitches c)
    when (version == V13) (void (expect "the table-miss flow" tableMiss p))
    sendMessageOf version 8 (gone missCookie) p
    sendMessageOf version 9 (gone 5) p
    let cookies n = mapM (const (snd <$> expect "a flow" (\case FlowModMessage f -> Just (flowCookie f, flowFlags f, flowPriority f, flowInstructions f); _ -> Nothing) p)) [1 .. n :: Int]
        its cookie = (cookie, 0, 7, [])
        missing = (missCookie, flagSendFlowRemoved, 0, [ApplyActions [output portController]])
    cookies 2 >>= (@?= [if version == V13 then missing else its missCookie, its 5])
    when (version == V13) $ do
      setRole c (DatapathId 1) RoleSlave 7
      void (expect "ROLE_REQUEST" (\case RoleRequest RoleSlave _ -> Just (); _ -> Nothing) p)
      sendMessageOf version 8 (gone missCookie) p
      sendMessageOf V13 6 (EchoRequest "still there") p
      m <- expect "ECHO_REPLY and no flow before it" (\case EchoReply _ -> Just True; FlowModMessage _ -> Just False; _ -> Nothing) p
      snd m @?= True
  where
    missCookie = 0x5745465400000000
    tableMiss m = case m of FlowModMessage f | flowCookie f == missCookie -> Just (); _ -> Nothing
    gone cookie = FlowRemovedMessage (FlowRemoved cookie 0 2 0 1 0 0 0 0 0 [])
    -- Answers the removal of a flow with a flow of its cookie.
    echo = App () $ \_ event () -> ((), [Send (FlowModMessage defaultFlowMod {flowCookie = removedCookie r, flowPriority = 7}) | FlowGone r <- [event]])

-- | A switch may report the removal of a flow when it replaces it. Each installation of the table-miss flow would then
-- cause another one. The removals here come faster than the flow is installed; the last one is not forgotten.
tableMissReplaced :: TestTree
tableMissReplaced = testCase "the table-miss flow is installed again about once in a second at most, and after the last removal" $
  withTestController (patient plain) $ \c address -> withPeer address $ \p -> do
    switchHandshake c V13 1 p
    eventually "the role is known" (all infoActive <$> connectedSwitches c)
    let install = void (expect "the table-miss flow" (\m -> if isInstall m then Just () else Nothing) p)
    install
    forM_ [1 .. 100] $ \i -> sendMessageOf V13 i gone p
    sendMessageOf V13 6 (EchoRequest "counted") p
    n <- installsBefore p 0
    assertBool (show n <> " times") (n >= 1 && n < 20)
    install
  where
    installsBefore p n = do
      (_, m) <- expect "a flow, or ECHO_REPLY" (\m -> case m of EchoReply "counted" -> Just False; _ | isInstall m -> Just True; _ -> Nothing) p
      if m then installsBefore p (n + 1) else pure (n :: Int)
    isInstall m = case m of FlowModMessage f -> flowCookie f == 0x5745465400000000; _ -> False
    gone = FlowRemovedMessage (FlowRemoved 0x5745465400000000 0 2 0 1 0 0 0 0 0 [])

-- | The election of a new connection takes long, and its result is obsolete when it ends.
roleMeanwhile :: TestTree
roleMeanwhile = testCase "a role that is set during the election of a new connection stays" $ do
  electing <- newEmptyMVar
  elected <- newEmptyMVar
  let settings = (patient plain) {settingsRole = \_ -> putMVar electing () >> takeMVar elected >> pure (Just (RoleSlave, 1))}
  withTestController settings $ \c address -> withPeer address $ \p -> do
    switchHandshake c V13 1 p
    takeMVar electing
    setRole c (DatapathId 1) RoleMaster 2
    (_, r) <- expect "ROLE_REQUEST" (\case RoleRequest role g -> Just (role, g); _ -> Nothing) p
    r @?= (RoleMaster, 2)
    putMVar elected ()
    packetFrom V13 5 (PortNo 1) 1 2 p
    (_, slave) <- expect "an answer" (\case PacketOutMessage _ -> Just False; RoleRequest RoleSlave _ -> Just True; _ -> Nothing) p
    slave @?= False
    now <- connectedSwitches c
    fmap infoActive (Map.lookup (DatapathId 1) now) @?= Just True

-- | A switch that has seen a later generation than etcd gives, as after the loss of etcd's data.
staleGeneration :: TestTree
staleGeneration = testCase "a switch that refuses a stale generation is asked with one that it accepts" $ do
  generation <- newIORef 1000
  let half = 0x8000000000000100
      stale :: Word64 -> Word64 -> Bool
      stale g now = (fromIntegral (g - now) :: Int64) < 0
      answer role g = do
        now <- readIORef generation
        if role == RoleNoChange
          then pure (RoleReply RoleEqual now)
          else if stale g now then pure (Error 11 0 B.empty) else RoleReply role g <$ writeIORef generation g
      asked p = snd <$> expect "ROLE_REQUEST" (\case RoleRequest r g -> Just (r, g); _ -> Nothing) p
      active c = fmap infoActive . Map.lookup (DatapathId 1) <$> connectedSwitches c
      settings = (patient plain) {settingsRole = \_ -> pure (Just (RoleMaster, 5))}
  withTestController settings $ \c address -> withPeer address $ \p -> do
    answerRoles answer p
    switchHandshake c V13 1 p
    active c >>= (@?= Just False)
    asked p >>= (@?= (RoleMaster, 5))
    asked p >>= (@?= (RoleNoChange, 0))
    active c >>= (@?= Just False)
    asked p >>= (@?= (RoleMaster, 1001))
    eventually "it is active" ((== Just True) <$> active c)
    -- A slave does not raise the generation, which would make its master's requests stale.
    writeIORef generation half
    setRole c (DatapathId 1) RoleSlave 6
    active c >>= (@?= Just False)
    mapM (const (asked p)) [1 .. 3 :: Int] >>= (@?= [(RoleSlave, 1001), (RoleNoChange, 0), (RoleSlave, half)])
    -- IDs wrap around.
    writeIORef generation maxBound
    setRole c (DatapathId 1) RoleMaster (half + 1)
    mapM (const (asked p)) [1 .. 3 :: Int] >>= (@?= [(RoleMaster, half + 1), (RoleNoChange, 0), (RoleMaster, 0)])
    eventually "it is active again" ((== Just True) <$> active c)

refusedRole :: TestTree
refusedRole = testCase "a switch without roles is used all the same, which is reported once" $ do
  said <- newIORef []
  let settings = (patient plain) {settingsRole = \_ -> pure (Just (RoleMaster, 5)), settingsOnIncident = \i -> case i of RoleRefused d why -> atomicModifyIORef' said (\is -> ((d, why) : is, ())); _ -> pure ()}
      passed p = sendMessageOf V13 9 (EchoRequest "") p >> void (expect "ECHO_REPLY" (\case EchoReply _ -> Just (); _ -> Nothing) p)
  withTestController settings $ \c address -> withPeer address $ \p -> do
    answerRoles (\_ _ -> pure (Error 11 1 B.empty)) p
    switchHandshake c V13 1 p
    void (expect "ROLE_REQUEST" (\case RoleRequest r _ -> Just r; _ -> Nothing) p)
    passed p
    setRole c (DatapathId 1) RoleMaster 6
    void (expect "ROLE_REQUEST" (\case RoleRequest r _ -> Just r; _ -> Nothing) p)
    passed p
    connectedSwitches c >>= (@?= Just True) . fmap infoActive . Map.lookup (DatapathId 1)
    readIORef said >>= (@?= [(DatapathId 1, "it has refused the role master: it does not support roles")])

-- | The application sends an ECHO_REQUEST for SwitchUp, with a byte for each port, and one for each port that is added.
portsOfTakenOver :: Version -> TestTree
portsOfTakenOver version = testCase (show version <> ": a new master's applications get the ports of the switch") $ do
  let app = App () $ \_ event () -> case event of
        SwitchUp f -> ((), [Send (EchoRequest (B.replicate (length (featuresPorts f)) 1))])
        PortChanged PortAdded _ -> ((), [Send (EchoRequest "port")])
        _ -> ((), [])
      echoes' = expect "ECHO_REQUEST" (\case EchoRequest s -> Just s; _ -> Nothing)
  withTestControllerOf (patient plain) (perSwitch app) $ \c address -> withPeer address $ \p -> do
    switchHandshake c version 1 p
    (_, first) <- echoes' p
    forM_ [(RoleSlave, 1), (RoleMaster, 2)] (uncurry (setRole c (DatapathId 1)))
    (_, second) <- echoes' p
    second @?= first
    when (version == V10) (B.length second @?= 4)
    when (version == V13) $ do
      (h, ()) <- expect "the request for ports" (\case StatsRequestMessage False PortDescRequest -> Just (); _ -> Nothing) p
      sendMessageOf V13 (headerXid h) (StatsReplyMessage False (PortDescReply [Port (PortNo 1) (MacAddress 1) "p" 0 0 (0, 0, 0, 0) (0, 0)])) p
      (_, third) <- echoes' p
      third @?= "port"

-- | As after a pause of the process: the time is over before anything has set the role of a slave.
timeOver :: Version -> TestTree
timeOver version = testCase (show version <> ": a master whose time is over is a slave before it handles another message") $ do
  end <- newIORef maxBound
  let settings = (patient plain) {settingsRole = \_ -> pure (Just (RoleMaster, 5)), settingsActiveUntil = readIORef end}
      active c = fmap infoActive . Map.lookup (DatapathId 1) <$> connectedSwitches c
      asked role = when (version == V13) . void . expect ("ROLE_REQUEST, " <> show role) (\case RoleRequest r _ | r == role -> Just (); _ -> Nothing)
      flow = FlowModMessage defaultFlowMod
  withWitness settings $ \c address -> withPeer address $ \p -> do
    switchHandshake c version 1 p
    asked RoleMaster p
    packetFrom version 5 (PortNo 1) 1 2 p
    void (expect "an answer" (\case PacketOutMessage _ -> Just (); _ -> Nothing) p)
    writeIORef end minBound
    sendMessage c (DatapathId 1) flow >>= (@?= Left NotMaster)
    packetFrom version 6 (PortNo 1) 1 2 p
    sendMessageOf version 7 (EchoRequest "still there") p
    -- The messages that set the switch up for its master may come late.
    m <- expect "ECHO_REPLY and no answer before it" (\case EchoReply _ -> Just True; PacketOutMessage o | packetOutBuffer o == BufferId 6 -> Just False; _ -> Nothing) p
    snd m @?= True
    active c >>= (@?= Just False)
    -- It has asked for the role in time, and the answer is late.
    setRole c (DatapathId 1) RoleMaster 6
    asked RoleMaster p
    asked RoleSlave p
    sendMessageOf version 8 (EchoRequest "still there") p
    void (expect "ECHO_REPLY" (\case EchoReply _ -> Just (); _ -> Nothing) p)
    active c >>= (@?= Just False)
    writeIORef end maxBound
    setRole c (DatapathId 1) RoleMaster 7
    asked RoleMaster p
    packetFrom version 9 (PortNo 1) 1 2 p
    void (expect "an answer" (\case PacketOutMessage _ -> Just (); _ -> Nothing) p)
