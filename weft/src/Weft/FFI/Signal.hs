-- |
-- Handlers of signals, as the run-time system and the kernel have them. None of these calls waits. The policy is in
-- "Weft.Signal".
module Weft.FFI.Signal
  ( SigAction,
    sigActionRoom,
    cSignalSave,
    cSignalRestore,
    cSignalInstall,
    installed,
    refused,
  )
where

import Foreign.C.Types (CInt (..))
import Foreign.Ptr (Ptr)

-- | A @struct sigaction@.
data SigAction

-- | Enough bytes for one, as in @cbits\/signal.c@.
sigActionRoom :: Int
sigActionRoom = 256

-- | Store what the kernel does at a signal. Returns 0 or @-errno@.
foreign import ccall unsafe "weft_signal_save" cSignalSave :: CInt -> Ptr SigAction -> IO CInt

foreign import ccall unsafe "weft_signal_restore" cSignalRestore :: CInt -> Ptr SigAction -> IO CInt

-- | The run-time system's: from now on it runs the handlers of "GHC.Conc.Signal" at the signal ('installed'), or does
-- what an earlier result of this call says. The last argument is null. Returns what it did before, or 'refused'.
foreign import ccall unsafe "stg_sig_install" cSignalInstall :: CInt -> CInt -> Ptr () -> IO CInt

-- | @STG_SIG_HAN@ and @STG_SIG_ERR@ of @rts\/Signals.h@.
installed, refused :: CInt
installed = -4
refused = -3
