{-# LANGUAGE ScopedTypeVariables #-}

-- |
-- The sessions that a server keeps for resumption, with limits on their number and age.
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
      -- ^ The maximal number; the oldest are dropped first.
      !Duration
      -- ^ How long a session is kept.
      !(IORef Table)

-- | Sessions by identifier, with the instant at which they expire; and the identifiers, the oldest first. An identifier
-- that was removed from the map may still be in the sequence, whose length is limited too.
data Table = Table !(Map.Map SessionID (Instant, SessionData)) !(Seq.Seq SessionID)

-- | An empty table with the maximal number of sessions and their maximal age.
newSessions :: Int -> Duration -> IO Sessions
newSessions most life = Sessions most life <$> newIORef (Table Map.empty Seq.empty)

-- | Abstracts over the result of establishing a session, which differs between versions of the library: nothing, or a
-- ticket that replaces the identifier. Weft issues no tickets.
class Established a where
  established :: a

instance Established () where
  established = ()

instance Established (Maybe a) where
  established = Nothing

-- | The table as the library's session manager. The action runs when a session is found.
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
