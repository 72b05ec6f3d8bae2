-- |
-- TAP devices: Ethernet interfaces of the kernel, for bridges and the networks of virtual machines. The device finds
-- neighbours by ARP (RFC 826) and neighbour discovery (RFC 4861), and answers such requests for the stack's own
-- addresses. With offload, frames with up to 64 KiB cross the interface in one piece, as with TUN devices.
--
-- All addresses are treated as on-link, unless 'tapNextHop' returns a router. An entry of the neighbour cache is
-- confirmed again after some time, and removed if the neighbour does not answer ("Weft.Tcp.Device.Neighbours").
--
-- @since 0.1.0
module Weft.Tcp.Device.Tap
  ( TapSettings (..),
    tapNamed,
    openTap,
    overFrames,
  )
where

import Control.Monad (forM_, unless, void, when)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Data.IORef
import Data.Maybe (isNothing)
import qualified Weft.Core.Time as Clock
import Weft.Duration (Duration, seconds)
import Weft.Sys (now)
import Weft.Tcp.Core.Time (Instant (..))
import Weft.Tcp.Device
import Weft.Tcp.Device.Neighbours
import Weft.Tcp.Device.Tun
import Weft.Tcp.Stack.Answers (Answers, Kind (..), mayAnswer, newAnswers)
import Weft.Tcp.Wire.Address
import Weft.Tcp.Wire.Ethernet
import qualified Weft.Tcp.Wire.IPv6 as V6
import qualified Weft.Tcp.Wire.Icmp6 as Icmp6
import qualified Weft.Timer as Timer

-- | Settings of a TAP device.
data TapSettings = TapSettings
  { -- | The name of the interface.
    tapName :: !String,
    -- | The stack's link-layer address.
    tapHardware :: !HardwareAddress,
    -- | The stack's addresses, for which the device answers requests.
    tapAddresses :: ![Address],
    -- | The next hop for an address: the address itself, or a router's.
    tapNextHop :: !(Address -> Address),
    -- | Whether the kernel splits segments and completes checksums.
    tapOffload :: !Bool,
    -- | How long a confirmed cache entry is used before the neighbour is probed again.
    tapReachableTime :: !Duration
  }

-- | Defaults: a locally administered link-layer address, all addresses on-link, offload, neighbours probed after 30
-- seconds.
tapNamed :: String -> [Address] -> TapSettings
tapNamed name addresses = TapSettings name (HardwareAddress 0x027765667401) addresses id True (seconds 30)

-- | The neighbour cache of a device. The receiving thread and sending threads change the first two fields, by atomic
-- operations.
data Cache = Cache
  { neighbours :: !(IORef (Neighbours Waiting)),
    -- | Whether a timer for the next requests is set.
    asking :: !(IORef Bool),
    -- | The limits on answers to stations.
    answers :: !Answers
  }

-- | A packet that waits for its neighbour's link-layer address, and what the link has to do with it.
type Waiting = (Offload, [ByteString])

-- | How to send a frame.
type Send = Offload -> [ByteString] -> IO ()

-- | Open a TAP device. Errors are those of 'openTun'.
openTap :: TapSettings -> IO Device
openTap s = openLink True (TunSettings (tapName s) (tapOffload s) 1) >>= overFrames s

-- | The device of a stack on a device whose packets are Ethernet frames. The settings 'tapName' and 'tapOffload' are
-- not used.
overFrames :: TapSettings -> Device -> IO Device
overFrames s raw = do
  cache <- Cache <$> newIORef noNeighbours <*> newIORef False <*> newAnswers
  pure raw {deviceQueues = map (queue cache) (deviceQueues raw)}
  where
    queue cache q =
      Queue
        { receiveBatch = concat <$> (receiveBatch q >>= mapM (arriveFrame s cache (sendPacket q))),
          sendPacket = sendTo s cache (sendPacket q)
        }

-- Receiving ------------------------------------------------------------------------------

