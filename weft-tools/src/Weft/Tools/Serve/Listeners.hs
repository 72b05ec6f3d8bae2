-- |
-- Description : Sockets to listen on
--
-- TCP and Unix sockets for the addresses of @--listen@. For each address there is a socket for each capability, and the
-- kernel spreads connections over them.
module Weft.Tools.Serve.Listeners
  ( Wanted (..),
    withListeners,
    cannotListenOn,
  )
where

import Control.Concurrent (getNumCapabilities)
import Control.Exception
import Control.Monad (replicateM, unless, void, when)
import Data.List (isPrefixOf)
import Data.Maybe (isJust)
import Foreign.C.Error
import GHC.IO.Exception (IOErrorType (..), IOException (ioe_description, ioe_errno, ioe_type))
import System.Directory (doesPathExist, removeFile)
import System.FilePath (takeDirectory)
import System.Posix.Files (deviceID, fileID, getSymbolicLinkStatus, isSocket, modificationTimeHiRes, setFileMode)
import System.Posix.IO (dup)
import System.Posix.Types (Fd (..), FileMode)
import Weft.Blocking (blocking)
import Weft.Socket
import Weft.Socket.Address (addressFamily)
import Weft.Tools.Serve.FolderLock (withFolderLock)
import Weft.Tools.Serve.Values (Listen (..))

-- | The addresses to listen on, and how.
data Wanted = Wanted
  { wantedAddresses :: [Listen],
    -- | Those of the program's other servers.
    wantedBesides :: [Listen],
    -- | The permissions of Unix sockets.
    wantedMode :: FileMode
  }

-- | Listen on all of these. The action gets the sockets, which it has to close, and their addresses. Throws an
-- 'IOError' that names the address if listening fails. Files of Unix sockets are removed afterwards.
--
-- @[::]@ takes IPv4 connections too (ipv6(7), @IPV6_V6ONLY@), unless one of the addresses is an IPv4 address with the
-- same port: the kernel would refuse to listen on both.
withListeners :: Wanted -> ([Socket] -> [SockAddr] -> IO a) -> IO a
withListeners wanted act = bracket (newAll (wantedAddresses wanted)) (mapM_ openedRemove) $ \opened -> act (concatMap openedSockets opened) (map openedAddress opened)
  where
    newAll listens = case listens of
      [] -> pure []
      l : rest -> do
        this <- named l (listenOn (wantedMode wanted) takenByIPv4 l)
        more <- newAll rest `onException` (mapM_ close (openedSockets this) >> openedRemove this)
        pure (this : more)
    named l open = open `catch` \e -> ioError (userError (cannotListenOn (shown l) e))
    shown l = case l of
      ListenTcp host port -> maybe "*" id host <> " port " <> show port
      ListenUnix path -> "unix:" <> path
    takenByIPv4 port = or <$> mapM (isIPv4 port) (wantedAddresses wanted <> wantedBesides wanted)
    isIPv4 port l = case l of
      ListenTcp (Just host) p | p == port -> named l ((== AF_INET) . addressFamily <$> resolved (Just host) p)
      _ -> pure False

-- | The error message for an address on which listening failed.
cannotListenOn :: String -> IOException -> String
cannotListenOn place e = "cannot listen on " <> place <> ": " <> why
  where
    why = case ioe_type e of
      ResourceBusy -> "it is in use"
      PermissionDenied | "unix:" `isPrefixOf` place -> "permission denied"
      PermissionDenied -> "permission denied (ports below 1024 need root or CAP_NET_BIND_SERVICE)"
      _ | fmap Errno (ioe_errno e) == Just eADDRINUSE -> "it is in use"
      _ -> ioe_description e

-- | An address on which the program listens.
data Opened = Opened
  { openedAddress :: SockAddr,
    openedSockets :: [Socket],
    -- | Removes the file of a Unix socket.
    openedRemove :: IO ()
  }

