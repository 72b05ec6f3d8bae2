-- |
-- What threads other than its own can do with an HTTP\/2 connection: end it gracefully, for a shutdown or to make room.
module Weft.Http2.Control
  ( Http2Control (..),
  )
where

import Weft.Core.Time (Instant)

-- | All actions may run in any thread, and more than once.
data Http2Control = Http2Control
  { -- | Begin a graceful shutdown: no new streams are accepted, open streams finish, and then the connection ends.
    controlShutdown :: !(IO ()),
    -- | When the last stream ended, or the connection began. 'Nothing' if a stream is open, or a shutdown has begun.
    controlIdleSince :: !(IO (Maybe Instant)),
    -- | Begin a graceful shutdown if no stream is open and none has begun. 'True' if this call began it.
    controlEvict :: !(IO Bool)
  }
