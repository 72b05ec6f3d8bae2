-- |
-- TLS over any connection of "Weft.Transport", for servers and clients, by OpenSSL 3. Supports TLS 1.3, and TLS 1.2
-- with ephemeral elliptic-curve keys and authenticated encryption; no older versions, no renegotiation, and no early
-- data.
--
-- > server <- newTlsServer defaultTlsServerSettings {tlsCertificates = [CertificateFiles "chain.pem" "key.pem"]}
-- > secure <- tlsAccept server connection
--
-- The result is a 'Connection' with a 'Weft.Transport.Security'. It satisfies the laws of "Weft.Transport.Laws". A
-- connection that neither receives nor sends holds no buffers; one whose peer does not receive holds at most 64 KiB of
-- encrypted bytes.
--
-- A peer that ends the connection in the middle of a record is an error. One that ends it between two records, without
-- the alert @close_notify@ (RFC 8446, 6.1), is an error for a client. On the server's side it is the end of the stream,
-- since many clients do so and a request of HTTP says where it ends. A protocol whose clients send messages that only
-- the end of the stream delimits needs an end mark of its own.
--
-- Errors are 'IOError's. Any thread may use a server. Steps of handshakes run one at a time for each capability, in
-- turn with its other threads; those that sign with a slow key or verify certificates in a safe call, so that others go
-- on.
--
-- = Which certificates are accepted
--
-- Chains are verified by OpenSSL (RFC 5280) up to an authority that was given, which need not be a root; keys and
-- hashes need 112 bits of security; revocation is not checked. Beyond that:
--
-- * Constraints and mappings of policies are not supported: those that are critical are a fault (RFC 5280, 4.2).
-- * If there is an extended key usage, of the peer's certificate or an authority's, it must name servers' or clients'
--   certificates respectively; @anyExtendedKeyUsage@ will not do. If the peer has a key usage, it must allow digital
--   signatures (RFC 8446, 4.4.2.2).
-- * What the trusted authority's own certificate says counts too: name constraints, and critical extensions that are
--   not known.
--
-- A server's certificate must have the name or the address that the client asks for among its alternative names; a
-- wildcard stands for the whole leftmost label (RFC 9525, 6.3). Its common name does not count (RFC 9110, 4.3.4).
-- Clients' names are not compared with anything: 'peerCertificates' has them.
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
    tlsAcceptReceived,
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
    loadTrustOnce,
    tlsConnect,

    -- * Peers' certificates
    peerCertificates,
    Certificate (..),
    certificatesIn,
  )
where

import Control.Applicative ((<|>))
import Control.Concurrent.MVar
import Control.Exception
import Control.Monad (join, unless, when)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as B8
import Data.Either (fromRight, lefts)
import Data.Foldable (find)
import Data.IORef
import Data.Int (Int64)
import Data.Maybe (fromMaybe)
import System.IO.Unsafe (unsafePerformIO)
import Weft.Blocking (blocking)
import Weft.Core.PerProcess
import Weft.Core.Time (toSeconds)
import Weft.Duration (Duration, seconds)
import Weft.Tls.Credentials
import Weft.Tls.Library
import Weft.Tls.ServerName
import Weft.Tls.Stream
import Weft.Tls.Tickets
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
    -- | Zero disables resumption. The server keeps no sessions: its clients do, as tickets that only it can read, so
    -- that other numbers mean the same. A session is resumed only with the certificate that it began with. Servers that
    -- ask for client certificates resume none, since a resumed session does not present the certificate again.
    tlsSessions :: Int,
    -- | How long a ticket can be used, in whole seconds. With TLS 1.3 each connection gets
    -- one ticket, a resumed one too.
    tlsSessionLife :: Duration,
    -- | How long a handshake may take.
    tlsHandshakeTime :: Duration,
    -- | The oldest version that is spoken. A client that offers only older ones gets the alert @protocol_version@.
    tlsLeastVersion :: ProtocolVersion,
    -- | A file to which the keys of all sessions are appended, in the format that Wireshark reads (@SSLKEYLOGFILE@), so
    -- that recorded connections can be read. For debugging: whoever has the file can read them too.
    tlsKeyLog :: Maybe FilePath
  }

