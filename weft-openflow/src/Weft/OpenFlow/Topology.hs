-- |
-- The network as a controller knows it: switches, ports, links, hosts, and a spanning tree for flooding. Pure: time is
-- passed in, and changes say which switches have to be told.
--
-- A link is found when a switch reports the LLDP frame that another one was told to send. A port that has just come up
-- is not flooded to until a link there would have been found ('topologySettle'); so a loop of new switches is closed
-- before the first packet runs round in it.
--
-- @since 0.1.0
module Weft.OpenFlow.Topology
  ( -- * The network
    Topology,
    Switch (..),
    Host (..),
    Place,
    emptyTopology,
    TopologySettings (..),
    defaultTopologySettings,
    topologySwitches,
    topologyLinks,
    topologyHosts,
    topologyTree,
    topologyVersion,
    flooding,

    -- * Changes
    Changed,
    switchJoined,
    switchLeft,
    portUpdated,
    portRemoved,
    linkSeen,
    hostSeen,
    timePassed,

    -- * Trees
    spanningTree,
  )
where

import Data.List (foldl')
import qualified Data.Map.Strict as Map
import Data.Maybe (fromMaybe, isNothing)
import qualified Data.Set as Set
import Data.Word (Word32)
import Weft.OpenFlow.App (Flooding (..), Millis)
import Weft.OpenFlow.Message
import Weft.OpenFlow.Types

-- | A port of a switch.
type Place = (DatapathId, PortNo)

-- | A switch that is connected.
data Switch = Switch
  { -- | What it speaks.
    switchVersion :: !Version,
    -- | Its ports that have numbers of their own, without features and speeds.
    switchPorts :: !(Map.Map PortNo Port),
    -- | When it connected.
    switchSince :: !Millis
  }
  deriving (Show)

-- | A host.
data Host = Host
  { -- | Where it is.
    hostPlace :: !Place,
    -- | Its IPv4 address, if one was seen.
    hostIpv4 :: !(Maybe Word32),
    -- | When it was last reported.
    hostSeenAt :: !Millis
  }
  deriving (Eq, Show)

-- | Times.
data TopologySettings = TopologySettings
  { -- | For how long a link is believed in without another LLDP frame.
    topologyLinkLife :: !Millis,
    -- | For how long a port that came up is not flooded to.
    topologySettle :: !Millis,
    -- | The most hosts that are kept.
    topologyMostHosts :: !Int,
    -- | The most hosts that are kept of a port: one that makes addresses up must not take the places of all others.
    topologyMostHostsOfPort :: !Int
  }

-- | Links of 16 seconds, ports that settle in one; a million hosts, 16,384 of a port.
defaultTopologySettings :: TopologySettings
defaultTopologySettings = TopologySettings 16000 1000 1000000 16384

-- | The network.
data Topology = Topology
  { topologySettings :: !TopologySettings,
    -- | The switches.
    topologySwitches :: !(Map.Map DatapathId Switch),
    -- | Links by where they begin, each direction by itself: where it ends, and when it was last seen.
    links :: !(Map.Map Place (Place, Millis)),
    -- | The hosts.
    topologyHosts :: !(Map.Map MacAddress Host),
    -- | Their addresses by port; no port without hosts.
    hostsAt :: !(Map.Map Place (Set.Set MacAddress)),
    -- | Ports that are not flooded to yet, by when they will be.
    settling :: !(Set.Set (Millis, Place)),
    -- | The same by port.
    settlingAt :: !(Map.Map Place Millis),
    -- | The ports of the spanning tree, both ends of each of its links.
    topologyTree :: !(Set.Set Place),
    -- | The ports to other switches, by switch.
    trunks :: !(Map.Map DatapathId (Set.Set PortNo)),
    -- | How to flood, by switch.
    floods :: !(Map.Map DatapathId Flooding),
    -- | Grows with every change.
    topologyVersion :: !Int
  }

-- | The switches that flood otherwise from now on, and have to be told.
type Changed = [DatapathId]

-- | No switches.
emptyTopology :: TopologySettings -> Topology
emptyTopology settings =
  Topology settings Map.empty Map.empty Map.empty Map.empty Set.empty Map.empty Set.empty Map.empty Map.empty 0

-- | Links, each direction by itself.
topologyLinks :: Topology -> [(Place, Place)]
topologyLinks t = [(from, to) | (from, (to, _)) <- Map.toList (links t)]

-- | How a switch floods.
flooding :: DatapathId -> Topology -> Flooding
flooding d = fromMaybe (FloodTo [] []) . Map.lookup d . floods

-- Changes -------------------------------------------------------------------------------

-- | A switch connected; again, if it was there.
switchJoined :: Millis -> DatapathId -> Version -> [Port] -> Topology -> (Topology, Changed)
switchJoined time d version ports t = case switchLeft d t of
  (gone, changed) ->
    let joined = refresh [d] gone {topologySwitches = Map.insert d (Switch version Map.empty time) (topologySwitches gone)}
        add (t', c) p = case portUpdated time d p t' of (t'', c') -> (t'', c' ++ c)
     in foldl' add (joined, filter (/= d) changed) ports

-- | A switch is gone, with its links and hosts.
switchLeft :: DatapathId -> Topology -> (Topology, Changed)
switchLeft d t
  | Map.notMember d (topologySwitches t) = (t, [])
  | otherwise = filter (/= d) <$> withoutLinks ((== d) . fst) gone
  where
    gone =
      (withoutHosts (filter ((== d) . fst) (Map.keys (hostsAt t))) t)
        { topologySwitches = Map.delete d (topologySwitches t),
          settling = Set.filter ((/= d) . fst . snd) (settling t),
          settlingAt = Map.filterWithKey (\(d', _) _ -> d' /= d) (settlingAt t),
          floods = Map.delete d (floods t),
          trunks = Map.delete d (trunks t),
          topologyVersion = topologyVersion t + 1
        }

-- | A port is new or has changed.
portUpdated :: Millis -> DatapathId -> Port -> Topology -> (Topology, Changed)
portUpdated time d port t
  | not (isPhysical p) || Map.notMember d (topologySwitches t) = (t, [])
  | portIsDown port = withoutPlace place (unsettled recorded)
  | isUp = (recorded, [])
  | topologySettle (topologySettings t) <= 0 = (refresh [d] recorded, [])
  | otherwise =
    let due = time + topologySettle (topologySettings t)
        waiting = unsettled recorded
     in (refresh [d] waiting {settling = Set.insert (due, place) (settling waiting), settlingAt = Map.insert place due (settlingAt waiting)}, [])
  where
    p = portNumber port
    place = (d, p)
    isUp = maybe False (not . portIsDown) (Map.lookup d (topologySwitches t) >>= Map.lookup p . switchPorts)
    unsettled u = u {settling = maybe id (\due -> Set.delete (due, place)) (Map.lookup place (settlingAt u)) (settling u), settlingAt = Map.delete place (settlingAt u)}
    recorded = onSwitch d (\s -> s {switchPorts = Map.insert p (brief port) (switchPorts s)}) t

-- | Without its features and speeds, of which the topology makes nothing: they are 140 bytes of a port's 200.
brief :: Port -> Port
brief port = port {portFeatures = noFeatures, portSpeeds = noSpeeds}

-- | The same ones for all ports.
noFeatures :: (Word32, Word32, Word32, Word32)
noFeatures = (0, 0, 0, 0)
{-# NOINLINE noFeatures #-}

noSpeeds :: (Word32, Word32)
noSpeeds = (0, 0)
{-# NOINLINE noSpeeds #-}

-- | A port is gone.
portRemoved :: DatapathId -> PortNo -> Topology -> (Topology, Changed)
portRemoved d p t = withoutPlace (d, p) (onSwitch d (\s -> s {switchPorts = Map.delete p (switchPorts s)}) t)

onSwitch :: DatapathId -> (Switch -> Switch) -> Topology -> Topology
onSwitch d f t = t {topologySwitches = Map.adjust f d (topologySwitches t), topologyVersion = topologyVersion t + 1}

-- | Without the links and hosts at a port.
withoutPlace :: Place -> Topology -> (Topology, Changed)
withoutPlace place t = withoutLinks (== place) (refresh [fst place] (withoutHosts [place] t))

-- | Without the hosts at these ports.
withoutHosts :: [Place] -> Topology -> Topology
withoutHosts places t = t {topologyHosts = Map.withoutKeys (topologyHosts t) gone, hostsAt = foldr Map.delete (hostsAt t) places}
  where
    gone = Set.unions (map (`hostsOf` t) places)

hostsOf :: Place -> Topology -> Set.Set MacAddress
hostsOf place = Map.findWithDefault Set.empty place . hostsAt

-- | Without the links that begin or end at such a place.
withoutLinks :: (Place -> Bool) -> Topology -> (Topology, Changed)
withoutLinks at t
  | Map.size kept == Map.size (links t) = (t, [])
  | otherwise = replant t {links = kept}
  where
    kept = Map.filterWithKey (\from (to, _) -> not (at from || at to)) (links t)

-- | The first port's LLDP frame came in at the second. Hosts that were thought to be there are none.
linkSeen :: Millis -> Place -> Place -> Topology -> (Topology, Changed)
linkSeen time from to t
  | from == to || not (known from && known to) = (t, [])
  | fmap fst (Map.lookup from (links t)) == Just to = (t {links = Map.insert from (to, time) (links t)}, [])
  | otherwise = replant (withoutHosts [from, to] t) {links = Map.insert from (to, time) (links t)}
  where
    known (d, p) = maybe False (Map.member p . switchPorts) (Map.lookup d (topologySwitches t))

-- | A host was seen at a port. Nothing if other switches are behind that port, or there are too many hosts, there or at all.
hostSeen :: Millis -> MacAddress -> Place -> Maybe Word32 -> Topology -> Maybe Topology
hostSeen time mac place ip t
  | isTrunk place t = Nothing
  | isNothing before && Map.size (topologyHosts t) >= topologyMostHosts (topologySettings t) = Nothing
  | not known && Set.size (hostsOf place t) >= topologyMostHostsOfPort (topologySettings t) = Nothing
  | Just old <- before, old {hostSeenAt = time} == new = Just t {topologyHosts = Map.insert mac new (topologyHosts t)}
  | otherwise = Just t {topologyHosts = Map.insert mac new (topologyHosts t), hostsAt = places, topologyVersion = topologyVersion t + 1}
  where
    before = Map.lookup mac (topologyHosts t)
    known = fmap hostPlace before == Just place
    new = Host place (maybe (before >>= hostIpv4) Just ip) time
    places
      | known = hostsAt t
      | otherwise = Map.insertWith Set.union place (Set.singleton mac) (maybe id (Map.update left . hostPlace) before (hostsAt t))
    left macs = let rest = Set.delete mac macs in if Set.null rest then Nothing else Just rest

isTrunk :: Place -> Topology -> Bool
isTrunk (d, p) t = maybe False (Set.member p) (Map.lookup d (trunks t))

-- | Ports settle, and links that were not seen for too long go.
timePassed :: Millis -> Topology -> (Topology, Changed)
timePassed time t
  | Map.size kept == Map.size (links settled) = (settled, [])
  | otherwise = replant settled {links = kept}
  where
    (due, later) = Set.spanAntitone ((<= time) . fst) (settling t)
    settled
      | Set.null due = t
      | otherwise =
        refresh
          (Set.toList (Set.map (fst . snd) due))
          t {settling = later, settlingAt = Map.withoutKeys (settlingAt t) (Set.map snd due), topologyVersion = topologyVersion t + 1}
    kept = Map.filter (\(_, seen) -> time - seen < topologyLinkLife (topologySettings t)) (links settled)

-- Flooding ------------------------------------------------------------------------------

-- | After a change of the links: the tree, and who floods otherwise.
replant :: Topology -> (Topology, Changed)
replant t = (refresh concerned new, concerned)
  where
    ends = Set.fromList (concat [[from, to] | (from, (to, _)) <- Map.toList (links t)])
    tree = spanningTree [(from, to) | (from, (to, _)) <- Map.toList (links t)]
    byswitch = Map.fromListWith Set.union [(d, Set.singleton p) | (d, p) <- Set.toList ends]
    new = t {topologyTree = tree, trunks = byswitch, topologyVersion = topologyVersion t + 1}
    differing =
      [d | (d, ps) <- Map.toList byswitch, Map.lookup d (trunks t) /= Just ps]
        ++ [d | d <- Map.keys (trunks t), Map.notMember d byswitch]
        ++ [d | (d, _) <- Set.toList tree ++ Set.toList (topologyTree t), treePorts d tree /= treePorts d (topologyTree t)]
    concerned = filter (`Map.member` topologySwitches t) (Set.toList (Set.fromList differing))

treePorts :: DatapathId -> Set.Set Place -> [Place]
treePorts d = Set.toList . Set.takeWhileAntitone ((== d) . fst) . Set.dropWhileAntitone ((< d) . fst)

-- | Work out again how these switches flood.
refresh :: [DatapathId] -> Topology -> Topology
refresh ds t = t {floods = foldl' one (floods t) ds}
  where
    one m d = case Map.lookup d (topologySwitches t) of
      Nothing -> Map.delete d m
      Just s -> Map.insert d (FloodTo (filter (usable d) [p | (p, port) <- Map.toList (switchPorts s), not (portIsDown port)]) (Set.toList (trunksOf d))) m
    trunksOf d = Map.findWithDefault Set.empty d (trunks t)
    usable d p
      | Set.member p (trunksOf d) = Set.member (d, p) (topologyTree t)
      | otherwise = Map.notMember (d, p) (settlingAt t)

-- | A spanning tree of each part of a graph of links: both ends of its links. The smallest switch is the root, and every
-- other one is as near to it as it can be (breadth first); so the tree depends on the graph only. O(links x log links).
spanningTree :: [(Place, Place)] -> Set.Set Place
spanningTree pairs = snd (foldl' plant (Set.empty, Set.empty) (Map.keys neighbours))
  where
    neighbours = Map.fromListWith Set.union [(fst a, Set.singleton (a, b)) | (x, y) <- pairs, (a, b) <- [(x, y), (y, x)]]
    plant (seen, tree) root
      | Set.member root seen = (seen, tree)
      | otherwise = grow (Set.insert root seen) tree [root]
    grow seen tree [] = (seen, tree)
    grow seen tree level = grow seen' tree' (reverse next)
      where
        (seen', tree', next) = foldl' reach (seen, tree, []) [edge | d <- level, edge <- Set.toList (Map.findWithDefault Set.empty d neighbours)]
    reach (seen, tree, next) (a, b)
      | Set.member (fst b) seen = (seen, tree, next)
      | otherwise = (Set.insert (fst b) seen, Set.insert a (Set.insert b tree), fst b : next)
