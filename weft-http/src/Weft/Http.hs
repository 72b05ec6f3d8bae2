-- |
-- A web server for WAI applications with Warp's interface: to run an application on Weft, change the
-- import. @doc\/warp.md@ lists the differences.
--
-- > import Network.HTTP.Types (status200)
-- > import Network.Wai (responseLBS)
-- > import Weft.Http
-- >
-- > main :: IO ()
-- > main = run 8080 $ \_request respond -> respond (responseLBS status200 [] "Hello")
--
-- Connections are accepted on every capability and stay there, with the threads that serve them.
--
-- = Shutdown
--
-- A server begins a graceful shutdown when the action passed to 'setInstallShutdownHandler' is run,
-- when 'drainServer' is called, or when its listening sockets fail. It accepts no further
-- connections, closes those that wait for a next request, and lets requests in
-- progress finish, for 'setGracefulShutdownTimeout' at most. An exception thrown to the
-- thread that runs the server drops all connections.
--
-- @since 0.1.0
module Weft.Http
  ( -- * Running an application
    run,
    runEnv,
    runSettings,
    runWith,
    runSettingsSocket,

    -- * Running one beside an action
    withServer,
    withServerSocket,
    withServerWith,
    Server,
    serverAddress,
    serverConnections,
    waitServer,
    drainServer,

    -- * Settings
    module Weft.Http.Settings,

    -- * Options
    Options (..),
    defaultOptions,
    Limits (..),
    defaultLimits,
    mostSockets,
    Refusal (..),
    refusalStatus,
    refusalReason,

    -- ** TLS
    TlsServer,
    loadTls,
    reloadTlsServer,
    requestSecurity,

    -- * Files
    withOpenFile,

    -- * Clients
    awaitClientFinished,
    awaitClientGone,

    -- * HTTP\/2
    HTTP2Data (..),
    defaultHTTP2Data,
    getHTTP2Data,
    setHTTP2Data,
    modifyHTTP2Data,
    TrailersMaker,
    NextTrailersMaker (..),
    constantTrailers,
    getRequestTrailers,
    sendEarlyHints,

    -- * In tests
    withApplication,
    withApplicationSettings,
    testWithApplication,
    testWithApplicationSettings,
    openFreePort,
  )
where

import Control.Concurrent
import Control.Exception
import Control.Monad (void, when)
import Data.Maybe (listToMaybe)
import Data.String (fromString)
import Network.Wai (Application)
import System.Environment (lookupEnv)
import Weft.Duration (seconds)
import Weft.Http.FileResponse (withOpenFile)
import Weft.Http.Limits
import Weft.Http.Request (awaitClientFinished, awaitClientGone, requestSecurity)
import Weft.Http.Server
import Weft.Http.Settings
import Weft.Http2.Data
import Weft.Socket (ServerSettings (..), SockAddr (..), Socket, defaultServerSettings)
import qualified Weft.Socket as W
import Weft.Tls

-- Running --------------------------------------------------------------------------------

-- | Run an application on a port of all IPv4 addresses.
run :: Port -> Application -> IO ()
run port = runSettings (setPort port defaultSettings)

-- | Run an application on the port in the environment variable @PORT@ if it is set, else on the given one.
runEnv :: Port -> Application -> IO ()
runEnv port app = lookupEnv "PORT" >>= maybe (run port app) fromText
  where
    fromText text = case listToMaybe (reads text) of
      Just (p, "") -> run p app
      _ -> ioError (userError ("PORT is not a number: " <> show text))

-- | Run an application until the server ends. Throws an 'IOError' if it cannot
-- listen or accept.
runSettings :: Settings -> Application -> IO ()
runSettings = runWith defaultOptions

