-- |
-- The neighbour cache of an Ethernet link and the lifetime of its entries, for IPv6 (RFC 4861, section 7.3) and
-- for ARP (RFC 826; RFC 1122, section 2.3.2.1). Pure: the time is passed in, and 'expire' must be called once a second
-- while requests are pending.
--
-- @
--   unknown    -> sought       a packet is to be sent: a request goes to all nodes, and the packet is queued
--   sought     -> unknown      three requests, a second apart, got no answer: the queued packets are dropped
--   any        -> confirmed    the neighbour answered a request
--   unknown    -> offered      the neighbour asked for us, and no packet was to be sent to it yet
--   others     -> stale        the neighbour sent another address unsolicited
--   confirmed  -> stale        after the given time, usually 30 seconds
--   offered    -> probed       a packet is to be sent: it is sent, and the neighbour is probed
--   stale      -> probed       likewise
--   probed     -> unknown      three requests got no answer; the last one went to all nodes
-- @
--
-- The number of entries is limited, and any station on the link can have entries made: by asking for us, or by packets
-- that we answer. So an idle entry makes room first, and one that is in use last ('insert'; RFC 6583, section 7.1).
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
    Advertisement (..),
    advertised,
  )
where

import qualified Data.Map.Strict as Map
import Data.Maybe (mapMaybe)
import qualified Data.Set as Set
import Weft.Core.Time
import Weft.Tcp.Wire.Address

-- | Entries by address, and those of each rank ordered by the times at which their states end. @p@ is the type of
-- queued packets.
data Neighbours p = Neighbours
  { entries :: !(Map.Map Address (Entry p)),
    ranked :: !(Map.Map Rank (Set.Set (Instant, Address)))
  }

-- | The states, in the order in which their entries make room ('insert').
data Rank = IsOffered | IsStale | IsSought | IsProbed | IsConfirmed
  deriving (Eq, Ord, Enum, Bounded)

rank :: State p -> Rank
rank s = case s of
  Offered _ -> IsOffered
  Stale _ -> IsStale
  Sought {} -> IsSought
  Probed {} -> IsProbed
  Confirmed _ -> IsConfirmed

-- | The time at which the state ends, and the state.
data Entry p = Entry !Instant !(State p)

-- | The state of an entry. 'Sought' and 'Probed' contain the source address of the requests and their number so far;
-- 'Sought' also contains the queued packets in reverse order.
data State p
  = Sought !Address !Int ![p]
  | Confirmed !HardwareAddress
  | Offered !HardwareAddress
  | Stale !HardwareAddress
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
noNeighbours = Neighbours Map.empty Map.empty

-- | The number of entries.
neighbourCount :: Neighbours p -> Int
neighbourCount = Map.size . entries

-- | The maximum number of entries.
maxNeighbours :: Int
maxNeighbours = 1024

-- | So many neighbours can be sought at the same time even if all others are in use.
soughtShare :: Int
soughtShare = 256

-- | The maximum number of packets queued for a neighbour (RFC 1122, section 2.3.2.2, requires at least one).
maxWaiting :: Int
maxWaiting = 4

-- | The neighbour's link-layer address, if it is known.
hardwareOf :: Address -> Neighbours p -> Maybe HardwareAddress
hardwareOf a ns = case Map.lookup a (entries ns) of
  Just (Entry _ s) -> hardwareIn s
  Nothing -> Nothing

hardwareIn :: State p -> Maybe HardwareAddress
hardwareIn s = case s of
  Sought {} -> Nothing
  Confirmed hw -> Just hw
  Offered hw -> Just hw
  Stale hw -> Just hw
  Probed _ hw _ -> Just hw

-- | Decide what to do with a packet, which is to be sent from one of our addresses to an address on the link.
forPacket :: Instant -> Address -> Address -> p -> Neighbours p -> (Neighbours p, Decision)
forPacket t own a p ns = case Map.lookup a (entries ns) of
  Nothing -> (begin (Sought own 1 [p]), Waits (Just Broadcast))
  Just (Entry end s) -> case s of
    Sought from n ps -> (insert t a (Entry end (Sought from n (take maxWaiting (p : ps)))) ns, Waits Nothing)
    Confirmed hw
      | t < end -> (ns, SendTo hw Nothing)
      | otherwise -> probe hw
    Offered hw -> probe hw
    Stale hw -> probe hw
    Probed _ hw _ -> (ns, SendTo hw Nothing)
  where
    begin s = insert t a (Entry (after requestTimeout t) s) ns
    probe hw = (begin (Probed own hw 1), SendTo hw (Just (Unicast hw)))

-- | Advance the time. Returns the requests that are due, each with our source address and the address in
-- neighbourRequest, and whether more requests will follow.
expire :: Instant -> Neighbours p -> (Neighbours p, ([(Address, Address, NeighbourRequest)], Bool))
expire t ns0 = (settled, (requests, any (`Map.member` ranked settled) [IsSought, IsProbed]))
  where
    (settled, requests) = go (staleAfter t ns0) []
    go ns out = case Set.lookupMin (Set.fromList (mapMaybe (`first` ns) [minBound ..])) of
      Just (end, a)
        | end <= t,
          Just (Entry _ s) <- Map.lookup a (entries ns) -> case s of
          Sought own n ps | n < maxRequests -> go (again a (Sought own (n + 1) ps) ns) ((own, a, Broadcast) : out)
          Probed own hw n | n < maxRequests -> go (again a (Probed own hw (n + 1)) ns) ((own, a, if n + 1 < maxRequests then Unicast hw else Broadcast) : out)
          -- No answer arrived, or the entry was not used.
          _ -> go (remove a ns) out
      _ -> (ns, reverse out)
    again a s = put a (Entry (after requestTimeout t) s)

