-- |
-- Description : @weft controller@
--
-- An OpenFlow controller: learning switches, links found by LLDP, hosts, statistics.
module Weft.Tools.Controller
  ( controllerCommand,
  )
where

import Control.Concurrent (setNumCapabilities)
import Control.Concurrent.MVar
import Control.Exception (Exception (..), catch, handle, throwIO)
import Control.Monad (forM, forM_, void, when, (>=>))
import Data.List (isPrefixOf)
import Data.Maybe (fromMaybe, isJust, isNothing)
import Data.String (fromString)
import qualified Data.Text as T
import GHC.Conc (getNumProcessors)
import GHC.IO.Exception (IOException (ioe_description, ioe_location))
import Options.Applicative hiding (command)
import qualified Options.Applicative as Options
import System.Exit (ExitCode (..), exitWith)
import System.IO.Error (ioeGetErrorString, isUserError)
import System.Posix.Process (getProcessID)
import System.Posix.Resource (Resource (ResourceOpenFiles), ResourceLimit (ResourceLimit), getResourceLimit, softLimit)
import System.Posix.Signals (Handler (Catch), installHandler, sigINT, sigTERM)
import System.Posix.Unistd (SystemID (nodeName), getSystemID)
import Weft.Duration
import qualified Weft.Http as Http
import Weft.OpenFlow.App (perSwitch)
import Weft.OpenFlow.Cluster
import Weft.OpenFlow.Controller
import Weft.OpenFlow.Learning
import Weft.OpenFlow.Northbound
import Weft.OpenFlow.Topology (TopologySettings (..), defaultTopologySettings)
import Weft.Scope (race)
import Weft.Socket (ServerSettings (..), defaultServerSettings, serverAddress, waitServer)
import Weft.Tls
import Weft.Tools.Controller.Certificates
import Weft.Tools.Controller.Etcd
import Weft.Tools.Controller.Log
import Weft.Tools.Serve.Listeners (cannotListenOn)
import Weft.Tools.Serve.Messages (logError, logInfo)
import Weft.Tools.Serve.Values (hostAndPort)
import Weft.Tools.StandardError (reportLine)
import Weft.Tools.Trust (tlsReason)
import Weft.Transport (Connection)

data Arguments = Arguments
  { argumentListen :: (Maybe String, String),
    argumentHttp :: Maybe (Maybe String, String),
    argumentToken :: Maybe FilePath,
    argumentOpenReads :: Bool,
    argumentCores :: Maybe Int,
    argumentIdle :: Int,
    argumentHostLife :: Int,
    argumentNoTopology :: Bool,
    argumentEcho :: Double,
    argumentEtcd :: Maybe EtcdOptions,
    argumentName :: Maybe String,
    argumentTls :: Maybe (FilePath, FilePath, Maybe (FilePath, Maybe FilePath)),
    argumentQuiet :: Bool
  }

-- | The subcommand.
controllerCommand :: Mod CommandFields (IO ())
controllerCommand = Options.command "controller" (info (controller <$> arguments) (progDesc text <> footer examples <> failureCode 2))
  where
    text = "Control OpenFlow switches (1.0 and 1.3): learning switches, topology by LLDP, flooding without loops"
    examples =
      "Examples: 'weft controller' (listens on port 6653); 'weft controller --listen 127.0.0.1:6633 --cores 2'; \
      \'ovs-vsctl set-controller br0 tcp:127.0.0.1:6653' connects a bridge of Open vSwitch to it. \
      \Exit status: 0 it was told to end, 1 it could not listen, 2 bad arguments."

