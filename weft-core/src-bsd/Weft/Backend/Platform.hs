-- |
-- The back ends of the BSDs and macOS, the preferred one first.
module Weft.Backend.Platform
  ( platformBackends,
  )
where

import qualified Weft.Backend.Kqueue as Kqueue
import qualified Weft.Backend.Poll as Poll
import Weft.Backend.Type

-- | The back ends of the platform, ordered by the cost of a registration and a wait.
platformBackends :: [Candidate]
platformBackends =
  [ Candidate "kqueue" Kqueue.available Kqueue.new True,
    Candidate "poll" Poll.available Poll.new False
  ]
