-- |
-- Changes of the number of capabilities that do not stop the program.
--
-- GHC 9.0.2's run-time system may lose a wake-up when capabilities are removed, so that all threads stand still
-- (@doc\/rationale\/ghc.md@). As a part of the change it calls Haskell, by default on the capability that was free
-- last, which may be one of those removed: the thread of that call is then moved, and its OS thread misses the wake-up.
-- Here the call is made on capability 0, which is never removed, and from a thread that is not bound, since a bound one
-- can be moved in the same way.
module Weft.Test.Capabilities
  ( changeCapabilities,
  )
where

import Control.Concurrent (runInUnboundThread)
import Data.Word (Word32)

-- | Set the number of capabilities.
changeCapabilities :: Int -> IO ()
changeCapabilities = runInUnboundThread . c_set . fromIntegral

foreign import ccall safe "weft_test_set_capabilities" c_set :: Word32 -> IO ()
