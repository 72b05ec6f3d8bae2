{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : Sockets from systemd, and notifications to it
--
-- The protocols of sd_listen_fds(3) and sd_notify(3), which others speak as well.
module Weft.Tools.Serve.Systemd
  ( inheritedSockets,
    notify,
    Notice (..),
  )
where

import Control.Exception (IOException, bracket, try)
import Control.Monad (forM, forM_, mfilter, void)
import qualified Data.ByteString.Char8 as B
import GHC.Clock (getMonotonicTimeNSec)
import System.Environment (lookupEnv, unsetEnv)
import System.Posix.IO (FdOption (CloseOnExec), setFdOption)
import System.Posix.Process (getProcessID)
import System.Posix.Types (Fd (..))
import Weft.Http.Client (socketPathFits)
import Weft.Socket
import Weft.Socket.ByteString (sendAll)

-- | The listening sockets that this process was given: LISTEN_FDS descriptors from 3 on, if LISTEN_PID is this process.
-- Children do not inherit them. Throws an 'IOError' if one of them is not a listening stream socket.
inheritedSockets :: IO [Socket]
inheritedSockets = do
  pid <- lookupEnv "LISTEN_PID"
  count <- lookupEnv "LISTEN_FDS"
  own <- getProcessID
  mapM_ unsetEnv ["LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"]
  case (pid, count) of
    (Just p, Just n) | p == show own -> case reads n of
      [(k, "")] | k >= 0, k <= 1024 -> forM (take k [3 ..]) inherit
      _ -> ioError (userError ("LISTEN_FDS is not a number of descriptors: " <> n))
    _ -> pure []
  where
    inherit fd = do
      checked <- try $ do
        setFdOption (Fd fd) CloseOnExec True
        sock <- mkSocket fd
        kind <- getSocketOption sock Type
        listens <- getSocketOption sock acceptConn
        pure (sock, kind == streamType && listens == 1)
      case checked of
        Right (sock, True) -> pure sock
        Right (_, False) -> wrong fd "is not a listening stream socket"
        Left e -> wrong fd ("is not a socket: " <> show (e :: IOException))
    wrong fd why = ioError (userError ("descriptor " <> show fd <> " of LISTEN_FDS " <> why))
    -- SOL_SOCKET and SO_ACCEPTCONN of socket(7), SOCK_STREAM of socket(2), with Linux's numbers.
    acceptConn = SockOpt 1 30
    streamType = 1

-- | Messages to the service manager.
data Notice = Ready | Reloading | Stopping

-- | Send a message to the service manager, if there is one. Errors are ignored.
notify :: Notice -> IO ()
notify notice = do
  place <- lookupEnv "NOTIFY_SOCKET"
  forM_ (mfilter socketPathFits place) $ \path -> do
    text <- message
    void (try (deliver path text) :: IO (Either IOException ()))
  where
    deliver path text = bracket (socket AF_UNIX Datagram defaultProtocol) close $ \sock -> do
      unixAddress (abstract path) >>= connect sock
      sendAll sock text
    -- unix(7): the name of an abstract socket begins with a zero byte.
    abstract path = case path of
      '@' : name -> '\0' : name
      _ -> path
    message = case notice of
      Ready -> pure "READY=1\n"
      Stopping -> pure "STOPPING=1\n"
      Reloading -> do
        t <- getMonotonicTimeNSec
        pure ("RELOADING=1\nMONOTONIC_USEC=" <> B.pack (show (t `quot` 1000)) <> "\n")
