-- |
-- Limits on clients of a server, and the reasons for which requests and connections are refused.
module Weft.Http.Limits
  ( -- * Limits
    Limits (..),
    defaultLimits,
    mostSockets,

    -- * Refusals
    Refusal (..),
    refusalStatus,
    refusalReason,
  )
where

import Network.HTTP.Types
import Weft.Duration (Duration, seconds)

-- | Limits for each client and for all clients together. A number or a time of zero or less means no limit.
-- 'Weft.Http.setTimeout' is a further limit: the time in which a client has to send each 2 KiB of a body
-- and to take each 128 KiB of a response.
data Limits = Limits
  { -- | Bytes of a request line, including its CRLF (RFC 9112, 3).
    limitTarget :: !Int,
    -- | Bytes of a request's head, including the empty line at its end.
    limitHead :: !Int,
    -- | Fields in a request's head, and in the trailer section of a chunked body.
    limitFields :: !Int,
    -- | The time from the first byte of a head to its last. For the first head of a connection it begins when the
    -- connection is accepted. With the PROXY protocol or TLS it begins after the PROXY header and the handshake, which
    -- together have as much time from when the connection is accepted.
    limitHeadTime :: !Duration,
    -- | How long a connection may wait for its next request.
    limitIdle :: !Duration,
    -- | Requests on one HTTP\/1 connection, which is closed afterwards.
    limitRequests :: !Int,
    -- | Connections in total. If there is one more, some idle connections are closed, those with the least share of
    -- their time left first; if none is idle, the new one is refused. See 'mostSockets'.
    limitConnections :: !Int,
    -- | Connections from one IPv4 address, or from one IPv6 network with a prefix of 64 bits.
    limitPerAddress :: !Int,
    -- | Bytes that the kernel keeps for a client that does not read (@SO_SNDBUF@, socket(7)); with its own bookkeeping
    -- it allocates up to twice as much. Zero leaves the size to the kernel, up to the third number of @tcp_wmem@, often
    -- 4 MiB. A connection sends at most this much in one round trip.
    limitSendBuffer :: !Int
  }
  deriving (Eq, Show)

-- | A request line of 8 KiB; a head of 32 KiB with 100 fields within 10 seconds; 60 seconds between
-- requests; 10,000 requests on a connection; 10,000 connections, without a limit per address (since there
-- may be a proxy in front). The kernel chooses the size of send buffers.
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
      limitPerAddress = 0,
      limitSendBuffer = 0
    }

-- | Why the server refused a request or a connection, or gave up a client.
data Refusal
  = -- | It is not HTTP, or it is ambiguous: two servers could interpret it differently.
    BadRequest
  | TargetTooLong
  | HeadTooLarge
  | -- | A transfer coding other than @chunked@.
    UnknownCoding
  | UnknownVersion
  | -- | An @Expect@ field with anything but @100-continue@.
    UnknownExpectation
  | -- | The head or the TLS handshake was not complete in time.
    HeadTooSlow
  | -- | The body was not sent in time, or the response was not taken in time.
    ClientTooSlow
  | -- | The TLS handshake failed.
    HandshakeFailed
  | -- | The limit on connections was reached.
    TooManyConnections
  | TooManyOfAddress
  | -- | An HTTP\/2 client exceeded a limit: streams, resets, useless frames.
    LimitExceeded
  deriving (Eq, Ord, Show, Enum, Bounded)

-- | The status that is sent to the client, if any.
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

-- | A name for logs and counters: lower-case words joined by underscores.
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

-- | How many sockets may be open at a time, if the number of connections is limited: a sixteenth more, and at least
-- sixteen, since connections that are refused or were evicted do not count while they end. Nothing is accepted
-- meanwhile if there are as many.
mostSockets :: Limits -> Maybe Int
mostSockets limits
  | most <= 0 = Nothing
  | otherwise = Just (most + max 16 (most `div` 16))
  where
    most = limitConnections limits
