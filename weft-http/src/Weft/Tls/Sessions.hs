{-# LANGUAGE ScopedTypeVariables #-}

-- |
-- Sessions that a server keeps so that clients can resume them, with limits on their number and age.
module Weft.Tls.Sessions
  ( Sessions,
    newSessions,
    sessionManager,
  )
where

import Data.IORef
import qualified Data.Map.Strict as Map
import qualified Data.Sequence as Seq
import Network.TLS
import Weft.Core.Time (Duration, Instant, after)
import Weft.Sys (now)

-- | A table of sessions, changed by all handshakes.
data Sessions
  = Sessions
      !Int
      -- ^ The most that are kept; the oldest go first.
      !Duration
      -- ^ How long each is kept.
      !(IORef Table)

-- | By identifier, with the end of its life; identifiers from the oldest on. One that was taken out of the map
-- may still be in the sequence, which is never longer than the most.
data Table = Table !(Map.Map SessionID (Instant, SessionData)) !(Seq.Seq SessionID)

-- | An empty table with a maximal number of sessions, and their maximal age.
newSessions :: Int -> Duration -> IO Sessions
newSessions most life = Sessions most life <$> newIORef (Table Map.empty Seq.empty)

-- | The result of establishing a session differs between versions of the library: none, or a ticket that replaces
-- the identifier. Weft makes no tickets.
class Established a where
  established :: a

instance Established () where
  established = ()

instance Established (Maybe a) where
  established = Nothing

-- | The library's view of the table. The action runs when a session is found.
sessionManager :: Sessions -> IO () -> SessionManager
sessionManager (Sessions most life table) found =
  noSessionManager
    { sessionResume = \key -> resume (look key),
      sessionResumeOnlyOnce = \key -> resume (takeOut key),
      sessionEstablish = \key session -> do
        t <- now
        atomicModifyIORef' table (\kept -> (put key (after life t, session) kept, ()))
        pure established,
      sessionInvalidate = \key -> atomicModifyIORef' table (\kept -> (fst (takeOut key kept), ()))
    }
  where
    resume step = do
      r <- atomicModifyIORef' table step
      t <- now
      case r of
        Just (end, session) | t < end -> Just session <$ found
        _ -> pure Nothing
    look key kept@(Table sessions _) = (kept, Map.lookup key sessions)
    takeOut key (Table sessions order) = (Table (Map.delete key sessions) order, Map.lookup key sessions)
    put key entry (Table sessions order)
      | most <= 0 = Table sessions order
      | Seq.length order >= most = case Seq.viewl order of
        oldest Seq.:< rest -> Table (Map.insert key entry (Map.delete oldest sessions)) (rest Seq.|> key)
        Seq.EmptyL -> Table (Map.insert key entry sessions) (order Seq.|> key)
      | otherwise = Table (Map.insert key entry sessions) (order Seq.|> key)
