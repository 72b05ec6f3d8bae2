-- |
-- A kernel that refuses what "Weft.File" asks for first (@cbits/older.c@): opening and
-- reading from memory alone, and the kind of a file system.
module Files.Older
  ( onOlder,
    refusals,
  )
where

import Data.Word (Word64)
import Foreign.C.Types (CInt (..))

-- | From now on, or no more.
onOlder :: Bool -> IO ()
onOlder on = c_older (if on then 1 else 0)

-- | How often something was refused.
refusals :: IO Word64
refusals = c_refused

foreign import ccall unsafe "files_older" c_older :: CInt -> IO ()

foreign import ccall unsafe "files_refused" c_refused :: IO Word64
