-- |
-- Certificates with their keys: loading them, and finding the one for a name.
module Weft.Tls.Credentials
  ( CertificateSource (..),
    loadCredential,
    loadAuthorities,
    authoritiesFrom,
    credentialFor,
    servedBy,
  )
where

import Control.Concurrent (forkIO, killThread)
import Control.Concurrent.Chan
import Control.Exception
import Control.Monad (filterM, void, when, zipWithM)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as B8
import Data.Char (isSpace, toLower)
import Data.Default.Class (def)
import Data.IORef
import Data.Maybe (fromMaybe, listToMaybe)
import Data.X509
import Data.X509.CertificateStore (CertificateStore, makeCertificateStore)
import Data.X509.Memory (readKeyFileFromMemory, readSignedObjectFromMemory)
import Network.TLS
import Weft.Blocking (blocking)
import Weft.Duration (seconds)
import Weft.Timer (within)
import Weft.Tls.Ciphers (supported)
import Weft.Tls.ServerName

-- | Where to find a certificate and its key, both in PEM. The certificate comes first; the rest of its chain, up to a
-- known authority, follows it. The key has no password. If the certificate has a key usage, it must allow digital
-- signatures (RFC 8446, 4.4.2.2).
--
-- Keys of RSA with 2048 bits or more, ECDSA with the curve P-256, Ed25519 and Ed448 work. Whether other kinds of keys
-- work depends on the version of the @tls@ package; each is tried when it is loaded. Versions 1.5 to 2.1 cannot use the
-- curves P-384 and P-521.
data CertificateSource
  = -- | The files of the certificate and of the key. A reload reads them again.
    CertificateFiles FilePath FilePath
  | -- | The contents of such files.
    CertificateMemory ByteString ByteString
  deriving (Eq)

-- | Load a certificate with its chain and its key, and check that the first certificate is that of the key. Throws an
-- 'IOError' that says what is wrong with which file.
loadCredential :: CertificateSource -> IO Credential
loadCredential source = do
  (chainName, chain, keyName, keys) <- case source of
    CertificateFiles c k -> (\chain keys -> (c, chain, k, keys)) <$> readFile' c <*> readFile' k
    CertificateMemory chain keys -> pure ("the certificate in memory", chain, "the key in memory", keys)
  certificates <- case certificateBlocks chain of
    [] -> wrong chainName " holds no certificate in PEM"
    blocks -> zipWithM (decoded chainName) [1 ..] blocks
  key <- keyIn keyName keys
  checkPair chainName certificates keyName key
  pure (CertificateChain certificates, key)
  where
    readFile' path = blocking (B.readFile path)
    decoded :: String -> Int -> ByteString -> IO SignedCertificate
    decoded name n block = case readSignedObjectFromMemory block of
      [certificate] -> pure certificate
      _ -> wrong ("certificate " <> show n <> " in " <> name) " cannot be understood"

-- | The first private key in a text.
keyIn :: String -> ByteString -> IO PrivKey
keyIn name text = do
  when (all locked (filter ((B8.pack "PRIVATE KEY-----" `B.isSuffixOf`) . firstLine) (pemBlocks text))) $
    wrong name " holds no private key without a password in PEM"
  found <- try (evaluate (listToMaybe (readKeyFileFromMemory text)))
  case found of
    Left e -> wrong name (" cannot be understood: " <> takeWhile (/= '\n') (displayException (e :: SomeException)))
    Right Nothing -> wrong name " cannot be understood"
    Right (Just key) -> pure key

-- | Check that a server with these certificates and this key works. Otherwise find out why, and throw that.
checkPair :: String -> [SignedCertificate] -> String -> PrivKey -> IO ()
checkPair chainName certificates keyName key = do
  trial <- proveItself (CertificateChain certificates, key)
  case trial of
    Proved | signs -> pure ()
    NotUsed
      | Just kind <- kindOf . certPubKey <$> leaf,
        Just kind == kindOfPrivate key ->
        wrong keyName (" is a key that the tls library cannot use, of the kind " <> kind <> "; RSA with 2048 bits or more, ECDSA with P-256, Ed25519 and Ed448 work with all versions of it")
    _ -> do
      -- RFC 8446, 4.4.2: the sender's certificate comes first.
      others <- filterM (\(_, other) -> (== Proved) <$> proveItself (CertificateChain [other], key)) (drop 1 (zip [1 :: Int ..] certificates))
      case others of
        (n, _) : _ -> wrong keyName (" is the key of certificate " <> show n <> " in " <> chainName <> "; the certificate of the key must be the first")
        [] | signs -> wrong keyName (" is not the key of the certificate in " <> chainName)
        [] -> wrong ("certificate 1 in " <> chainName) " is for a key that may not sign (key usage), as TLS requires"
  where
    leaf = fmap getCertificate (listToMaybe certificates)
    -- RFC 8446, 4.4.2.2; with TLS 1.2, the accepted cipher suites need signatures too.
    signs = case leaf >>= extensionGet . certExtensions of
      Just (ExtKeyUsage flags) -> KeyUsage_digitalSignature `elem` flags
      Nothing -> True

-- | The certificates in a text in PEM, in their order. They are decoded one by one: given several, version 1.6 of the
-- library returns them from the last to the first.
certificateBlocks :: ByteString -> [ByteString]
certificateBlocks = filter ((B8.pack "CERTIFICATE-----" `B.isSuffixOf`) . firstLine) . pemBlocks

