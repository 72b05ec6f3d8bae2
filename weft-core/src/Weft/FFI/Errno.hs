-- |
-- From the results of system calls to 'IOError's. The C side returns @-errno@,
-- because @errno@ itself is per OS thread.
module Weft.FFI.Errno
  ( errnoError,
    throwErrnoCode,
    throwIfNegative,
    throwIfNegative_,
  )
where

import Foreign.C.Error (Errno (..), errnoToIOError)
import Foreign.C.Types (CInt)

-- | The exception for an errno (positive), with the place where it arose.
errnoError :: String -> CInt -> IOError
errnoError loc code = errnoToIOError loc (Errno code) Nothing Nothing

-- | Throw it.
throwErrnoCode :: String -> CInt -> IO a
throwErrnoCode loc = ioError . errnoError loc

-- | Pass a result on, or throw when it is a negated errno.
throwIfNegative :: (Integral a) => String -> IO a -> IO a
throwIfNegative loc act = do
  r <- act
  if r < 0 then throwErrnoCode loc (fromIntegral (negate r)) else pure r
{-# INLINE throwIfNegative #-}

-- | 'throwIfNegative' without the result.
throwIfNegative_ :: (Integral a) => String -> IO a -> IO ()
throwIfNegative_ loc act = () <$ throwIfNegative loc act
{-# INLINE throwIfNegative_ #-}