arguments :: Parser Arguments
arguments =
  Arguments
    <$> option (eitherReader hostAndPort) (long "listen" <> metavar "[HOST:]PORT" <> value (Nothing, "6653") <> help "Address on which switches connect (port 6653 on every address)")
    <*> optional (option (eitherReader hostAndPort) (long "http" <> metavar "[HOST:]PORT" <> help "Serve a page that shows the network, a REST interface and /metrics on this address; the default host is 127.0.0.1"))
    <*> optional (strOption (long "northbound-token-file" <> metavar "FILE" <> help "With --http: clients on other hosts, and requests that change flows, must send 'Authorization: Bearer TOKEN', with the token in this file's first line. Without this option only clients on this host may read and change flows"))
    <*> switch (long "northbound-open-reads" <> help "With --http: any client that can connect may read the network, without the token")
    <*> optional (option (eitherReader (number 1 256)) (long "cores" <> metavar "N" <> help "Cores to use (all)"))
    <*> option (eitherReader (number 0 65535)) (long "idle-timeout" <> metavar "SECONDS" <> value 60 <> help "Time after which an unused flow is removed; 0 means never (60)")
    <*> option (eitherReader (number 0 1000000)) (long "host-timeout" <> metavar "SECONDS" <> value 300 <> help "Time after which a host is forgotten if it has sent nothing to the controller and does not answer ARP; 0 means never (300)")
    <*> switch (long "no-topology" <> help "Do not discover links: switches flood on all ports, so the network must have no loops")
    <*> option (eitherReader milli) (long "echo" <> metavar "SECONDS" <> value 10 <> help "Time of silence after which a switch is sent an echo request; after the same time without an answer it is disconnected (10)")
    <*> optional etcdOptions
    <*> optional (option (eitherReader memberName) (long "name" <> metavar "NAME" <> help "With --etcd: the name of this controller (the host's name and the process number)"))
    <*> optional tls
    <*> switch (long "quiet" <> help "Do not report switches that connect and disconnect")
  where
    memberName s
      | null s || '/' `elem` s = Left ("expected a name without '/', not " <> show s)
      | otherwise = Right s
    tls =
      (,,)
        <$> strOption (long "certificate" <> metavar "FILE" <> help "Use TLS with switches, with this certificate (PEM)")
        <*> strOption (long "key" <> metavar "FILE" <> help "The certificate's private key (PEM)")
        <*> optional authorities
    authorities =
      (,)
        <$> strOption (long "switch-authorities" <> metavar "FILE" <> help "With TLS: switches must have a certificate of one of these authorities")
        <*> optional (strOption (long "switch-certificates" <> metavar "FILE" <> help "With --switch-authorities: a switch may claim a datapath ID only with the certificate that this file gives for it. Each line has a datapath ID and the SHA-256 fingerprint of a certificate ('openssl x509 -noout -fingerprint -sha256' prints it); an ID may have several lines, and one without any is refused. Without this option any switch may claim any ID that no other one has"))
    number :: Int -> Int -> String -> Either String Int
    number least most s = case reads s of
      [(n, "")] | n >= least && n <= most -> Right n
      _ -> Left ("expected a number from " <> show least <> " to " <> show most <> ", not " <> show s)
    milli :: String -> Either String Double
    milli s = case reads s of
      [(x, "")] | x >= 0.001 && x <= 1e6 -> Right x
      _ -> Left ("expected a number of seconds from 0.001 to 1000000, not " <> show s)

controller :: Arguments -> IO ()
controller given = handle cannot . withLog $ \log' -> do
  let complain text = writeLog log' ("weft: " <> text)
      say text = when (not (argumentQuiet given)) (complain text)
  processors <- getNumProcessors
  setNumCapabilities (fromMaybe processors (argumentCores given))
  done <- newEmptyMVar
  when (isJust (argumentName given) && isNothing (argumentEtcd given)) (wrongUsage "--name goes with --etcd")
  access <- northboundAccess given
  certificates <- forM (argumentTls given >>= \(_, _, authorities) -> authorities >>= snd) (readCertificates >=> either wrongUsage pure)
  upgrade <- maybe (pure pure) (fmap acceptTls . newTlsServer . tlsSettings) (argumentTls given)
  forM_ [sigINT, sigTERM] (\s -> installHandler s (Catch (void (tryPutMVar done ()))) Nothing)
  let serving more around = listening "--listen" (argumentListen given) . withController (more settings {settingsUpgrade = upgrade, settingsMayClaim = \connection d -> pure (certificates >>= \cs -> mayClaim cs connection d), settingsOnIncident = say . logLine}) server app $ \c s -> do
        logInfo ("weft: controlling switches at " <> show (serverAddress s))
        -- Without a signal it ends only if it cannot accept any more.
        around c (withHttp given complain access c (void (race (takeMVar done) (waitServer s >> ioError (userError "the listening socket was closed")))))
  case argumentEtcd given of
    Nothing -> serving id (const id)
    Just options -> do
      name <- maybe ownName pure (argumentName given)
      (cluster, warnings) <- clusterSettingsFor name options >>= either wrongUsage pure
      mapM_ complain warnings
      let onReach = maybe (say "etcd answers") (\why -> complain ("without etcd this controller masters no switch: " <> why))
          onName = maybe (say ("this controller has its name now, " <> name)) complain
      withCluster cluster {clusterOnReach = onReach, clusterOnName = onName} (serving . clusterSettings)
  where
    app = perSwitch (learningSwitchWith defaultLearningSettings {learningIdleTimeout = fromIntegral (argumentIdle given), learningAge = if hostLife > 0 then min (learningAge defaultLearningSettings) (hostLife `div` 2) else learningAge defaultLearningSettings})
    tlsSettings (certificate, key, authorities) =
      defaultTlsServerSettings
        { tlsCertificates = [CertificateFiles certificate key],
          tlsProtocols = [],
          tlsClientCertificates = maybe NoClientCertificates (RequiredClientCertificates . fst) authorities
        }
    hostLife = fromIntegral (argumentHostLife given) * 1000
    echo = milliseconds (round (argumentEcho given * 1000))
    settings =
      defaultSettings
        { settingsTopology = if argumentNoTopology given then Nothing else Just defaultTopologySettings {topologyHostLife = hostLife},
          settingsEchoAfter = echo,
          settingsDeadAfter = echo
        }
    server = defaultServerSettings {serverHost = fst (argumentListen given), serverPort = snd (argumentListen given)}
    cannot :: IOException -> IO ()
    cannot e = failing (if isUserError e then ioeGetErrorString e else show e)

