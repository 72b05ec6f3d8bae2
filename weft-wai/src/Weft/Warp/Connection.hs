-- |
-- A connection for Warp that receives and sends on Weft.
module Weft.Warp.Connection
  ( openConnection,
  )
where

import Control.Exception (catch, throwIO)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Data.IORef
import Foreign.Ptr (plusPtr)
import GHC.IO.Exception (IOErrorType (..))
import Network.Wai.Handler.Warp (InvalidRequest (ConnectionClosedByPeer))
import Network.Wai.Handler.Warp.Internal (Connection, RecvBuf, Settings (..))
import System.IO.Error (ioeGetErrorType)
import Weft.Duration
import Weft.Socket
import Weft.Socket.ByteString (recv, sendAll, sendMany)
import Weft.Warp.Activity
import Weft.Warp.Compat (newConnection)
import Weft.Warp.FFI (hasUnread)
import Weft.Warp.File (sendFileWith)
import Weft.Warp.Wire

-- | Make a connection of a socket and enter it in the book, under the calling
-- thread.
openConnection :: Settings -> Book -> Socket -> IO Connection
openConnection settings book sock = do
  activity <- newActivity sock
  enter book activity
  let sent act = (act `catch` vanished) >> writeIORef (activityPhase activity) Answered
      send = sent . sendAll sock
  newConnection
    Wire
      { wireSendAll = send,
        wireSendMany = sent . sendMany sock,
        wireSendFile = \room file offset count hook headers ->
          sent (sendFileWith sock (sendAll sock) room file offset count hook headers),
        wireRecv = receive book activity,
        wireRecvBuf = fill sock,
        wireClose = closeWell settings book activity,
        wireHttp2 = activityHttp2 activity,
        wireLocal = getSocketName sock
      }

-- | Warp's name for a client that went away while it was being answered.
vanished :: IOError -> IO a
vanished e
  | ioeGetErrorType e == ResourceVanished = throwIO ConnectionClosedByPeer
  | otherwise = throwIO e

-- | What has come, at least a byte; empty at the end of the stream, after the
-- connection was closed, and, in a server that ends, when all is answered.
receive :: Book -> Activity -> IO ByteString
receive book activity = do
  phase <- readIORef (activityPhase activity)
  case phase of
    Answered -> do
      more <- mayReadOn book activity
      if more then writeIORef (activityPhase activity) Idle >> next else pure B.empty
    _ -> next
  where
    next = do
      bytes <- recv (activitySocket activity) receiveSize `catch` closed
      writeIORef (activityPhase activity) (if B.null bytes then Ended else Reading)
      pure bytes
    -- Warp's timeouts close the socket from another thread.
    closed :: IOError -> IO ByteString
    closed e
      | ioeGetErrorType e == InvalidArgument = pure B.empty
      | otherwise = throwIO e

-- | The most bytes of one receive, as Warp has it for its own connections.
receiveSize :: Int
receiveSize = 16384

-- | Fill memory; 'False' when the stream ended before.
fill :: Socket -> RecvBuf
fill _ _ 0 = pure True
fill sock p n = do
  got <- recvBuf sock p n
  if got == 0 then pure False else fill sock (p `plusPtr` got) (n - got)

-- | Close as the settings say. Where they say \"at once\" and the client has sent
-- something that nobody has read, or the server is ending, the client is given a
-- little time to take the last response, since the kernel would tell it to forget
-- what it has not read yet.
closeWell :: Settings -> Book -> Activity -> IO ()
closeWell settings book activity = do
  phase <- readIORef (activityPhase activity)
  http2 <- readIORef (activityHttp2 activity)
  let patience = if http2 then settingsGracefulCloseTimeout2 settings else settingsGracefulCloseTimeout1 settings
  if phase `notElem` [Answered, Probed]
    then close sock
    else
      if patience > 0
        then closeGracefully (milliseconds patience) maxBound sock
        else do
          draining <- isDraining book
          linger <- if draining then pure True else hasUnread sock
          if linger then closeGracefully lingerTime lingerBytes sock else close sock
  where
    sock = activitySocket activity
    lingerTime = seconds 2
    lingerBytes = 1048576
