-- |
-- How a client names a server: by a DNS name or an IP address.
module Weft.Tls.ServerName
  ( Identity (..),
    identityOf,
    withoutDot,
  )
where

import Control.Exception (IOException, try)
import Data.Bits (shiftR)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Network.Socket

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
