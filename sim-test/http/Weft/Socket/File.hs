-- |
-- Sending files is not supported on the simulated machine.
module Weft.Socket.File
  ( sendFileRange,
  )
where

import Data.Int (Int64)
import System.Posix.Types (Fd)
import Weft.Socket.Types (Socket)

sendFileRange :: Socket -> Fd -> Int64 -> Int64 -> IO ()
sendFileRange _ _ _ _ = ioError (userError "sendFileRange: not simulated")
