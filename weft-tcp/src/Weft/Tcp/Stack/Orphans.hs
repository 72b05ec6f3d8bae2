-- |
-- The closed connections of a stack whose data the peer has not acknowledged, the oldest first. Pure.
--
-- @since 0.1.0
module Weft.Tcp.Stack.Orphans
  ( Orphans,
    noOrphans,
    adopt,
    forget,
  )
where

import qualified Data.IntMap.Strict as IntMap
import qualified Data.Map.Strict as Map
import Weft.Tcp.Core.Secret (Flow)

-- | Connections of type @s@ by age, and their ages by flow. No two connections of a stack have the same flow.
data Orphans s = Orphans
  { nextAge :: !Int,
    byAge :: !(IntMap.IntMap s),
    ages :: !(Map.Map Flow Int)
  }

-- | No connections.
noOrphans :: Orphans s
noOrphans = Orphans 0 IntMap.empty Map.empty

-- | Add a connection. If there are more than the given number then, the oldest one is removed and returned; it may be
-- the new one. O(log n).
adopt :: Int -> (s -> Flow) -> s -> Orphans s -> (Orphans s, Maybe s)
adopt most flowOf s o = case IntMap.minView (byAge new) of
  Just (oldest, _) | Map.size (ages new) > most -> (forget (flowOf oldest) new, Just oldest)
  _ -> (new, Nothing)
  where
    f = flowOf s
    cleared = forget f o
    new = Orphans (nextAge o + 1) (IntMap.insert (nextAge o) s (byAge cleared)) (Map.insert f (nextAge o) (ages cleared))

-- | Remove the connection of a flow, if there is one.
forget :: Flow -> Orphans s -> Orphans s
forget f o = case Map.lookup f (ages o) of
  Just age -> o {byAge = IntMap.delete age (byAge o), ages = Map.delete f (ages o)}
  Nothing -> o
