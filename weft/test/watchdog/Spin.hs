{-# OPTIONS_GHC -O1 #-}

-- |
-- Code that keeps its capability until the watchdog has reported it. Optimised always: only then the loop allocates
-- nothing, and GHC lets no other thread run.
module Spin
  ( spinUntilReported,
    blockUntilReported,
  )
where

import Control.Monad (unless)
import Data.Int (Int64)
import Foreign.C.Types (CInt (..), CUInt (..))

foreign import ccall unsafe "weft_watchdog_stalls" stalls :: IO Int64

foreign import ccall unsafe "usleep" usleep :: CUInt -> IO CInt

-- | Compute until there have been so many reports.
spinUntilReported :: Int64 -> IO ()
spinUntilReported n = do
  seen <- stalls
  unless (seen >= n) (spinUntilReported n)
{-# NOINLINE spinUntilReported #-}

-- | Wait for that in foreign calls that are declared not to block.
blockUntilReported :: Int64 -> IO ()
blockUntilReported n = do
  _ <- usleep 20000
  seen <- stalls
  unless (seen >= n) (blockUntilReported n)
{-# NOINLINE blockUntilReported #-}
