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

-- | Measured in that order on sockets: see @doc/rationale/README.md@.
platformBackends :: [Candidate]
platformBackends =
  [ Candidate "epoll" Epoll.available Epoll.new True,
    Candidate "io_uring" Uring.available Uring.new False,
    Candidate "poll" Poll.available Poll.new False
  ]
