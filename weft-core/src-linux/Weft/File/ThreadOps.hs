{-# LANGUAGE RankNTypes #-}

-- |
-- How a kind of threads (GHC's, hybrid) uses files. The operations on files are written once, for all kinds: their
-- first argument is a 'ThreadOps'.
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

-- | The operations of a kind of threads.
data ThreadOps m = ThreadOps
  { -- | Carry out an operation, and wait for its result.
    threadsRequest :: RequestPolicy -> Op -> m CInt,
    -- | Run an action that carries out several operations with one descriptor. Each request holds the file by itself
    -- ('policyAcquire'); threads that can be interrupted anywhere have to hold it all the time.
    threadsWithFile :: forall a. String -> File -> (Fd -> m a) -> m a
  }

-- | GHC's threads.
ghcThreads :: ThreadOps IO
ghcThreads = ThreadOps {threadsRequest = runRequest, threadsWithFile = withDescriptor}
{-# INLINE ghcThreads #-}