arriveFrame :: TapSettings -> Cache -> Send -> Incoming -> IO [Incoming]
arriveFrame s cache out frame = case decodeFrame (incomingPacket frame) of
  Right f
    | frameSource f == tapHardware s -> pure []
    -- A bridge floods frames for stations that it does not know. They are not for us, whatever their packet says.
    | isStation (frameDestination f), frameDestination f /= tapHardware s -> pure []
    | frameType f == typeIPv4 -> pure (filter (addressedAs f) [frame {incomingPacket = frameBody f}])
    | frameType f == typeIPv6 -> filter (addressedAs f) <$> arrive6 s cache out frame {incomingPacket = frameBody f}
    | frameType f == typeArp -> [] <$ either (const (pure ())) (arriveArp s cache out) (decodeArp (frameBody f))
  _ -> pure []
  where
    -- A packet for one host does not come in a frame for many (RFC 1122, section 3.3.6).
    addressedAs f p = isStation (frameDestination f) || maybe True (not . isUnicast . snd) (destinationOf (incomingPacket p))

arriveArp :: TapSettings -> Cache -> Send -> Arp -> IO ()
arriveArp s cache out a = do
  let toUs = targetAddress a `elem` tapAddresses s
      said = if arpOperation a == ArpReply && toUs then answered (tapReachableTime s) else announced toUs
  learn s cache out said (senderAddress a) (senderHardware a)
  when (arpOperation a == ArpRequest && toUs) . answering cache (senderAddress a) $
    out NoOffload [frameHeader (senderHardware a) (tapHardware s) typeArp, encodeArp (Arp ArpReply (tapHardware s) (targetAddress a) (senderHardware a) (senderAddress a))]

-- | Handle neighbour discovery; pass other packets on. Neighbour discovery packets must be valid (RFC 4861, section
-- 7.1): they have not been forwarded (a hop limit of 255), and an answer to a solicitation goes to one host.
arrive6 :: TapSettings -> Cache -> Send -> Incoming -> IO [Incoming]
arrive6 s cache out packet = case V6.decode (incomingPacket packet) of
  Right (h, payload)
    | V6.protocol6 h == 58,
      -- The stack discards packets with an option that may not be skipped.
      Nothing <- V6.objection h,
      Right m <- Icmp6.decode (V6.source6 h) (V6.destination6 h) payload ->
      case m of
        Icmp6.NeighbourSolicitation target from
          | V6.hopLimit h == 255 -> do
            -- From no address it is one of duplicate address detection.
            when (isUnicast (V6.source6 h) || V6.destination6 h == solicitedNode target && isNothing from) $ do
              forM_ from (learn s cache out (announced (target `elem` tapAddresses s)) (V6.source6 h))
              when (target `elem` tapAddresses s) (answering cache (V6.source6 h) (advertise (V6.source6 h) target))
            pure []
        Icmp6.NeighbourAdvertisement _ solicited overrides target from
          | V6.hopLimit h == 255 -> do
            when (isUnicast target && maybe True isStation from && (isUnicast (V6.destination6 h) || not solicited)) $ do
              t <- now
              used <- atomicModifyIORef' (neighbours cache) (advertised (tapReachableTime s) t (Advertisement solicited overrides target from))
              forM_ used (\(hw, waiting) -> mapM_ (sendFrame s out hw) waiting)
            pure []
        _ -> pure [packet]
  _ -> pure [packet]
  where
    advertise asker target
      | isUnicast asker = do
        known <- hardwareOf asker <$> readIORef (neighbours cache)
        let answer = (NoOffload, [packet6 target asker (advertisement target True)])
        case known of
          Just hw -> sendFrame s out hw answer
          -- A solicitation to us alone may leave out its sender's link-layer address, which then has to be found first
          -- (RFC 4861, section 7.2.4).
          Nothing -> sendVia s cache out target asker answer
      -- Duplicate address detection (RFC 4862, section 5.4): the answer goes to all nodes.
      | otherwise = sendFrame s out (multicastHardware allNodes) (NoOffload, [packet6 target allNodes (advertisement target False)])
    allNodes = V6 0xff02000000000000 1
    advertisement target solicited = Icmp6.NeighbourAdvertisement False solicited True target (Just (tapHardware s))

-- | A packet of neighbour discovery, from one address to another.
packet6 :: Address -> Address -> Icmp6.Message -> ByteString
packet6 own to m = V6.encode (V6.plain 58 own to) {V6.hopLimit = 255} (Icmp6.encode own to m)

