-- |
-- The part of the real module of this name that hybrid descriptors use, on the model kernel ("Kernel").
module Weft.FFI.Socket
  ( cClose,
    cCloseNow,
    cCloseLingering,
    cSetNonBlocking,
    cDrains,
  )
where

import Control.Monad (when)
import Foreign.C.Types (CInt)
import Kernel (closeNumber)

-- | A number that is not open is a fault of the caller.
cClose :: CInt -> IO ()
cClose n = do
  r <- closeNumber (fromIntegral n)
  when (r < 0) (ioError (userError ("close(" <> show n <> ") of a number that is not open")))

-- | None lingers.
cCloseNow :: CInt -> IO CInt
cCloseNow n = (-1) <$ cClose n

cCloseLingering :: CInt -> IO ()
cCloseLingering = cClose

-- | All are.
cSetNonBlocking :: CInt -> IO CInt
cSetNonBlocking _ = pure 0

-- | The scenarios adopt pipes.
cDrains :: CInt -> IO CInt
cDrains _ = pure 1
