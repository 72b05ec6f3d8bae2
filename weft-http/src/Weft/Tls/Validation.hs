-- |
-- Which certificate of a peer is accepted. The library checks signatures, validity periods, authorities and the purpose
-- of the key. What it leaves out of RFC 5280 is added here, for the certificate and each authority below the trusted
-- one:
--
-- * A critical extension that is not known (4.2) or an extension that cannot be read is a fault.
-- * So are critical name constraints (4.2.1.10), which would have to be applied.
-- * An authority with an extended key usage can only issue certificates for that use, as in browsers and OpenSSL.
--
-- What a trusted authority's own certificate says does not matter (6.1.1).
module Weft.Tls.Validation
  ( Peer (..),
    validateChain,
    rejection,
    rejectedBecause,
  )
where

import Data.List (intercalate)
import Data.Maybe (fromMaybe)
import Data.X509
import Data.X509.CertificateStore (CertificateStore)
import Data.X509.Validation
import Network.TLS (CertificateRejectReason (..), CertificateUsage (..))
import Weft.Tls.ServerName

-- | Whose certificate it is.
data Peer
  = ServerOf Identity
  | AnyClient

-- | Why the chain is not accepted; nothing if it is.
validateChain :: Peer -> CertificateStore -> ValidationCache -> ServiceID -> CertificateChain -> IO [FailedReason]
validateChain peer = validate HashSHA256 hooks checks
  where
    -- The library calls the hook for the time with each certificate between the peer's and the trusted authority.
    hooks =
      defaultHooks
        { hookValidateTime = \time certificate -> hookValidateTime defaultHooks time certificate <> faultsOf purpose certificate,
          hookValidateName = \name certificate -> maybe [] (\identity -> validateName identity name certificate) server
        }
    -- RFC 8446, 4.4.2.2; with TLS 1.2, the accepted cipher suites need signatures too.
    checks = defaultChecks {checkLeafKeyUsage = [KeyUsage_digitalSignature], checkLeafKeyPurpose = [purpose]}
    (server, purpose) = case peer of
      ServerOf identity -> (Just identity, KeyUsagePurpose_ServerAuth)
      AnyClient -> (Nothing, KeyUsagePurpose_ClientAuth)

-- | The common name does not count (RFC 9110, 4.3.4).
validateName :: Identity -> String -> Certificate -> [FailedReason]
validateName identity name certificate = case namesOf certificate of
  Nothing -> [fault "it has no subjectAltName"]
  Just (Left ()) -> [fault "its subjectAltName cannot be read"]
  Just (Right names) -> [NameMismatch name | not (isFor identity names)]

-- | The faults of one certificate's extensions.
faultsOf :: ExtKeyUsagePurpose -> Certificate -> [FailedReason]
faultsOf purpose certificate = concatMap faultOf (fromMaybe [] raw) <> [fault "the extended key usage of an authority does not allow this use" | not allowed]
  where
    extensions@(Extensions raw) = certExtensions certificate
    faultOf extension
      | unreadable oid critical = [fault ("an extension (" <> shown <> ") cannot be read")]
      | not critical || oid `elem` processed = []
      | oid == [2, 5, 29, 30] = [fault "an authority has critical name constraints, which are not supported"]
      | otherwise = [fault ("a critical extension (" <> shown <> ") is not known")]
      where
        oid = extRawOID extension
        critical = extRawCritical extension
        shown = intercalate "." (map show oid)
    -- As the library ignores what it cannot read, these are faults also if they are not critical.
    unreadable oid critical = case oid of
      [2, 5, 29, 15] -> failed (extensionGetE extensions :: Maybe (Either String ExtKeyUsage))
      [2, 5, 29, 19] -> failed (extensionGetE extensions :: Maybe (Either String ExtBasicConstraints))
      [2, 5, 29, 37] -> failed (extensionGetE extensions :: Maybe (Either String ExtExtendedKeyUsage))
      [2, 5, 29, 17] -> critical && failed (namesOf certificate)
      _ -> False
    -- Key usage, alternative names, basic constraints, extended key usage. Any policies of 'certificatePolicies' are
    -- accepted, so that it restricts nothing (RFC 5280, 6.1.1 c).
    processed = map ([2, 5, 29] <>) [[15], [17], [19], [37], [32]]
    failed :: Maybe (Either e a) -> Bool
    failed = maybe False (either (const True) (const False))
    allowed = case extensionGet extensions of
      Just (ExtExtendedKeyUsage purposes) -> any (`elem` purposes) [purpose, KeyUsagePurpose_Unknown [2, 5, 29, 37, 0]]
      Nothing -> True

-- | The library's type has no constructor for these; this one has a text.
fault :: String -> FailedReason
fault = CacheSaysNo

-- | What a server tells the library.
rejection :: [FailedReason] -> CertificateUsage
rejection reasons
  | null reasons = CertificateUsageAccept
  | any (`elem` reasons) [Expired, InFuture] = CertificateUsageReject CertificateRejectExpired
  | any (`elem` reasons) [UnknownCA, SelfSigned] = CertificateUsageReject CertificateRejectUnknownCA
  | otherwise = CertificateUsageReject (CertificateRejectOther (explained reasons))

-- | An error message with these reasons, unless the library has words for them.
rejectedBecause :: [FailedReason] -> Maybe String
rejectedBecause reasons = case rejection reasons of
  CertificateUsageReject (CertificateRejectOther _) -> Just ("certificate rejected: " <> explained reasons)
  _ -> Nothing

explained :: [FailedReason] -> String
explained = intercalate "; " . map explain
  where
    explain reason = case reason of
      CacheSaysNo text -> text
      NameMismatch name -> "it is not for " <> name
      LeafNotV3 -> "it is not of X.509 version 3"
      LeafKeyUsageNotAllowed -> "its key usage does not allow signatures"
      LeafKeyPurposeNotAllowed -> "its extended key usage does not allow this use"
      NotAnAuthority -> "it was issued by a certificate that is not of an authority"
      NotAllowedToSign -> "it was issued by an authority whose key may not sign certificates"
      AuthorityTooDeep -> "its chain is longer than an authority allows"
      InvalidSignature _ -> "a signature in its chain is wrong"
      other -> show other
