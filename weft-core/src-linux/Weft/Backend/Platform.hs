-- |
-- The back ends of Linux, the preferred one first.
module Weft.Backend.Platform
  ( platformBackends,
  )
where

import qualified Weft.Backend.Epoll as Epoll
import qualified Weft.Backend.Poll as Poll
import Weft.Backend.Type
import qualified Weft.Backend.Uring as Uring
import Weft.Backend.UringTrial (available)

-- | The back ends, ordered by their speed on sockets. "Weft.Backend.Uring" says why epoll is preferred to io_uring.
platformBackends :: [Candidate]
platformBackends =
  [ Candidate "epoll" Epoll.available Epoll.new True,
    Candidate "io_uring" available Uring.new False,
    Candidate "poll" Poll.available Poll.new False
  ]