-- | The parts of a text that begin where a block in PEM begins.
pemBlocks :: ByteString -> [ByteString]
pemBlocks text = case B.stripPrefix begin (snd (B.breakSubstring begin text)) of
  Nothing -> []
  Just found -> let (block, rest) = B.breakSubstring begin found in (begin <> block) : pemBlocks rest
  where
    begin = B8.pack "-----BEGIN "

-- | The first line of a block.
firstLine :: ByteString -> ByteString
firstLine = fst . B8.spanEnd isSpace . B8.takeWhile (/= '\n')

-- | Whether a private key is protected by a password, in the form of PKCS#8 (RFC 5958) or in that of RFC 1421.
locked :: ByteString -> Bool
locked block = any ((`B.isInfixOf` block) . B8.pack) ["-----BEGIN ENCRYPTED ", "Proc-Type: 4,ENCRYPTED"]

wrong :: String -> String -> IO a
wrong name what = ioError (userError (name <> what))

-- | Load certificates of authorities from a PEM file. Throws an 'IOError' if it contains none.
loadAuthorities :: FilePath -> IO ([SignedCertificate], CertificateStore)
loadAuthorities path = blocking (B.readFile path) >>= authoritiesIn path

-- | Like 'loadAuthorities', with the contents of such a file.
authoritiesFrom :: ByteString -> IO ([SignedCertificate], CertificateStore)
authoritiesFrom = authoritiesIn "the text of the authorities"

authoritiesIn :: String -> ByteString -> IO ([SignedCertificate], CertificateStore)
authoritiesIn name text = case readSignedObjectFromMemory text of
  [] -> wrong name " holds no certificate in PEM"
  certificates -> pure (certificates, makeCertificateStore certificates)

-- | The credential for the name that a client asked for: the first one whose certificate has that name, exactly or by a
-- wildcard for the leftmost label (RFC 9525, 6.3), or else the first of the list.
credentialFor :: [Credential] -> Maybe String -> Maybe Credential
credentialFor credentials asked = case asked of
  Just name | found : _ <- filter (any (`matches` map toLower (withoutDot name)) . servedBy) credentials -> Just found
  _ -> listToMaybe credentials

-- | The names in a certificate, in lower case: the alternative names or, if there are none, the common name, which old
-- clients compare.
servedBy :: Credential -> [String]
servedBy (CertificateChain chain, _) = case map getCertificate chain of
  [] -> []
  certificate : _ -> case namesOf certificate of
    Just names -> either (const []) namesDns names
    Nothing -> [map toLower (B8.unpack text) | Just (ASN1CharacterString _ text) <- [getDnElement DnCommonName (certSubjectDN certificate)]]

-- | The kind of a key, with its curve, for messages and comparison.
kindOf :: PubKey -> String
kindOf key = case key of
  PubKeyEC (PubKeyEC_Named curve _) -> onCurve (show curve)
  PubKeyEC _ -> "ECDSA with a curve that has no name"
  other -> drop (length "PubKey") (takeWhile (/= ' ') (show other))

-- | Of a private key; 'Nothing' for a curve without a name.
kindOfPrivate :: PrivKey -> Maybe String
kindOfPrivate key = case key of
  PrivKeyEC (PrivKeyEC_Named curve _) -> Just (onCurve (show curve))
  PrivKeyEC _ -> Nothing
  other -> Just (drop (length "PrivKey") (takeWhile (/= ' ') (show other)))

-- | From the library's name of the curve, which is that of SEC 2 (@SEC_p384r1@).
onCurve :: String -> String
onCurve name = "ECDSA with " <> fromMaybe name (lookup name [("SEC_p256r1", "P-256"), ("SEC_p384r1", "P-384"), ("SEC_p521r1", "P-521")])

-- | The outcome of a handshake of a server with itself.
data Trial
  = Proved
  | -- | The server did not send the certificate: the library cannot sign with such a key.
    NotUsed
  | -- | The signature was wrong, or the client refused the certificate.
    Failed
  deriving (Eq)

-- | Find out whether a server with this credential works, by a handshake with itself.
proveItself :: Credential -> IO Trial
proveItself credential = do
  there <- newChan
  back <- newChan
  sent <- newIORef False
  server <- end there back >>= \backend -> contextNew backend serverSide
  client <- end back there >>= \backend -> contextNew backend (clientSide sent)
  bracket (forkIO (void (succeeds (handshake server)))) killThread $ \_ -> do
    outcome <- within (seconds 10) (succeeds (handshake client))
    used <- readIORef sent
    -- No outcome: the server failed without an alert, as when it signs.
    pure (if outcome == Just True then Proved else if outcome == Just False && not used then NotUsed else Failed)
  where
    end from to = do
      left <- newIORef B.empty
      pure (Backend (pure ()) (pure ()) (writeChan to) (exactly (readChan from) left))
    serverSide = def {serverShared = def {sharedCredentials = Credentials [credential]}, serverSupported = supported}
    clientSide sent =
      (defaultParamsClient "localhost" B.empty)
        { clientSupported = supported,
          clientHooks = def {onServerCertificate = \_ _ _ _ -> [] <$ writeIORef sent True}
        }
    exactly receive left n = do
      have <- readIORef left
      if B.length have >= n
        then B.take n have <$ writeIORef left (B.drop n have)
        else receive >>= \more -> writeIORef left (have <> more) >> exactly receive left n

-- | Whether an action finishes without an exception.
succeeds :: IO () -> IO Bool
succeeds act = (True <$ act) `catches` [Handler library, Handler system]
  where
    library :: TLSException -> IO Bool
    library _ = pure False
    system :: IOException -> IO Bool
    system _ = pure False
