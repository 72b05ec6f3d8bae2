{-# OPTIONS_GHC -O1 #-}

-- |
-- Code that keeps its capability until the watchdog has reported it. Optimised always: only then the loop allocates
-- nothing, and GHC lets no other thread run.
module Spin
  ( spinUntilReported,
    blockUntilReported,
  )
where

import Control.Monad (when)
import Data.Int (Int64)
import Data.Word (Word64)
import Foreign.C.Types (CInt (..), CUInt (..))

foreign import ccall unsafe "weft_watchdog_stalls" stalls :: IO Int64

foreign import ccall unsafe "weft_watchdog_bound" bound :: IO Int64

foreign import ccall unsafe "getMonotonicNSec" nanoseconds :: IO Word64

foreign import ccall unsafe "usleep" usleep :: CUInt -> IO CInt

-- | Compute until there has been a report, and for two bounds more: the first one may be of another capability, which
-- waits for this one to collect garbage.
spinUntilReported :: IO ()
spinUntilReported = stalls >>= spinUntil >> longer spinUntilTime

-- | Wait likewise, in foreign calls that are declared not to block.
blockUntilReported :: IO ()
blockUntilReported = stalls >>= blockUntil >> longer blockUntilTime

longer :: (Word64 -> IO ()) -> IO ()
longer act = do
  from <- nanoseconds
  time <- bound
  act (from + 2 * fromIntegral time)

spinUntil :: Int64 -> IO ()
spinUntil before = stalls >>= \n -> when (n == before) (spinUntil before)

spinUntilTime :: Word64 -> IO ()
spinUntilTime end = nanoseconds >>= \t -> when (t < end) (spinUntilTime end)

blockUntil :: Int64 -> IO ()
blockUntil before = usleep 20000 >> stalls >>= \n -> when (n == before) (blockUntil before)

blockUntilTime :: Word64 -> IO ()
blockUntilTime end = usleep 20000 >> nanoseconds >>= \t -> when (t < end) (blockUntilTime end)
