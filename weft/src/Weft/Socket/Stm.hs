-- |
-- Waiting for a socket in a transaction: the names and types of @network@.
module Weft.Socket.Stm
  ( waitReadSocketSTM,
    waitAndCancelReadSocketSTM,
    waitWriteSocketSTM,
    waitAndCancelWriteSocketSTM,
  )
where

import Control.Concurrent.STM (STM)
import Control.Exception (mask_)
import Foreign.C.Error (eBADF)
import System.Posix.Types (Fd)
import Weft.Core.Descriptor (descriptorFd, useDescriptor)
import Weft.Socket.Types
import Weft.Sys (attempt)
import Weft.Thread.Wait (threadWaitReadSTM, threadWaitWriteSTM)

-- | Register for reading now and wait later: the transaction retries until the socket can be read, and throws @EBADF@
-- if it is closed. The registration is cancelled when the transaction is garbage collected.
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
  maybe (ioError (socketError loc eBADF)) id outcome
