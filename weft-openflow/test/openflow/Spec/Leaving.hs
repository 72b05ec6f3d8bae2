{-# LANGUAGE LambdaCase #-}
{-# LANGUAGE OverloadedStrings #-}

-- |
-- Switches that leave: what the controller and its application then know of them, also if a callback fails or takes
-- long, or the switch's thread is killed.
module Spec.Leaving (tests) where

import Control.Concurrent (killThread, myThreadId, threadDelay)
import Control.Concurrent.Async (wait, withAsync)
import Control.Concurrent.MVar
import Control.Monad (unless, when)
import Data.IORef
import qualified Data.Map.Strict as Map
import Peer
import Spec.Peers (plain)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.OpenFlow.App
import Weft.OpenFlow.Controller
import Weft.OpenFlow.Match
import Weft.OpenFlow.Message
import Weft.OpenFlow.Topology
import Weft.OpenFlow.Types
import Weft.OpenFlow.Wire

tests :: TestTree
tests = testGroup "leaving" [connectsAgain, brokenCallback, brokenAtTheEnd, killedAtTheEnd]

-- | Perform the handshake of a switch without ports, and do not wait until it is registered.
introduced :: Peer -> IO ()
introduced p = do
  sendMessageOf V10 1 (Hello []) p
  (h, ()) <- expect "FEATURES_REQUEST" (\m -> if m == FeaturesRequest then Just () else Nothing) p
  sendMessageOf V10 (headerXid h) (FeaturesReply (Features (DatapathId 1) 256 2 0 0 0 [])) p

-- | The callback for the end of the first connection takes long.
connectsAgain :: TestTree
connectsAgain = testCase "a switch that connects again comes after the end of its last connection" $ do
  ending <- newEmptyMVar
  slow <- newEmptyMVar
  calls <- newIORef []
  let noted _ here = do
        unless here (putMVar ending () >> readMVar slow)
        atomicModifyIORef' calls (\cs -> (here : cs, ()))
      -- The number of connected switches is the port that packets are sent to.
      app = App (0 :: Int) $ \_ event n -> case event of
        SwitchUp _ -> (n + 1, [])
        SwitchDown -> (n - 1, [])
        Packet p -> (n, release p [output (PortNo (fromIntegral n))])
        _ -> (n, [])
  withTestControllerOf (patient plain) {settingsOnSwitch = noted} (shared app) $ \c address -> do
    withPeer address (switchHandshake c V10 1)
    takeMVar ending
    withPeer address $ \p -> do
      introduced p
      threadDelay 200000
      putMVar slow ()
      packetFrom V10 5 (PortNo 1) 1 2 p
      (_, actions) <- expect "an answer" (\case PacketOutMessage o -> Just (packetOutActions o); _ -> Nothing) p
      actions @?= [output (PortNo 1)]
      readIORef calls >>= (@?= [True, False, True]) . reverse
      known <- topologySwitches <$> controllerNetwork c
      Map.member (DatapathId 1) known @?= True

-- | The callback fails, as it does if it writes to a full disk.
brokenCallback :: TestTree
brokenCallback = testCase "a switch whose callback fails is not kept" $
  withTestController (patient plain) {settingsOnSwitch = \_ here -> when here (ioError (userError "no space left"))} $ \c address -> withPeer address $ \p -> do
    introduced p
    ended p
    eventually "it is gone" (Map.null <$> connectedSwitches c)
    eventually "it is gone from the network" (Map.null . topologySwitches <$> controllerNetwork c)

-- | The callback fails as the switch leaves. The application hears of that all the same.
brokenAtTheEnd :: TestTree
brokenAtTheEnd = testCase "an application hears that a switch has gone, although the callback fails" $ do
  -- The number of connected switches is the port that packets are sent to.
  let app = App (0 :: Int) $ \_ event n -> case event of
        SwitchUp _ -> (n + 1, [])
        SwitchDown -> (n - 1, [])
        Packet p -> (n, release p [output (PortNo (fromIntegral n))])
        _ -> (n, [])
      failing _ here = unless here (ioError (userError "no space left"))
  withTestControllerOf (patient plain) {settingsOnSwitch = failing} (shared app) $ \c address -> do
    withPeer address (switchHandshake c V10 1)
    eventually "it is gone" (Map.null <$> connectedSwitches c)
    withPeer address $ \p -> do
      switchHandshake c V10 2 p
      threadDelay 200000
      packetFrom V10 5 (PortNo 1) 1 2 p
      (_, actions) <- expect "an answer" (\case PacketOutMessage o -> Just (packetOutActions o); _ -> Nothing) p
      actions @?= [output (PortNo 1)]

-- | The callback for one switch takes long as it leaves. The thread of another one, which leaves as well, is killed
-- while it waits for that.
killedAtTheEnd :: TestTree
killedAtTheEnd = testCase "a switch whose thread is killed as it leaves is not kept" $ do
  (leaving, slow) <- (,) <$> newEmptyMVar <*> newEmptyMVar
  threads <- newIORef []
  let callback d here = unless (here || d /= DatapathId 1) (putMVar leaving () >> readMVar slow)
      noted connection = connection <$ (myThreadId >>= \t -> atomicModifyIORef' threads (\ts -> (t : ts, ())))
  withTestController (patient plain) {settingsOnSwitch = callback, settingsUpgrade = noted} $ \c address -> do
    withPeer address $ \other -> do
      switchHandshake c V10 2 other
      withPeer address (switchHandshake c V10 1)
      takeMVar leaving
    -- The other one waits, and the exception for it as well.
    threadDelay 300000
    thread <- take 1 . reverse <$> readIORef threads
    withAsync (mapM_ killThread thread) $ \killing -> do
      threadDelay 100000
      putMVar slow ()
      wait killing
    eventually "both are gone" (Map.null <$> connectedSwitches c)
