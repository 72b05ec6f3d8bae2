-- |
-- TAP devices: an Ethernet interface of the kernel, for bridges and the networks of virtual machines.
-- Neighbours are found by ARP (RFC 826) and neighbour discovery (RFC 4861), and
-- requests for the stack's own addresses are answered. There is no offload.
--
-- All addresses are treated as on-link, unless 'tapNextHop' returns a router. A cache entry is confirmed again
-- after some time, and removed if the neighbour does not answer ("Weft.Tcp.Device.Neighbours").
--
-- @since 0.1.0
module Weft.Tcp.Device.Tap
  ( TapSettings (..),
    tapNamed,
    openTap,
  )
where

import Control.Monad (forM_, unless, void, when)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Data.IORef
import qualified Weft.Core.Time as Clock
import Weft.Duration (Duration, seconds)
import Weft.Sys (now)
import Weft.Tcp.Device
import Weft.Tcp.Device.Neighbours
import Weft.Tcp.Device.Tun
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
    -- | How long a confirmed cache entry is used before the neighbour is probed again.
    tapReachableTime :: !Duration
  }

-- | Defaults: a locally administered link-layer address, all addresses on-link, neighbours probed after 30 seconds.
tapNamed :: String -> [Address] -> TapSettings
tapNamed name addresses = TapSettings name (HardwareAddress 0x027765667401) addresses id (seconds 30)

-- | The receiving thread and sending threads change both fields, by atomic operations.
data Cache = Cache
  { neighbours :: !(IORef (Neighbours [ByteString])),
    -- | Whether a timer for the next requests is set.
    asking :: !(IORef Bool)
  }

-- | Open a TAP device. Errors are those of 'openTun'.
openTap :: TapSettings -> IO Device
openTap s = do
  raw <- openLink True (TunSettings (tapName s) False 1)
  cache <- Cache <$> newIORef noNeighbours <*> newIORef False
  pure raw {deviceQueues = map (queue cache) (deviceQueues raw)}
  where
    queue cache q =
      Queue
        { receiveBatch = concat <$> (receiveBatch q >>= mapM (arriveFrame s cache (rawSend q) . incomingPacket)),
          sendPacket = \_ parts -> sendTo s cache (rawSend q) parts
        }
    rawSend q = sendPacket q NoOffload

-- Receiving ------------------------------------------------------------------------------

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
  let toUs = targetAddress a `elem` tapAddresses s
      said = if arpOperation a == ArpReply && toUs then answered (tapReachableTime s) else announced toUs
  learn s cache out said (senderAddress a) (senderHardware a)
  when (arpOperation a == ArpRequest && toUs) $
    out [frameHeader (senderHardware a) (tapHardware s) typeArp, encodeArp (Arp ArpReply (tapHardware s) (targetAddress a) (senderHardware a) (senderAddress a))]

-- | Handle neighbour discovery; pass other packets on. Neighbour discovery packets must not have
-- been forwarded (RFC 4861, section 7.1: a hop limit of 255).
arrive6 :: TapSettings -> Cache -> ([ByteString] -> IO ()) -> ByteString -> IO [Incoming]
arrive6 s cache out body = case V6.decode body of
  Right (h, payload)
    | V6.protocol6 h == 58,
      Right m <- Icmp6.decode (V6.source6 h) (V6.destination6 h) payload ->
      case m of
        Icmp6.NeighbourSolicitation target from | V6.hopLimit h == 255 -> do
          forM_ from (learn s cache out (announced (target `elem` tapAddresses s)) (V6.source6 h))
          when (target `elem` tapAddresses s) (advertise (V6.source6 h) target)
          pure []
        Icmp6.NeighbourAdvertisement _ solicited _ target from
          | V6.hopLimit h == 255 ->
            [] <$ forM_ from (learn s cache out (if solicited then answered (tapReachableTime s) else announced False) target)
        _ -> pure [Incoming body False True]
  _ -> pure [Incoming body False True]
  where
    advertise asker target
      | isUnicast asker = sendNeighbour s out target asker True
      -- Duplicate address detection (RFC 4862, section 5.4): the answer goes to all nodes.
      | otherwise = sendNeighbour s out target allNodes False
    allNodes = V6 0xff02000000000000 1
    sendNeighbour st send own to solicited = do
      let message = Icmp6.NeighbourAdvertisement False solicited True own (Just (tapHardware st))
      known <- if isUnicast to then hardwareOf to <$> readIORef (neighbours cache) else pure (Just (multicastHardware to))
      forM_ known (\hw -> send (packet6 st hw own to message))

packet6 :: TapSettings -> HardwareAddress -> Address -> Address -> Icmp6.Message -> [ByteString]
packet6 s hw own to m = [frameHeader hw (tapHardware s) typeIPv6, V6.encode (V6.plain 58 own to) {V6.hopLimit = 255} (Icmp6.encode own to m)]

-- | Store a neighbour's address, and send the packets that were queued for it.
learn :: TapSettings -> Cache -> ([ByteString] -> IO ()) -> Said -> Address -> HardwareAddress -> IO ()
learn s cache out said a hw = when (isUnicast a && isStation hw) $ do
  t <- now
  waiting <- atomicModifyIORef' (neighbours cache) (said t a hw)
  mapM_ (out . framed s hw) waiting

-- | How a message of a neighbour updates the cache.
type Said = Clock.Instant -> Address -> HardwareAddress -> Neighbours [ByteString] -> (Neighbours [ByteString], [[ByteString]])

-- Sending --------------------------------------------------------------------------------

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
  decision <- atomicModifyIORef' (neighbours cache) (forPacket t own hop parts)
  case decision of
    SendTo hw asked -> out (framed s hw parts) >> mapM_ (ask own hop) asked
    Waits asked -> mapM_ (ask own hop) asked
  where
    ask own hop q = out (question s own hop q) >> askAgain s cache out

-- | Repeat unanswered requests once a second, while there are any.
askAgain :: TapSettings -> Cache -> ([ByteString] -> IO ()) -> IO ()
askAgain s cache out = do
  already <- atomicModifyIORef' (asking cache) (\b -> (True, b))
  unless already (void (Timer.schedule (seconds 1.01) tick))
  where
    -- Runs on a dispatcher, so it must not block.
    tick = do
      writeIORef (asking cache) False
      t <- now
      (questions, others) <- atomicModifyIORef' (neighbours cache) (expire t)
      forM_ questions (\(own, hop, q) -> out (question s own hop q))
      when others (askAgain s cache out)

destinationOf :: ByteString -> Maybe (Address, Address)
destinationOf b
  | B.length b >= 40 && isV6 [b] = Just (v6At b 8, v6At b 24)
  | B.length b >= 20 && not (isV6 [b]) = Just (v4At b 12, v4At b 16)
  | otherwise = Nothing

-- | A request for a neighbour's link-layer address, sent to all nodes or to the neighbour itself.
question :: TapSettings -> Address -> Address -> Question -> [ByteString]
question s own hop q = case hop of
  V4 _ -> [frameHeader (asked broadcastHardware) (tapHardware s) typeArp, encodeArp (Arp ArpRequest (tapHardware s) own (HardwareAddress 0) hop)]
  V6 _ _ -> packet6 s (asked (multicastHardware group)) own to (Icmp6.NeighbourSolicitation hop (Just (tapHardware s)))
  where
    group = solicitedNode hop
    to = case q of AskEverybody -> group; AskOnly _ -> hop
    asked everybody = case q of AskEverybody -> everybody; AskOnly hw -> hw
