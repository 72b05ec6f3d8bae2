-- |
-- A descriptor that interrupts a poll: an eventfd where the system has it, a pipe elsewhere (O'Sullivan and Tibell
-- 2010, 8.1). Mechanism only; "Weft.Core.Wake" decides when a signal may be skipped.
module Weft.FFI.Wakeup
  ( Wakeup,
    newWakeup,
    wakeupFd,
    wakeupFds,
    wakeupIsPipe,
    signalWakeup,
    drainWakeup,
    closeWakeup,
  )
where

import Control.Monad (when)
import Foreign.C.Types (CInt (..))
import Foreign.Marshal.Array (allocaArray, peekArray)
import Foreign.Ptr (Ptr)
import System.Environment (lookupEnv)
import System.Posix.Types (Fd (..))
import Weft.FFI.Errno

-- | The end to poll and the end to write: one and the same for an eventfd.
data Wakeup = Wakeup !Fd !Fd

-- | Make one. @WEFT_WAKEUP=pipe@ in the environment asks for the pipe on systems
-- that have eventfds too; throws a user error for another value.
newWakeup :: IO Wakeup
newWakeup = do
  forced <- lookupEnv "WEFT_WAKEUP"
  pipe <- case forced of
    Just "pipe" -> pure 1
    Just name | name /= "" -> ioError (userError ("weft: WEFT_WAKEUP is pipe or not set, not " <> show name))
    _ -> pure 0
  allocaArray 2 $ \fds -> do
    throwIfNegative_ "wakeup" (c_open fds pipe)
    ends <- peekArray 2 fds
    case ends of
      [r, w] -> pure (Wakeup (Fd r) (Fd w))
      _ -> ioError (userError "wakeup: no descriptors")

-- | The descriptor to poll for reading.
wakeupFd :: Wakeup -> Fd
wakeupFd (Wakeup r _) = r

-- | All descriptors that it has: one, or the two of a pipe.
wakeupFds :: Wakeup -> [Fd]
wakeupFds (Wakeup r w) = if r == w then [r] else [r, w]

-- | Whether it is a pipe. Then an edge-triggered poller must drain it too.
wakeupIsPipe :: Wakeup -> Bool
wakeupIsPipe (Wakeup r w) = r /= w

-- | Make it readable. Never blocks.
signalWakeup :: Wakeup -> IO ()
signalWakeup wk@(Wakeup _ (Fd w)) =
  throwIfNegative_ "wakeup" (c_signal w (if wakeupIsPipe wk then 1 else 0))

-- | Make it unreadable again: all signals so far count as one.
drainWakeup :: Wakeup -> IO ()
drainWakeup (Wakeup (Fd r) _) = c_drain r

-- | Close it.
closeWakeup :: Wakeup -> IO ()
closeWakeup wk@(Wakeup (Fd r) (Fd w)) = do
  closing r
  when (wakeupIsPipe wk) (closing w)
  where
    closing end = c_close end (if wakeupIsPipe wk then 1 else 0)

foreign import ccall unsafe "weft_wakeup_open" c_open :: Ptr CInt -> CInt -> IO CInt

foreign import ccall unsafe "weft_wakeup_signal" c_signal :: CInt -> CInt -> IO CInt

foreign import ccall unsafe "weft_wakeup_drain" c_drain :: CInt -> IO ()

foreign import ccall unsafe "weft_wakeup_close" c_close :: CInt -> CInt -> IO ()
