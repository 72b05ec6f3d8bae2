{-# OPTIONS_GHC -O1 #-}

-- |
-- Code that keeps its capability until the watchdog has reported it. Optimised always: only then the loop allocates
-- nothing, and GHC lets no other thread run.
module Spin
  ( spinUntilReported,
    spinLocally,
    localLoop,
    blockUntilReported,
  )
where

import Control.Exception (evaluate)
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

-- | Compute likewise, in a local function: its code has no symbol, and is emitted before that of 'localLoop'.
spinLocally :: IO ()
spinLocally = stalls >>= again
  where
    again before = stalls >>= \n -> when (n == before) (evaluate (localLoop (10000000 + fromIntegral n)) >> again before)

-- | Exported, since other functions of a module have no symbol either.
localLoop :: Int -> Int
localLoop n = go n 1
  where
    go 0 a = a
    go k a = go (k - 1) (a * 5 + k)
{-# NOINLINE localLoop #-}

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
