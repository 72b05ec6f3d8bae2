-- |
-- TLS over any connection of "Weft.Transport", for servers and clients, based on the @tls@ package. Supports TLS 1.3,
-- and TLS 1.2 with ephemeral elliptic-curve keys and authenticated encryption; no older versions.
--
-- > server <- newTlsServer defaultTlsServerSettings {tlsCertificates = [CertificateFiles "chain.pem" "key.pem"]}
-- > secure <- tlsAccept server connection
--
-- The result is a 'Connection' with a 'Weft.Transport.Security'. It satisfies the laws of "Weft.Transport.Laws"
-- except one: since the library has no half-close, a send that begins after the peer's end has been received fails.
--
-- A peer that ends the connection in the middle of a record is an error. One that ends it between two records, without
-- the alert @close_notify@ (RFC 8446, 6.1), is an error for a client. On the server's side it is the end of the stream,
-- since many clients do so and a request of HTTP says where it ends. A protocol whose clients send messages that only
-- the end of the stream delimits needs an end mark of its own.
--
-- Errors are 'IOError's. Any thread may use a server.
--
-- = Which certificates are accepted
--
-- Chains are verified up to an authority that was given; revocation is not checked. For the peer's certificate and each
-- authority below the one that is trusted:
--
-- * An unknown extension that is critical is a fault (RFC 5280, 4.2). Known are key usage, extended key usage, basic
--   constraints, alternative names, and certificate policies, of which all are accepted.
-- * Name constraints are not supported: those that are critical are a fault (4.2.1.10), others are ignored.
-- * If there is an extended key usage, it must name servers' or clients' certificates respectively (4.2.1.12);
--   @anyExtendedKeyUsage@ will do for an authority only. If the peer has a key usage, it must allow digital signatures
--   (RFC 8446, 4.4.2.2).
--
-- A server's certificate must have the name or the address that the client asks for among its alternative names; a
-- wildcard stands for the leftmost label (RFC 9525, 6.3). Its common name does not count (RFC 9110, 4.3.4). Clients'
-- names are not compared with anything: 'peerCertificates' has them.
--
-- Extensions of the trusted authority's own certificate do not matter (RFC 5280, 6.1.1), also if the peer sends it.
--
-- @since 0.1.0
module Weft.Tls
  ( -- * Servers
    TlsServer,
    newTlsServer,
    reloadTlsServer,
    replaceCertificates,
    withoutProtocol,
    servedNames,
    tlsAccept,
    TlsServerSettings (..),
    defaultTlsServerSettings,
    CertificateSource (..),
    ClientCertificates (..),
    looksLikeTls,

    -- * Clients
    TlsClientSettings (..),
    defaultTlsClientSettings,
    Trust (..),
    Authorities,
    loadTrust,
    tlsConnect,

    -- * Peers' certificates
    peerCertificates,
  )
where

import Control.Exception
import Control.Monad (when)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as B8
import Data.Default.Class (def)
import Data.Either (fromRight, lefts, rights)
import Data.IORef
import Data.Maybe (isJust)
import Data.X509
import Data.X509.CertificateStore (CertificateStore)
import Network.TLS
import System.IO.Error (ioeSetErrorString, ioeSetErrorType, permissionErrorType)
import Weft.Duration (Duration, seconds)
import Weft.Tls.Ciphers
import Weft.Tls.Credentials
import Weft.Tls.ServerName
import Weft.Tls.Sessions
import Weft.Tls.Stream
import Weft.Tls.Validation
import Weft.Transport

-- Servers ----------------------------------------------------------------------------

-- | Settings of a server. Begin with 'defaultTlsServerSettings'.
data TlsServerSettings = TlsServerSettings
  { -- | At least one. A client gets the first certificate that contains the name that it asks for (SNI, RFC 6066), or
    -- else the first of the list.
    tlsCertificates :: [CertificateSource],
    tlsClientCertificates :: ClientCertificates,
    -- | Application protocols, the most preferred first (ALPN, RFC 7301). If a client offers only others,
    -- the handshake fails with the alert @no_application_protocol@ (3.2). A client that offers none gets a connection
    -- without one.
    tlsProtocols :: [ByteString],
    -- | How many sessions are kept for resumption; zero disables resumption. Servers that ask for client certificates
    -- keep none, since a resumed session does not present the certificate again.
    tlsSessions :: Int,
    -- | How long a session is kept.
    tlsSessionLife :: Duration,
    -- | How long a handshake may take.
    tlsHandshakeTime :: Duration
  }

