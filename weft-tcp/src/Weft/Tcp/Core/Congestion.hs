{-# LANGUAGE ExistentialQuantification #-}

-- |
-- Congestion control: an algorithm is a record of functions over its own state. The window during recovery (RFC 6937)
-- and after a timeout is the same for all algorithms; "Weft.Tcp.Core.Recovery" computes it.
--
-- @since 0.1.0
module Weft.Tcp.Core.Congestion
  ( -- * Algorithms
    Algorithm (..),
    Sample (..),
    Window (..),

    -- * An algorithm at work
    Congestion (..),
    Control (..),
    control,
    start,
    acknowledged,
    lost,
    timedOut,
    restarted,
    initialWindow,
    windowsOf,
    setWindow,
    setThreshold,

    -- * For algorithms
    slowStart,
    halve,
  )
where

import Weft.Tcp.Core.Time

-- | The congestion window and the slow start threshold, in bytes.
data Window = Window
  { congestionWindow :: {-# UNPACK #-} !Int,
    slowStartThreshold :: {-# UNPACK #-} !Int
  }
  deriving (Eq, Show)

-- | The input of an algorithm when data is acknowledged, or when a loss or timeout is detected.
data Sample = Sample
  { sampleNow :: !Instant,
    -- | The number of newly acknowledged bytes.
    sampleAcked :: !Int,
    -- | The bytes in flight before the acknowledgment.
    sampleFlight :: !Int,
    sampleMss :: !Int,
    -- | The smoothed round-trip time, 0 if none is known.
    sampleRtt :: !Micros
  }

-- | A congestion control algorithm. Its functions are pure; @s@ is the type of its state for a connection.
data Algorithm s = Algorithm
  { algorithmName :: !String,
    algorithmStart :: !s,
    -- | New window and state when data was acknowledged outside of recovery while the window limited the sender.
    onAcknowledged :: !(Sample -> Window -> s -> (Window, s)),
    -- | New threshold and state after a loss. The threshold is the window after recovery.
    onLoss :: !(Sample -> Window -> s -> (Int, s)),
    -- | New threshold and state after a retransmission timeout.
    onTimeout :: !(Sample -> Window -> s -> (Int, s))
  }

-- | An algorithm with any type of state.
data Control = forall s. Control !(Algorithm s)

instance Show Control where
  show = algorithmOf' where algorithmOf' (Control a) = algorithmName a

-- | Choose an algorithm, for 'Weft.Tcp.Core.Config.congestionControl'.
control :: Algorithm s -> Control
control = Control

-- | An algorithm with its state for a connection, and the window.
data Congestion = forall s. Congestion !(Algorithm s) !s {-# UNPACK #-} !Window

-- | The initial state of a connection with the given window.
start :: Control -> Window -> Congestion
start (Control a) = Congestion a (algorithmStart a)

-- | The congestion window and the threshold.
windowsOf :: Congestion -> Window
windowsOf (Congestion _ _ w) = w

-- | Set the congestion window, in bytes.
setWindow :: Int -> Congestion -> Congestion
setWindow n (Congestion a st w) = Congestion a st w {congestionWindow = n}

-- | Set the slow start threshold, in bytes.
setThreshold :: Int -> Congestion -> Congestion
setThreshold n (Congestion a st w) = Congestion a st w {slowStartThreshold = n}

-- | The initial window in bytes (RFC 6928, section 2), given its number of segments and the segment size.
initialWindow :: Int -> Int -> Int
initialWindow segments mss = min (segments * mss) (max (2 * mss) (segments * 1460))

-- | Update the window after data was acknowledged outside of recovery.
acknowledged :: Sample -> Congestion -> Congestion
acknowledged s (Congestion a st w) = let (w', st') = onAcknowledged a s w st in Congestion a st' w'

-- | Set the threshold after a loss. Recovery sets the window.
lost :: Sample -> Congestion -> Congestion
lost s (Congestion a st w) = let (t, st') = onLoss a s w st in Congestion a st' w {slowStartThreshold = t}

-- | Set the threshold after a retransmission timeout, and the window to one segment (RFC 5681, section 3.1).
timedOut :: Sample -> Congestion -> Congestion
timedOut s (Congestion a st w) = let (t, st') = onTimeout a s w st in Congestion a st' (Window (sampleMss s) t)

-- | Limit the window to the initial one, after an idle time longer than the retransmission timeout (RFC 5681, section
-- 4.1).
restarted :: Int -> Congestion -> Congestion
restarted initial (Congestion a st w) = Congestion a st w {congestionWindow = min initial (congestionWindow w)}

-- | Slow start: below the threshold, the window grows by the acknowledged bytes (RFC 5681, section 3.1, counting
-- bytes as in RFC 3465). Returns also the number of acknowledged bytes that are left for congestion avoidance.
slowStart :: Sample -> Window -> (Window, Int)
slowStart s w
  | congestionWindow w >= slowStartThreshold w = (w, sampleAcked s)
  | otherwise =
    let grown = min (slowStartThreshold w) (congestionWindow w + sampleAcked s)
     in (w {congestionWindow = grown}, sampleAcked s - (grown - congestionWindow w))

-- | The threshold after a loss: the given fraction of the bytes in flight, but at least two segments (RFC 5681,
-- equation 4).
halve :: Double -> Sample -> Int
halve beta s = max (2 * sampleMss s) (floor (beta * fromIntegral (sampleFlight s)))
