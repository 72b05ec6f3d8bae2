-- |
-- Servers that a client names by an IP address. Their certificates list the address itself (RFC 5280, 4.2.1.6), and a
-- client does not send it as a server name (RFC 6066, 3).
module Weft.Tls.ServerName
  ( addressOf,
    checkAddress,
  )
where

import Control.Exception (IOException, try)
import Data.Bits (shiftR)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Data.X509
import Data.X509.CertificateStore (CertificateStore)
import Data.X509.Validation
import Network.Socket

-- | The bytes of an IP address in text form, as the resolver reads it; 'Nothing' for a name. Nothing is looked up.
addressOf :: String -> IO (Maybe ByteString)
addressOf name = either unreadable addressIn <$> try (getAddrInfo (Just hints) (Just name) Nothing)
  where
    hints = defaultHints {addrFlags = [AI_NUMERICHOST], addrSocketType = Stream}
    addressIn found = case map addrAddress found of
      SockAddrInet _ address : _ -> let (a, b, c, d) = hostAddressToTuple address in Just (B.pack [a, b, c, d])
      SockAddrInet6 _ _ address _ : _ -> Just (B.concat (map pair (parts (hostAddress6ToTuple address))))
      _ -> Nothing
    parts (a, b, c, d, e, f, g, h) = [a, b, c, d, e, f, g, h]
    pair word = B.pack [fromIntegral (word `shiftR` 8), fromIntegral word]
    unreadable :: IOException -> Maybe ByteString
    unreadable _ = Nothing

-- | The library's check of a server's certificate, but of its addresses instead of its names. Neither a DNS name nor a
-- common name that looks like the address is accepted.
checkAddress :: ByteString -> CertificateStore -> ValidationCache -> ServiceID -> CertificateChain -> IO [FailedReason]
checkAddress address = validate HashSHA256 defaultHooks {hookValidateName = among} defaultChecks
  where
    among name certificate = [NameMismatch name | address `notElem` addressesOf certificate]
    addressesOf certificate = case extensionGet (certExtensions certificate) of
      Just (ExtSubjectAltName names) -> [bytes | AltNameIP bytes <- names]
      Nothing -> []
