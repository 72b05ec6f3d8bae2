-- |
-- The wake-up descriptor on the simulated machine: an eventfd of "Kernel", with the interface of the real module.
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

import Control.Monad (void)
import Kernel
import System.Posix.Types (Fd (..))
import Weft.FFI.Errno

newtype Wakeup = Wakeup Fd

newWakeup :: IO Wakeup
newWakeup = Wakeup . fromIntegral <$> newEventFd

wakeupFd :: Wakeup -> Fd
wakeupFd (Wakeup fd) = fd

wakeupFds :: Wakeup -> [Fd]
wakeupFds (Wakeup fd) = [fd]

wakeupIsPipe :: Wakeup -> Bool
wakeupIsPipe _ = False

signalWakeup :: Wakeup -> IO ()
signalWakeup (Wakeup fd) = throwIfNegative_ "wakeup" (writeBytes (fromIntegral fd) [1])

drainWakeup :: Wakeup -> IO ()
drainWakeup (Wakeup fd) = void (readBytes (fromIntegral fd) 8)

closeWakeup :: Wakeup -> IO ()
closeWakeup (Wakeup fd) = void (closeNumber (fromIntegral fd))
