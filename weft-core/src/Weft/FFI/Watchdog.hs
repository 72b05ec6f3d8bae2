-- |
-- The watchdog's OS thread (@cbits\/watchdog\/watchdog.c@).
module Weft.FFI.Watchdog
  ( watchdogSet,
    watchdogWarn,
    watchdogBound,
    watchdogStalls,
    watchdogLongest,
  )
where

import Data.Int (Int64)
import Foreign.C.String (CString)
import Foreign.C.Types (CInt (..))

-- | Set the bound in nanoseconds, 0 for none; 0, or minus an errno.
foreign import ccall unsafe "weft_watchdog_set" watchdogSet :: Int64 -> IO CInt

-- | Write a line to stderr, without its Handle.
foreign import ccall safe "weft_watchdog_warn" watchdogWarn :: CString -> IO ()

-- | The present bound.
foreign import ccall unsafe "weft_watchdog_bound" watchdogBound :: IO Int64

-- | The number of times that a capability was held for longer than the bound.
foreign import ccall unsafe "weft_watchdog_stalls" watchdogStalls :: IO Int64

-- | The longest of these times, as far as it has been seen, in nanoseconds.
foreign import ccall unsafe "weft_watchdog_longest" watchdogLongest :: IO Int64
