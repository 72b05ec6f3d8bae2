-- |
-- Which certificate may claim which datapath ID: the file of @weft controller --switch-certificates@. A certificate is
-- named by its SHA-256 fingerprint, as @openssl x509 -noout -fingerprint -sha256@ prints it. Pure, except for reading
-- the file.
module Weft.Tools.Controller.Certificates
  ( Certificates,
    readCertificates,
    certificatesFrom,
    mayClaim,
  )
where

import Control.Exception (try)
import Control.Monad (forM)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import Data.Char (isHexDigit, isSpace, toLower)
import qualified Data.Map.Strict as Map
import qualified Data.Set as Set
import Text.Printf (printf)
import Weft.OpenFlow.Types
import Weft.Tools.Sha256 (sha256)
import Weft.Transport (Connection, Security (securityPeerCertificates), connSecurity)
import Weft.WholeFile (readTextFile)

-- | For each datapath ID, the fingerprints of the certificates that may claim it: 64 hexadecimal digits in lower case.
newtype Certificates = Certificates (Map.Map DatapathId (Set.Set String))

-- | Read the file; or what is wrong with it.
readCertificates :: FilePath -> IO (Either String Certificates)
readCertificates file = do
  content <- try (readTextFile file)
  pure $ case content of
    Left e -> Left (show (e :: IOError))
    Right s -> either (Left . ((file <> ": ") <>)) Right (certificatesFrom (C.unpack s))

-- | Parse lines of a datapath ID and a fingerprint. An ID may have several. Empty lines, and those that begin with @#@,
-- are skipped. A file without any ID is an error, since it refuses all switches.
certificatesFrom :: String -> Either String Certificates
certificatesFrom text = do
  bindings <- forM [(n, ws) | (n, l) <- zip [1 :: Int ..] (lines text), let { ws = words l }, ws /= [], take 1 (dropWhile isSpace l) /= "#"] $ \(n, ws) -> case ws of
    [d, f]
      | Just datapath <- readDatapathId d, Just digest <- fingerprint f -> Right (datapath, Set.singleton digest)
    _ -> Left ("line " <> show n <> " is not a datapath ID of up to 16 hexadecimal digits and a SHA-256 fingerprint")
  if null bindings then Left "there is no datapath ID in it" else Right (Certificates (Map.fromListWith Set.union bindings))

-- | The digits of a fingerprint, with or without colons.
fingerprint :: String -> Maybe String
fingerprint s
  | length digits == 64, all isHexDigit digits, length s `elem` [64, 95] = Just digits
  | otherwise = Nothing
  where
    digits = map toLower (filter (/= ':') s)

-- | Whether the peer's certificate may claim a datapath ID; if not, the reason.
mayClaim :: Certificates -> Connection -> DatapathId -> Maybe String
mayClaim (Certificates bindings) connection d = case (Map.lookup d bindings, connSecurity connection >>= leaf) of
  (Nothing, _) -> Just ("no certificate may claim datapath ID " <> show d)
  (Just _, Nothing) -> Just ("it has no certificate, and claims datapath ID " <> show d)
  (Just allowed, Just certificate)
    | Set.member (digestOf certificate) allowed -> Nothing
    | otherwise -> Just ("its certificate, with fingerprint " <> digestOf certificate <> ", may not claim datapath ID " <> show d)
  where
    leaf security = case securityPeerCertificates security of
      certificate : _ -> Just certificate
      [] -> Nothing

digestOf :: ByteString -> String
digestOf certificate = concatMap (printf "%02x") (B.unpack (sha256 certificate))
