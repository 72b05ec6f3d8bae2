-- |
-- TAP devices: an Ethernet link of the kernel's, for bridges and virtual machines' networks.
-- Neighbours are found by ARP (RFC 826) and neighbour discovery (RFC 4861), and
-- questions about the stack's own addresses are answered. No offload.
--
-- All addresses count as on the link, but what 'tapNextHop' sends elsewhere.
--
-- @since 0.1.0
module Weft.Tcp.Device.Tap
  ( TapSettings (..),
    tapNamed,
    openTap,
  )
where

import Control.Monad (forM_, when)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Data.IORef
import qualified Data.Map.Strict as Map
import qualified Weft.Core.Time as Clock
import Weft.Sys (now)
import Weft.Tcp.Device
import Weft.Tcp.Device.Tun
import Weft.Tcp.Wire.Address
import Weft.Tcp.Wire.Ethernet
import qualified Weft.Tcp.Wire.IPv6 as V6
import qualified Weft.Tcp.Wire.Icmp6 as Icmp6

-- | What a TAP device is opened with.
data TapSettings = TapSettings
  { -- | The name of the interface.
    tapName :: !String,
    -- | The stack's own link-layer address.
    tapHardware :: !HardwareAddress,
    -- | The stack's addresses, for which it answers.
    tapAddresses :: ![Address],
    -- | Where packets for an address go: itself, or a router's.
    tapNextHop :: !(Address -> Address)
  }

-- | A locally administered link-layer address, everything on the link.
tapNamed :: String -> [Address] -> TapSettings
tapNamed name addresses = TapSettings name (HardwareAddress 0x027765667401) addresses id

-- | A neighbour. Of one that is looked for, packets wait: at most four.
data Neighbour
  = Known !HardwareAddress !Clock.Instant
  | Sought !Clock.Instant ![[ByteString]]

-- | Neighbours by address: changed by the thread that receives and those that send, by
-- atomic operations. At most 4096, so that a scan fills no memory.
type Cache = IORef (Map.Map Address Neighbour)

-- | Errors as 'openTun'.
openTap :: TapSettings -> IO Device
openTap s = do
  raw <- openLink True (TunSettings (tapName s) False 1)
  cache <- newIORef Map.empty
  pure raw {deviceQueues = map (queue cache) (deviceQueues raw)}
  where
    queue cache q =
      Queue
        { receiveBatch = concat <$> (receiveBatch q >>= mapM (arriveFrame s cache (rawSend q) . incomingPacket)),
          sendPacket = \_ parts -> sendTo s cache (rawSend q) parts
        }
    rawSend q = sendPacket q NoOffload

-- | How long what is known is used, and how long to wait between questions.
lifetime, patience :: Clock.Duration
lifetime = Clock.seconds 60
patience = Clock.seconds 1

-- Coming ---------------------------------------------------------------------------------

arriveFrame :: TapSettings -> Cache -> ([ByteString] -> IO ()) -> ByteString -> IO [Incoming]
arriveFrame s cache out bytes = case decodeFrame bytes of
  Right f
    | frameSource f == tapHardware s -> pure []
    | frameType f == typeIPv4 -> pure [Incoming (frameBody f) False True]
    | frameType f == typeIPv6 -> arrive6 s cache out (frameBody f)
    | frameType f == typeArp -> [] <$ either (const (pure ())) (arriveArp s cache out) (decodeArp (frameBody f))
  _ -> pure []

arriveArp :: TapSettings -> Cache -> ([ByteString] -> IO ()) -> Arp -> IO ()
arriveArp s cache out a = do
  learn s cache out (senderAddress a) (senderHardware a)
  when (arpOperation a == ArpRequest && targetAddress a `elem` tapAddresses s) $
    out [frameHeader (senderHardware a) (tapHardware s) typeArp, encodeArp (Arp ArpReply (tapHardware s) (targetAddress a) (senderHardware a) (senderAddress a))]

