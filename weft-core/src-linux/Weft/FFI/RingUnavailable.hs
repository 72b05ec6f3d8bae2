-- |
-- Why the kernel gives this process no io_uring, in words.
module Weft.FFI.RingUnavailable
  ( ringUnavailable,
  )
where

import Foreign.C.Error (Errno (..), eINVAL, eNOMEM, eNOSYS, ePERM)
import Foreign.C.Types (CInt)
import Weft.FFI.Errno (errnoError)

-- | A message for an error of io_uring_setup(2), with a remedy if there is one.
ringUnavailable :: CInt -> String
ringUnavailable e
  | is ePERM =
    "the kernel forbids io_uring to this process (EPERM): a container's seccomp profile, or sysctl kernel.io_uring_disabled"
  | is eNOSYS = "there is no io_uring (ENOSYS): a kernel before 5.1 or built without it, or a sandbox that hides it"
  | is eNOMEM = "io_uring may not lock enough memory (ENOMEM): raise the limit, ulimit -l"
  | is eINVAL = "this kernel's io_uring is too old (EINVAL): it takes Linux 5.13"
  | otherwise = "io_uring cannot be set up: " <> show (errnoError "io_uring_setup" e)
  where
    is x = x == Errno e
