{-# LANGUAGE RankNTypes #-}

-- |
-- How threads of one kind use files. What stands on the engine is written once, for all kinds:
-- its functions' first argument is one of these.
module Weft.File.ThreadOps
  ( ThreadOps (..),
    ghcThreads,
  )
where

import Foreign.C.Types (CInt)
import System.Posix.Types (Fd)
import Weft.FFI.File (Op)
import Weft.File.Engine
import Weft.File.Types

-- | What a kind of threads has.
data ThreadOps m = ThreadOps
  { -- | Have an operation carried out, and wait for its result.
    carry :: RequestPolicy -> Op -> m CInt,
    -- | Do several with one descriptor. Each holds it for itself ('policyHold'); a kind of threads
    -- that can be interrupted anywhere needs to be inside all the time.
    using :: forall a. String -> File -> (Fd -> m a) -> m a
  }

-- | GHC's threads.
ghcThreads :: ThreadOps IO
ghcThreads = ThreadOps {carry = runRequest, using = inside}
{-# INLINE ghcThreads #-}
