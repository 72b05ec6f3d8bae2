-- |
-- The neighbour cache of an Ethernet link and the lifetime of its entries, for IPv6 (RFC 4861, section 7.3) and
-- for ARP (RFC 826; RFC 1122, section 2.3.2.1). Pure: the time is passed in, and 'expire' must be called once a second
-- while requests are pending.
--
-- @
--   unknown    -> sought       a packet is to be sent: a request goes to all nodes, and the packet is queued
--   sought     -> unknown      three requests, a second apart, got no answer: the queued packets are dropped
--   any        -> confirmed    the neighbour answered a request
--   any        -> heard        the neighbour sent its address unsolicited
--   confirmed  -> heard        after the given time, usually 30 seconds
--   heard      -> probed       a packet is to be sent: it is sent, and the neighbour is probed
--   probed     -> unknown      three requests got no answer; the last one went to all nodes
-- @
--
-- RFC 4861 waits five seconds before the probe, because upper layers may confirm reachability meanwhile. This cache
-- gets no such confirmation, and one probe every 30 seconds is cheap. So a neighbour that has moved is found within
-- three seconds.
module Weft.Tcp.Device.Neighbours
  ( Neighbours,
    noNeighbours,
    neighbourCount,
    maxNeighbours,
    hardwareOf,

    -- * Sending
    Decision (..),
    NeighbourRequest (..),
    forPacket,
    expire,

    -- * Messages of neighbours
    answered,
    announced,
    advertised,
  )
where

import qualified Data.Map.Strict as Map
import qualified Data.Set as Set
import Weft.Core.Time
import Weft.Tcp.Wire.Address

-- | Entries by address, and ordered by the times at which their states end. @p@ is the type of queued packets.
data Neighbours p = Neighbours !(Map.Map Address (Entry p)) !(Set.Set (Instant, Address))

entries :: Neighbours p -> Map.Map Address (Entry p)
entries (Neighbours m _) = m

-- | The time at which the state ends, and the state.
data Entry p = Entry !Instant !(State p)

-- | The state of an entry. 'Sought' and 'Probed' contain the source address of the requests and their number so far;
-- 'Sought' also contains the queued packets in reverse order.
data State p
  = Sought !Address !Int ![p]
  | Confirmed !HardwareAddress
  | Heard !HardwareAddress
  | Probed !Address !HardwareAddress !Int

-- | What to do with a packet.
data Decision
  = -- | Send it to this link-layer address, together with a request if there is one.
    SendTo !HardwareAddress !(Maybe NeighbourRequest)
  | -- | The packet was queued, or dropped because the queue is full.
    Waits !(Maybe NeighbourRequest)
  deriving (Eq, Show)

-- | A request for a neighbour's link-layer address: to all nodes, or to the neighbour.
data NeighbourRequest = Broadcast | Unicast !HardwareAddress
  deriving (Eq, Show)

-- | The empty cache.
noNeighbours :: Neighbours p
noNeighbours = Neighbours Map.empty Set.empty

-- | The number of entries.
neighbourCount :: Neighbours p -> Int
neighbourCount = Map.size . entries

-- | The maximum number of entries. A new entry replaces the one whose state ends first; entries of neighbours that do
-- not answer end first.
maxNeighbours :: Int
maxNeighbours = 1024

-- | The maximum number of packets queued for a neighbour (RFC 1122, section 2.3.2.2, requires at least one).
maxWaiting :: Int
maxWaiting = 4

-- | The neighbour's link-layer address, if it is known.
hardwareOf :: Address -> Neighbours p -> Maybe HardwareAddress
hardwareOf a ns = case Map.lookup a (entries ns) of
  Just (Entry _ s) -> known s
  Nothing -> Nothing

known :: State p -> Maybe HardwareAddress
known s = case s of
  Sought {} -> Nothing
  Confirmed hw -> Just hw
  Heard hw -> Just hw
  Probed _ hw _ -> Just hw

-- | Decide what to do with a packet, which is to be sent from one of our addresses to an address on the link.
forPacket :: Instant -> Address -> Address -> p -> Neighbours p -> (Neighbours p, Decision)
forPacket t own a p ns = case Map.lookup a (entries ns) of
  Nothing -> (put requestTimeout (Sought own 1 [p]), Waits (Just Broadcast))
  Just (Entry end s) -> case s of
    Sought from n ps -> (insert a (Entry end (Sought from n (take maxWaiting (p : ps)))) ns, Waits Nothing)
    Confirmed hw
      | t < end -> (ns, SendTo hw Nothing)
      | otherwise -> probe hw
    Heard hw -> probe hw
    Probed _ hw _ -> (ns, SendTo hw Nothing)
  where
    put d s = insert a (Entry (after d t) s) ns
    probe hw = (put requestTimeout (Probed own hw 1), SendTo hw (Just (Unicast hw)))

