-- |
-- Limits on what clients may ask of a server, and the reasons for which requests and connections are refused.
module Weft.Http.Limits
  ( -- * Limits
    Limits (..),
    defaultLimits,

    -- * Refusals
    Refusal (..),
    refusalStatus,
    refusalReason,
  )
where

import Network.HTTP.Types
import Weft.Duration (Duration, seconds)

-- | Limits on each client and on all of them. A count of zero or less is no limit.
-- 'Weft.Http.setTimeout' is a further limit: the time in which a client has to send each 2 KiB of a body
-- and to take each 128 KiB of a response.
data Limits = Limits
  { -- | Bytes of a request line with its CRLF (RFC 9112, 3).
    limitTarget :: !Int,
    -- | Bytes of a request's head, with the empty line at its end.
    limitHead :: !Int,
    -- | Fields of a request's head, and of the trailer section of a chunked body.
    limitFields :: !Int,
    -- | The time from the first byte of a head to its last. For the
    -- first head of a connection, and for a TLS handshake, it begins with the accept.
    limitHeadTime :: !Duration,
    -- | How long a connection may wait for its next request.
    limitIdle :: !Duration,
    -- | Requests on one connection of HTTP\/1, which is then closed.
    limitRequests :: !Int,
    -- | Connections in all. When there is one more, the idle ones that are nearest to
    -- their deadlines are closed; if none is idle, the new one is refused.
    limitConnections :: !Int,
    -- | Connections of one IPv4 address, or of one IPv6 network of 64 bits.
    limitPerAddress :: !Int
  }
  deriving (Eq, Show)

-- | A request line of 8 KiB, a head of 32 KiB and 100 fields in 10 seconds, 60 seconds between
-- requests, 10,000 requests on a connection, 10,000 connections, any number of them from one address (since there
-- may be a proxy in front).
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
  = -- | It is not HTTP, or it is ambiguous: two servers could read it differently.
    BadRequest
  | TargetTooLong
  | HeadTooLarge
  | -- | A transfer coding other than @chunked@.
    UnknownCoding
  | UnknownVersion
  | -- | An @Expect@ field with anything but @100-continue@.
    UnknownExpectation
  | -- | The head, or the TLS handshake, did not come in time.
    HeadTooSlow
  | -- | The body did not come in time, or the response was not taken.
    ClientTooSlow
  | -- | The TLS handshake failed.
    HandshakeFailed
  | -- | There are as many connections as allowed.
    TooManyConnections
  | TooManyOfAddress
  | -- | A client of HTTP\/2 did more than a limit allows: streams, resets, frames without a use.
    LimitExceeded
  deriving (Eq, Ord, Show, Enum, Bounded)

-- | The status that the client is sent, if any.
refusalStatus :: Refusal -> Maybe Status
refusalStatus refusal = case refusal of
  BadRequest -> Just badRequest400
  TargetTooLong -> Just requestURITooLong414
  HeadTooLarge -> Just requestHeaderFieldsTooLarge431
  UnknownCoding -> Just notImplemented501
  UnknownVersion -> Just httpVersionNotSupported505
  UnknownExpectation -> Just expectationFailed417
  HeadTooSlow -> Nothing
  ClientTooSlow -> Nothing
  HandshakeFailed -> Nothing
  TooManyConnections -> Nothing
  TooManyOfAddress -> Nothing
  LimitExceeded -> Nothing

-- | A name for logs and counters: lower-case words, joined by underscores.
refusalReason :: Refusal -> String
refusalReason refusal = case refusal of
  BadRequest -> "bad_request"
  TargetTooLong -> "target_too_long"
  HeadTooLarge -> "head_too_large"
  UnknownCoding -> "unknown_coding"
  UnknownVersion -> "unknown_version"
  UnknownExpectation -> "unknown_expectation"
  HeadTooSlow -> "head_too_slow"
  ClientTooSlow -> "client_too_slow"
  HandshakeFailed -> "handshake_failed"
  TooManyConnections -> "too_many_connections"
  TooManyOfAddress -> "too_many_of_address"
  LimitExceeded -> "limit_exceeded"
