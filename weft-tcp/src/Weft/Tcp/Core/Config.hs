-- |
-- What a connection is told from outside: the time, and what it may do.
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

-- | The world at one step.
data Env = Env
  { now :: !Instant,
    config :: !Config
  }

-- | Settings, shared by the connections of a stack.
data Config = Config
  { -- | The largest segment to announce: the MTU without the IP and TCP headers
    -- (RFC 9293, section 3.7.1).
    announcedMss :: !Int,
    -- | The path's MTU as far as it is known at first, without the IP header.
    pathRoom :: !Int,
    -- | Neither a peer's MSS option nor an ICMP message makes segments smaller than
    -- this (CVE-2019-11479).
    mssFloor :: !Int,
    -- | Bytes that wait for the application, at most.
    receiveBuffer :: !Int,
    -- | Bytes that wait for the peer, at most.
    sendBuffer :: !Int,
    -- | Parts of out-of-order data, at most.
    maxHeldParts :: !Int,
    -- | Entries of the scoreboard, at most (CVE-2019-11478).
    maxScoreboard :: !Int,
    -- | Data of one transmission, at most: more than a segment if what is below
    -- cuts it up. Below the MSS it means one segment.
    offloadBytes :: !Int,
    initialSegments :: !Int,
    congestionControl :: !Control,
    offerSack, offerTimestamps, offerScale :: !Bool,
    -- | RFC 6298; its lower bound of a second is a SHOULD that no system follows, and
    -- loss probes make timeouts rare.
    initialRto, minRto, maxRto :: !Micros,
    -- | How long data may stay unacknowledged before the connection is given up: R2
    -- of RFC 9293, section 3.8.3 (MUST-20, SHLD-11).
    userTimeout :: !Micros,
    -- | The same for opening a connection (MUST-23: at least three minutes).
    synTimeout :: !Micros,
    -- | How long an acknowledgment may wait for data to go with; 0 for not at all.
    -- At most 500 ms (MUST-40).
    ackDelay :: !Micros,
    -- | What connections begin with.
    firstChoices :: !Choices,
    -- | 2 MSL.
    timeWaitTime :: !Micros,
    -- | How long a closed connection waits in FIN-WAIT-2 for the peer's FIN.
    finWaitTime :: !Micros,
    -- | Challenge ACKs of a connection in five seconds (RFC 5961, section 7).
    challengeLimit :: !Int
  }

-- | What a user may choose for a connection; shared by those that have the same.
data Choices = Choices
  { -- | Nagle's algorithm (RFC 9293, section 3.7.4).
    useNagle :: !Bool,
    -- | Whether acknowledgments may be delayed, by 'ackDelay'.
    delayAcks :: !Bool,
    -- | Off unless set (MUST-25).
    useKeepAlive :: !(Maybe KeepAlive),
    -- | Time to live, or hop limit, of what is sent: at least 1 (MUST-49).
    sendHopLimit :: !Word8,
    -- | The byte whose upper six bits are the differentiated services of what is sent
    -- (MUST-48); the lower two are left 0.
    sendTrafficClass :: !Word8
  }
  deriving (Eq, Show)

-- | Probes of idle connections.
data KeepAlive = KeepAlive
  { -- | Idle time before the first; two hours or more by default (MUST-28).
    keepAliveIdle :: !Micros,
    keepAliveInterval :: !Micros,
    -- | Unanswered probes before the connection is given up.
    keepAliveProbes :: !Int
  }
  deriving (Eq, Show)

-- | For Ethernet's MTU and IPv4.
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
      challengeLimit = 10
    }

-- | The least shift with which a buffer can be announced (RFC 7323, section 2.2).
scaleFor :: Int -> Int
scaleFor size = length (takeWhile (< size) [65535 `shiftL` s | s <- [0 .. 13]])