-- | Whether a server asks for client certificates. The file, or the text of the last two, contains the trusted
-- certificate authorities, in PEM.
data ClientCertificates
  = NoClientCertificates
  | -- | A client without a certificate is accepted; one with a wrong or expired certificate is not. Version 2.1 of the
    -- @tls@ package refuses a client without a certificate with TLS 1.3, and in its release 2.1.8 with TLS 1.2 too. After
    -- the client's empty @Certificate@, that version's server expects a @CertificateVerify@, which such a client does
    -- not send (RFC 5246, 7.4.8; RFC 8446, 4.4.3).
    OptionalClientCertificates FilePath
  | RequiredClientCertificates FilePath
  | OptionalClientCertificatesMemory ByteString
  | RequiredClientCertificatesMemory ByteString

-- | No certificate; the protocol @http\/1.1@ but not @h2@; 10,000 sessions for two hours; ten seconds for a handshake.
defaultTlsServerSettings :: TlsServerSettings
defaultTlsServerSettings =
  TlsServerSettings
    { tlsCertificates = [],
      tlsClientCertificates = NoClientCertificates,
      tlsProtocols = [B8.pack "http/1.1"],
      tlsSessions = 10000,
      tlsSessionLife = seconds 7200,
      tlsHandshakeTime = seconds 10
    }

-- | A server's certificates and sessions.
data TlsServer = TlsServer
  { serverSettings :: !TlsServerSettings,
    -- | The certificates that were loaded last. Written by a reload, read by each handshake.
    serverLoaded :: !(IORef Loaded),
    serverSessions :: !Sessions
  }

data Loaded = Loaded
  { loadedCredentials :: ![(CertificateSource, Credential)],
    loadedAuthorities :: !(Maybe ([SignedCertificate], CertificateStore))
  }

-- | Load the certificates, and check that each matches its key. Throws an 'IOError' that says what is wrong with which
-- file.
newTlsServer :: TlsServerSettings -> IO TlsServer
newTlsServer settings =
  TlsServer settings <$> (load settings >>= newIORef) <*> newSessions most (tlsSessionLife settings)
  where
    most = case tlsClientCertificates settings of
      NoClientCertificates -> tlsSessions settings
      _ -> 0

-- | Load all files again, for new connections; established ones are not affected. Each certificate, and the authorities
-- of clients, are replaced only if they can be loaded. Returns the errors of those that stay as they were.
reloadTlsServer :: TlsServer -> IO [IOException]
reloadTlsServer server = readIORef (serverLoaded server) >>= replaceCertificates server . map fst . loadedCredentials

-- | 'reloadTlsServer' with other certificates than before. Those that were served before and cannot be loaded stay as
-- they were, others that cannot be loaded are left out; the list stays as it was if there is nothing to replace it.
replaceCertificates :: TlsServer -> [CertificateSource] -> IO [IOException]
replaceCertificates server sources = do
  credentials <- mapM (try . loadCredential) sources
  authorities <- try (loadClientAuthorities (serverSettings server))
  atomicModifyIORef' (serverLoaded server) $ \(Loaded old oldAuthorities) ->
    let earlier source = lookup source old
        new = [(source, c) | (source, outcome) <- zip sources credentials, Just !c <- [either (const (earlier source)) Just (outcome :: Either IOException Credential)]]
        -- Evaluated: what is left to evaluate would keep everything that was loaded earlier.
        next = length new `seq` (if null new then old else new)
     in (Loaded next $! fromRight oldAuthorities authorities, ())
  pure (lefts credentials <> lefts [authorities])

load :: TlsServerSettings -> IO Loaded
load settings = do
  when (null (tlsCertificates settings)) (ioError (userError "Weft.Tls: a server needs a certificate"))
  Loaded <$> mapM (\source -> (,) source <$> loadCredential source) (tlsCertificates settings) <*> loadClientAuthorities settings

