-- |
-- "Weft.Thread" without waiting for descriptors that are no sockets.
module Weft.Thread
  ( threadDelay,
    timeout,
  )
where

import Weft.Thread.Time
