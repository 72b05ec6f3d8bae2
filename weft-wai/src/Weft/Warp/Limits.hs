-- |
-- How much a client may ask of a server, and the words for what it is refused.
module Weft.Warp.Limits
  ( Limits (..),
    defaultLimits,
    Refusal (..),
    refusalStatus,
    refusalReason,
  )
where

import Network.HTTP.Types
import Weft.Duration (Duration, seconds)

-- | Limits on each client and on all. They stand beside those of Warp's settings:
-- 'Network.Wai.Handler.Warp.setTimeout' is the time in which a client sends each 2 KiB of a
-- body and takes each 128 KiB of a response.
data Limits = Limits
  { -- | Bytes of a request's first line (RFC 9112, 3).
    limitTarget :: !Int,
    -- | Bytes of a request's head in all.
    limitHead :: !Int,
    -- | Fields of a request's head.
    limitFields :: !Int,
    -- | From the first byte of a head to its last, however many come at a time. The
    -- first head of a connection counts from its beginning, and so does what goes before it
    -- (TLS).
    limitHeadTime :: !Duration,
    -- | How long a connection may wait for its next request.
    limitIdle :: !Duration,
    -- | Requests on one connection of HTTP\/1, which is then closed. Not positive: no
    -- limit; so are the next two.
    limitRequests :: !Int,
    -- | Connections in all. When another comes, of those that have no request under way
    -- the nearest to the end of their time are closed; if there are none, the new one is.
    limitConnections :: !Int,
    -- | Connections of one address.
    limitPerAddress :: !Int
  }
  deriving (Eq, Show)

-- | A first line of 8 KiB, a head of 32 KiB and 100 fields in 10 seconds, 60 seconds of
-- waiting, 10,000 requests, 10,000 connections, any number of these from one address
-- (there may be a proxy in front).
defaultLimits :: Limits
defaultLimits =
  Limits
    { limitTarget = 8192,
      limitHead = 32768,
      limitFields = 100,
      limitHeadTime = seconds 10,
      limitIdle = seconds 60,
      limitRequests = 10000,
      limitConnections = 10000,
      limitPerAddress = 0
    }

-- | Why a connection was closed without a request for the application.
data Refusal
  = -- | It is no HTTP, or of the sort that two servers understand differently: a line
    -- that does not end in CRLF, a folded field, a name that is none (a space before the
    -- colon), a zero byte, no host or two, two lengths, a length and a coding.
    BadRequest
  | TargetTooLong
  | HeadTooLarge
  | -- | A transfer coding other than @chunked@.
    UnknownCoding
  | UnknownVersion
  | -- | The head, or the TLS handshake, did not come in time.
    HeadTooSlow
  | -- | The body did not, or the response was not taken.
    ClientTooSlow
  | -- | The TLS handshake failed.
    HandshakeFailed
  | -- | There are as many connections as there may be.
    TooManyConnections
  | TooManyOfAddress
  deriving (Eq, Ord, Show, Enum, Bounded)

-- | What the client is told, if anything.
refusalStatus :: Refusal -> Maybe Status
refusalStatus refusal = case refusal of
  BadRequest -> Just badRequest400
  TargetTooLong -> Just requestURITooLong414
  HeadTooLarge -> Just requestHeaderFieldsTooLarge431
  UnknownCoding -> Just notImplemented501
  UnknownVersion -> Just httpVersionNotSupported505
  HeadTooSlow -> Nothing
  ClientTooSlow -> Nothing
  HandshakeFailed -> Nothing
  TooManyConnections -> Nothing
  TooManyOfAddress -> Nothing

-- | In a word or two, for logs and counters: lower case, joined by underscores.
refusalReason :: Refusal -> String
refusalReason refusal = case refusal of
  BadRequest -> "bad_request"
  TargetTooLong -> "target_too_long"
  HeadTooLarge -> "head_too_large"
  UnknownCoding -> "unknown_coding"
  UnknownVersion -> "unknown_version"
  HeadTooSlow -> "head_too_slow"
  ClientTooSlow -> "client_too_slow"
  HandshakeFailed -> "handshake_failed"
  TooManyConnections -> "too_many_connections"
  TooManyOfAddress -> "too_many_of_address"
