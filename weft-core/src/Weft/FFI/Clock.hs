-- |
-- The kernel's coarse clock, which costs no system call and no serialising instruction.
module Weft.FFI.Clock
  ( coarseNow,
  )
where

import Data.Int (Int64)

-- | Nanoseconds of the monotonic clock as of its last tick (a few milliseconds), rounded up past the next one: never
-- before the present instant.
foreign import ccall unsafe "weft_coarse_now" coarseNow :: IO Int64
