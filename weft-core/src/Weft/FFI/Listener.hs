-- |
-- A system call on listening sockets, which the kernel has no function for: see @cbits\/listener.c@.
module Weft.FFI.Listener
  ( cRefuseNew,
  )
where

import Foreign.C.Types (CInt (..))

-- | Refuse connections from now on, and keep those that wait to be accepted. 0 or @-errno@.
foreign import ccall unsafe "weft_refuse_new" cRefuseNew :: CInt -> IO CInt
