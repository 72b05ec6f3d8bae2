-- |
-- "Weft.Thread" without waiting for descriptors other than sockets.
module Weft.Thread
  ( threadDelay,
    timeout,
  )
where

import Weft.Thread.Time