-- | Whether a server asks for client certificates. The file, or the text of the last two, contains the trusted
-- certificate authorities, in PEM.
data ClientCertificates
  = NoClientCertificates
  | -- | A client without a certificate is accepted; one with a wrong or expired certificate is not.
    OptionalClientCertificates FilePath
  | RequiredClientCertificates FilePath
  | OptionalClientCertificatesMemory ByteString
  | RequiredClientCertificatesMemory ByteString

-- | No certificate; the protocol @http\/1.1@ but not @h2@; tickets for two hours; ten seconds for a handshake;
-- TLS 1.2 and 1.3.
defaultTlsServerSettings :: TlsServerSettings
defaultTlsServerSettings =
  TlsServerSettings
    { tlsCertificates = [],
      tlsClientCertificates = NoClientCertificates,
      tlsProtocols = [B8.pack "http/1.1"],
      tlsSessions = 10000,
      tlsSessionLife = seconds 7200,
      tlsHandshakeTime = seconds 10,
      tlsLeastVersion = TlsVersion12,
      tlsKeyLog = Nothing
    }

-- | A server's certificates and sessions.
data TlsServer = TlsServer
  { serverSettings :: !TlsServerSettings,
    -- | The certificates that were loaded last. Written by a reload, read by each handshake.
    serverLoaded :: !(IORef Loaded),
    -- | None if no session is resumed.
    serverTickets :: !(Maybe Tickets)
  }

-- | The certificates, the authorities of clients, and the certificates by name.
data Loaded = Loaded ![(CertificateSource, Credential)] !(Maybe Context) !NameTable

loadedCredentials :: Loaded -> [(CertificateSource, Credential)]
loadedCredentials (Loaded credentials _ _) = credentials

-- | Load the certificates, and check that each matches its key. Throws an 'IOError' that says what is wrong with which
-- file.
newTlsServer :: TlsServerSettings -> IO TlsServer
newTlsServer settings = TlsServer settings <$> (load settings >>= newIORef) <*> (if resumes settings then Just <$> newTickets (tlsSessionLife settings) else pure Nothing)

resumes :: TlsServerSettings -> Bool
resumes settings = case tlsClientCertificates settings of
  NoClientCertificates -> tlsSessions settings > 0
  _ -> False

-- | Load all files again, for new connections; established ones are not affected. Each certificate, and the authorities
-- of clients, are replaced only if they can be loaded. Returns the errors of those that stay as they were.
reloadTlsServer :: TlsServer -> IO [IOException]
reloadTlsServer server = readIORef (serverLoaded server) >>= replaceCertificates server . map fst . loadedCredentials

-- | 'reloadTlsServer' with other certificates than before. Those that were served before and cannot be loaded stay as
-- they were, others that cannot be loaded are left out; the list stays as it was if there is nothing to replace it.
replaceCertificates :: TlsServer -> [CertificateSource] -> IO [IOException]
replaceCertificates server sources = do
  credentials <- mapM (try . loadFor (serverSettings server)) sources
  authorities <- try (loadClientAuthorities (serverSettings server))
  Loaded old oldAuthorities _ <- readIORef (serverLoaded server)
  let new = [(source, c) | (source, outcome) <- zip sources credentials, Just c <- [either (const (lookup source old)) Just (outcome :: Either IOException Credential)]]
      next = if null new then old else new
  table <- nameTable (map snd next)
  -- Of two reloads at the same time, the later one counts.
  atomicWriteIORef (serverLoaded server) $! Loaded next (fromRight oldAuthorities authorities) table
  pure (lefts credentials <> lefts [authorities])