-- | The handshake of TLS with a switch. The log gets a sentence about a certificate that is rejected.
acceptTls :: TlsServer -> Connection -> IO Connection
acceptTls server plain =
  tlsAccept server plain `catch` \e -> case T.unpack (tlsReason (ioe_description e)) of
    why | ioe_location e == "Weft.Tls", "certificate" `isPrefixOf` why -> throwIO (Rejected why)
    _ -> throwIO e

-- | Why a switch's certificate is rejected.
newtype Rejected = Rejected String
  deriving (Show)

instance Exception Rejected where
  displayException (Rejected why) = "TLS: " <> why

-- | What the log says of an incident.
logLine :: Incident -> String
logLine incident = case incident of
  Connected d -> switchNamed d <> " is connected"
  Disconnected d -> switchNamed d <> " is gone"
  ConnectionEnded peer d why -> "the connection of " <> maybe (peer <> " before its handshake") switchNamed d <> " ended: " <> why
  SwitchError d kind code -> switchNamed d <> " sent ERROR, type " <> show kind <> ", code " <> show code
  RoleRefused d why -> switchNamed d <> " does not have this controller in its role: " <> why
  Misunderstood d why -> switchNamed d <> " sent a message that is not valid: " <> why
  PacketTruncated d n total -> switchNamed d <> " reported the first " <> show n <> " of " <> show total <> " bytes of a packet and kept no buffer; it is lost"
  Unencodable d message -> switchNamed d <> " has a version of OpenFlow without this message: " <> message
  Failed e -> "a thread of the controller failed: " <> displayException e
  IncidentsOmitted d n -> "not logged: " <> show n <> " more events of a second" <> maybe "" ((", of " <>) . switchNamed) d
  where
    switchNamed d = "switch " <> show d

-- | Print the reason and exit with status 1.
failing :: String -> IO a
failing why = logError ("weft controller: " <> why) >> exitWith (ExitFailure 1)

-- | Run an action that listens on the address of an option. If it cannot listen, print the reason and exit.
listening :: String -> (Maybe String, String) -> IO a -> IO a
listening name (host, port) act = act `catch` explained
  where
    explained e
      | any (`isPrefixOf` ioe_location e) ["Weft.Socket.bind", "Network.Socket.getAddrInfo"] = failing (cannotListenOn (maybe "" (<> " ") host <> "port " <> port) e <> "; another address can be given by " <> name)
      | otherwise = throwIO e

-- | The access rights of the northbound interface. Exits if the file has no usable token.
northboundAccess :: Arguments -> IO Access
northboundAccess given = do
  when (isNothing (argumentHttp given) && isJust (argumentToken given)) (wrongUsage "--northbound-token-file goes with --http")
  when (isNothing (argumentHttp given) && argumentOpenReads given) (wrongUsage "--northbound-open-reads goes with --http")
  token <- forM (argumentToken given) (readToken >=> either wrongUsage pure)
  pure (Access token (argumentOpenReads given))

-- | Print what is wrong with the options and exit with status 2.
wrongUsage :: String -> IO a
wrongUsage why = reportLine ("weft controller: " <> why) >> exitWith (ExitFailure 2)

-- | Serve the northbound interface while an action runs, if an address is given for it.
withHttp :: Arguments -> (String -> IO ()) -> Access -> Controller -> IO a -> IO a
withHttp given complain access c act = case argumentHttp given of
  Nothing -> act
  Just (host, port) -> do
    side <- newNorthbound access c
    most <- northboundConnections
    let settings = Http.setHost (fromString (fromMaybe "127.0.0.1" host)) (Http.setPort (read port) Http.defaultSettings)
        options = Http.defaultOptions {Http.optionLimits = Just Http.defaultLimits {Http.limitConnections = most}}
    listening "--http" (Just (fromMaybe "127.0.0.1" host), port) . Http.withServerWith options settings (northbound side) $ \server -> do
      logInfo ("weft: the network is shown at http://" <> show (Http.serverAddress server) <> "/")
      when (isNothing (accessToken access) && fromMaybe "127.0.0.1" host `notElem` ["127.0.0.1", "localhost", "::1"]) $
        complain ("without --northbound-token-file, changes of flows that come from other hosts are refused; what only reads is " <> if accessOpenReads access then "answered to all" else "refused, too")
      act

-- | The number of connections of the northbound interface: an eighth of the descriptors that this process may have, so
-- that clients that open many of them keep no switch out. At most 1,024.
northboundConnections :: IO Int
northboundConnections = do
  known <- softLimit <$> getResourceLimit ResourceOpenFiles
  pure $ case known of
    ResourceLimit n -> fromInteger (max 8 (min 1024 (n `div` 8)))
    _ -> 1024

-- | The host's name and the process.
ownName :: IO String
ownName = (\system pid -> nodeName system <> "-" <> show pid) <$> getSystemID <*> getProcessID
