-- |
-- Bytes in pieces, for "Weft.Reader" and "Weft.Writer". Small pieces are joined as they come, so that the memory is
-- about the number of bytes, however small the pieces are. Pure.
module Weft.Reader.Pieces
  ( Pieces,
    empty,
    size,
    pieces,
    count,
    append,
    whole,
    flatten,
    split,
  )
where

import Data.ByteString (ByteString)
import qualified Data.ByteString as B

-- | Strings, the newest first, none of them empty, and the sum of their lengths. Of two neighbours where the older
-- one is shorter than 'large', the newer one has at most half of its length.
data Pieces = Pieces ![ByteString] !Int

-- | No bytes.
empty :: Pieces
empty = Pieces [] 0

-- | The number of bytes.
size :: Pieces -> Int
size (Pieces _ n) = n

-- | The strings, the oldest first.
pieces :: Pieces -> [ByteString]
pieces (Pieces newest _) = reverse newest

-- | How many strings they are: at most one for each 'large' bytes, and some twenty more. O(n).
count :: Pieces -> Int
count (Pieces newest _) = length newest

-- | Put bytes after all others. Each byte is copied O(log 'large') times, and none that came in a large string after
-- large strings.
append :: ByteString -> Pieces -> Pieces
append new (Pieces newest n)
  | B.null new = Pieces newest n
  | otherwise = Pieces (push new newest) (n + B.length new)
  where
    push piece (older : rest)
      | B.length older < large, B.length older < 2 * B.length piece = push (older <> piece) rest
    push piece rest = piece : rest

-- | Strings of this size in bytes are not copied.
large :: Int
large = 4096

-- | All bytes. O(1) if they are in one string.
whole :: Pieces -> ByteString
whole (Pieces [piece] _) = piece
whole held = B.concat (pieces held)

-- | The bytes in one string.
flatten :: Pieces -> Pieces
flatten held = append (whole held) empty

-- | The first bytes, at most the given number, and the rest. Copies the first ones if they are in several strings.
split :: Int -> Pieces -> (ByteString, Pieces)
split wanted held@(Pieces _ n)
  | wanted <= 0 = (B.empty, held)
  | wanted >= n = (whole held, empty)
  | otherwise = go wanted [] (pieces held)
  where
    go left taken (piece : rest)
      | B.length piece <= left = go (left - B.length piece) (piece : taken) rest
      | otherwise = (joined (B.take left piece : taken), Pieces (reverse (B.drop left piece : rest)) (n - wanted))
    go _ taken [] = (joined taken, empty)
    joined taken = case filter (not . B.null) taken of
      [piece] -> piece
      several -> B.concat (reverse several)
