-- |
-- Splits received strings into messages. Messages within one string are slices of it; only a message that spans
-- strings is copied. Pure.
module Weft.OpenFlow.Controller.Framer
  ( Partial,
    nothingPartial,
    Fed (..),
    feed,
    partialOf,
    partialBytes,
  )
where

import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Unsafe as B
import Weft.OpenFlow.Wire

-- | The start of an incomplete message: the number of bytes received, the number needed (first of the header, then of
-- the message), and the pieces, the last one first. Each piece is at least twice as long as the one that follows it, so
-- there are at most 17, however small the pieces are that arrive.
data Partial = Partial !Int !Int ![ByteString]

-- | No bytes of a message.
nothingPartial :: Partial
nothingPartial = Partial 0 headerSize []

-- | The result of adding a received string to the start of a message.
data Fed
  = -- | The message is still incomplete.
    Still !Partial
  | -- | The first string is one complete message or empty. The stream continues with the second string.
    Complete !ByteString !ByteString
  | -- | The message's length is below that of a header.
    Broken !Header

-- | Append a received string. A byte is copied a number of times that is logarithmic in the length of its message.
feed :: Partial -> ByteString -> Fed
feed (Partial have need pieces) s
  | have == 0 = Complete B.empty s
  | have + B.length s < need = Still (Partial (have + B.length s) need (addPiece s pieces))
  | need == headerSize && len < headerSize = Broken (readHeader joined)
  | need == headerSize && len > headerSize = feed (Partial headerSize len [joined]) rest
  | otherwise = Complete joined rest
  where
    joined = B.concat (reverse (B.unsafeTake (need - have) s : pieces))
    rest = B.unsafeDrop (need - have) s
    len = headerLength (readHeader joined)

-- | Append a piece. It is joined with earlier pieces that are shorter than twice its length: a switch that sends single
-- bytes would otherwise occupy more than a hundred bytes for each of them.
addPiece :: ByteString -> [ByteString] -> [ByteString]
addPiece !s (earlier : pieces) | B.length earlier < 2 * B.length s = addPiece (earlier <> s) pieces
addPiece !s pieces = s : pieces

-- | The start of a message that 'nextMessage' left over. It is copied when evaluated, so that a waiting thread does not
-- retain the whole received string.
partialOf :: ByteString -> Partial
partialOf s
  | B.null s = nothingPartial
  | otherwise = let !own = B.copy s in Partial (B.length own) need [own]
  where
    need = if B.length s < headerSize then headerSize else headerLength (readHeader s)

-- | The bytes of the start.
partialBytes :: Partial -> ByteString
partialBytes (Partial _ _ pieces) = B.concat (reverse pieces)
