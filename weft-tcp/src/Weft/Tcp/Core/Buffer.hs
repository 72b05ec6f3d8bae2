-- |
-- Streams of bytes as sequences of strings. Data is not copied, except that small adjacent strings are merged, so that
-- a buffer's memory is proportional to its bytes. All offsets are positions in the stream.
--
-- @since 0.1.0
module Weft.Tcp.Core.Buffer
  ( -- * A queue: bytes from one position to another
    Buffer,
    emptyAt,
    bufferStart,
    bufferEnd,
    bufferLength,
    append,
    dropTo,
    range,
    takeFront,

    -- * Parts with gaps: out-of-order data
    Held,
    noHeld,
    isNoHeld,
    heldParts,
    heldRange,
    heldEnd,
    hold,
    compactPart,
    releaseFrom,
    heldConsistent,
  )
where

import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Unsafe as B
import Data.IntMap.Strict (IntMap)
import qualified Data.IntMap.Strict as IntMap
import Weft.Tcp.Core.Time (Pos)

-- | Strings by the position of their first byte, without gaps.
data Buffer = Buffer
  { -- | The position of the first byte.
    bufferStart :: {-# UNPACK #-} !Pos,
    -- | The position behind the last byte.
    bufferEnd :: {-# UNPACK #-} !Pos,
    chunks :: !(IntMap ByteString)
  }

instance Show Buffer where
  show b = "Buffer " ++ show (bufferStart b, bufferEnd b)

-- | An empty buffer. Its first byte will have the given position.
emptyAt :: Pos -> Buffer
emptyAt p = Buffer p p IntMap.empty

-- | The number of bytes in the buffer.
bufferLength :: Buffer -> Int
bufferLength b = bufferEnd b - bufferStart b

-- | Strings up to this size are merged with their neighbour. Each byte is copied O(log size) times.
smallSize :: Int
smallSize = 2048

-- | Add bytes at the end. O(log n).
append :: ByteString -> Buffer -> Buffer
append s b
  | B.null s = b
  | otherwise = Buffer (bufferStart b) (bufferEnd b + B.length s) (push (bufferEnd b) s (chunks b))

-- | Merge with the last string if that is not longer, and the result with the one before it: strings grow by
-- doubling.
push :: Pos -> ByteString -> IntMap ByteString -> IntMap ByteString
push at s m = case IntMap.lookupMax m of
  Just (k, t)
    | B.length t <= B.length s, B.length t + B.length s <= smallSize -> push k (t <> s) (IntMap.delete k m)
  _ -> IntMap.insert at s m

-- | Drop the bytes before a position. A position behind the end drops everything, and the end stays where it is.
-- O(log n) and linear in the strings dropped.
dropTo :: Pos -> Buffer -> Buffer
dropTo p b
  | p <= bufferStart b = b
  | p >= bufferEnd b = emptyAt (bufferEnd b)
  | otherwise = Buffer p (bufferEnd b) kept
  where
    (below, exact, above) = IntMap.splitLookup p (chunks b)
    kept = case exact of
      Just s -> IntMap.insert p s above
      Nothing -> case IntMap.lookupMax below of
        Just (k, s) | k + B.length s > p -> IntMap.insert p (B.unsafeDrop (p - k) s) above
        _ -> above

-- | The bytes between two positions, as far as the buffer has them. O(log n) and linear in the strings returned.
range :: Pos -> Pos -> Buffer -> [ByteString]
range from to b
  | first >= end = []
  | otherwise = case IntMap.lookupLE first (chunks b) of
    Just (k, s) | k + B.length s > first -> part first k s : (if k + B.length s < end then others (IntMap.toAscList (snd (IntMap.split k (chunks b)))) else [])
    _ -> []
  where
    first = max from (bufferStart b)
    end = min to (bufferEnd b)
    part p k s = B.take (end - p) (B.unsafeDrop (p - k) s)
    others ((k, s) : more) | k < end = part k k s : others more
    others _ = []

-- | At most the given number of bytes from the front, and the rest.
takeFront :: Int -> Buffer -> ([ByteString], Buffer)
takeFront n b = (range (bufferStart b) to b, dropTo to b)
  where
    to = bufferStart b + min n (bufferLength b)

-- Out-of-order data ----------------------------------------------------------------

-- | Strings that do not overlap, and the ranges that they form. Insertion and release are O(log n) for any order of
-- arrival (CVE-2018-5390).
data Held = Held
  { heldStrings :: !(IntMap ByteString),
    -- | The number of strings.
    heldParts :: {-# UNPACK #-} !Int,
    -- | Start to end; neither overlapping nor adjacent.
    heldRanges :: !(IntMap Pos)
  }

instance Show Held where
  show = show . IntMap.toList . heldRanges

-- | No out-of-order data.
noHeld :: Held
noHeld = Held IntMap.empty 0 IntMap.empty

-- | Whether there is no out-of-order data.
isNoHeld :: Held -> Bool
isNoHeld = IntMap.null . heldStrings

-- | The range around a position, if it is held.
heldRange :: Pos -> Held -> Maybe (Pos, Pos)
heldRange p h = case IntMap.lookupLE p (heldRanges h) of
  Just (a, b) | b > p -> Just (a, b)
  _ -> Nothing

-- | The position behind the last byte that is held.
heldEnd :: Held -> Maybe Pos
heldEnd h = snd <$> IntMap.lookupMax (heldRanges h)

-- | Hold bytes from a position on. Bytes that are held already are kept, and their new copies are dropped. Parts above
-- the limit are left out; 'Nothing' if all are.
hold :: Int -> Pos -> ByteString -> Held -> Maybe Held
hold limit at s h0
  | B.null s = Just h0
  | otherwise = go h0 (gaps at (at + B.length s) h0)
  where
    go h [] = Just h
    go h ((a, b) : more)
      | heldParts h < limit = go (insertPart a (compactPart (B.length s) (B.take (b - a) (B.drop (a - at) s))) h) {heldRanges = cover a b (heldRanges h)} more
      | heldParts h0 < heldParts h = Just h
      | otherwise = Nothing

-- | A part of a string of that size, in memory of its own if it is less than half of the string.
compactPart :: Int -> ByteString -> ByteString
compactPart whole part
  | 2 * B.length part < whole = B.copy part
  | otherwise = part

-- | The parts of a range that are not held.
gaps :: Pos -> Pos -> Held -> [(Pos, Pos)]
gaps from to h
  | from >= to = []
  | otherwise = case IntMap.lookupLE from (heldRanges h) of
    Just (_, b) | b > from -> gaps b to h
    _ -> case IntMap.lookupGT from (heldRanges h) of
      Just (a, b) | a < to -> (from, a) : gaps b to h
      _ -> [(from, to)]

insertPart :: Pos -> ByteString -> Held -> Held
insertPart at s h = case IntMap.lookupLT at (heldStrings h) of
  Just (k, t)
    | k + B.length t == at,
      B.length t + B.length s <= smallSize ->
      h {heldStrings = IntMap.insert k (t <> s) (heldStrings h)}
  _ -> h {heldStrings = IntMap.insert at s (heldStrings h), heldParts = heldParts h + 1}

cover :: Pos -> Pos -> IntMap Pos -> IntMap Pos
cover a b m
  | Just (k, e) <- IntMap.lookupLE b m, e >= a = cover (min a k) (max b e) (IntMap.delete k m)
  | otherwise = IntMap.insert a b m

-- | The data that is held without a gap from a position on, and the rest. Data before the position is dropped.
releaseFrom :: Pos -> Held -> ([ByteString], Held)
releaseFrom p h
  | isNoHeld h = ([], h)
  | otherwise = go p [] h
  where
    go q out g = case IntMap.minViewWithKey (heldStrings g) of
      Just ((k, s), rest)
        | k <= q ->
          let part = B.drop (q - k) s
           in go (q + B.length part) (if B.null part then out else part : out) g {heldStrings = rest, heldParts = heldParts g - 1}
      _ -> (reverse out, g {heldRanges = trim q (heldRanges g)})
    trim q m = case IntMap.minViewWithKey m of
      Just ((_, b), rest)
        | b <= q -> trim q rest
      Just ((a, b), rest)
        | a < q -> IntMap.insert q b rest
      _ -> m

-- | For tests: whether the ranges agree with the strings.
heldConsistent :: Held -> Bool
heldConsistent h =
  heldParts h == IntMap.size (heldStrings h)
    && foldr (\(k, s) m -> cover k (k + B.length s) m) IntMap.empty (IntMap.toList (heldStrings h)) == heldRanges h
    && and (zipWith (\(k, s) (l, _) -> k + B.length s <= l) strings (drop 1 strings))
  where
    strings = IntMap.toList (heldStrings h)
