-- |
-- Why bytes are no packet, for all modules of @Weft.Tcp.Wire@. Pure.
--
-- @since 0.1.0
module Weft.Tcp.Wire.Malformed
  ( Malformed (..),
  )
where

-- | The reason why bytes are not a valid packet.
data Malformed
  = -- | The bytes are fewer than the header needs, or than a length field claims.
    Truncated
  | -- | The version, hardware type or a similar field is that of another protocol.
    WrongVersion
  | -- | A length field contradicts the format: a TCP data offset below 5, an IPv4 header length below 5, or a total
    -- length below the header's.
    BadLength
  | BadChecksum
  | -- | Invalid options or extension headers.
    BadOptions
  deriving (Eq, Ord, Show, Enum, Bounded)
