{-# OPTIONS_GHC -Wno-dodgy-imports #-}

-- |
-- The Warp web server on Weft: the names and types of "Network.Wai.Handler.Warp",
-- so that a program that changes this import runs its WAI application with every
-- accept, receive and send on Weft. 'Socket' is that of "Weft.Socket".
--
-- > import Network.HTTP.Types (status200)
-- > import Network.Wai (responseLBS)
-- > import Weft.Warp
-- >
-- > main :: IO ()
-- > main = run 8080 $ \_request respond -> respond (responseLBS status200 [] "Hello")
--
-- Connections are accepted on every capability and stay there, with the threads
-- that serve them; a way of forking of one's own ('setFork') is honoured, and takes
-- that away. HTTP itself, HTTP\/1 and 2, is Warp's work, and all its settings
-- count ('Network.Wai.Handler.Warp.setAccept' excepted).
--
-- = Ending
--
-- A server ends when the action that 'setInstallShutdownHandler' was given is run,
-- when 'drainServer' is called, or when its listening sockets fail: it accepts no
-- more, closes connections that wait for a next request, and lets requests under
-- way finish, for 'setGracefulShutdownTimeout' at most. An exception thrown at the
-- thread that runs it drops all connections.
module Weft.Warp
  ( -- * Running an application
    run,
    runEnv,
    runSettings,
    runSettingsSocket,
    defaultSettings,

    -- * Running one beside an action
    withServer,
    withServerSocket,
    withServerWith,
    Server,
    serverAddress,
    serverConnections,
    waitServer,
    drainServer,

    -- * Facing the world
    Options (..),
    defaultOptions,
    Limits (..),
    defaultLimits,
    Refusal (..),
    refusalStatus,
    refusalReason,

    -- ** TLS
    Tls,
    loadTls,
    reloadTls,

    -- * In tests
    withApplication,
    withApplicationSettings,
    testWithApplication,
    testWithApplicationSettings,
    openFreePort,

    -- * The rest, from Warp
    module Network.Wai.Handler.Warp,
  )
where

import Control.Concurrent
import Control.Exception
import Control.Monad (forM_, unless, void, when)
import Data.IORef
import Data.Maybe (listToMaybe)
import Data.String (fromString)
import GHC.Conc (labelThread)
import Network.Wai (Application)
import Network.Wai.Handler.Warp hiding
  ( defaultSettings,
    openFreePort,
    run,
    runEnv,
    runSettings,
    runSettingsSocket,
    setAccept,
    testWithApplication,
    testWithApplicationSettings,
    withApplication,
    withApplicationSettings,
  )
import Network.Wai.Handler.Warp.Internal (Settings (..))
import System.Environment (lookupEnv)
import Weft.Duration (Duration, seconds)
import Weft.Socket (ServerSettings (..), SockAddr (..), Socket, defaultServerSettings)
import qualified Weft.Socket as W
import qualified Weft.Thread as W
import Weft.Warp.Activity (endIdle)
import Weft.Warp.Defaults (defaultSettings)
import Weft.Warp.Engine
import Weft.Warp.House (admitted, newHouse)
import Weft.Warp.Limits
import Weft.Warp.Listen (withListeners)
import Weft.Warp.Options
import Weft.Warp.TLS (Tls, loadTls, reloadTls)

-- Running --------------------------------------------------------------------------------

-- | Run an application on a port, of every IPv4 address.
run :: Port -> Application -> IO ()
run port = runSettings (setPort port defaultSettings)

-- | The same, on the port in the environment variable @PORT@ if it is set.
runEnv :: Port -> Application -> IO ()
runEnv port app = lookupEnv "PORT" >>= maybe (run port app) fromText
  where
    fromText text = case listToMaybe (reads text) of
      Just (p, "") -> run p app
      _ -> ioError (userError ("PORT is not a number: " <> show text))

-- | Run an application until the server ends. Throws an 'IOError' when it cannot
-- listen.
runSettings :: Settings -> Application -> IO ()
runSettings settings app = withServer settings app (untilEnd settings)

-- | Run an application on a socket that listens; the settings' host and port do
-- not count. The server ends when the socket is closed, and closes it.
runSettingsSocket :: Settings -> Socket -> Application -> IO ()
runSettingsSocket settings sock app = withServerSocket settings sock app (untilEnd settings)

untilEnd :: Settings -> Server -> IO ()
untilEnd settings server = do
  waitServer server
  void (drainServer server (maybe maxBound (seconds . fromIntegral) (settingsGracefulShutdownTimeout settings)))

-- Beside an action -----------------------------------------------------------------------

-- | A server that runs.
data Server = Server
  { serverSockets :: W.Server,
    serverEngines :: [Engine],
    -- | True from when it begins to end.
    serverDraining :: IORef Bool,
    -- | Full when it is to end, or cannot go on.
    serverEnd :: MVar ()
  }

-- | Run an application beside an action, which gets to know the address. When the
-- action ends, the server does, and drops the connections that are left: see
-- 'drainServer' for ending them well. Throws an 'IOError' when it cannot listen.
withServer :: Settings -> Application -> (Server -> IO a) -> IO a
withServer = withServerWith defaultOptions

-- | The same on a socket that listens. One acceptor hands the connections to the
-- capabilities in turn.
withServerSocket :: Settings -> Socket -> Application -> (Server -> IO a) -> IO a
withServerSocket settings sock = withServerWith defaultOptions {optionListeners = [sock]} settings

-- | The same with options: on sockets of one's own, over TLS, with limits on the clients.
--
-- > serveSafely :: Application -> IO ()
-- > serveSafely app = do
-- >   tls <- loadTls "chain.pem" "key.pem"
-- >   let options = defaultOptions {optionTls = Just tls, optionLimits = Just defaultLimits}
-- >   withServerWith options (setPort 443 defaultSettings) app waitServer
withServerWith :: Options -> Settings -> Application -> (Server -> IO a) -> IO a
withServerWith options settings = serverWith start options settings
  where
    start base = case optionListeners options of
      [] -> withListeners settings base
      listeners -> W.withServerOn base listeners

-- | How to run a server on sockets: with what settings, handler and action.
type Start a = ServerSettings -> (Socket -> SockAddr -> IO ()) -> (W.Server -> IO a) -> IO a

serverWith :: Start a -> Options -> Settings -> Application -> (Server -> IO a) -> IO a
serverWith start options given app act = do
  caps <- getNumCapabilities
  draining <- newIORef False
  end <- newEmptyMVar
  house <- newHouse
  withEngines caps settings options draining app $ \engines ->
    start (base end) (handler house engines caps) $ \sockets ->
      act' (Server sockets engines draining end)
  where
    settings = setOnException (\request e -> unless (hasGone e) (settingsOnException given request e)) given
    handler house engines caps sock peer = do
      (cap, _) <- threadCapability =<< myThreadId
      forM_ (listToMaybe (drop (cap `mod` caps) engines)) $ \engine ->
        maybe id (admission house engines peer) (optionLimits options) (serveConnection engine sock peer)
    admission house engines peer limits =
      admitted limits house (map engineBook engines) peer (optionOnRefused options peer)
    base end =
      defaultServerSettings
        { serverOnListen = \_ -> do
            settingsInstallShutdownHandler settings (void (tryPutMVar end ()))
            settingsBeforeMainLoop settings,
          serverOnException = \_ -> settingsOnException settings Nothing
        }
    -- A server whose listening sockets fail, or are closed by the user, ends.
    act' server = bracket (watch server) killThread (\_ -> act server)
    watch server = do
      t <- forkIOWithUnmask $ \unmask ->
        unmask (W.waitServer (serverSockets server)) >> void (tryPutMVar (serverEnd server) ())
      t <$ labelThread t "weft warp watch"

-- | Newer versions of the HTTP\/2 library report a client that has closed its connection
-- as an error, of a type that not all of them export.
hasGone :: SomeException -> Bool
hasGone e = show e == "ConnectionIsClosed"

-- | Where it listens.
serverAddress :: Server -> SockAddr
serverAddress = W.serverAddress . serverSockets

-- | How many connections it has, busy or idle.
serverConnections :: Server -> IO Int
serverConnections = W.serverConnections . serverSockets

-- | Block until the server is to end: the shutdown handler was run, or nothing can
-- be accepted any more. What is left is 'drainServer'.
waitServer :: Server -> IO ()
waitServer = readMVar . serverEnd

-- | Accept no more, close the connections that wait for a next request, and let
-- the requests under way finish, for that long at most. 'True': no connection is
-- left.
--
-- A connection on which nothing has come yet is given a second. One of HTTP\/2 is
-- closed when no request has been worked on and nothing has been sent for half a second.
drainServer :: Server -> Duration -> IO Bool
drainServer server patience = do
  writeIORef (serverDraining server) True
  _ <- tryPutMVar (serverEnd server) ()
  bracket startEnding killThread (\_ -> W.drainServer (serverSockets server) patience)
  where
    startEnding = do
      t <- forkIOWithUnmask (\unmask -> unmask (ending 0) `catch` stopped)
      t <$ labelThread t "weft warp drain"
    ending turn = do
      mapM_ (endIdle turn . engineBook) (serverEngines server)
      W.threadDelay 100000
      ending (turn + 1)
    stopped :: AsyncException -> IO ()
    stopped _ = pure ()

-- Tests ------------------------------------------------------------------------------------

-- | Run an application on a free port of the loopback interface beside an action
-- that gets to know the port.
withApplication :: IO Application -> (Port -> IO a) -> IO a
withApplication = withApplicationSettings defaultSettings

-- | 'withApplication' with settings, whose host and port do not count.
withApplicationSettings :: Settings -> IO Application -> (Port -> IO a) -> IO a
withApplicationSettings settings makeApp act = do
  app <- makeApp
  withServer (setHost (fromString "127.0.0.1") (setPort 0 settings)) app (act . portOf . serverAddress)
  where
    portOf address = case address of
      SockAddrInet port _ -> fromIntegral port
      SockAddrInet6 port _ _ _ -> fromIntegral port
      _ -> 0

-- | 'withApplication', with the application's exceptions thrown at the caller too.
testWithApplication :: IO Application -> (Port -> IO a) -> IO a
testWithApplication = testWithApplicationSettings defaultSettings

-- | 'withApplicationSettings', with the application's exceptions thrown at the
-- caller too.
testWithApplicationSettings :: Settings -> IO Application -> (Port -> IO a) -> IO a
testWithApplicationSettings settings makeApp act = do
  caller <- myThreadId
  app <- makeApp
  let telling req respond =
        app req respond `catch` \e -> do
          when (defaultShouldDisplayException e) (throwTo caller e)
          throwIO (e :: SomeException)
  withApplicationSettings settings (pure telling) act

-- | A socket that listens on a free port of the loopback interface.
openFreePort :: IO (Port, Socket)
openFreePort = do
  sock <- W.socket W.AF_INET W.Stream W.defaultProtocol
  (`onException` W.close sock) $ do
    W.bind sock (SockAddrInet 0 (W.tupleToHostAddress (127, 0, 0, 1)))
    W.listen sock (serverBacklog defaultServerSettings)
    port <- W.socketPort sock
    pure (fromIntegral port, sock)
