-- |
-- Stacks for tests: two that are connected in memory, and one without a link, whose peer is the test itself.
module Lone
  ( -- * Two stacks
    addressA,
    addressB,
    there,
    quick,
    withPair,

    -- * One stack
    withLone,
    synFrom,
    packetFrom,
    handshake,
    decoded,

    -- * A peer by hand
    Peer (..),
    established,
    says,
    bytesAt,

    -- * An Ethernet link by hand
    onLink,
    withStackOnLink,
    ours,
    station,
  )
where

import Control.Concurrent.MVar
import qualified Data.ByteString as B
import Data.IORef
import Data.Maybe (fromJust)
import Data.Word (Word32)
import Network.Socket (SockAddr (..), tupleToHostAddress)
import Test.Tasty.HUnit
import Weft.Tcp
import Weft.Tcp.Core (millis, secs)
import Weft.Tcp.Device
import Weft.Tcp.Device.Tap
import Weft.Tcp.Stack.Input (arriveBatch)
import Weft.Tcp.Wire.Address (HardwareAddress (..))
import Weft.Tcp.Wire.Ethernet
import Weft.Tcp.Wire.Options
import qualified Weft.Tcp.Wire.Packet as Packet
import Weft.Tcp.Wire.Segment (Flags, Segment (..), ack, syn)
import qualified Weft.Tcp.Wire.Segment as Segment

addressA, addressB :: Address
addressA = fromJust (parseAddress "10.0.0.1")
addressB = fromJust (parseAddress "10.0.0.2")

there :: SockAddr
there = SockAddrInet 0 (tupleToHostAddress (10, 0, 0, 2))

quick :: [Address] -> StackSettings
quick a = (defaultSettings a) {stackConfig = defaultConfig {timeWaitTime = secs 1, minRto = millis 50}}

withPair :: (Int -> Bool) -> (Stack -> Stack -> IO a) -> IO a
withPair loses act = do
  (da, db) <- pairOfDevices 1500 loses
  withStack (quick [addressA]) da (withStack (quick [addressB]) db . act)

-- | A stack without a link: the test passes packets to it, and collects the packets that it sends.
withLone :: (StackSettings -> StackSettings) -> (Stack -> IO [B.ByteString] -> IO a) -> IO a
withLone change act = do
  out <- newIORef []
  blocked <- newEmptyMVar
  let device = Device "none" 1500 False [Queue (takeMVar blocked) (into out)] (pure ())
  withStack (change (quick [addressB])) device (\st -> act st (atomicModifyIORef' out (\l -> ([], reverse l))))

into :: IORef [B.ByteString] -> Offload -> [B.ByteString] -> IO ()
into out _ parts = atomicModifyIORef' out (\l -> (B.concat parts : l, ()))

synFrom :: Int -> Segment
synFrom n = Segment (fromIntegral n * 7919) 0 syn 65535 0 (Options (Just 1460) (Just 7) True (Just (Timestamps 5 0)) []) []

packetFrom :: Address -> Int -> Segment -> Incoming
packetFrom src port s = Incoming (Packet.encode (Packet.Packet src addressB 6 (Segment.encode src addressB (fromIntegral port) 80 s))) False True

-- | Finish a handshake: send the last segment in response to the given packet, which has to be a SYN-ACK.
handshake :: Stack -> B.ByteString -> IO ()
handshake st answer = case Packet.decode answer of
  Right (Packet.Whole p) | Right v <- Segment.view (Packet.packetBody p) -> do
    let isn = seqNumber (Segment.segment v)
    arriveBatch st [packetFrom addressA 4000 (Segment (seqNumber (synFrom 1) + 1) (isn + 1) ack 500 0 noOptions {timestamps = Just (Timestamps 6 0)} [])]
  _ -> assertFailure "no answer"

decoded :: B.ByteString -> Either String Segment
decoded bytes = case Packet.decode bytes of
  Right (Packet.Whole p) -> either (Left . show) (\(_, _, s) -> Right s) (Segment.decode (Packet.packetSource p) (Packet.packetDestination p) (Packet.packetBody p))
  _ -> Left "no packet"

-- | A connection of a lone stack, without timestamps, from a port of 'addressA' to port 80, with the next sequence
-- numbers of the peer and of the stack.
data Peer = Peer {peerPort :: Int, peerNext, ourNext :: Word32}

-- | Open a connection with the given initial sequence number of the peer. The stack must listen on the port.
established :: Stack -> IO [B.ByteString] -> Int -> Word32 -> IO Peer
established st sent port isn = do
  _ <- sent
  arriveBatch st [packetFrom addressA port (Segment isn 0 syn 65535 0 (Options (Just 1460) (Just 7) True Nothing []) [])]
  out <- sent
  case mapM decoded out of
    -- A connection that had to make room is reset.
    Right answers
      | [answer] <- filter (not . Segment.has Segment.rst . flags) answers,
        flags answer == syn <> ack -> do
        let p = Peer port (isn + 1) (seqNumber answer + 1)
        p <$ says st p 0 ack B.empty
    _ -> assertFailure ("no SYN and ACK: " ++ show (map decoded out))

-- | A segment of the peer, which begins at the given distance from the peer's next sequence number.
bytesAt :: Peer -> Word32 -> Flags -> B.ByteString -> Incoming
bytesAt p at f body = packetFrom addressA (peerPort p) (Segment (peerNext p + at) (ourNext p) f 500 0 noOptions [body | not (B.null body)])

-- | Pass such a segment to the stack.
says :: Stack -> Peer -> Word32 -> Flags -> B.ByteString -> IO ()
says st p at f body = arriveBatch st [bytesAt p at f body]

-- An Ethernet link --------------------------------------------------------------------------

-- | A TAP device without a kernel: the device, an action that receives a frame from a station, and one that gives the
-- frames sent.
tapByHand :: [Address] -> IO (Device, HardwareAddress -> EtherType -> B.ByteString -> IO [Incoming], IO [B.ByteString])
tapByHand own = do
  arriving <- newIORef []
  out <- newIORef []
  tap <- overFrames (tapNamed "none" own) {tapHardware = ours} (Device "none" 1514 False [Queue (atomicModifyIORef' arriving (\l -> ([], l))) (into out)] (pure ()))
  let hears from kind body = do
        writeIORef arriving [Incoming (encodeFrame (Frame ours from kind body)) False True]
        concat <$> mapM receiveBatch (deviceQueues tap)
  pure (tap, hears, atomicModifyIORef' out (\l -> ([], reverse l)))

-- | Such a device alone.
onLink :: [Address] -> ((HardwareAddress -> EtherType -> B.ByteString -> IO ()) -> IO [B.ByteString] -> IO a) -> IO a
onLink own act = do
  (_, hears, sent) <- tapByHand own
  act (\from kind body -> () <$ hears from kind body) sent

-- | Such a device with a stack.
withStackOnLink :: [Address] -> ((HardwareAddress -> EtherType -> B.ByteString -> IO ()) -> IO [B.ByteString] -> IO a) -> IO a
withStackOnLink own act = do
  (tap, hears, sent) <- tapByHand own
  blocked <- newEmptyMVar
  withStack (quick own) tap {deviceMtu = 1500, deviceQueues = [Queue (takeMVar blocked) (sendPacket q) | q <- deviceQueues tap]} $ \st ->
    act (\from kind body -> hears from kind body >>= arriveBatch st) sent

-- | The link-layer addresses of the device, and of a station.
ours, station :: HardwareAddress
ours = HardwareAddress 0x020000000001
station = HardwareAddress 0x020000000002