-- | 'runSettings' with options, such as TLS. When the action that 'setInstallShutdownHandler' gets has been run, the
-- server stops accepting and the requests in progress finish ('setGracefulShutdownTimeout').
--
-- > import System.Posix.Signals
-- > import Weft.Http
-- >
-- > main :: IO ()
-- > main = do
-- >   tls <- loadTls "chain.pem" "key.pem"
-- >   runWith defaultOptions {optionTls = Just tls} settings application
-- >   where
-- >     settings = setPort 443 (setInstallShutdownHandler onTerm (setGracefulShutdownTimeout (Just 30) defaultSettings))
-- >     onTerm shutdown = () <$ installHandler sigTERM (CatchOnce shutdown) Nothing
runWith :: Options -> Settings -> Application -> IO ()
runWith options settings app = withServerWith options settings app (untilEnd settings)

-- | Run an application on a listening socket; the settings' host and port are
-- ignored. Closing the socket ends the server, and the server closes the socket when it ends.
runSettingsSocket :: Settings -> Socket -> Application -> IO ()
runSettingsSocket settings sock app = withServerSocket settings sock app (untilEnd settings)

untilEnd :: Settings -> Server -> IO ()
untilEnd settings server = do
  result <- try (waitServer server)
  void (drainServer server (maybe maxBound (seconds . fromIntegral) (settingsGracefulShutdownTimeout settings)))
  either (throwIO :: IOException -> IO ()) pure result

-- | 'withServerWith' without options.
withServer :: Settings -> Application -> (Server -> IO a) -> IO a
withServer = withServerWith defaultOptions

-- | 'withServer' on a listening socket. One acceptor distributes the connections over the
-- capabilities in turn.
withServerSocket :: Settings -> Socket -> Application -> (Server -> IO a) -> IO a
withServerSocket settings sock = withServerWith defaultOptions {optionListeners = [sock]} settings

-- | TLS with the certificate chain and the key of two PEM files, for 'optionTls'. 'Weft.Tls.newTlsServer' has more
-- settings. Throws an 'IOError' if the files cannot be used.
loadTls :: FilePath -> FilePath -> IO TlsServer
loadTls chain key = newTlsServer defaultTlsServerSettings {tlsCertificates = [CertificateFiles chain key], tlsProtocols = map fromString ["h2", "http/1.1"]}

-- Tests ------------------------------------------------------------------------------------

-- | Run an application on a free port of the loopback interface while an action runs;
-- the action gets the port.
withApplication :: IO Application -> (Port -> IO a) -> IO a
withApplication = withApplicationSettings defaultSettings

-- | 'withApplication' with settings, whose host and port are ignored.
withApplicationSettings :: Settings -> IO Application -> (Port -> IO a) -> IO a
withApplicationSettings settings makeApp act = do
  app <- makeApp
  withServer (setHost (fromString "127.0.0.1") (setPort 0 settings)) app (act . portOf . serverAddress)
  where
    portOf address = case address of
      SockAddrInet port _ -> fromIntegral port
      SockAddrInet6 port _ _ _ -> fromIntegral port
      _ -> 0

-- | 'withApplication', but exceptions of the application are also thrown to the caller.
testWithApplication :: IO Application -> (Port -> IO a) -> IO a
testWithApplication = testWithApplicationSettings defaultSettings

-- | 'withApplicationSettings', but exceptions of the application are also thrown to the
-- caller.
testWithApplicationSettings :: Settings -> IO Application -> (Port -> IO a) -> IO a
testWithApplicationSettings settings makeApp act = do
  caller <- myThreadId
  app <- makeApp
  let telling req respond =
        app req respond `catch` \e -> do
          when (defaultShouldDisplayException e) (throwTo caller e)
          throwIO (e :: SomeException)
  withApplicationSettings settings (pure telling) act

-- | A listening socket on a free port of the loopback interface.
openFreePort :: IO (Port, Socket)
openFreePort = do
  sock <- W.socket W.AF_INET W.Stream W.defaultProtocol
  (`onException` W.close sock) $ do
    W.bind sock (SockAddrInet 0 (W.tupleToHostAddress (127, 0, 0, 1)))
    W.listen sock (serverBacklog defaultServerSettings)
    port <- W.socketPort sock
    pure (fromIntegral port, sock)
