-- |
-- The entries of a platform's list of back ends.
module Weft.Backend.Type
  ( Candidate (..),
  )
where

import Weft.Core.Backend (Backend)

-- | A back end that this build contains.
data Candidate = Candidate
  { candidateName :: !String,
    -- | Why it cannot be used on this machine, or 'Nothing' when it can.
    candidateAvailable :: !(IO (Maybe String)),
    candidateNew :: !(IO Backend),
    -- | Whether the first of its descriptors is readable when it has an event. Only then can it be used without
    -- @-threaded@.
    candidatePollable :: !Bool
  }