-- | The second argument says whether there is an IPv4 address with that port.
listenOn :: FileMode -> (Int -> IO Bool) -> Listen -> IO Opened
listenOn mode takenByIPv4 wanted = do
  caps <- getNumCapabilities
  case wanted of
    ListenTcp host port -> do
      address <- resolved host port
      only6 <- if isJust host && port /= 0 && everyIPv6 address then takenByIPv4 port else pure False
      -- The first one listens before it has SO_REUSEPORT: that fails if another server listens there, even one that
      -- starts at the same moment. With the option both would share the port.
      first <- listening only6 False address
      (`onException` close first) $ do
        setSocketOption first ReusePort 1
        found <- getSocketName first
        others <- several (caps - 1) (listening only6 True found)
        pure (Opened found (first : others) (pure ()))
    -- Under the lock no other server finds the file before the socket listens: it would take it for one that was left,
    -- and remove it.
    ListenUnix path -> withFolderLock (takeDirectory path) $ do
      address <- unixAddress path
      clearPath path address
      sock <- socket AF_UNIX Stream defaultProtocol
      (`onException` close sock) $ do
        bind sock address
        -- Clients are refused until the socket listens, so none connects before it has its permissions. The umask,
        -- by which bind(2) could set them, is that of all threads.
        setFileMode path mode
        made <- identity path
        listen sock backlog
        others <- replicateM (caps - 1) $ withFdSocket sock (dup . Fd) >>= \(Fd fd) -> mkSocket fd
        pure (Opened (SockAddrUnix path) (sock : others) (removeSame path made))
  where
    backlog = 4096
    -- While this server shuts down, another one may replace the file by its own.
    removeSame path made = void . try' . withFolderLock (takeDirectory path) $ identity path >>= \now -> when (now == made) (removeFile path)
    -- A file system may give the inode of a removed file to the next one.
    identity path = (\s -> (deviceID s, fileID s, modificationTimeHiRes s)) <$> getSymbolicLinkStatus path
    try' act = try act :: IO (Either IOException ())
    several n open
      | n <= 0 = pure []
      | otherwise = do
        sock <- open
        (sock :) <$> (several (n - 1 :: Int) open `onException` close sock)
    listening only6 shared address = do
      sock <- socket (addressFamily address) Stream defaultProtocol
      (`onException` close sock) $ do
        setSocketOption sock ReuseAddr 1
        when shared (setSocketOption sock ReusePort 1)
        when only6 (setSocketOption sock IPv6Only 1)
        bind sock address
        sock <$ listen sock backlog
    everyIPv6 address = case address of
      SockAddrInet6 _ _ (0, 0, 0, 0) _ -> True
      _ -> False

-- | The address to bind. 'Nothing' means every address: of IPv6, which accepts IPv4 too, or of IPv4 if the system has
-- no IPv6.
resolved :: Maybe String -> Int -> IO SockAddr
resolved host port = case host of
  Nothing -> do
    both <- try (bracket (socket AF_INET6 Stream defaultProtocol) close (const (pure ()))) :: IO (Either IOException ())
    pure (either (const (SockAddrInet (fromIntegral port) 0)) (const (SockAddrInet6 (fromIntegral port) 0 (0, 0, 0, 0) 0)) both)
  Just name -> do
    found <- blocking (getAddrInfo (Just defaultHints {addrSocketType = Stream}) (Just name) (Just (show port)))
    case found of
      info : _ -> pure (addrAddress info)
      [] -> ioError (userError "no such address")

-- | Remove the socket file of a server that does not run any more. Only the answer that nothing listens shows that: a
-- server whose queue is full or that has another type of socket answers by other errors (unix(7)).
clearPath :: FilePath -> SockAddr -> IO ()
clearPath path address = do
  there <- doesPathExist path
  when there $ do
    status <- getSymbolicLinkStatus path
    unless (isSocket status) (fault "a file of that name exists and is not a socket")
    answered <- try (bracket (socket AF_UNIX Stream defaultProtocol) close (`connect` address))
    case answered of
      Right () -> fault "another server is listening there"
      Left e
        | failed [eCONNREFUSED] e -> removeFile path
        | failed [eNOENT] e -> pure ()
        | failed [eAGAIN] e -> fault "another server is listening there, and its queue of connections is full"
        | failed [ePROTOTYPE] e -> fault "another program uses the socket there, which is not a stream socket"
        | failed [eACCES, ePERM] e -> fault "there is a socket that may not be connected to, so another server may be listening there"
        | otherwise -> ioError e
  where
    fault = ioError . userError
    failed codes e = fmap Errno (ioe_errno e) `elem` map Just codes
