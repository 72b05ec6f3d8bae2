-- |
-- LISTEN (RFC 9293, section 3.10.7.2), and what protects it: a policy decides for each
-- SYN whether it may take memory, is answered by a cookie that takes none (RFC 4987),
-- or is dropped. Pure.
--
-- @since 0.1.0
module Weft.Tcp.Core.Listener
  ( -- * Policies
    Policy (..),
    Decision (..),
    boundedBacklog,

    -- * The backlog
    Backlog,
    emptyBacklog,
    backlogSize,
    enter,
    leave,

    -- * Cookies
    cookieAnswer,
    fromCookie,
  )
where

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
data Decision = Remember | AnswerWithCookie | Ignore
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
    sources :: !(Map.Map Address Int)
  }

-- | A backlog without connections.
emptyBacklog :: Backlog
emptyBacklog = Backlog 0 Map.empty

source :: Address -> Address
source (V6 a _) = V6 a 0
source a = a

-- | How many of an address's source.
backlogOf :: Address -> Backlog -> Int
backlogOf a b = Map.findWithDefault 0 (source a) (sources b)

-- | Count one connection of a source more (@enter@) or less (@leave@).
enter, leave :: Address -> Backlog -> Backlog
enter a b = Backlog (backlogSize b + 1) (Map.insertWith (+) (source a) 1 (sources b))
leave a b = Backlog (max 0 (backlogSize b - 1)) (Map.update (\n -> if n > 1 then Just (n - 1) else Nothing) (source a) (sources b))

-- | So many in all, so many of a source; beyond either, cookies, but not while so many wait to be accepted.
boundedBacklog :: Int -> Int -> Policy
boundedBacklog most ofSource =
  Policy
    { policyName = "bounded",
      decide = \a b -> if backlogSize b < most && backlogOf a b < ofSource then Remember else AnswerWithCookie,
      cookieLimit = Just most
    }

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