loadClientAuthorities :: TlsServerSettings -> IO (Maybe ([SignedCertificate], CertificateStore))
loadClientAuthorities settings = case tlsClientCertificates settings of
  NoClientCertificates -> pure Nothing
  OptionalClientCertificates path -> Just <$> loadAuthorities path
  RequiredClientCertificates path -> Just <$> loadAuthorities path
  OptionalClientCertificatesMemory text -> Just <$> authoritiesFrom text
  RequiredClientCertificatesMemory text -> Just <$> authoritiesFrom text

-- | A server with the sessions and certificates of the given one, but without one of its application protocols.
withoutProtocol :: ByteString -> TlsServer -> TlsServer
withoutProtocol protocol server = server {serverSettings = settings {tlsProtocols = filter (/= protocol) (tlsProtocols settings)}}
  where
    settings = serverSettings server

-- | The certificates that are loaded, in the order of the list, and for each the names of the DNS that it contains, in
-- lower case. A name may have a wildcard for its leftmost label. A client that asks for a name gets the first certificate
-- that contains it ('tlsCertificates').
servedNames :: TlsServer -> IO [(CertificateSource, [String])]
servedNames server = map (fmap servedBy) . loadedCredentials <$> readIORef (serverLoaded server)

-- | Perform the handshake with a client. If it fails, this throws an 'IOError' and aborts the connection; the error
-- satisfies 'isTimeout' if the handshake takes too long, names the peer's alert if it sent one, and is the connection's
-- own error only if that was the cause. The peer's part of it has at most 128 KiB. The new connection
-- owns the old one.
tlsAccept :: TlsServer -> Connection -> IO Connection
tlsAccept server below = (`onException` connAbort below) $ do
  loaded <- readIORef (serverLoaded server)
  found <- newIORef False
  asked <- newIORef Nothing
  deadline <- deadlineIn (tlsHandshakeTime settings)
  let learned = Learned (readIORef asked) getClientCertificateChain (readIORef found)
  handshakeOver ServerSide deadline (serverParams settings loaded (manager found) asked) learned below
  where
    settings = serverSettings server
    manager found = sessionManager (serverSessions server) (writeIORef found True)

serverParams :: TlsServerSettings -> Loaded -> SessionManager -> IORef (Maybe ByteString) -> ServerParams
serverParams settings loaded sessions asked =
  def
    { serverWantClientCert = maybe False (const True) (loadedAuthorities loaded),
      serverCACertificates = maybe [] fst (loadedAuthorities loaded),
      serverShared = def {sharedSessionManager = sessions},
      serverSupported = supported,
      serverHooks =
        def
          { onALPNClientSuggest = Just (pure . preferred),
            onServerNameIndication = \name -> do
              writeIORef asked (B8.pack <$> name)
              pure (Credentials (maybe [] pure (credentialFor (map snd (loadedCredentials loaded)) name))),
            onClientCertificate = maybe (const (pure CertificateUsageAccept)) (checkClient required . snd) (loadedAuthorities loaded),
            onUnverifiedClientCert = pure False
          }
    }
  where
    -- RFC 7301, 3.2: if there is no common protocol, the library ends the handshake.
    preferred offered = case filter (`elem` offered) (tlsProtocols settings) of
      protocol : _ -> protocol
      [] -> B.empty
    required = case tlsClientCertificates settings of
      RequiredClientCertificates _ -> True
      RequiredClientCertificatesMemory _ -> True
      _ -> False

-- | Verify a client's chain, but no name.
checkClient :: Bool -> CertificateStore -> CertificateChain -> IO CertificateUsage
checkClient required store chain@(CertificateChain certificates)
  | null certificates = pure (if required then CertificateUsageReject (CertificateRejectOther "a certificate is required") else CertificateUsageAccept)
  | otherwise = rejection <$> validateChain AnyClient store noCache (mempty, B.empty) chain
  where
    noCache = ValidationCache (\_ _ _ -> pure ValidationCacheUnknown) (\_ _ _ -> pure ())

-- | Whether a connection that begins with these bytes is TLS: its first record must be a handshake record (RFC 8446,
-- 5.1).
looksLikeTls :: ByteString -> Bool
looksLikeTls bytes = B.take 1 bytes == B.singleton 0x16

-- Clients ----------------------------------------------------------------------------

