-- |
-- Waiting for a socket in a transaction: the names and types of @network@.
module Weft.Socket.Stm
  ( waitReadSocketSTM,
    waitAndCancelReadSocketSTM,
    waitWriteSocketSTM,
    waitAndCancelWriteSocketSTM,
  )
where

import Control.Concurrent.STM (STM, atomically, check, newTVarIO, orElse, readTVar, throwSTM, writeTVar)
import Control.Exception (mask_)
import Control.Monad (void)
import Foreign.C.Error (eBADF)
import System.Posix.Types (Fd)
import Weft.Core.Descriptor (descriptorFd, useDescriptor)
import Weft.Core.Manager (addTimer)
import Weft.Core.Timer (cancelTimer)
import Weft.Deadline (Instant, noDeadline, timeoutError)
import Weft.Runtime.Managers (currentManager)
import Weft.Socket.Types
import Weft.Sys (attempt)
import Weft.Thread.Wait (threadWaitReadSTM, threadWaitWriteSTM)

-- | Register for reading now and wait later: the transaction retries until the socket can be read, and throws @EBADF@
-- if it is closed, and after the socket's deadline an error that satisfies 'Weft.Deadline.isTimeout'. The registration
-- is cancelled when the transaction is garbage collected; the timer of a deadline stays until then, or until it is
-- cancelled.
waitReadSocketSTM :: Socket -> IO (STM ())
waitReadSocketSTM = fmap fst . waitAndCancelReadSocketSTM

-- | 'waitReadSocketSTM', with an action that cancels the wait.
waitAndCancelReadSocketSTM :: Socket -> IO (STM (), IO ())
waitAndCancelReadSocketSTM = waiting "Weft.Socket.waitReadSocketSTM" threadWaitReadSTM

-- | 'waitReadSocketSTM' for writing.
waitWriteSocketSTM :: Socket -> IO (STM ())
waitWriteSocketSTM = fmap fst . waitAndCancelWriteSocketSTM

-- | 'waitAndCancelReadSocketSTM' for writing.
waitAndCancelWriteSocketSTM :: Socket -> IO (STM (), IO ())
waitAndCancelWriteSocketSTM = waiting "Weft.Socket.waitWriteSocketSTM" threadWaitWriteSTM

-- | Register while the socket cannot be closed, so that the kernel cannot give its number to another
-- file before.
waiting :: String -> (Fd -> IO (STM (), IO ())) -> Socket -> IO (STM (), IO ())
waiting loc register s = withDescriptor s $ \ep -> mask_ $ do
  outcome <- useDescriptor ep (attempt (register (descriptorFd ep)))
  maybe (ioError (socketError loc eBADF)) id outcome >>= limited loc (socketDeadline s)

-- | A wait and what cancels it, until the deadline.
limited :: String -> Instant -> (STM (), IO ()) -> IO (STM (), IO ())
limited loc deadline (wait, cancel)
  | deadline == noDeadline = pure (wait, cancel)
  | otherwise = do
    passed <- newTVarIO False
    m <- currentManager
    timer <- addTimer m deadline (atomically (writeTVar passed True))
    let tooLate = readTVar passed >>= check >> throwSTM (timeoutError loc)
    pure (wait `orElse` tooLate, cancel >> void (cancelTimer timer))
