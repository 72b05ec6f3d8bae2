-- |
-- A kernel that refuses what "Weft.File" asks for first (@cbits/older.c@): opening and
-- reading from memory alone, and the kind of a file system. One that delays requests.
module Files.Older
  ( onOlder,
    refusals,

    -- * Delays
    postponing,
    stillPostponed,
    holdingRings,
    heldRings,
  )
where

import Control.Exception (bracket_)
import Data.Word (Word64)
import Foreign.C.Types (CInt (..))

-- | From now on, or no more.
onOlder :: Bool -> IO ()
onOlder on = c_older (if on then 1 else 0)

-- | How often something was refused.
refusals :: IO Word64
refusals = c_refused

-- | In the action so many direct requests are submitted in vain: they would have had to wait.
postponing :: CInt -> IO a -> IO a
postponing n = bracket_ (c_postpone n) (c_postpone 0)

-- | How many of those there will still be.
stillPostponed :: IO CInt
stillPostponed = c_postponed

-- | While the action runs no ring is opened: the call waits, for a minute at most.
holdingRings :: IO a -> IO a
holdingRings = bracket_ (c_hold 1) (c_hold 0)

-- | How many threads wait in that call.
heldRings :: IO CInt
heldRings = c_holding

foreign import ccall unsafe "files_postpone" c_postpone :: CInt -> IO ()

foreign import ccall unsafe "files_postponed" c_postponed :: IO CInt

foreign import ccall unsafe "files_hold_rings" c_hold :: CInt -> IO ()

foreign import ccall unsafe "files_holding" c_holding :: IO CInt

foreign import ccall unsafe "files_older" c_older :: CInt -> IO ()

foreign import ccall unsafe "files_refused" c_refused :: IO Word64
