{-# LANGUAGE MagicHash #-}
{-# LANGUAGE UnliftedFFITypes #-}

-- |
-- The number that the run-time system gives a thread, as 'show' prints it. Unlike a thread's identity it does not keep
-- the thread alive. Any thread may ask; it throws nothing.
module Weft.FFI.ThreadNumber
  ( threadNumber,
  )
where

import Foreign.C.Types (CInt (..))
import GHC.Conc (ThreadId (..))
import GHC.Exts (ThreadId#)

-- | The lower 32 bits of the number: older run-time systems have no more of them.
threadNumber :: ThreadId -> IO Int
threadNumber (ThreadId t) = fromIntegral <$> rts_getThreadId t

foreign import ccall unsafe "rts_getThreadId" rts_getThreadId :: ThreadId# -> IO CInt
