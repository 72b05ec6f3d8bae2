-- |
-- Certificates with their keys: loading them, and finding the one for a name.
module Weft.Tls.Credentials
  ( CertificateSource (..),
    loadCredential,
    loadAuthorities,
    authoritiesFrom,
    credentialFor,
  )
where

import Control.Concurrent (forkIO, killThread)
import Control.Concurrent.Chan
import Control.Exception
import Control.Monad (unless, void)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as B8
import Data.Char (toLower)
import Data.Default.Class (def)
import Data.IORef
import Data.Maybe (listToMaybe)
import Data.X509
import Data.X509.CertificateStore (CertificateStore, makeCertificateStore)
import Data.X509.Memory (readSignedObjectFromMemory)
import Network.TLS
import Weft.Blocking (blocking)
import Weft.Duration (seconds)
import Weft.Timer (within)
import Weft.Tls.Ciphers (supported)

-- | Where to find a certificate and its key, both in PEM. The certificate is followed by the rest of its chain, up to a
-- known authority.
data CertificateSource
  = -- | The files of the certificate and of the key. A reload reads them again.
    CertificateFiles FilePath FilePath
  | -- | The contents of such files.
    CertificateMemory ByteString ByteString

-- | Load a certificate and its key, and check that they match. Throws an 'IOError' that
-- says what is wrong with which file.
loadCredential :: CertificateSource -> IO Credential
loadCredential source = do
  (chainName, chain, keyName, key) <- case source of
    CertificateFiles c k -> (\chain key -> (c, chain, k, key)) <$> readFile' c <*> readFile' k
    CertificateMemory chain key -> pure ("the certificate in memory", chain, "the key in memory", key)
  holds chainName chain "CERTIFICATE-----" "certificate"
  holds keyName key "PRIVATE KEY-----" "private key without a password"
  loaded <- try (evaluate (credentialLoadX509ChainFromMemory chain [] key))
  credential <- case loaded of
    Left e -> wrong keyName (" cannot be understood: " <> firstLine (displayException (e :: SomeException)))
    Right (Left why) -> wrong keyName (" cannot be understood: " <> firstLine why)
    Right (Right credential) -> pure credential
  proved <- provesItself credential
  unless proved (wrong keyName (" is not the key of the certificate in " <> chainName))
  pure credential
  where
    readFile' path = blocking (B.readFile path)
    holds name text mark what = unless (B8.pack mark `B.isInfixOf` text) (wrong name (" holds no " <> what <> " in PEM"))
    firstLine = takeWhile (/= '\n')

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
-- wildcard for the leftmost label (RFC 6125, 6.4.3), or else the first of the list.
credentialFor :: [Credential] -> Maybe String -> Maybe Credential
credentialFor credentials asked = case asked of
  Just name | found : _ <- filter (any (`matches` map toLower name) . namesOf) credentials -> Just found
  _ -> listToMaybe credentials

matches :: String -> String -> Bool
matches ('*' : '.' : suffix) name = case break (== '.') name of
  (label, '.' : rest) -> not (null label) && rest == suffix
  _ -> False
matches exact name = exact == name

-- | The names in a certificate, in lower case: the alternative names or, if there are none, the common name.
namesOf :: Credential -> [String]
namesOf (CertificateChain chain, _) = map (map toLower) $ case chain of
  [] -> []
  leaf : _ -> case extensionGet (certExtensions certificate) of
    Just (ExtSubjectAltName names) -> [name | AltNameDNS name <- names]
    Nothing -> [name | Just (ASN1CharacterString _ text) <- [getDnElement DnCommonName (certSubjectDN certificate)], let name = B8.unpack text]
    where
      certificate = getCertificate leaf

-- | Whether a server with this credential works, found out by a handshake with itself.
provesItself :: Credential -> IO Bool
provesItself credential = do
  there <- newChan
  back <- newChan
  server <- end there back >>= \backend -> contextNew backend serverSide
  client <- end back there >>= \backend -> contextNew backend clientSide
  bracket (forkIO (void (succeeds (handshake server)))) killThread $ \_ ->
    (== Just True) <$> within (seconds 10) (succeeds (handshake client))
  where
    end from to = do
      left <- newIORef B.empty
      pure (Backend (pure ()) (pure ()) (writeChan to) (exactly (readChan from) left))
    serverSide = def {serverShared = def {sharedCredentials = Credentials [credential]}, serverSupported = supported}
    clientSide =
      (defaultParamsClient "localhost" B.empty)
        { clientSupported = supported,
          clientShared = def {sharedValidationCache = ValidationCache (\_ _ _ -> pure ValidationCachePass) (\_ _ _ -> pure ())}
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