-- | Answer a station at an address, unless too many were answered. A station can take any address of the link, so that
-- a keyed hash would gain nothing.
answering :: Cache -> Address -> IO () -> IO ()
answering cache to act = do
  Clock.Instant ns <- now
  allowed <- mayAnswer (answers cache) LinkAnswers (Instant (fromIntegral (ns `div` 1000))) $ case to of
    V4 a -> fromIntegral a
    V6 _ low -> low
  when allowed act

-- | Store a neighbour's address, and send the packets that were queued for it.
learn :: TapSettings -> Cache -> Send -> Said -> Address -> HardwareAddress -> IO ()
learn s cache out said a hw = when (isUnicast a && isStation hw) $ do
  t <- now
  waiting <- atomicModifyIORef' (neighbours cache) (said t a hw)
  mapM_ (sendFrame s out hw) waiting

-- | How a message of a neighbour updates the cache.
type Said = Clock.Instant -> Address -> HardwareAddress -> Neighbours Waiting -> (Neighbours Waiting, [Waiting])

-- Sending --------------------------------------------------------------------------------

framed :: TapSettings -> HardwareAddress -> [ByteString] -> [ByteString]
framed s hw parts = frameHeader hw (tapHardware s) (if isV6 parts then typeIPv6 else typeIPv4) : parts

-- | Send a packet in a frame to a neighbour. Lengths and offsets of the link's work count from the frame's first byte.
sendFrame :: TapSettings -> Send -> HardwareAddress -> Waiting -> IO ()
sendFrame s out hw (how, parts) = out framedHow (framed s hw parts)
  where
    framedHow = case how of
      NoOffload -> NoOffload
      Complete ipSize headers size -> Complete (ipSize + 14) (headers + 14) size

isV6 :: [ByteString] -> Bool
isV6 parts = case parts of
  b : _ -> B.take 1 b >= B.singleton 0x60
  [] -> False

sendTo :: TapSettings -> Cache -> Send -> Offload -> [ByteString] -> IO ()
sendTo s cache out how parts = forM_ (destinationOf (B.concat (take 1 parts))) $ \(own, to) -> sendVia s cache out own (tapNextHop s to) (how, parts)

-- | Send a packet from one of our addresses to a neighbour, once its link-layer address is known.
sendVia :: TapSettings -> Cache -> Send -> Address -> Address -> Waiting -> IO ()
sendVia s cache out own hop packet = do
  t <- now
  decision <- atomicModifyIORef' (neighbours cache) (forPacket t own hop packet)
  case decision of
    SendTo hw asked -> sendFrame s out hw packet >> mapM_ ask asked
    Waits asked -> mapM_ ask asked
  where
    ask q = out NoOffload (neighbourRequest s own hop q) >> askAgain s cache out

-- | Repeat unanswered requests once a second, while there are any.
askAgain :: TapSettings -> Cache -> Send -> IO ()
askAgain s cache out = do
  already <- atomicModifyIORef' (asking cache) (\b -> (True, b))
  unless already (void (Timer.schedule (seconds 1.01) tick))
  where
    -- Runs on a dispatcher, so it must not block.
    tick = do
      writeIORef (asking cache) False
      t <- now
      (requests, others) <- atomicModifyIORef' (neighbours cache) (expire t)
      forM_ requests (\(own, hop, q) -> out NoOffload (neighbourRequest s own hop q))
      when others (askAgain s cache out)

destinationOf :: ByteString -> Maybe (Address, Address)
destinationOf b
  | B.length b >= 40 && isV6 [b] = Just (v6At b 8, v6At b 24)
  | B.length b >= 20 && not (isV6 [b]) = Just (v4At b 12, v4At b 16)
  | otherwise = Nothing

-- | A request for a neighbour's link-layer address, sent to all nodes or to the neighbour itself.
neighbourRequest :: TapSettings -> Address -> Address -> NeighbourRequest -> [ByteString]
neighbourRequest s own hop q = case hop of
  V4 _ -> [frameHeader (asked broadcastHardware) (tapHardware s) typeArp, encodeArp (Arp ArpRequest (tapHardware s) own (HardwareAddress 0) hop)]
  V6 _ _ -> framed s (asked (multicastHardware group)) [packet6 own to (Icmp6.NeighbourSolicitation hop (Just (tapHardware s)))]
  where
    group = solicitedNode hop
    to = case q of Broadcast -> group; Unicast _ -> hop
    asked everybody = case q of Broadcast -> everybody; Unicast hw -> hw
