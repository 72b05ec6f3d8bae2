-- |
-- A connection for Warp that receives and sends on Weft.
module Weft.Warp.Connection
  ( openConnection,
  )
where

import Control.Exception (catch, handle, throwIO, throwTo)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Data.IORef
import Foreign.Ptr (plusPtr)
import GHC.IO.Exception (IOErrorType (..))
import Network.Wai.Handler.Warp (InvalidRequest (ConnectionClosedByPeer))
import Network.Wai.Handler.Warp.Internal (Connection, RecvBuf, Settings (..))
import System.IO.Error (ioeGetErrorType)
import System.TimeManager (TimeoutThread)
import Weft.Duration
import Weft.Socket
import Weft.Socket.ByteString (recv, sendAll, sendMany)
import Weft.Warp.Activity
import Weft.Warp.Compat (newConnection)
import Weft.Warp.FFI (hasUnread)
import Weft.Warp.File (sendFileWith)
import Weft.Warp.Patience
import Weft.Warp.Wire

-- | Make a connection of a socket and enter it in the book, under the calling
-- thread.
openConnection :: Settings -> Book -> Socket -> IO Connection
openConnection settings book sock = do
  activity <- newActivity settings sock
  enter book activity
  let patience = activityPatience activity
      sent act = sending patience (act `catch` vanished) >> writeIORef (activityPhase activity) Answered
      send = sendSlices (sendAll sock) (progress patience)
      gathered chunks
        | sum (map B.length chunks) <= slice = sendMany sock chunks
        | otherwise = mapM_ send chunks
  newConnection
    Wire
      { wireSendAll = \bytes -> do
          cork <- readIORef (activityCork activity)
          case cork of
            Open -> sent (send bytes)
            -- Warp uses the memory again.
            Next | B.length bytes <= longestHead -> writeIORef (activityCork activity) (Held (B.copy bytes))
            Next -> writeIORef (activityCork activity) Open >> sent (send bytes)
            Held begin -> writeIORef (activityCork activity) Open >> sent (gathered [begin, bytes]),
        wireSendMany = sent . gathered,
        wireSendFile = \room file offset count hook headers ->
          sent (sendFileWith sock send room file offset count (hook >> progress patience) headers),
        wireRecv = receive book activity,
        wireRecvBuf = fill patience sock,
        wireClose = closeWell settings book activity,
        wireHttp2 = activityHttp2 activity,
        wireLocal = getSocketName sock
      }

-- | The longest head of a response that is held back.
longestHead :: Int
longestHead = 4096

-- | Send in pieces, and say so after each.
sendSlices :: (ByteString -> IO ()) -> IO () -> ByteString -> IO ()
sendSlices send done bytes
  | B.length bytes <= slice = send bytes
  | otherwise = send (B.take slice bytes) >> done >> sendSlices send done (B.drop slice bytes)

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
      if more then writeIORef (activityPhase activity) Idle >> renewPatience patience >> next else pure B.empty
    _ -> next
  where
    patience = activityPatience activity
    next = do
      http2 <- readIORef (activityHttp2 activity)
      hold <- readIORef (activityHold activity)
      let ended = if http2 then handle streamEnds else id
      bytes <- ended (receiving patience (http2 || hold == OnRaw) (recv (activitySocket activity) receiveSize)) `catch` closed
      writeIORef (activityPhase activity) (if B.null bytes then Ended else Reading)
      pure bytes
    -- Over HTTP/2 it is not the connection's own thread that receives. That one is told, and this
    -- one ends, which all versions of the library take well only as an end of the stream.
    streamEnds :: TimeoutThread -> IO ByteString
    streamEnds e = B.empty <$ throwTo (activityThread activity) e
    -- By a server that ends.
    closed :: IOError -> IO ByteString
    closed e
      | ioeGetErrorType e == InvalidArgument = pure B.empty
      | otherwise = throwIO e

-- | The most bytes of one receive, as Warp has it for its own connections.
receiveSize :: Int
receiveSize = 16384

-- | Fill memory; 'False' when the stream ended before.
fill :: Patience -> Socket -> RecvBuf
fill _ _ _ 0 = pure True
fill patience sock p n = do
  got <- sending patience (recvBuf sock p n)
  if got == 0 then pure False else fill patience sock (p `plusPtr` got) (n - got)

-- | Close as the settings say. Where they say \"at once\" and the client has sent
-- something that nobody has read, or the server is ending, the client is given a
-- little time to take the last response, since the kernel would tell it to forget
-- what it has not read yet.
closeWell :: Settings -> Book -> Activity -> IO ()
closeWell settings book activity = do
  phase <- readIORef (activityPhase activity)
  http2 <- readIORef (activityHttp2 activity)
  let linger = if http2 then settingsGracefulCloseTimeout2 settings else settingsGracefulCloseTimeout1 settings
  if phase `notElem` [Answered, Probed]
    then close sock
    else
      if linger > 0
        then closeGracefully (milliseconds linger) maxBound sock
        else do
          draining <- isDraining book
          unread <- if draining then pure True else hasUnread sock
          if unread then closeGracefully lingerTime lingerBytes sock else close sock
  where
    sock = activitySocket activity
    lingerTime = seconds 2
    lingerBytes = 1048576
