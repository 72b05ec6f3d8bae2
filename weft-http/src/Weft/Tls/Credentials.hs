-- |
-- Certificates with their keys, and trusted authorities: loading them, with errors that say what is wrong with which
-- file; and finding the certificate for a name.
module Weft.Tls.Credentials
  ( CertificateSource (..),
    Credential,
    credentialContext,
    credentialSlow,
    loadCredential,
    loadAuthorities,
    authoritiesFrom,
    nameTable,
    servedBy,
    certificateBlocks,
  )
where

import Control.Monad (unless, when, zipWithM_)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as B8
import Data.Char (isSpace, toLower)
import qualified Data.Map.Strict as Map
import Weft.Blocking (blocking)
import Weft.Tls.Library
import Weft.WholeFile (readTextFile)

-- | Where to find a certificate and its key, both in PEM. The certificate comes first; the rest of its chain, up to a
-- known authority, follows it. The key has no password. If the certificate has a key usage, it must allow digital
-- signatures (RFC 8446, 4.4.2.2).
--
-- Keys of RSA with 2048 bits or more, ECDSA with the curves P-256, P-384 and P-521, Ed25519 and Ed448 work. A signature
-- with P-256 or Ed25519 takes tens of microseconds, one with RSA a millisecond.
data CertificateSource
  = -- | The files of the certificate and of the key. A reload reads them again.
    CertificateFiles FilePath FilePath
  | -- | The contents of such files.
    CertificateMemory ByteString ByteString
  deriving (Eq)

-- | A certificate with its chain and key, ready for connections.
data Credential = Credential
  { credentialContext :: !Context,
    -- | Whether signing takes long.
    credentialSlow :: !Bool,
    -- | Names, in lower case.
    credentialNames :: ![ByteString]
  }

-- | Load a certificate with its chain and its key, and check that the first certificate is that of the key. Throws an
-- @IOError@ that says what is wrong with which file.
loadCredential :: Role -> Bool -> CertificateSource -> IO Credential
loadCredential role tellsKeys source = do
  (chainName, chain, keyName, keys) <- case source of
    CertificateFiles c k -> (\chain keys -> (c, chain, k, keys)) <$> readFile' c <*> readFile' k
    CertificateMemory chain keys -> pure ("the certificate in memory", chain, "the key in memory", keys)
  context <- newContext role tellsKeys
  let blocks = certificateBlocks chain
  when (null blocks) (wrong chainName " holds no certificate in PEM")
  zipWithM_ (added context chainName) [1 ..] blocks
  when (all locked (keyBlocks keys)) (wrong keyName " holds no private key without a password in PEM")
  outcome <- setKey context (B.concat (take 1 (filter (not . locked) (keyBlocks keys))))
  case outcome of
    KeySet -> pure ()
    KeyOfNone -> wrong keyName (" is not the key of the certificate in " <> chainName)
    KeyUnusable why -> wrong keyName (" cannot be used: " <> why)
    -- RFC 8446, 4.4.2: the sender's certificate comes first.
    KeyOfOther n -> wrong keyName (" is the key of certificate " <> show n <> " in " <> chainName <> "; the certificate of the key must be the first")
  maySign <- signs context
  unless maySign (wrong ("certificate 1 in " <> chainName) " is for a key that may not sign (key usage), as TLS requires")
  takesLong <- slow context
  names <- map (B8.map toLower) . namesIn <$> ownCertificate context
  length names `seq` pure (Credential context takesLong names)
  where
    readFile' path = blocking (readTextFile path)
    added :: Context -> String -> Int -> ByteString -> IO ()
    added context name n block = do
      r <- addCertificate context block
      case r of
        Just (Right ()) -> pure ()
        Just (Left why) -> wrong ("certificate " <> show n <> " in " <> name) (" cannot be used: " <> why)
        Nothing -> wrong ("certificate " <> show n <> " in " <> name) " cannot be understood"

-- | The certificates, and the private keys, in a text in PEM, in their order.
certificateBlocks, keyBlocks :: ByteString -> [ByteString]
certificateBlocks = filter ((B8.pack "CERTIFICATE-----" `B.isSuffixOf`) . firstLine) . pemBlocks
keyBlocks = filter ((B8.pack "PRIVATE KEY-----" `B.isSuffixOf`) . firstLine) . pemBlocks

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

-- | Load certificates of authorities from a PEM file. Throws an @IOError@ if it contains none.
loadAuthorities :: Bool -> FilePath -> IO Context
loadAuthorities tellsKeys path = blocking (readTextFile path) >>= authoritiesIn tellsKeys path

-- | Like 'loadAuthorities', with the contents of such a file.
authoritiesFrom :: Bool -> ByteString -> IO Context
authoritiesFrom tellsKeys = authoritiesIn tellsKeys "the text of the authorities"

authoritiesIn :: Bool -> String -> ByteString -> IO Context
authoritiesIn tellsKeys name text = do
  context <- newContext ClientRole tellsKeys
  count <- trustPem context text
  when (count <= 0) (wrong name " holds no certificate in PEM")
  pure context

-- | For the name that a client asks for: the first certificate that has it, exactly or by a wildcard for the leftmost
-- label (RFC 9525, 6.3), or else the first of the list.
nameTable :: [Credential] -> IO NameTable
nameTable credentials = newNameTable (map credentialContext credentials) (Map.toAscList firsts)
  where
    firsts = Map.fromListWith min [(name, number) | (number, credential) <- zip [0 ..] credentials, name <- credentialNames credential, not (B.null name), B.length name <= 255]

-- | The names in a certificate, in lower case: the alternative names or, if there are none, the common name, which old
-- clients compare.
servedBy :: Credential -> [String]
servedBy = map B8.unpack . credentialNames
