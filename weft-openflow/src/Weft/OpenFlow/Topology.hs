-- |
-- The network as a controller knows it: switches, ports, links, hosts, and a spanning tree for flooding. Pure: time
-- is an argument, and a change returns the switches whose applications must be informed.
--
-- A link is discovered when a switch reports a probe (see "Weft.OpenFlow.Lldp") that another switch has sent. A port
-- that has just come up is left out of floods until a link there would have been discovered ('topologySettle'). So the
-- tree excludes a loop of new switches before a packet can circulate in it. A port may have links to several others: a
-- bridge that is not controlled joins them.
--
-- A link is in the tree only while it is known in both directions ('isTwoWay'); a fibre may be broken, or a mirror port
-- may copy the probes. A port that has no other links is blocked. Each direction is removed 'topologyLinkLife' after
-- its last probe, so a link whose other direction is lost stays in the tree for that time at most.
--
-- Where several controllers share a network, the others report the links of the switches that they manage
-- ('linksReported'), so that all compute the same tree, also of switches that are connected to some of them only.
--
-- @since 0.1.0
module Weft.OpenFlow.Topology
  ( -- * The network
    Topology,
    topologySettings,
    Switch (..),
    Host (..),
    Place,
    emptyTopology,
    TopologySettings (..),
    defaultTopologySettings,
    topologySwitches,
    topologyLinks,
    topologyOwnLinks,
    lastProbe,
    isTwoWay,
    topologyHosts,
    topologyTree,
    isBlocked,
    topologySwept,
    topologyVersion,
    flooding,

    -- * Changes
    Changed,
    switchJoined,
    switchLeft,
    portUpdated,
    portRemoved,
    linkSeen,
    linksReported,
    hostSeen,
    revisionRead,
    hostReported,
    hostsUnreported,
    hostGone,
    silentHosts,
    timePassed,
  )
where

