-- |
-- The part of the real module of this name that hybrid descriptors use, on the model kernel ("Kernel").
module Weft.FFI.Socket
  ( cClose,
    cSetNonBlocking,
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

-- | All are.
cSetNonBlocking :: CInt -> IO ()
cSetNonBlocking _ = pure ()
