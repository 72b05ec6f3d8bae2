{-# LANGUAGE ExistentialQuantification #-}

-- |
-- Congestion control: an algorithm is a record of functions over a state of its own.
-- What is common to all, the window during recovery (RFC 6937) and after a timeout,
-- is not here but in "Weft.Tcp.Core.Recovery".
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

    -- * For algorithms
    slowStart,
    halve,
  )
where

import Weft.Tcp.Core.Time

-- | In bytes.
data Window = Window
  { congestionWindow :: {-# UNPACK #-} !Int,
    slowStartThreshold :: {-# UNPACK #-} !Int
  }
  deriving (Eq, Show)

-- | What an algorithm is told.
data Sample = Sample
  { sampleNow :: !Instant,
    -- | Bytes that were newly acknowledged.
    sampleAcked :: !Int,
    -- | Bytes in flight before that.
    sampleFlight :: !Int,
    sampleMss :: !Int,
    -- | The smoothed round-trip time, 0 if none is known.
    sampleRtt :: !Micros
  }

-- | A congestion control algorithm. Its functions are pure; @s@ is what it keeps for
-- a connection.
data Algorithm s = Algorithm
  { algorithmName :: !String,
    algorithmStart :: !s,
    -- | Data was acknowledged outside of recovery, while the window was the limit.
    onAcknowledged :: !(Sample -> Window -> s -> (Window, s)),
    -- | A loss: the new threshold, which is the window after recovery.
    onLoss :: !(Sample -> Window -> s -> (Int, s)),
    -- | A retransmission timeout: the new threshold.
    onTimeout :: !(Sample -> Window -> s -> (Int, s))
  }

-- | A choice of an algorithm.
data Control = forall s. Control !(Algorithm s)

instance Show Control where
  show = algorithmOf' where algorithmOf' (Control a) = algorithmName a

-- | To be put into a configuration.
control :: Algorithm s -> Control
control = Control

-- | An algorithm with its state for a connection, and the window.
data Congestion = forall s. Congestion !(Algorithm s) !s {-# UNPACK #-} !Window

-- | For a new connection.
start :: Control -> Window -> Congestion
start (Control a) = Congestion a (algorithmStart a)

-- | Window and threshold.
windowsOf :: Congestion -> Window
windowsOf (Congestion _ _ w) = w

-- | Another window, in bytes.
setWindow :: Int -> Congestion -> Congestion
setWindow n (Congestion a st w) = Congestion a st w {congestionWindow = n}

-- | RFC 6928, section 2.
initialWindow :: Int -> Int -> Int
initialWindow segments mss = min (segments * mss) (max (2 * mss) (segments * 1460))

-- | Data was acknowledged outside of recovery: the algorithm updates the window.
acknowledged :: Sample -> Congestion -> Congestion
acknowledged s (Congestion a st w) = let (w', st') = onAcknowledged a s w st in Congestion a st' w'

-- | The threshold falls; the window is set by recovery.
lost :: Sample -> Congestion -> Congestion
lost s (Congestion a st w) = let (t, st') = onLoss a s w st in Congestion a st' w {slowStartThreshold = t}

-- | The window becomes one segment (RFC 5681, section 3.1).
timedOut :: Sample -> Congestion -> Congestion
timedOut s (Congestion a st w) = let (t, st') = onTimeout a s w st in Congestion a st' (Window (sampleMss s) t)

-- | After an idle time longer than the retransmission timeout the window is at most
-- the initial one (RFC 5681, section 4.1).
restarted :: Int -> Congestion -> Congestion
restarted initial (Congestion a st w) = Congestion a st w {congestionWindow = min initial (congestionWindow w)}

-- | Below the threshold the window grows by what was acknowledged (RFC 5681, section
-- 3.1, counting bytes as in RFC 3465). The part of the acknowledged bytes that is
-- left for congestion avoidance is returned too.
slowStart :: Sample -> Window -> (Window, Int)
slowStart s w
  | congestionWindow w >= slowStartThreshold w = (w, sampleAcked s)
  | otherwise =
    let grown = min (slowStartThreshold w) (congestionWindow w + sampleAcked s)
     in (w {congestionWindow = grown}, sampleAcked s - (grown - congestionWindow w))

-- | A threshold of that part of what is in flight, and at least two segments (RFC
-- 5681, equation 4).
halve :: Double -> Sample -> Int
halve beta s = max (2 * sampleMss s) (floor (beta * fromIntegral (sampleFlight s)))
