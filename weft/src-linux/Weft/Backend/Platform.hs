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

-- | Measured in that order on sockets: see @doc/rationale.md@.
platformBackends :: [Candidate]
platformBackends =
  [ Candidate "epoll" Epoll.available Epoll.new,
    Candidate "io_uring" Uring.available Uring.new,
    Candidate "poll" Poll.available Poll.new
  ]
