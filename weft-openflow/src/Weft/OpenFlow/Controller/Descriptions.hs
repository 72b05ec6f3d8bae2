-- |
-- Which of the ports in a reply of several parts (PORT_DESC of 1.3) still are as the reply says. A switch may report a
-- change of a port by PORT_STATUS between two parts, and what the later part says of this port may be older. The report
-- holds: if the port has changed again since, another one follows. Pure.
--
-- @
--   absent       -> ports {}     a part arrives, and more follow
--   ports s      -> ports s+p    a PORT_STATUS of port p arrives
--                -> ports s      a part arrives, and more follow: its ports that are in s are left out
--                -> absent       the last part arrives, likewise
-- @
module Weft.OpenFlow.Controller.Descriptions
  ( Descriptions,
    noDescriptions,
    statusArrived,
    partArrived,
  )
where

import qualified Data.Map.Strict as Map
import qualified Data.Set as Set
import Weft.OpenFlow.Message
import Weft.OpenFlow.Types

-- | The replies whose first part has arrived and whose last one has not, by transaction ID; for each the ports of which
-- a PORT_STATUS has arrived since.
newtype Descriptions = Descriptions (Map.Map Xid (Set.Set PortNo))

-- | No reply.
noDescriptions :: Descriptions
noDescriptions = Descriptions Map.empty

-- | The maximum numbers of replies, and of ports of each. A switch has reason for neither; further ones are not kept.
mostReplies, mostPorts :: Int
mostReplies = 8
mostPorts = 4096

-- | A PORT_STATUS of this port has arrived.
statusArrived :: PortNo -> Descriptions -> Descriptions
statusArrived p (Descriptions replies) = Descriptions (Map.map (\ps -> if Set.size ps < mostPorts then Set.insert p ps else ps) replies)

-- | A part of a reply has arrived; whether more follow, and its ports. Those that still are as it says.
partArrived :: Xid -> Bool -> [Port] -> Descriptions -> (Descriptions, [Port])
partArrived xid more ports (Descriptions replies) = (Descriptions replies', filter ((`Set.notMember` changed) . portNumber) ports)
  where
    changed = Map.findWithDefault Set.empty xid replies
    replies'
      | not more = Map.delete xid replies
      | Map.member xid replies || Map.size replies >= mostReplies = replies
      | otherwise = Map.insert xid Set.empty replies