load :: TlsServerSettings -> IO Loaded
load settings = do
  when (null (tlsCertificates settings)) (ioError (userError "Weft.Tls: a server needs a certificate"))
  credentials <- mapM (\source -> (,) source <$> loadFor settings source) (tlsCertificates settings)
  Loaded credentials <$> loadClientAuthorities settings <*> nameTable (map snd credentials)

loadFor :: TlsServerSettings -> CertificateSource -> IO Credential
loadFor settings = loadCredential (ServerRole life (tlsLeastVersion settings == TlsVersion13)) (tellsKeys (tlsKeyLog settings))
  where
    -- OpenSSL counts whole seconds, and rounds up.
    life = if resumes settings then max 1 (ceiling (toSeconds (tlsSessionLife settings)) - 1) else 0

tellsKeys :: Maybe FilePath -> Bool
tellsKeys = maybe False (const True)

loadClientAuthorities :: TlsServerSettings -> IO (Maybe Context)
loadClientAuthorities settings = case tlsClientCertificates settings of
  NoClientCertificates -> pure Nothing
  OptionalClientCertificates path -> Just <$> loadAuthorities False path
  RequiredClientCertificates path -> Just <$> loadAuthorities False path
  OptionalClientCertificatesMemory text -> Just <$> authoritiesFrom False text
  RequiredClientCertificatesMemory text -> Just <$> authoritiesFrom False text

-- | A server with the sessions and certificates of the given one, but without one of its application protocols.
withoutProtocol :: ByteString -> TlsServer -> TlsServer
withoutProtocol protocol server = server {serverSettings = settings {tlsProtocols = filter (/= protocol) (tlsProtocols settings)}}
  where
    settings = serverSettings server

-- | The certificates that are loaded, in the order of the list, and for each the names of the DNS that it contains, in
-- lower case. A name may have a wildcard for its leftmost label. A client that asks for a name gets the first
-- certificate that contains it ('tlsCertificates').
servedNames :: TlsServer -> IO [(CertificateSource, [String])]
servedNames server = map (fmap servedBy) . loadedCredentials <$> readIORef (serverLoaded server)

-- | Perform the handshake with a client. If it fails, this throws an 'IOError' and aborts the connection; the error
-- satisfies 'isTimeout' if the handshake takes too long, names the peer's alert if it sent one, and is the connection's
-- own error only if that was the cause. The peer's part of it has at most 128 KiB. The new connection
-- owns the old one.
tlsAccept :: TlsServer -> Connection -> IO Connection
tlsAccept server = tlsAcceptReceived server B.empty

-- | 'tlsAccept' after the client's first bytes were received, for a server that looks at them ('looksLikeTls').
--
-- @since 0.2.0
tlsAcceptReceived :: TlsServer -> ByteString -> Connection -> IO Connection
tlsAcceptReceived server received below = (`onException` connAbort below) $ do
  Loaded credentials authorities table <- readIORef (serverLoaded server)
  deadline <- deadlineIn (tlsHandshakeTime settings)
  keys <- mapM currentKeys (serverTickets server)
  (endpoint, keep) <- acceptEndpoint table keys (fmap (\context -> (context, required)) authorities) (tlsProtocols settings)
  let slowly = maybe False (const True) authorities || any (credentialSlow . snd) credentials
  let shared string = fromMaybe string (find (== string) (tlsProtocols settings) <|> nameIn table string)
  handshakeOver (Handshaking ServerSide endpoint slowly keep shared (logKeys (tlsKeyLog settings))) deadline received below
  where
    settings = serverSettings server
    required = case tlsClientCertificates settings of
      RequiredClientCertificates _ -> True
      RequiredClientCertificatesMemory _ -> True
      _ -> False

-- | Append them to the file.
logKeys :: Maybe FilePath -> ByteString -> IO ()
logKeys path told = mapM_ (\file -> blocking (B.appendFile file told)) path

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
  = -- | Those of the system. The variables @SSL_CERT_FILE@ and @SSL_CERT_DIR@ name others.
    TrustSystem
  | -- | Those in a file, in PEM.
    TrustAuthorities FilePath
  | -- | Those in the contents of such a file.
    TrustMemory ByteString
  | -- | Those that 'loadTrust' has loaded.
    TrustLoaded Authorities
  | -- | Every certificate is accepted; for tests only.
    TrustAnything

