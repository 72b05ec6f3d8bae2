{-# LANGUAGE ScopedTypeVariables #-}

-- |
-- The sessions that a server keeps for resumption, with limits on their number and age.
module Weft.Tls.Sessions
  ( Sessions,
    newSessions,
    sessionManager,
  )
where

import Control.Exception (evaluate)
import qualified Data.ByteString as B
import Data.ByteString.Short (ShortByteString, fromShort, toShort)
import Data.IORef
import qualified Data.IntMap.Strict as IntMap
import qualified Data.Map.Strict as Map
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

-- | Sessions by identifier, each with its number and the instant at which it expires; and the identifiers by number, the
-- oldest first.
data Table = Table !(Map.Map ShortByteString (Int, Instant, Compact)) !(IntMap.IntMap ShortByteString)

-- | An empty table with the maximal number of sessions and their maximal age.
newSessions :: Int -> Duration -> IO Sessions
newSessions most life = Sessions most life <$> newIORef (Table Map.empty IntMap.empty)

-- | Abstracts over the result of establishing a session, which differs between versions of the library: nothing, or a
-- ticket that replaces the identifier. Weft issues no tickets.
class Established a where
  established :: a

instance Established () where
  established = ()

instance Established (Maybe a) where
  established = Nothing

-- | A session without references to anything else. As the library makes it, its fields are unevaluated and hold the
-- whole handshake; and its strings are pinned, so that each keeps a block of 4 KiB, full of what else the handshake
-- allocated. Together that is some 30 KB, instead of less than 1 KB.
data Compact
  = Compact
      !SessionData
      -- ^ Evaluated, and without its strings.
      !ShortByteString
      -- ^ The secret.
      !(Maybe ShortByteString)
      -- ^ The protocol that was chosen (ALPN).

compacted :: SessionData -> Compact
compacted session = (rest == rest) `seq` Compact rest (toShort (sessionSecret session)) protocol
  where
    -- To compare all fields is to evaluate them.
    rest = session {sessionSecret = B.empty, sessionALPN = Nothing}
    protocol = case sessionALPN session of
      Nothing -> Nothing
      Just name -> Just $! toShort name

restored :: Compact -> SessionData
restored (Compact rest secret protocol) = rest {sessionSecret = fromShort secret, sessionALPN = fromShort <$> protocol}

-- | The table as the library's session manager. The action runs when a session is found.
sessionManager :: Sessions -> IO () -> SessionManager
sessionManager (Sessions most life table) found =
  noSessionManager
    { sessionResume = \key -> resume (look (toShort key)),
      sessionResumeOnlyOnce = \key -> resume (takeOut (toShort key)),
      sessionEstablish = \key session -> do
        t <- now
        compact <- evaluate (compacted session)
        atomicModifyIORef' table (\kept -> (put (toShort key) (after life t) compact kept, ()))
        pure established,
      sessionInvalidate = \key -> atomicModifyIORef' table (\kept -> (fst (takeOut (toShort key) kept), ()))
    }
  where
    resume step = do
      r <- atomicModifyIORef' table step
      t <- now
      case r of
        Just (_, end, session) | t < end -> Just (restored session) <$ found
        _ -> pure Nothing
    look key kept@(Table sessions _) = (kept, Map.lookup key sessions)
    takeOut key kept@(Table sessions order) = case Map.lookup key sessions of
      Nothing -> (kept, Nothing)
      Just entry@(number, _, _) -> (Table (Map.delete key sessions) (IntMap.delete number order), Just entry)
    -- A session that is established again, after a resumption, keeps its end and its place.
    put key end session kept@(Table sessions order)
      | most <= 0 = kept
      | Just (number, known, _) <- Map.lookup key sessions = Table (Map.insert key (number, known, session) sessions) order
      | otherwise =
        let number = maybe 0 ((+ 1) . fst) (IntMap.lookupMax order)
         in trimmed (Table (Map.insert key (number, end, session) sessions) (IntMap.insert number key order))
    trimmed kept@(Table sessions order)
      | IntMap.size order <= most = kept
      | otherwise = case IntMap.minView order of
        Just (oldest, rest) -> Table (Map.delete oldest sessions) rest
        Nothing -> kept
