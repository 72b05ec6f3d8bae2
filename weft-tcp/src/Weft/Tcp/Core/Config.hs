-- |
-- The inputs of a connection other than its events: the time and the settings.
--
-- @since 0.1.0
module Weft.Tcp.Core.Config
  ( Env (..),
    Config (..),
    defaultConfig,
    KeepAlive (..),
    Choices (..),
    scaleFor,
  )
where

import Data.Bits (shiftL)
import Data.Word (Word8)
import Weft.Tcp.Core.Congestion (Control, control)
import Weft.Tcp.Core.Congestion.Cubic (cubic)
import Weft.Tcp.Core.Time

-- | The time and the settings of one step.
data Env = Env
  { now :: !Instant,
    config :: !Config
  }

-- | Settings that the connections of a stack share.
data Config = Config
  { -- | The MSS to announce: the MTU without the IP and TCP headers
    -- (RFC 9293, section 3.7.1).
    announcedMss :: !Int,
    -- | The initial estimate of the path's MTU, without the IP header.
    pathRoom :: !Int,
    -- | The minimum segment size. Neither a peer's MSS option nor an ICMP message can make
    -- segments smaller (CVE-2019-11479).
    mssFloor :: !Int,
    -- | Size in bytes of the receive buffer.
    receiveBuffer :: !Int,
    -- | Size in bytes of the send buffer.
    sendBuffer :: !Int,
    -- | The maximum number of out-of-order ranges.
    maxHeldParts :: !Int,
    -- | The maximum number of scoreboard entries (CVE-2019-11478).
    maxScoreboard :: !Int,
    -- | The maximum amount of data passed to the link at once: more than one segment if the
    -- link splits it. A value below the MSS means one segment.
    offloadBytes :: !Int,
    initialSegments :: !Int,
    congestionControl :: !Control,
    offerSack, offerTimestamps, offerScale :: !Bool,
    -- | Retransmission timeouts as in RFC 6298. Its lower bound of one second is a SHOULD that no
    -- system follows, and loss probes make timeouts rare.
    initialRto, minRto, maxRto :: !Micros,
    -- | How long data may stay unacknowledged before the connection is aborted: R2
    -- of RFC 9293, section 3.8.3 (MUST-20, SHLD-11).
    userTimeout :: !Micros,
    -- | How long opening a connection may take (MUST-23: at least three minutes).
    synTimeout :: !Micros,
    -- | How long an acknowledgment may be delayed, waiting for data to send with it; 0 for no
    -- delay. At most 500 ms (MUST-40).
    ackDelay :: !Micros,
    -- | The initial choices of a connection.
    firstChoices :: !Choices,
    -- | 2 MSL.
    timeWaitTime :: !Micros,
    -- | How long a closed connection waits in FIN-WAIT-2 for the peer's FIN.
    finWaitTime :: !Micros,
    -- | How long the peer of a closed connection may acknowledge nothing, or keep its window at zero, while data or the
    -- FIN is left: then the connection is reset. At least 100 s (SHLD-11).
    orphanTime :: !Micros,
    -- | The maximum number of challenge ACKs of a connection at once, and of further ones in each five seconds (RFC
    -- 5961, section 7).
    challengeLimit :: !Int
  }

-- | Settings that a user may change for a connection. Connections with equal choices share the record.
data Choices = Choices
  { -- | Whether to use Nagle's algorithm (RFC 9293, section 3.7.4).
    useNagle :: !Bool,
    -- | Whether to delay acknowledgments, by 'ackDelay'.
    delayAcks :: !Bool,
    -- | Keep-alive probes. Off unless set (MUST-25).
    useKeepAlive :: !(Maybe KeepAlive),
    -- | Time to live, or hop limit, of sent packets: at least 1 (MUST-49).
    sendHopLimit :: !Word8,
    -- | The traffic class byte of sent packets. Its upper six bits are the differentiated services
    -- code point (MUST-48); the lower two stay 0.
    sendTrafficClass :: !Word8
  }
  deriving (Eq, Show)

-- | Probing of idle connections. Times below a millisecond count as one, as do numbers of probes below 1.
data KeepAlive = KeepAlive
  { -- | Idle time before the first probe; two hours or more by default (MUST-28).
    keepAliveIdle :: !Micros,
    keepAliveInterval :: !Micros,
    -- | The number of unanswered probes after which the connection is aborted.
    keepAliveProbes :: !Int
  }
  deriving (Eq, Show)

-- | The default settings, for Ethernet's MTU and IPv4.
defaultConfig :: Config
defaultConfig =
  Config
    { announcedMss = 1460,
      pathRoom = 1480,
      mssFloor = 88,
      receiveBuffer = 1048576,
      sendBuffer = 1048576,
      maxHeldParts = 2048,
      maxScoreboard = 8192,
      offloadBytes = 0,
      initialSegments = 10,
      congestionControl = control cubic,
      offerSack = True,
      offerTimestamps = True,
      offerScale = True,
      initialRto = secs 1,
      minRto = millis 200,
      maxRto = secs 120,
      userTimeout = secs 900,
      synTimeout = secs 180,
      ackDelay = millis 40,
      firstChoices = Choices True True Nothing 64 0,
      timeWaitTime = secs 60,
      finWaitTime = secs 60,
      orphanTime = secs 120,
      challengeLimit = 10
    }

-- | The smallest window scale shift with which a buffer of that size can be announced (RFC 7323, section 2.2).
scaleFor :: Int -> Int
scaleFor size = length (takeWhile (< size) [65535 `shiftL` s | s <- [0 .. 13]])
