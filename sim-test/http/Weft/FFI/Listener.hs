-- |
-- The simulated kernel's listening sockets.
module Weft.FFI.Listener
  ( cRefuseNew,
  )
where

import Foreign.C.Types (CInt)
import KernelSocket (refuseNewSocket)

-- | Refuse connections from now on, and keep those that wait.
cRefuseNew :: CInt -> IO CInt
cRefuseNew fd = fromIntegral <$> refuseNewSocket (fromIntegral fd)