-- | Settings of a client. Begin with 'defaultTlsClientSettings'.
data TlsClientSettings = TlsClientSettings
  { tlsTrust :: Trust,
    -- | Sent to servers that ask for a client certificate.
    tlsClientCertificate :: Maybe CertificateSource,
    -- | Application protocols to offer, the most preferred first.
    tlsOffer :: [ByteString],
    -- | How long the handshake may take.
    tlsConnectTime :: Duration
  }

-- | The trusted certificate authorities.
data Trust
  = -- | Those in a file, in PEM.
    TrustAuthorities FilePath
  | -- | Those in the contents of such a file.
    TrustMemory ByteString
  | -- | Those that 'loadTrust' has loaded.
    TrustLoaded Authorities
  | -- | Every certificate is accepted; for tests only.
    TrustAnything

-- | Certificates of authorities, decoded.
newtype Authorities = Authorities CertificateStore

-- | Load the authorities now, once for many connections: reading a file of all authorities that a system trusts takes
-- as long as several handshakes. Throws an 'IOError' if there is no certificate among what is given.
loadTrust :: Trust -> IO Trust
loadTrust trust = case trust of
  TrustAuthorities path -> TrustLoaded . Authorities . snd <$> loadAuthorities path
  TrustMemory text -> TrustLoaded . Authorities . snd <$> authoritiesFrom text
  other -> pure other

-- | The authorities of Debian's @ca-certificates@, no client certificate, no application protocol, ten seconds.
defaultTlsClientSettings :: TlsClientSettings
defaultTlsClientSettings =
  TlsClientSettings
    { tlsTrust = TrustAuthorities "/etc/ssl/certs/ca-certificates.crt",
      tlsClientCertificate = Nothing,
      tlsOffer = [],
      tlsConnectTime = seconds 10
    }

-- | Perform the handshake with the named server over a connection, and check that its certificate is for that name.
-- An IP address, of either version, has to be among the certificate's addresses (RFC 5280, 4.2.1.6), and is not sent to
-- the server as a name (RFC 6066, 3). A dot at the end of a name is neither sent nor compared. Throws like 'tlsAccept';
-- if the certificate is not accepted, the error satisfies 'System.IO.Error.isPermissionError'. Each connection has a
-- full handshake, so that 'securityPeerCertificates' is the server's chain; with 'TrustAnything' it has not been
-- verified. The authorities are loaded each time, unless they are 'TrustLoaded'.
tlsConnect :: TlsClientSettings -> String -> Connection -> IO Connection
tlsConnect settings name below = (`onException` connAbort below) $ do
  trust <- loadTrust (tlsTrust settings)
  let shared = case trust of
        TrustLoaded (Authorities store) -> def {sharedCAStore = store}
        _ -> def {sharedValidationCache = ValidationCache (\_ _ _ -> pure ValidationCachePass) (\_ _ _ -> pure ())}
  own <- mapM loadCredential (tlsClientCertificate settings)
  deadline <- deadlineIn (tlsConnectTime settings)
  shown <- newIORef Nothing
  distrust <- newIORef []
  identity <- identityOf name
  let sent = case identity of
        Named host -> Just (B8.pack host)
        Addressed _ -> Nothing
      check store cache service chain = do
        writeIORef shown (Just chain)
        reasons <- validateChain (ServerOf identity) store cache service chain
        reasons <$ writeIORef distrust reasons
      learned = Learned (pure sent) (const (readIORef shown)) (pure False)
  handshakeOver ClientSide deadline (clientParams shared own sent check) learned below `catch` \e -> do
    reasons <- readIORef distrust
    let explained = maybe e (ioeSetErrorString e) (rejectedBecause reasons)
    ioError (if null reasons then e else ioeSetErrorType explained permissionErrorType)
  where
    clientParams shared own sent check =
      (defaultParamsClient (withoutDot name) B.empty)
        { clientUseServerNameIndication = isJust sent,
          clientShared = shared,
          clientSupported = supported,
          clientHooks =
            def
              { onSuggestALPN = pure (if null (tlsOffer settings) then Nothing else Just (tlsOffer settings)),
                onCertificateRequest = const (pure own),
                onServerCertificate = check
              }
        }

-- | The certificates of 'securityPeerCertificates', decoded.
peerCertificates :: Security -> [SignedCertificate]
peerCertificates = rights . map decodeSignedCertificate . securityPeerCertificates