-- | Certificates of authorities, decoded.
newtype Authorities = Authorities Context

-- | Load the authorities now, once for many connections: reading a file of all authorities that a system trusts takes
-- as long as several handshakes. Throws an 'IOError' if there is no certificate among what is given.
loadTrust :: Trust -> IO Trust
loadTrust trust = case trust of
  TrustSystem -> do
    context <- newContext ClientRole False
    TrustLoaded (Authorities context) <$ trustSystem context
  TrustAuthorities path -> TrustLoaded . Authorities <$> loadAuthorities False path
  TrustMemory text -> TrustLoaded . Authorities <$> authoritiesFrom False text
  other -> pure other

-- | An action that loads the authorities when it is first run, and returns the same ones from then on; if that fails,
-- the next one tries again. Others wait meanwhile. Any thread may run it. A forked child keeps those that its parent
-- has loaded.
loadTrustOnce :: Trust -> IO (IO Trust)
loadTrustOnce trust = do
  loaded <- newMVar Nothing >>= newPerProcessFrom (\inherited -> tryReadMVar inherited >>= newMVar . join)
  pure $ do
    known <- ofThisProcess loaded
    modifyMVar known $ \before -> do
      now' <- maybe (loadTrust trust) pure before
      pure (Just now', now')

-- | For all clients that accept any certificate.
anything :: Context
anything = unsafePerformIO $ do
  context <- newContext ClientRole False
  context <$ trustAnything context
{-# NOINLINE anything #-}

-- | The system's authorities, no client certificate, no application protocol, ten seconds.
defaultTlsClientSettings :: TlsClientSettings
defaultTlsClientSettings =
  TlsClientSettings
    { tlsTrust = TrustSystem,
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
  own <- mapM (loadCredential ClientRole False) (tlsClientCertificate settings)
  deadline <- deadlineIn (tlsConnectTime settings)
  identity <- identityOf name
  server <- case identity of
    Named host -> do
      -- RFC 6066, 3: as in the DNS, and OpenSSL ends a name at a zero.
      unless (all (\c -> c > ' ' && c < '\DEL') host && length host <= 255) (ioError (userError ("Weft.Tls: " <> show name <> " cannot be the name of a server")))
      pure (Left (B8.pack host))
    Addressed address -> pure (Right address)
  let context = case trust of
        TrustLoaded (Authorities loaded) -> loaded
        _ -> anything
  endpoint <- connectEndpoint context (fmap credentialContext own) server (tlsOffer settings)
  handshakeOver (Handshaking ClientSide endpoint True (pure ()) id (const (pure ()))) deadline B.empty below

-- Peers' certificates --------------------------------------------------------------------

-- | What is in a certificate. What cannot be read is empty.
data Certificate = Certificate
  { -- | The subject, in the form of RFC 2253.
    certificateSubject :: ByteString,
    -- | The alternative names of the DNS or, if there are no alternative names, the common name.
    certificateNames :: [ByteString],
    -- | The seconds since 1970 between which it is valid.
    certificateValidity :: Maybe (Int64, Int64)
  }
  deriving (Eq, Show)

certificateOf :: ByteString -> Certificate
certificateOf der = Certificate (subjectIn der) (namesIn der) (validityIn der)

-- | The certificates in a text in PEM, in their order; 'Nothing' for one that cannot be understood.
certificatesIn :: ByteString -> [Maybe Certificate]
certificatesIn = map (fmap certificateOf . decodedPem) . certificateBlocks

-- | The certificates of 'securityPeerCertificates', decoded.
peerCertificates :: Security -> [Certificate]
peerCertificates = map certificateOf . securityPeerCertificates
