-- |
-- How a client names a server, by a DNS name or an IP address, and the names in a certificate (RFC 5280, 4.2.1.6).
module Weft.Tls.ServerName
  ( -- * What a client asks for
    Identity (..),
    identityOf,
    withoutDot,

    -- * What a certificate has
    Names (..),
    namesOf,
    isFor,
    matches,
  )
where

import Control.Exception (IOException, try)
import Data.Bits (shiftL, shiftR, (.|.))
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as B8
import Data.Char (toLower)
import Data.List (find)
import Data.Word (Word8)
import Data.X509
import Network.Socket

-- What a client asks for ---------------------------------------------------------------

-- | A server, as a client names it.
data Identity
  = -- | By a DNS name, without a dot at its end.
    Named String
  | -- | By the bytes of an IP address. Such a server has no name to send to it (RFC 6066, 3).
    Addressed ByteString

-- | The identity in text form; an IP address is read as the resolver does. Nothing is looked up.
identityOf :: String -> IO Identity
identityOf text = either unreadable addressIn <$> try (getAddrInfo (Just hints) (Just name) Nothing)
  where
    name = withoutDot text
    hints = defaultHints {addrFlags = [AI_NUMERICHOST], addrSocketType = Stream}
    addressIn found = case map addrAddress found of
      SockAddrInet _ address : _ -> let (a, b, c, d) = hostAddressToTuple address in Addressed (B.pack [a, b, c, d])
      SockAddrInet6 _ _ address _ : _ -> Addressed (B.concat (map pair (parts (hostAddress6ToTuple address))))
      _ -> Named name
    parts (a, b, c, d, e, f, g, h) = [a, b, c, d, e, f, g, h]
    pair word = B.pack [fromIntegral (word `shiftR` 8), fromIntegral word]
    unreadable :: IOException -> Identity
    unreadable _ = Named name

-- | A name without the dot at its end that makes it absolute in the DNS. It is neither sent (RFC 6066, 3) nor in
-- certificates.
withoutDot :: String -> String
withoutDot name = case reverse name of
  '.' : rest@(_ : _) -> reverse rest
  _ -> name

-- What a certificate has ---------------------------------------------------------------

-- | The alternative names of a certificate that can name a server.
data Names = Names
  { -- | In lower case.
    namesDns :: [String],
    namesAddresses :: [ByteString]
  }

-- | 'Nothing' if the certificate has no alternative names, 'Left' if they cannot be read. The library's own function
-- reads none at all if one of them is of a kind that it does not know.
namesOf :: Certificate -> Maybe (Either () Names)
namesOf certificate = maybe (Left ()) (Right . names) . generalNames . extRawContent <$> find ((== [2, 5, 29, 17]) . extRawOID) extensions
  where
    extensions = case certExtensions certificate of
      Extensions found -> concat found
    -- The tags of dNSName and iPAddress.
    names found = Names [map toLower (B8.unpack name) | (0x82, name) <- found] [address | (0x87, address) <- found]

-- | The tags and contents of @GeneralNames@ in DER.
generalNames :: ByteString -> Maybe [(Word8, ByteString)]
generalNames bytes = case element bytes of
  Just ((0x30, inside), rest) | B.null rest -> elements inside
  _ -> Nothing
  where
    elements left
      | B.null left = Just []
      | otherwise = element left >>= \(first, rest) -> (first :) <$> elements rest

-- | The tag and the content of the first element in DER, and what follows it (X.690, 8.1).
element :: ByteString -> Maybe ((Word8, ByteString), ByteString)
element bytes = do
  (tag, afterTag) <- B.uncons bytes
  (size, afterSize) <- B.uncons afterTag >>= uncurry sizeOf
  if B.length afterSize < size then Nothing else Just ((tag, B.take size afterSize), B.drop size afterSize)
  where
    sizeOf first rest
      | first < 0x80 = Just (fromIntegral first, rest)
      -- More than three bytes of a length do not fit into a certificate.
      | first > 0x80 && first <= 0x83, let n = fromIntegral first - 0x80, B.length rest >= n = Just (B.foldl' digit 0 (B.take n rest), B.drop n rest)
      | otherwise = Nothing
    digit n byte = n `shiftL` 8 .|. fromIntegral byte

-- | Whether a certificate with these names is for that server.
isFor :: Identity -> Names -> Bool
isFor identity names = case identity of
  Named name -> any (`matches` map toLower name) (namesDns names)
  Addressed address -> address `elem` namesAddresses names

-- | Whether a certificate's name, possibly with a wildcard for the leftmost label (RFC 9525, 6.3), is that name. Both
-- are in lower case.
matches :: String -> String -> Bool
matches ('*' : '.' : suffix) name = case break (== '.') name of
  (label, '.' : rest) -> not (null label) && not (null rest) && rest == suffix
  _ -> False
matches exact name = exact == name
