-- |
-- Messages out of what is received. A string of many messages is used in place; only a message that two strings share
-- is copied together. Pure.
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

-- | The start of a message: how many bytes are there, how many must be (of the header, then of the whole), and the
-- pieces, the last one first.
data Partial = Partial !Int !Int [ByteString]

-- | Between two messages.
nothingPartial :: Partial
nothingPartial = Partial 0 headerSize []

-- | What a received string makes of a start.
data Fed
  = -- | It is still a start.
    Still !Partial
  | -- | Complete messages begin here, and then there.
    Complete !ByteString !ByteString
  | -- | Its length is below that of a header.
    Broken !Header

-- | Append what was received. Each byte is copied at most twice, however small the pieces are.
feed :: Partial -> ByteString -> Fed
feed (Partial have need pieces) s
  | have == 0 = Complete B.empty s
  | have + B.length s < need = Still (Partial (have + B.length s) need (s : pieces))
  | need == headerSize && len < headerSize = Broken (readHeader joined)
  | need == headerSize && len > headerSize = feed (Partial headerSize len [joined]) rest
  | otherwise = Complete joined rest
  where
    joined = B.concat (reverse (B.unsafeTake (need - have) s : pieces))
    rest = B.unsafeDrop (need - have) s
    len = headerLength (readHeader joined)

-- | A start that 'nextMessage' left: shorter than a message. It is copied at once: a switch that waits for more must not
-- keep all that came with it alive.
partialOf :: ByteString -> Partial
partialOf s
  | B.null s = nothingPartial
  | otherwise = let !own = B.copy s in Partial (B.length own) need [own]
  where
    need = if B.length s < headerSize then headerSize else headerLength (readHeader s)

-- | The bytes of a start.
partialBytes :: Partial -> ByteString
partialBytes (Partial _ _ pieces) = B.concat (reverse pieces)
