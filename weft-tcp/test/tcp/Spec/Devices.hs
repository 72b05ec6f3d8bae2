-- |
-- Devices of the kernel, as far as they can be tested without one: writing a packet in many parts; neighbours of an
-- Ethernet link in memory.
module Spec.Devices (tests) where

import Control.Exception (bracket)
import Control.Monad (forM_)
import qualified Data.ByteString as B
import qualified Data.ByteString.Internal as BI
import System.Posix.IO (closeFd, createPipe)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Tcp.Device
import Weft.Tcp.Device.Tap
import Weft.Tcp.FFI.Tun
import Weft.Tcp.Wire.Address
import Weft.Tcp.Wire.Ethernet
import qualified Weft.Tcp.Wire.IPv6 as V6
import qualified Weft.Tcp.Wire.Icmp6 as Icmp6

tests :: TestTree
tests =
  testGroup
    "devices"
    [ testCase "a packet in more parts than one writev(2) takes is written whole" manyParts,
      testCase "a solicitation without its sender's link-layer address is answered once that is found (RFC 4861)" anonymous,
      testCase "frames for another station are not received; those for all stations are, but no packets for one host" otherStation
    ]

manyParts :: Assertion
manyParts = bracket createPipe (\(from, to) -> closeFd from >> closeFd to) $ \(from, to) -> do
  let parts = [B.replicate 2 (fromIntegral n) | n <- [1 .. 3000 :: Int]]
  written <- withVector parts (cTunWriteV (fromIntegral to))
  written @?= 6000
  got <- BI.createAndTrim 6000 (\p -> fromIntegral <$> cTunRead (fromIntegral from) p 6000)
  assertBool "other bytes" (got == B.concat parts)

anonymous :: Assertion
anonymous = do
  (ours, wire) <- pairOfDevices 1514 (const False)
  tap <- overFrames (tapNamed "none" [own]) {tapHardware = ownHardware} ours
  let says m = do
        sending wire (encodeFrame (Frame ownHardware peerHardware typeIPv6 (V6.encode (V6.plain 58 peer own) {V6.hopLimit = 255} (Icmp6.encode peer own m))))
        -- The device handles the frame, and passes no packet on.
        received tap >>= (@?= []) . map incomingPacket
  says (Icmp6.NeighbourSolicitation own Nothing)
  heard wire >>= (@?= [(multicastHardware (solicitedNode peer), Just (Icmp6.NeighbourSolicitation peer (Just ownHardware)))])
  says (Icmp6.NeighbourAdvertisement False True True peer (Just peerHardware))
  heard wire >>= (@?= [(peerHardware, Just (Icmp6.NeighbourAdvertisement False True True own (Just ownHardware)))])
  deviceClose tap
  where
    -- The destination of each frame, and the message in it.
    heard d = map (message . incomingPacket) <$> received d
    message bytes = case decodeFrame bytes of
      Right f | Right (h, body) <- V6.decode (frameBody f) -> (frameDestination f, either (const Nothing) Just (Icmp6.decode (V6.source6 h) (V6.destination6 h) body))
      _ -> (broadcastHardware, Nothing)

otherStation :: Assertion
otherStation = do
  (ours, wire) <- pairOfDevices 1514 (const False)
  tap <- overFrames (tapNamed "none" [own]) {tapHardware = ownHardware} ours
  let one = B.replicate 40 0x45
      many = B.take 16 one <> B.pack [224, 0, 0, 1] <> B.drop 20 one
      one6 = V6.encode (V6.plain 6 peer own) (B.replicate 20 1)
      many6 = V6.encode (V6.plain 6 peer (V6 0xff02000000000000 1)) (B.replicate 20 1)
      frames to = [encodeFrame (Frame to peerHardware kind p) | (kind, p) <- [(typeIPv4, one), (typeIPv4, many), (typeIPv6, one6), (typeIPv6, many6)]]
  mapM_ (sending wire) (concatMap frames [HardwareAddress 0x020000000003, ownHardware, broadcastHardware, multicastHardware own])
  received tap >>= (@?= [one, many, one6, many6, many, many6, many, many6]) . map incomingPacket
  deviceClose tap

own, peer :: Address
own = V6 0xfe80000000000000 1
peer = V6 0xfe80000000000000 2

ownHardware, peerHardware :: HardwareAddress
ownHardware = HardwareAddress 0x020000000001
peerHardware = HardwareAddress 0x020000000002

sending :: Device -> B.ByteString -> IO ()
sending d bytes = forM_ (take 1 (deviceQueues d)) (\q -> sendPacket q NoOffload [bytes])

received :: Device -> IO [Incoming]
received d = concat <$> mapM receiveBatch (take 1 (deviceQueues d))
