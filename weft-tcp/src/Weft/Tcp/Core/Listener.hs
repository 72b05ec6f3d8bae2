-- |
-- LISTEN (RFC 9293, section 3.10.7.2), and what protects it: a policy decides for each
-- SYN whether it may take memory, takes that of an older one, is answered by a cookie that takes none (RFC 4987), or is
-- dropped. Pure.
--
-- @since 0.1.0
module Weft.Tcp.Core.Listener
  ( -- * Policies
    Policy (..),
    Decision (..),
    boundedBacklog,
    evictingBacklog,

    -- * The backlog
    Backlog,
    emptyBacklog,
    backlogSize,
    enter,
    leave,
    opened,
    oldestHalfOpen,

    -- * Cookies
    cookieAnswer,
    fromCookie,
  )
where

import qualified Data.IntMap.Strict as IntMap
import qualified Data.Map.Strict as Map
import Data.Maybe (isJust)
import Data.Word (Word32)
import Weft.Tcp.Core.Config
import Weft.Tcp.Core.Open
import Weft.Tcp.Core.Secret
import Weft.Tcp.Core.State (Conn)
import Weft.Tcp.Core.Time
import Weft.Tcp.Wire.Address
import Weft.Tcp.Wire.Options
import Weft.Tcp.Wire.Segment

-- | What becomes of a SYN.
data Decision
  = -- | It opens a connection.
    Remember
  | -- | It opens a connection, and the listener's oldest half-open one is aborted (RFC 4987, section 3.4). It is ignored
    -- if none is half open, as all wait to be accepted.
    Evict
  | -- | It is answered, and not remembered.
    AnswerWithCookie
  | Ignore
  deriving (Eq, Show)

-- | A listener's policy.
data Policy = Policy
  { policyName :: !String,
    -- | For a SYN from an address.
    decide :: !(Address -> Backlog -> Decision),
    -- | The number of open connections waiting to be accepted from which on a cookie opens no further one. 'Nothing':
    -- cookies are not used.
    cookieLimit :: !(Maybe Int)
  }

-- | Connections that are not yet accepted, half open or open, and how many of each
-- source (an IPv4 address, an IPv6 network of 64 bits).
data Backlog = Backlog
  { -- | How many connections, of all sources.
    backlogSize :: !Int,
    sources :: !(Map.Map Address Int),
    -- | The half-open ones in the order of their arrival, and the numbers of their arrivals.
    halfOpen :: !(IntMap.IntMap Flow),
    arrivals :: !(Map.Map Flow Int),
    nextArrival :: !Int
  }

-- | A backlog without connections.
emptyBacklog :: Backlog
emptyBacklog = Backlog 0 Map.empty IntMap.empty Map.empty 0

source :: Address -> Address
source (V6 a _) = V6 a 0
source a = a

-- | How many of an address's source.
backlogOf :: Address -> Backlog -> Int
backlogOf a b = Map.findWithDefault 0 (source a) (sources b)

-- | Count one connection more (@enter@), which is half open, or less (@leave@). O(log n).
enter, leave :: Flow -> Backlog -> Backlog
enter f b
  | Map.member f (arrivals b) = counted
  | otherwise = counted {halfOpen = IntMap.insert n f (halfOpen b), arrivals = Map.insert f n (arrivals b), nextArrival = n + 1}
  where
    n = nextArrival b
    counted = b {backlogSize = backlogSize b + 1, sources = Map.insertWith (+) (source (remoteAddress f)) 1 (sources b)}
leave f b = (opened f b) {backlogSize = max 0 (backlogSize b - 1), sources = Map.update less (source (remoteAddress f)) (sources b)}
  where
    less n = if n > 1 then Just (n - 1) else Nothing

-- | The connection is no longer half open, and stays in the backlog. O(log n).
opened :: Flow -> Backlog -> Backlog
opened f b = case Map.lookup f (arrivals b) of
  Just n -> b {halfOpen = IntMap.delete n (halfOpen b), arrivals = Map.delete f (arrivals b)}
  Nothing -> b

