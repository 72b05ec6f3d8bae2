-- |
-- The simulated kernel's listening sockets cannot refuse connections and keep those that wait.
module Weft.FFI.Listener
  ( cRefuseNew,
  )
where

import Foreign.C.Types (CInt)

-- | @-EOPNOTSUPP@.
cRefuseNew :: CInt -> IO CInt
cRefuseNew _ = pure (-95)
