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
    -- | Is the first of its descriptors readable when it has an event? Only then it can be used
    -- without @-threaded@.
    candidatePollable :: !Bool
  }