-- | Advance the time. Returns the requests that are due, each with our source address and the address in
-- neighbourRequest, and whether more requests will follow.
expire :: Instant -> Neighbours p -> (Neighbours p, ([(Address, Address, NeighbourRequest)], Bool))
expire t ns0 = go ns0 []
  where
    go ns@(Neighbours m q) out = case Set.minView q of
      Just ((end, a), rest)
        | end <= t,
          Just (Entry _ s) <- Map.lookup a m -> case s of
          Sought own n ps | n < maxRequests -> go (insert a (Entry (after requestTimeout t) (Sought own (n + 1) ps)) ns) ((own, a, Broadcast) : out)
          Probed own hw n
            | n < maxRequests -> go (insert a (Entry (after requestTimeout t) (Probed own hw (n + 1))) ns) ((own, a, if n + 1 < maxRequests then Unicast hw else Broadcast) : out)
          Confirmed hw -> go (insert a (Entry (after unusedTime t) (Heard hw)) ns) out
          -- No answer arrived, or the entry was not used.
          _ -> go (Neighbours (Map.delete a m) rest) out
      _ -> (ns, (reverse out, any asking (Map.elems m)))
    asking (Entry _ s) = case s of
      Sought {} -> True
      Probed {} -> True
      _ -> False

-- | Process a neighbour's answer to a request of ours; it is valid for the given time. Returns the queued packets in
-- order. An unsolicited answer about an unknown address changes nothing.
answered :: Duration -> Instant -> Address -> HardwareAddress -> Neighbours p -> (Neighbours p, [p])
answered holds t a hw ns = case Map.lookup a (entries ns) of
  Nothing -> (ns, [])
  Just (Entry _ s) -> (insert a (Entry (after holds t) (Confirmed hw)) ns, waiting s)

-- | Process the link-layer address that a neighbour has sent in a request, to us ('True': create an entry if there is
-- none) or to all nodes. Returns the queued packets in order. A confirmed entry with the same address stays
-- confirmed.
announced :: Bool -> Instant -> Address -> HardwareAddress -> Neighbours p -> (Neighbours p, [p])
announced toUs t a hw ns = case Map.lookup a (entries ns) of
  Nothing
    | toUs -> (heard, [])
    | otherwise -> (ns, [])
  Just (Entry _ s)
    | known s == Just hw -> (ns, [])
    | otherwise -> (heard, waiting s)
  where
    heard = insert a (Entry (after unusedTime t) (Heard hw)) ns

-- | Process a neighbour advertisement (RFC 4861, section 7.2.5), given whether it answers a request and whether it
-- overrides another address that is known. The advertised address may be missing in the answer to a request to the
-- neighbour alone. Returns the neighbour's link-layer address if the advertisement was used, and the queued packets in
-- order. An answer is valid for the given time.
advertised :: Duration -> Bool -> Bool -> Instant -> Address -> Maybe HardwareAddress -> Neighbours p -> (Neighbours p, Maybe (HardwareAddress, [p]))
advertised holds solicited overrides t a told ns = case (Map.lookup a (entries ns) >>= \(Entry _ s) -> known s, told) of
  (Just old, Just new)
    -- The address that is known is doubted, but stays in use.
    | old /= new, not overrides -> (if confirmed then insert a (Entry (after unusedTime t) (Heard old)) ns else ns, Nothing)
  (_, Just new) -> used new
  (Just old, Nothing) | solicited -> used old
  _ -> (ns, Nothing)
  where
    used hw = let (ns', ps) = (if solicited then answered holds else announced False) t a hw ns in (ns', Just (hw, ps))
    confirmed = case Map.lookup a (entries ns) of
      Just (Entry _ (Confirmed _)) -> True
      _ -> False

waiting :: State p -> [p]
waiting s = case s of
  Sought _ _ ps -> reverse ps
  _ -> []

-- | Insert or replace an entry. If the cache is full, the entry that ends first is removed.
insert :: Address -> Entry p -> Neighbours p -> Neighbours p
insert a e@(Entry end _) (Neighbours m q) = case Map.lookup a m of
  Just (Entry old _) -> Neighbours (Map.insert a e m) (Set.insert (end, a) (Set.delete (old, a) q))
  Nothing -> case Set.minView q of
    Just ((_, first), rest) | Map.size m >= maxNeighbours -> Neighbours (Map.insert a e (Map.delete first m)) (Set.insert (end, a) rest)
    _ -> Neighbours (Map.insert a e m) (Set.insert (end, a) q)

-- | The time between requests (RFC 4861, section 10: RETRANS_TIMER), and the lifetime of an unused entry.
requestTimeout, unusedTime :: Duration
requestTimeout = seconds 1
unusedTime = seconds 600

-- | The maximum number of requests (RFC 4861, section 10: MAX_MULTICAST_SOLICIT and MAX_UNICAST_SOLICIT).
maxRequests :: Int
maxRequests = 3
