-- |
-- Spans of time with their unit in the type.
--
-- >>> milliseconds 250 <> seconds 1
-- seconds 1.25
--
-- @since 0.1.0
module Weft.Duration
  ( Duration,
    nanoseconds,
    microseconds,
    milliseconds,
    seconds,
    toSeconds,
  )
where

import Weft.Core.Time
