-- |
-- Spanning trees for flooding. Pure.
--
-- Links are grouped into segments: two ports belong to one segment if a link joins them, or if links join both to the
-- same port. A cable is a segment of two ports. A bridge or a network that is not controlled joins the ports around it
-- to one segment, at which there may be hosts, too.
--
-- As in IEEE 802.1D, one switch floods into each segment of the tree (its port is the designated port), and each other
-- switch uses at most one port to reach the tree. The other ports at a segment are blocked. Nothing is flooded into a
-- cable that is not in the tree: there is no host at it.
--
-- @since 0.1.0
module Weft.OpenFlow.SpanningTree
  ( Place,
    spanningTree,
  )
where

import Data.List (foldl')
import qualified Data.Map.Strict as Map
import qualified Data.Set as Set
import Weft.OpenFlow.Types

-- | A port of a switch.
type Place = (DatapathId, PortNo)

-- | A spanning tree of each component of a network, as the set of its ports. The first argument is true of a link that
-- passes a bridge, so that there may be hosts between its ends; the second is the links. The root is the switch with
-- the smallest datapath ID, and the tree is found breadth first, so it depends on the network only. O(links x log
-- links).
spanningTree :: ((Place, Place) -> Bool) -> [(Place, Place)] -> Set.Set Place
spanningTree bridged pairs = treeOf (foldl' plant (Growing Set.empty Set.empty Set.empty) (Map.keys placesOf))
  where
    segments = Map.fromList (zip [0 :: Int ..] (segmentsOf pairs))
    segmentAt = Map.fromList [(place, i) | (i, places) <- Map.toList segments, place <- Set.toList places]
    placesOf = Map.fromListWith Set.union [(fst place, Set.singleton place) | place <- Map.keys segmentAt]
    -- Hosts may be at these segments.
    shared =
      Set.fromList [segmentAt Map.! from | link@(from, _) <- pairs, bridged link]
        <> Map.keysSet (Map.filter ((> 2) . Set.size) segments)
    plant growing root
      | Set.member root (reached growing) = growing
      | otherwise = grow growing {reached = Set.insert root (reached growing)} [root]
    grow growing [] = growing
    grow growing level = case foldl' enter (growing, []) [place | d <- level, place <- Set.toList (Map.findWithDefault Set.empty d placesOf)] of
      (growing', next) -> grow growing' (reverse next)
    -- Reach the segment at a port, and the switches at it.
    enter (growing, next) place
      | Set.member segment (entered growing) = (growing, next)
      | Set.null new && Set.notMember segment shared = (growing {entered = Set.insert segment (entered growing)}, next)
      | otherwise =
        ( Growing (reached growing <> Set.map fst new) (Set.insert segment (entered growing)) (Set.insert place (treeOf growing <> new)),
          reverse (map fst (Set.toList new)) ++ next
        )
      where
        segment = segmentAt Map.! place
        -- Of each switch that was not reached, its first port.
        new = Set.fromList (Map.toList (Map.fromListWith min [p | p@(d, _) <- Set.toList (segments Map.! segment), Set.notMember d (reached growing)]))

-- | A tree that is found: its switches, its segments and its ports.
data Growing = Growing
  { reached :: !(Set.Set DatapathId),
    entered :: !(Set.Set Int),
    treeOf :: !(Set.Set Place)
  }

-- | The segments of links, ordered by their first ports.
segmentsOf :: [(Place, Place)] -> [Set.Set Place]
segmentsOf pairs = go Set.empty (Map.keys neighbours)
  where
    neighbours = Map.fromListWith Set.union [(a, Set.singleton b) | (x, y) <- pairs, (a, b) <- [(x, y), (y, x)]]
    go _ [] = []
    go seen (place : places)
      | Set.member place seen = go seen places
      | otherwise = let segment = around (Set.singleton place) [place] in segment : go (seen <> segment) places
    around found [] = found
    around found (place : places) =
      let new = Map.findWithDefault Set.empty place neighbours `Set.difference` found
       in around (found <> new) (Set.toList new ++ places)
