-- |
-- Whether a ring can be used here: a kernel may be too old, or refuse it (a sandbox, @io_uring_disabled@, a limit on
-- memory). Any thread may ask. It throws nothing but the errors of making an event descriptor.
module Weft.Backend.UringTrial
  ( available,
  )
where

import Control.Exception (bracket)
import Foreign.C.Error
import Foreign.Marshal.Alloc (allocaBytes)
import System.Posix.Types (Fd (..))
import Weft.Backend.UringEntry (pollBits)
import Weft.FFI.Poll (pollIn)
import Weft.FFI.RingUnavailable (ringUnavailable)
import Weft.FFI.Uring
import Weft.FFI.Wakeup
import Weft.Sys (finally)

-- | Why it cannot be used here, or 'Nothing' when it can. It tests that with a small ring, so call it once.
available :: IO (Maybe String)
available = do
  r <- openUring 4 8
  case r of
    Left e -> pure (Just (ringUnavailable e))
    Right u -> trial u `finally` closeUring u
  where
    trial u = bracket newWakeup closeWakeup $ \wk ->
      allocaBytes completionSize $ \c -> do
        signalWakeup wk
        _ <- queueWatch u (let Fd fd = wakeupFd wk in fd) (pollBits pollIn) 1 0
        r <- lookUring u
        n <- reapUring u c 1
        works <- if n < 1 then pure False else (&&) <$> peekMore c 0 <*> ((> 0) <$> peekResult c 0)
        pure (if works then Nothing else Just (ringUnavailable (if r < 0 then negate r else tooOld)))
    tooOld = let Errno e = eINVAL in e
