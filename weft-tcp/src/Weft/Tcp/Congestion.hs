-- |
-- Congestion control, for 'Weft.Tcp.congestionControl' of 'Weft.Tcp.Config': 'cubic' (RFC 9438), which is the
-- default, 'newReno' (RFC 5681), or a custom algorithm, which is a record of pure functions. The core handles
-- what all algorithms have in common, such as the window during recovery (RFC 6937).
--
-- > settings = (defaultSettings [address]) {stackConfig = defaultConfig {congestionControl = control newReno}}
--
-- @since 0.1.0
module Weft.Tcp.Congestion
  ( -- * Algorithms
    Control,
    control,
    cubic,
    newReno,

    -- * Writing an algorithm
    Algorithm (..),
    Sample (..),
    Window (..),
    slowStart,
    halve,
  )
where

import Weft.Tcp.Core.Congestion
import Weft.Tcp.Core.Congestion.Cubic
import Weft.Tcp.Core.Congestion.NewReno