-- | The entry of a rank whose state ends first.
first :: Rank -> Neighbours p -> Maybe (Instant, Address)
first r ns = Map.lookup r (ranked ns) >>= Set.lookupMin

-- | Confirmed entries whose time is over become stale. O(log n) for each.
staleAfter :: Instant -> Neighbours p -> Neighbours p
staleAfter t ns = case first IsConfirmed ns of
  Just (end, a) | end <= t, Just (Entry _ (Confirmed hw)) <- Map.lookup a (entries ns) -> staleAfter t (put a (Entry (after unusedTime end) (Stale hw)) ns)
  _ -> ns

-- | Process a neighbour's answer to a request of ours; it is valid for the given time. Returns the queued packets in
-- order. An unsolicited answer about an unknown address changes nothing.
answered :: Duration -> Instant -> Address -> HardwareAddress -> Neighbours p -> (Neighbours p, [p])
answered holds t a hw ns = case Map.lookup a (entries ns) of
  Nothing -> (ns, [])
  Just (Entry _ s) -> (insert t a (Entry (after holds t) (Confirmed hw)) ns, waiting s)

-- | Process the link-layer address that a neighbour has sent in a request, to us ('True': create an entry if there is
-- none) or to all nodes. Returns the queued packets in order. A confirmed entry with the same address stays
-- confirmed.
announced :: Bool -> Instant -> Address -> HardwareAddress -> Neighbours p -> (Neighbours p, [p])
announced toUs t a hw ns = case Map.lookup a (entries ns) of
  Nothing
    | toUs -> (becomes Offered, [])
    | otherwise -> (ns, [])
  Just (Entry _ s)
    | hardwareIn s == Just hw -> (ns, [])
    | Offered _ <- s -> (becomes Offered, [])
    | otherwise -> (becomes Stale, waiting s)
  where
    becomes heard = insert t a (Entry (after unusedTime t) (heard hw)) ns

-- | A neighbour advertisement (RFC 4861, section 4.4).
data Advertisement = Advertisement
  { -- | Whether it answers a request.
    answersRequest :: !Bool,
    -- | Whether it overrides another link-layer address that is known.
    overridesKnown :: !Bool,
    advertisedAddress :: !Address,
    -- | May be missing in the answer to a request to the neighbour alone.
    advertisedHardware :: !(Maybe HardwareAddress)
  }

-- | Process a neighbour advertisement (RFC 4861, section 7.2.5). Returns the neighbour's link-layer address if the
-- advertisement was used, and the queued packets in order. An answer is valid for the given time.
advertised :: Duration -> Instant -> Advertisement -> Neighbours p -> (Neighbours p, Maybe (HardwareAddress, [p]))
advertised holds t said ns = case (Map.lookup a (entries ns) >>= \(Entry _ s) -> hardwareIn s, advertisedHardware said) of
  (Just old, Just new)
    -- The address that is known is doubted, but stays in use.
    | old /= new, not (overridesKnown said) -> (if confirmed then insert t a (Entry (after unusedTime t) (Stale old)) ns else ns, Nothing)
  (_, Just new) -> used new
  (Just old, Nothing) | answersRequest said -> used old
  _ -> (ns, Nothing)
  where
    a = advertisedAddress said
    used hw = let (ns', ps) = (if answersRequest said then answered holds else announced False) t a hw ns in (ns', Just (hw, ps))
    confirmed = case Map.lookup a (entries ns) of
      Just (Entry _ (Confirmed _)) -> True
      _ -> False

waiting :: State p -> [p]
waiting s = case s of
  Sought _ _ ps -> reverse ps
  _ -> []

-- | Insert or replace an entry. If the cache is full, another makes room: an idle one, first those of stations that
-- asked for us only, then those that were used before; then one that is sought, if they are more than their share; then
-- one that is in use. Among equal ones it is the one whose state ends first. O(log n).
insert :: Instant -> Address -> Entry p -> Neighbours p -> Neighbours p
insert t a e ns
  | Map.member a (entries ns) || neighbourCount ns < maxNeighbours = put a e ns
  | otherwise = put a e (maybe id (remove . snd) victim aged)
  where
    aged = staleAfter t ns
    victim = case Map.lookupMin (Map.filterWithKey (\r _ -> r /= IsSought || crowded) (ranked aged)) of
      Just (_, q) -> Set.lookupMin q
      Nothing -> first IsSought aged
    crowded = maybe 0 Set.size (Map.lookup IsSought (ranked aged)) >= soughtShare

-- | Insert or replace an entry, whatever their number.
put :: Address -> Entry p -> Neighbours p -> Neighbours p
put a e@(Entry end s) ns = Neighbours (Map.insert a e (entries without)) (Map.insertWith Set.union (rank s) (Set.singleton (end, a)) (ranked without))
  where
    without = remove a ns

-- | Remove an entry, if there is one.
remove :: Address -> Neighbours p -> Neighbours p
remove a ns = case Map.lookup a (entries ns) of
  Just (Entry end s) -> Neighbours (Map.delete a (entries ns)) (Map.update (nonEmpty . Set.delete (end, a)) (rank s) (ranked ns))
  Nothing -> ns
  where
    nonEmpty q = if Set.null q then Nothing else Just q

-- | The time between requests (RFC 4861, section 10: RETRANS_TIMER), and the lifetime of an unused entry.
requestTimeout, unusedTime :: Duration
requestTimeout = seconds 1
unusedTime = seconds 600

-- | The maximum number of requests (RFC 4861, section 10: MAX_MULTICAST_SOLICIT and MAX_UNICAST_SOLICIT).
maxRequests :: Int
maxRequests = 3