import Data.List (foldl')
import qualified Data.Map.Strict as Map
import Data.Maybe (fromMaybe, isNothing)
import Data.Ord (Down (..))
import qualified Data.Set as Set
import Data.Word (Word32, Word64)
import Weft.OpenFlow.App (Flooding (..), Millis)
import Weft.OpenFlow.Lldp (Path (..))
import Weft.OpenFlow.Message
import Weft.OpenFlow.SpanningTree
import Weft.OpenFlow.Types

-- | A connected switch.
data Switch = Switch
  { -- | Its protocol version.
    switchVersion :: !Version,
    -- | Its ports to which hosts or switches can be connected, without features and speeds.
    switchPorts :: !(Map.Map PortNo Port),
    -- | When it connected.
    switchSince :: !Millis
  }
  deriving (Show)

-- | A host.
data Host = Host
  { -- | The port that it is connected to.
    hostPlace :: !Place,
    -- | Its IPv4 address, if known.
    hostIpv4 :: !(Maybe Word32),
    -- | When it was last seen.
    hostSeenAt :: !Millis,
    -- | When it came to this port, in an order that all controllers share: see 'hostReported'.
    hostMoved :: !Word64
  }
  deriving (Eq, Show)

-- | Times and limits; start from 'defaultTopologySettings'.
data TopologySettings = TopologySettings
  { -- | A link is removed after that time without a probe.
    topologyLinkLife :: !Millis,
    -- | A port is left out of floods for that time after it has come up.
    topologySettle :: !Millis,
    -- | The maximum number of hosts.
    topologyMostHosts :: !Int,
    -- | The maximum number of hosts at a port. A host that sends from invented addresses fills only its own port.
    topologyMostHostsOfPort :: !Int,
    -- | The maximum number of hosts at a switch. A switch that invents hosts leaves room for those of others.
    topologyMostHostsOfSwitch :: !Int,
    -- | A host is removed after that time without a packet, at most an eighth of it later; 0: never.
    topologyHostLife :: !Millis,
    -- | The maximum number of ports of a switch. Further ports are ignored. This bounds the size of a message that
    -- floods, and the number of probes that are sent at a time.
    topologyMostPorts :: !Int
  }

-- | Links are kept for 16 seconds, ports settle in one second; a million hosts, 16,384 at a port, 65,536 at a switch,
-- each for 5 minutes; 2,048 ports of a switch.
defaultTopologySettings :: TopologySettings
defaultTopologySettings = TopologySettings 16000 1000 1000000 16384 65536 300000 2048

-- | The network.
data Topology = Topology
  { -- | The settings that it was made with.
    topologySettings :: !TopologySettings,
    -- | The switches.
    topologySwitches :: !(Map.Map DatapathId Switch),
    -- | Links, each direction separately: the sending port, the receiving port, and the time of the last probe.
    links :: !(Map.Map (Place, Place) Millis),
    -- | Those of 'links' that are cables, as LLDP frames have passed, and the time of the last one.
    cables :: !(Map.Map (Place, Place) Millis),
    -- | Links to a switch that has disconnected since, and links that other controllers report no more. They are not in
    -- the tree. But until they expire, nothing is flooded to their ports: another controller may flood over them.
    lapsed :: !(Map.Map (Place, Place) Millis),
    -- | The links that other controllers have reported, and when they last did. They expire together.
    reported :: !(Set.Set (Place, Place)),
    reportedAt :: !Millis,
    -- | The hosts.
    topologyHosts :: !(Map.Map MacAddress Host),
    -- | The addresses of the hosts at each port. Ports without hosts are absent.
    hostsAt :: !(Map.Map Place (Set.Set MacAddress)),
    -- | The number of hosts at each switch. Switches without hosts are absent.
    hostsOn :: !(Map.Map DatapathId Int),
    -- | Ports that are left out of floods for now, ordered by the end of that time.
    settling :: !(Set.Set (Millis, Place)),
    -- | The end of that time, by port.
    settlingAt :: !(Map.Map Place Millis),
    -- | The ports in the spanning tree ("Weft.OpenFlow.SpanningTree").
    topologyTree :: !(Set.Set Place),
    -- | The other ports that have links.
    blocked :: !(Set.Set Place),
    -- | The ports to other switches, by switch.
    trunks :: !(Map.Map DatapathId (Set.Set PortNo)),
    -- | How each switch floods.
    floods :: !(Map.Map DatapathId Flooding),
    -- | When the hosts that were not seen for too long were last removed.
    topologySwept :: !Millis,
    -- | Increases with every change.
    topologyVersion :: !Int,
    -- | The last revision of etcd that was read; 0 without several controllers.
    hostClock :: !Word64
  }

-- | The switches that flood differently or have other paths after a change, and whose applications must be informed.
type Changed = [DatapathId]

-- | No switches.
emptyTopology :: TopologySettings -> Topology
emptyTopology settings =
  Topology
    { topologySettings = settings,
      topologySwitches = Map.empty,
      links = Map.empty,
      cables = Map.empty,
      lapsed = Map.empty,
      reported = Set.empty,
      reportedAt = 0,
      topologyHosts = Map.empty,
      hostsAt = Map.empty,
      hostsOn = Map.empty,
      settling = Set.empty,
      settlingAt = Map.empty,
      topologyTree = Set.empty,
      blocked = Set.empty,
      trunks = Map.empty,
      floods = Map.empty,
      topologySwept = 0,
      topologyVersion = 0,
      hostClock = 0
    }

-- | The links, each direction separately: those of 'topologyOwnLinks' and those that were reported.
topologyLinks :: Topology -> [(Place, Place)]
topologyLinks t
  | Set.null (reported t) = topologyOwnLinks t
  | otherwise = Set.toList (reported t <> Set.fromList (topologyOwnLinks t))

-- | The links whose probes this controller has seen, each direction separately.
topologyOwnLinks :: Topology -> [(Place, Place)]
topologyOwnLinks = Map.keys . links

-- | When this controller last saw a probe of the first port at the second; 'Nothing' if it is not in
-- 'topologyOwnLinks'. O(log links).
lastProbe :: Place -> Place -> Topology -> Maybe Millis
lastProbe from to = Map.lookup (from, to) . links

-- | Whether 'topologyLinks' has the link in both directions. O(log links).
isTwoWay :: Topology -> (Place, Place) -> Bool
isTwoWay t (from, to) = known (from, to) && known (to, from)
  where
    known link = Map.member link (links t) || Set.member link (reported t)

-- | Whether a port has links, but is not in the tree. Packets that arrive there are dropped: their sender also reaches
-- the tree by another port, or the links are known in one direction only. O(log links).
isBlocked :: Place -> Topology -> Bool
isBlocked place = Set.member place . blocked

-- | How a switch floods.
flooding :: DatapathId -> Topology -> Flooding
flooding d = fromMaybe (FloodTo [] []) . Map.lookup d . floods

-- Changes -------------------------------------------------------------------------------

-- | A switch has connected. Its earlier state, if any, is replaced.
switchJoined :: Millis -> DatapathId -> Version -> [Port] -> Topology -> (Topology, Changed)
switchJoined time d version ports t = case switchLeft d t of
  (gone, changed) ->
    let joined = refresh [d] gone {topologySwitches = Map.insert d (Switch version Map.empty time) (topologySwitches gone)}
        add (t', c) p = case portUpdated time d p t' of (t'', c') -> (t'', c' ++ c)
     in foldl' add (joined, filter (/= d) changed) ports

-- | A switch has disconnected: remove it with its links and hosts. The ports at the other ends of the links are left
-- out of floods until the links would have expired.
switchLeft :: DatapathId -> Topology -> (Topology, Changed)
switchLeft d t
  | Map.notMember d (topologySwitches t) = (t, [])
  | otherwise = filter (/= d) <$> replantIfChanged t gone {links = kept, cables = Map.filterWithKey stays (cables gone), lapsed = Map.filterWithKey atConnected (ended <> lapsed gone)}
  where
    (kept, ended) = Map.partitionWithKey stays (links gone)
    stays (from, to) _ = fst from /= d && fst to /= d
    atConnected (from, to) _ = any ((`Map.member` topologySwitches gone) . fst) [from, to]
    gone =
      (withoutHosts (filter ((== d) . fst) (Map.keys (hostsAt t))) t)
        { topologySwitches = Map.delete d (topologySwitches t),
          settling = Set.filter ((/= d) . fst . snd) (settling t),
          settlingAt = Map.filterWithKey (\(d', _) _ -> d' /= d) (settlingAt t),
          floods = Map.delete d (floods t),
          topologyVersion = topologyVersion t + 1
        }

-- | A port was added or has changed. It is ignored if the switch has too many ports, or if its number is reserved and
-- it is not the switch's own network stack.
portUpdated :: Millis -> DatapathId -> Port -> Topology -> (Topology, Changed)
portUpdated time d port t
  | not (isPhysical p || p == portLocal) || Map.notMember d (topologySwitches t) || tooMany = (t, [])
  | portIsDown port = withoutPlace place (unsettled recorded)
  | isUp = (if fmap portIsFlooded old == Just (portIsFlooded port) then recorded else refresh [d] recorded, [])
  | topologySettle (topologySettings t) <= 0 = (refresh [d] recorded, [])
  | otherwise =
    let due = time + topologySettle (topologySettings t)
        waiting = unsettled recorded
     in (refresh [d] waiting {settling = Set.insert (due, place) (settling waiting), settlingAt = Map.insert place due (settlingAt waiting)}, [])
  where
    p = portNumber port
    place = (d, p)
    tooMany = maybe False ((\ports -> Map.notMember p ports && Map.size ports >= topologyMostPorts (topologySettings t)) . switchPorts) (Map.lookup d (topologySwitches t))
    old = Map.lookup d (topologySwitches t) >>= Map.lookup p . switchPorts
    isUp = maybe False (not . portIsDown) old
    unsettled u = u {settling = maybe id (\due -> Set.delete (due, place)) (Map.lookup place (settlingAt u)) (settling u), settlingAt = Map.delete place (settlingAt u)}
    recorded = onSwitch d (\s -> s {switchPorts = Map.insert p (brief port) (switchPorts s)}) t

-- | Without features and speeds, which the topology does not use: they take 140 of a port's 200 bytes.
brief :: Port -> Port
brief port = port {portFeatures = noFeatures, portSpeeds = noSpeeds}

-- | A value that all ports share.
noFeatures :: (Word32, Word32, Word32, Word32)
noFeatures = (0, 0, 0, 0)
{-# NOINLINE noFeatures #-}

noSpeeds :: (Word32, Word32)
noSpeeds = (0, 0)
{-# NOINLINE noSpeeds #-}

-- | A port was removed.
portRemoved :: DatapathId -> PortNo -> Topology -> (Topology, Changed)
portRemoved d p t = withoutPlace (d, p) (onSwitch d (\s -> s {switchPorts = Map.delete p (switchPorts s)}) t)

onSwitch :: DatapathId -> (Switch -> Switch) -> Topology -> Topology
onSwitch d f t = t {topologySwitches = Map.adjust f d (topologySwitches t), topologyVersion = topologyVersion t + 1}

-- | Remove the links and hosts at a port.
withoutPlace :: Place -> Topology -> (Topology, Changed)
withoutPlace place t = withoutLinksAt place (refresh [fst place] (withoutHosts [place] t))

-- | Remove the hosts at these ports.
withoutHosts :: [Place] -> Topology -> Topology
withoutHosts places t =
  t
    { topologyHosts = Map.withoutKeys (topologyHosts t) gone,
      hostsAt = foldr Map.delete (hostsAt t) places,
      hostsOn = foldl' (\counts place -> addHosts (fst place) (negate (Set.size (hostsOf place t))) counts) (hostsOn t) places
    }
  where
    gone = Set.unions (map (`hostsOf` t) places)

-- | Add to the number of hosts at a switch.
addHosts :: DatapathId -> Int -> Map.Map DatapathId Int -> Map.Map DatapathId Int
addHosts d n = Map.alter (\before -> let after = fromMaybe 0 before + n in if after == 0 then Nothing else Just after) d

hostsOf :: Place -> Topology -> Set.Set MacAddress
hostsOf place = Map.findWithDefault Set.empty place . hostsAt

-- | Remove the links that begin or end at a place.
withoutLinksAt :: Place -> Topology -> (Topology, Changed)
withoutLinksAt place t =
  replantIfChanged t t {links = others (links t), cables = others (cables t), lapsed = others (lapsed t), reported = Set.filter elsewhere (reported t)}
  where
    others = Map.filterWithKey (\link _ -> elsewhere link)
    elsewhere (from, to) = from /= place && to /= place

-- | A probe of the first port was received at the second. Hosts that were recorded at the ports of a new link are
-- removed. The first port may belong to a switch that is connected to another controller only.
linkSeen :: Millis -> Path -> Place -> Place -> Topology -> (Topology, Changed)
linkSeen time path from to t
  | from == to || not (known to) || (connected from && not (known from)) = (t, [])
  | Map.member link (links t) = if path == AnyPath || Map.member link (cables t) then (seen t, []) else replant (seen t)
  | otherwise = replant (seen (withoutHosts [from, to] t)) {lapsed = Map.delete link (lapsed t)}
  where
    link = (from, to)
    seen u = u {links = Map.insert link time (links u), cables = if path == Cable then Map.insert link time (cables u) else cables u}
    connected (d, _) = Map.member d (topologySwitches t)
    known (d, p) = maybe False (Map.member p . switchPorts) (Map.lookup d (topologySwitches t))

-- | All links that other controllers report now, each direction separately. They replace those that were reported
-- before, which leave the tree; to the ports of these nothing is flooded before they would have expired. The switches
-- of a link need not be connected to this controller. Hosts that were recorded at their ports are removed.
linksReported :: Millis -> [(Place, Place)] -> Topology -> (Topology, Changed)
linksReported time pairs t
  | new == reported t = (t {reportedAt = time}, [])
  | otherwise = replant (withoutHosts (concat [[from, to] | (from, to) <- Set.toList (new `Set.difference` reported t)]) t) {reported = new, reportedAt = time, lapsed = ended <> lapsed t}
  where
    new = Set.fromList (filter (uncurry (/=)) pairs)
    ended = Map.fromSet (const time) (reported t `Set.difference` new)

-- | A host was seen at a port. 'Nothing' if the port leads to another switch or was not announced, or if there are too
-- many hosts, at the port, at the switch or in all.
hostSeen :: Millis -> MacAddress -> Place -> Maybe Word32 -> Topology -> Maybe Topology
hostSeen time mac place ip t = hostAt time moved mac place ip t
  where
    moved = case Map.lookup mac (topologyHosts t) of
      Just old | hostPlace old == place -> hostMoved old
      Just old -> max (hostClock t) (hostMoved old + 1)
      Nothing -> hostClock t

-- | 'hostSeen', with the order of its move.
hostAt :: Millis -> Word64 -> MacAddress -> Place -> Maybe Word32 -> Topology -> Maybe Topology
hostAt time moved mac place ip t
  | isTrunk place t || not announced = Nothing
  | isNothing before && Map.size (topologyHosts t) >= topologyMostHosts (topologySettings t) = Nothing
  | not known && Set.size (hostsOf place t) >= topologyMostHostsOfPort (topologySettings t) = Nothing
  | not here && Map.findWithDefault 0 (fst place) (hostsOn t) >= topologyMostHostsOfSwitch (topologySettings t) = Nothing
  | Just old <- before, old {hostSeenAt = time} == new = Just t {topologyHosts = Map.insert mac new (topologyHosts t)}
  | otherwise = Just t {topologyHosts = Map.insert mac new (topologyHosts t), hostsAt = places, hostsOn = counts, topologyVersion = topologyVersion t + 1}
  where
    -- The ports of a switch that is connected to another controller only are not known here.
    announced = maybe True (Map.member (snd place) . switchPorts) (Map.lookup (fst place) (topologySwitches t))
    before = Map.lookup mac (topologyHosts t)
    known = fmap hostPlace before == Just place
    here = fmap (fst . hostPlace) before == Just (fst place)
    new = Host place (maybe (before >>= hostIpv4) Just ip) time moved
    places
      | known = hostsAt t
      | otherwise = Map.insertWith Set.union place (Set.singleton mac) (maybe id (Map.update (without mac) . hostPlace) before (hostsAt t))
    counts
      | here = hostsOn t
      | otherwise = addHosts (fst place) 1 (maybe id (\old -> addHosts (fst (hostPlace old)) (-1)) before (hostsOn t))

-- | Remove a host from the hosts of a port; 'Nothing' if it was the last one.
without :: MacAddress -> Set.Set MacAddress -> Maybe (Set.Set MacAddress)
without mac macs = if Set.null rest then Nothing else Just rest
  where
    rest = Set.delete mac macs

-- | The revision of etcd that was read last. Hosts that come to a port from now on are newer.
revisionRead :: Word64 -> Topology -> Topology
revisionRead revision t = t {hostClock = revision}

-- | Another controller reports a host. 'Nothing' if that changes nothing.
--
-- A host that comes to a port is given a number: the last revision of etcd that was read, or a larger one if it was
-- known at another port, one more than it had there. So the number is larger than those of all claims that this
-- controller has read, and the number does not change until the host moves. Of two claims for a host the one with the
-- larger number is newer; if they have the same, all controllers take the one with the smaller place. What this
-- controller has learned itself, at the switches of which it is master, is such a claim, too. It alone decides about
-- its own switches.
hostReported :: Millis -> (DatapathId -> Bool) -> MacAddress -> (Place, Maybe Word32, Word64) -> Topology -> Maybe Topology
hostReported time ours mac (place, ip, moved) t
  | ours (fst place) = Nothing
  | Just h <- known, ours (fst (hostPlace h)), (hostMoved h, Down (hostPlace h)) > (moved, Down place) = Nothing
  -- A host counts as seen while its master knows it. It is updated only after a quarter of its life: otherwise each
  -- round would change each host.
  | Just h <- known, hostPlace h == place, hostMoved h == moved, maybe True ((== hostIpv4 h) . Just) ip, time - hostSeenAt h < topologyHostLife (topologySettings t) `div` 4 = Nothing
  | otherwise = hostAt time moved mac place ip t
  where
    known = Map.lookup mac (topologyHosts t)

-- | The hosts at switches that do not satisfy the predicate, and that are not in the set. O(hosts).
hostsUnreported :: (DatapathId -> Bool) -> Set.Set MacAddress -> Topology -> [(MacAddress, Place)]
hostsUnreported kept reportedNow t =
  [(mac, hostPlace h) | (mac, h) <- Map.toList (topologyHosts t), not (kept (fst (hostPlace h))), Set.notMember mac reportedNow]

-- | Remove a host, if it is still at this port.
hostGone :: MacAddress -> Place -> Topology -> Topology
hostGone mac place t = case Map.lookup mac (topologyHosts t) of
  Just h | hostPlace h == place -> forget (Map.singleton mac h) t
  _ -> t

-- | Remove these hosts.
forget :: Map.Map MacAddress Host -> Topology -> Topology
forget gone t =
  t
    { topologyHosts = topologyHosts t `Map.difference` gone,
      hostsAt = Map.foldlWithKey' leave (hostsAt t) gone,
      hostsOn = Map.foldl' (\counts h -> addHosts (fst (hostPlace h)) (-1) counts) (hostsOn t) gone,
      topologyVersion = topologyVersion t + 1
    }
  where
    leave places mac h = Map.update (without mac) (hostPlace h) places

isTrunk :: Place -> Topology -> Bool
isTrunk (d, p) t = maybe False (Set.member p) (Map.lookup d (trunks t))

-- | The hosts with an IPv4 address that were not seen for half of their life. O(hosts).
silentHosts :: Millis -> Topology -> [(MacAddress, Word32, Place)]
silentHosts time t =
  [(mac, ip, hostPlace h) | life > 0, (mac, h) <- Map.toList (topologyHosts t), time - hostSeenAt h >= life `div` 2, Just ip <- [hostIpv4 h]]
  where
    life = topologyHostLife (topologySettings t)

-- | Remove the hosts that were not seen for too long. This runs eight times in the life of a host, each time in
-- O(hosts).
sweep :: Millis -> Topology -> Topology
sweep time t
  | life <= 0 || time - topologySwept t < life `div` 8 = t
  | Map.null gone = t {topologySwept = time}
  | otherwise = (forget gone t) {topologySwept = time}
  where
    life = topologyHostLife (topologySettings t)
    gone = Map.filter (\h -> time - hostSeenAt h >= life) (topologyHosts t)

-- | Ports settle; links and hosts that were not seen for too long are removed.
timePassed :: Millis -> Topology -> (Topology, Changed)
timePassed time before =
  replantIfChanged settled settled {links = fresh (links settled), cables = fresh (cables settled), lapsed = fresh (lapsed settled), reported = if outdated (reportedAt settled) then Set.empty else reported settled}
  where
    t = sweep time before
    (due, later) = Set.spanAntitone ((<= time) . fst) (settling t)
    settled
      | Set.null due = t
      | otherwise =
        refresh
          (Set.toList (Set.map (fst . snd) due))
          t {settling = later, settlingAt = Map.withoutKeys (settlingAt t) (Set.map snd due), topologyVersion = topologyVersion t + 1}
    fresh = Map.filter (not . outdated)
    outdated seen = time - seen >= topologyLinkLife (topologySettings t)

-- Flooding ------------------------------------------------------------------------------

-- | 'replant' after links were removed from the first topology, if there were any.
replantIfChanged :: Topology -> Topology -> (Topology, Changed)
replantIfChanged old new
  | same links && same cables && same lapsed && Set.size (reported old) == Set.size (reported new) = (new, [])
  | otherwise = replant new
  where
    same field = Map.size (field old) == Map.size (field new)

-- | Compute the tree after a change of the links, and the switches that are concerned.
replant :: Topology -> (Topology, Changed)
replant t = (refresh concerned new, concerned)
  where
    ends = endsOf (topologyLinks t)
    endsOf pairs = Set.fromList (concat [[from, to] | (from, to) <- pairs])
    -- The cables of other controllers are not known; they have the same links in the other direction.
    tree = spanningTree (\link -> Map.member link (links t) && Map.notMember link (cables t)) (filter (isTwoWay t) (topologyLinks t))
    byswitch = Map.fromListWith Set.union [(d, Set.singleton p) | (d, p) <- Set.toList (ends <> endsOf (Map.keys (lapsed t)))]
    new = t {topologyTree = tree, blocked = ends `Set.difference` tree, trunks = byswitch, topologyVersion = topologyVersion t + 1}
    -- A port that leaves the tree also changes paths through switches whose own ports stay in it.
    left = not (topologyTree t `Set.isSubsetOf` tree)
    concerned = [d | d <- Map.keys (byswitch <> trunks t), Map.member d (topologySwitches t), left || Map.lookup d (trunks t) /= Map.lookup d byswitch || treePorts d tree /= treePorts d (topologyTree t)]

treePorts :: DatapathId -> Set.Set Place -> [Place]
treePorts d = Set.toList . Set.takeWhileAntitone ((== d) . fst) . Set.dropWhileAntitone ((< d) . fst)

-- | Compute again how these switches flood.
refresh :: [DatapathId] -> Topology -> Topology
refresh ds t = t {floods = foldl' one (floods t) ds}
  where
    one m d = case Map.lookup d (topologySwitches t) of
      Nothing -> Map.delete d m
      Just s -> Map.insert d (FloodTo (filter (usable d) [p | (p, port) <- Map.toList (switchPorts s), portIsFlooded port]) (Set.toList (trunksOf d))) m
    trunksOf d = Map.findWithDefault Set.empty d (trunks t)
    usable d p
      | Set.member p (trunksOf d) = Set.member (d, p) (topologyTree t)
      | otherwise = Map.notMember (d, p) (settlingAt t)