-- | The half-open connection that arrived first. O(log n).
oldestHalfOpen :: Backlog -> Maybe Flow
oldestHalfOpen b = snd <$> IntMap.lookupMin (halfOpen b)

-- | So many in all, so many of a source; beyond either, cookies, but not while so many wait to be accepted.
boundedBacklog :: Int -> Int -> Policy
boundedBacklog most ofSource =
  Policy
    { policyName = "bounded",
      decide = \a b -> if backlogSize b < most && backlogOf a b < ofSource then Remember else AnswerWithCookie,
      cookieLimit = Just most
    }

-- | Without cookies, which lose the options of peers without timestamps: so many in all, so many of a source. Beyond
-- the first limit the oldest half-open connection makes room; beyond the second a SYN is ignored. Under a flood from
-- many sources, clients are served whose handshake takes less time than the backlog takes to be replaced.
evictingBacklog :: Int -> Int -> Policy
evictingBacklog most ofSource = Policy "evicting" decision Nothing
  where
    decision a b
      | backlogOf a b >= ofSource = Ignore
      | backlogSize b < most = Remember
      | otherwise = Evict

-- | The SYN and ACK that remembers a SYN in its sequence number and timestamp.
cookieAnswer :: Env -> Secret -> Flow -> Segment -> Segment
cookieAnswer env secret flow s =
  Segment
    { seqNumber = cookieFor secret (now env) flow (seqNumber s) mss,
      ackNumber = seqNumber s + 1,
      flags = syn <> ack,
      window = fromIntegral (min 65535 (receiveBuffer cfg)),
      urgentPointer = 0,
      options =
        Options
          { maximumSegmentSize = Just (fromIntegral (announcedMss cfg)),
            windowScale = if isJust stamps && offerScale cfg && isJust (windowScale offered) then Just (fromIntegral (scaleFor (receiveBuffer cfg))) else Nothing,
            sackPermitted = isJust stamps && offerSack cfg && sackPermitted offered,
            timestamps = stamps,
            sackBlocks = []
          },
      payload = []
    }
  where
    cfg = config env
    offered = options s
    mss = maybe 536 fromIntegral (maximumSegmentSize offered)
    promise = Promise mss (windowScale offered) (sackPermitted offered)
    stamps = case timestamps offered of
      Just (Timestamps v _) | offerTimestamps cfg -> Just (Timestamps (promiseStamp (stampAt env (offsetFor secret flow)) promise) v)
      _ -> Nothing

-- | The connection that an ACK with one of our cookies belongs to; the ACK is then to
-- arrive at it. Nothing of the SYN was kept: it is made up from what the cookie says.
fromCookie :: Env -> Secret -> Flow -> Opening -> Segment -> Maybe Conn
fromCookie env secret flow o s
  | not (has ack (flags s)) || has syn (flags s) || has rst (flags s) = Nothing
  | otherwise = do
    mss <- readCookie secret (now env) flow (seqNumber s - 1) (ackNumber s - 1)
    let promise = case timestamps (options s) of
          Just (Timestamps _ e) -> readStamp mss e
          Nothing -> Promise mss Nothing False
        made =
          s
            { seqNumber = seqNumber s - 1,
              flags = syn,
              options =
                Options
                  { maximumSegmentSize = Just (fromIntegral mss),
                    windowScale = promisedScale promise,
                    sackPermitted = promisedSack promise,
                    timestamps = (\(Timestamps v _) -> Timestamps v 0) <$> timestamps (options s),
                    sackBlocks = []
                  },
              payload = []
            }
    pure (establishedFrom env o {initialSequence = ackNumber s - 1} made)

stampAt :: Env -> Word32 -> Word32
stampAt env offset = let Instant t = now env in fromIntegral (t `div` 1000) + offset