-- | Neighbour discovery stays here; its packets must not have been forwarded (RFC 4861,
-- section 7.1: a hop limit of 255).
arrive6 :: TapSettings -> Cache -> ([ByteString] -> IO ()) -> ByteString -> IO [Incoming]
arrive6 s cache out body = case V6.decode body of
  Right (h, payload)
    | V6.protocol6 h == 58,
      Right m <- Icmp6.decode (V6.source6 h) (V6.destination6 h) payload ->
      case m of
        Icmp6.NeighbourSolicitation target from | V6.hopLimit h == 255 -> do
          forM_ from (learn s cache out (V6.source6 h))
          when (target `elem` tapAddresses s) (advertise (V6.source6 h) target)
          pure []
        Icmp6.NeighbourAdvertisement _ _ _ target from | V6.hopLimit h == 255 -> [] <$ forM_ from (learn s cache out target)
        _ -> pure [Incoming body False True]
  _ -> pure [Incoming body False True]
  where
    advertise asker target
      | isUnicast asker = sendNeighbour s out target asker True
      -- Somebody tests whether the address is taken (RFC 4862, section 5.4): all are told.
      | otherwise = sendNeighbour s out target allNodes False
    allNodes = V6 0xff02000000000000 1
    sendNeighbour st send own to solicited = do
      let message = Icmp6.NeighbourAdvertisement False solicited True own (Just (tapHardware st))
      known <- if isUnicast to then hardwareOf cache to else pure (Just (multicastHardware to))
      forM_ known (\hw -> send (packet6 st hw own to message))

packet6 :: TapSettings -> HardwareAddress -> Address -> Address -> Icmp6.Message -> [ByteString]
packet6 s hw own to m = [frameHeader hw (tapHardware s) typeIPv6, V6.encode (V6.plain 58 own to) {V6.hopLimit = 255} (Icmp6.encode own to m)]

hardwareOf :: Cache -> Address -> IO (Maybe HardwareAddress)
hardwareOf cache a = do
  m <- readIORef cache
  pure (case Map.lookup a m of Just (Known hw _) -> Just hw; _ -> Nothing)

-- | Note where a neighbour is, and send what waited for it.
learn :: TapSettings -> Cache -> ([ByteString] -> IO ()) -> Address -> HardwareAddress -> IO ()
learn s cache out a hw = when (isUnicast a) $ do
  t <- now
  waiting <- atomicModifyIORef' cache $ \m -> case Map.lookup a m of
    Just (Sought _ packets) -> (Map.insert a (Known hw (Clock.after lifetime t)) m, reverse packets)
    Nothing | Map.size m >= 4096 -> (m, [])
    _ -> (Map.insert a (Known hw (Clock.after lifetime t)) m, [])
  forM_ waiting (out . framed s hw)

-- Going ----------------------------------------------------------------------------------

framed :: TapSettings -> HardwareAddress -> [ByteString] -> [ByteString]
framed s hw parts = frameHeader hw (tapHardware s) (if isV6 parts then typeIPv6 else typeIPv4) : parts

isV6 :: [ByteString] -> Bool
isV6 parts = case parts of
  b : _ -> B.take 1 b >= B.singleton 0x60
  [] -> False

sendTo :: TapSettings -> Cache -> ([ByteString] -> IO ()) -> [ByteString] -> IO ()
sendTo s cache out parts = forM_ (destinationOf (B.concat (take 1 parts))) $ \(own, to) -> do
  let hop = tapNextHop s to
  t <- now
  -- What to do at once: send, or ask.
  found <- atomicModifyIORef' cache $ \m -> case Map.lookup hop m of
    Just (Known hw until') | t < until' -> (m, Left hw)
    -- What was known is used while it is asked for again.
    Just (Known hw _) -> (Map.insert hop (Known hw (Clock.after patience t)) m, Right (Just hw))
    Just (Sought at packets)
      | t < at -> (Map.insert hop (Sought at (take 4 (parts : packets))) m, Right Nothing)
      | otherwise -> (Map.insert hop (Sought (Clock.after patience t) (take 4 (parts : packets))) m, Right (Just broadcastHardware))
    Nothing
      | Map.size m >= 4096 -> (m, Right Nothing)
      | otherwise -> (Map.insert hop (Sought (Clock.after patience t) [parts]) m, Right (Just broadcastHardware))
  case found of
    Left hw -> out (framed s hw parts)
    Right Nothing -> pure ()
    Right (Just hw) -> do
      out (question s own hop)
      when (hw /= broadcastHardware) (out (framed s hw parts))

destinationOf :: ByteString -> Maybe (Address, Address)
destinationOf b
  | B.length b >= 40 && isV6 [b] = Just (v6At b 8, v6At b 24)
  | B.length b >= 20 && not (isV6 [b]) = Just (v4At b 12, v4At b 16)
  | otherwise = Nothing

-- | Where is a neighbour?
question :: TapSettings -> Address -> Address -> [ByteString]
question s own hop = case hop of
  V4 _ -> [frameHeader broadcastHardware (tapHardware s) typeArp, encodeArp (Arp ArpRequest (tapHardware s) own (HardwareAddress 0) hop)]
  V6 _ _ -> let to = solicitedNode hop in packet6 s (multicastHardware to) own to (Icmp6.NeighbourSolicitation hop (Just (tapHardware s)))
