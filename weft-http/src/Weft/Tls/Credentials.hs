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
import Control.Monad (filterM, unless, void, zipWithM)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as B8
import Data.Char (toLower)
import Data.Default.Class (def)
import Data.IORef
import Data.Maybe (listToMaybe)
import Data.X509
import Data.X509.CertificateStore (CertificateStore, makeCertificateStore)
import Data.X509.Memory (readKeyFileFromMemory, readSignedObjectFromMemory)
import Network.TLS
import Weft.Blocking (blocking)
import Weft.Duration (seconds)
import Weft.Timer (within)
import Weft.Tls.Ciphers (supported)

-- | Where to find a certificate and its key, both in PEM. The certificate comes first; the rest of its chain, up to a
-- known authority, follows it.
data CertificateSource
  = -- | The files of the certificate and of the key. A reload reads them again.
    CertificateFiles FilePath FilePath
  | -- | The contents of such files.
    CertificateMemory ByteString ByteString

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
  unless (B8.pack "PRIVATE KEY-----" `B.isInfixOf` keys) (wrong keyName " holds no private key without a password in PEM")
  found <- try (evaluate (listToMaybe (readKeyFileFromMemory keys)))
  key <- case found of
    Left e -> wrong keyName (" cannot be understood: " <> takeWhile (/= '\n') (displayException (e :: SomeException)))
    Right Nothing -> wrong keyName " cannot be understood"
    Right (Just key) -> pure key
  let credential = (CertificateChain certificates, key)
  proved <- provesItself credential
  unless proved $ do
    -- RFC 8446, 4.4.2: the sender's certificate comes first.
    others <- filterM (\(_, other) -> provesItself (CertificateChain [other], key)) (drop 1 (zip [1 :: Int ..] certificates))
    wrong keyName $ case others of
      [] -> " is not the key of the certificate in " <> chainName
      (n, _) : _ -> " is the key of certificate " <> show n <> " in " <> chainName <> "; the certificate of the key must be the first"
  pure credential
  where
    readFile' path = blocking (B.readFile path)
    decoded :: String -> Int -> ByteString -> IO SignedCertificate
    decoded name n block = case readSignedObjectFromMemory block of
      [certificate] -> pure certificate
      _ -> wrong ("certificate " <> show n <> " in " <> name) " cannot be understood"

-- | The certificates in a text in PEM, in their order. They are decoded one by one: given several, version 1.6 of the
-- library returns them from the last to the first.
certificateBlocks :: ByteString -> [ByteString]
certificateBlocks = filter ((B8.pack "CERTIFICATE-----" `B.isInfixOf`) . B8.takeWhile (/= '\n')) . blocks
  where
    begin = B8.pack "-----BEGIN "
    blocks text = case B.stripPrefix begin (snd (B.breakSubstring begin text)) of
      Nothing -> []
      Just found -> let (block, rest) = B.breakSubstring begin found in (begin <> block) : blocks rest

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
