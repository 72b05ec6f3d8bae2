-- |
-- The scoreboard of outstanding data: which ranges have arrived (RFC 2018, RFC 6675), which are lost, and when each was
-- sent, in order of transmission (RFC 8985). Operations are O(log n) for each entry that changes. A range that the peer
-- reports repeatedly is processed once.
--
-- @since 0.1.0
module Weft.Tcp.Core.Scoreboard
  ( -- * Entries
    Scoreboard,
    Sent (..),
    emptyBoard,
    isEmptyBoard,
    boardSize,
    nextTransmission,

    -- * Questions
    sackedBytes,
    lostBytes,
    anySacked,
    firstLost,
    inOrderSent,
    firstEntry,
    lastEntry,
    sackedFrom,

    -- * Changes
    recordSent,
    acknowledgeTo,
    acknowledgeRange,
    markLost,
    markLostFrom,
    recordRetransmission,
    cutAt,
    forgetSacked,

    -- * Ranges
    addRange,
    bytesWithin,

    -- * For tests
    boardConsistent,
  )
where

import Data.IntMap.Strict (IntMap)
import qualified Data.IntMap.Strict as IntMap
import Data.IntSet (IntSet)
import qualified Data.IntSet as IntSet
import Data.List (foldl')
import Weft.Tcp.Core.Time

-- | A range that was sent and has not been reported as arrived.
data Sent = Sent
  { sentEnd :: {-# UNPACK #-} !Pos,
    -- | The time of its last transmission.
    sentAt :: {-# UNPACK #-} !Instant,
    -- | The total number of bytes transmitted before its first byte. Later transmissions have larger numbers, and so
    -- has the second part of an entry that is split.
    sentNumber :: {-# UNPACK #-} !Int,
    -- | Whether it was sent more than once.
    retransmitted :: !Bool,
    -- | Whether it is marked as lost and has not been retransmitted since.
    isLost :: !Bool
  }
  deriving (Eq, Show)

-- | The data that is not acknowledged cumulatively, and the ranges of it that have arrived.
data Scoreboard = Scoreboard
  { -- | By first position.
    entries :: !(IntMap Sent),
    -- | First positions of the entries that are not lost, by transmission number.
    order :: !(IntMap Pos),
    -- | First positions of the lost entries.
    lostOnes :: !IntSet,
    -- | The ranges that have arrived, from start to end, merged.
    sacked :: !(IntMap Pos),
    -- | The sizes of 'entries' and 'sacked', added.
    boardSize :: {-# UNPACK #-} !Int,
    -- | Bytes in the ranges that arrived.
    sackedBytes :: {-# UNPACK #-} !Int,
    -- | Bytes in the entries that are marked as lost.
    lostBytes :: {-# UNPACK #-} !Int,
    -- | The number that the next transmission gets as its 'sentNumber'.
    nextTransmission :: {-# UNPACK #-} !Int
  }
  deriving (Show)

-- | A scoreboard without entries and without ranges that arrived.
emptyBoard :: Scoreboard
emptyBoard = Scoreboard IntMap.empty IntMap.empty IntSet.empty IntMap.empty 0 0 0 1

-- | Whether there is neither an entry nor a range that arrived.
isEmptyBoard :: Scoreboard -> Bool
isEmptyBoard b = IntMap.null (entries b) && IntMap.null (sacked b)

-- Questions --------------------------------------------------------------------------

-- | Whether any range arrived out of order.
anySacked :: Scoreboard -> Bool
anySacked = not . IntMap.null . sacked

-- | The first lost range that has not been retransmitted.
firstLost :: Scoreboard -> Maybe (Pos, Sent)
firstLost b = do
  (k, _) <- IntSet.minView (lostOnes b)
  s <- IntMap.lookup k (entries b)
  pure (k, s)

-- | The entries that are neither lost nor arrived, in order of transmission.
inOrderSent :: Scoreboard -> [(Pos, Sent)]
inOrderSent b = [(k, s) | k <- IntMap.elems (order b), Just s <- [IntMap.lookup k (entries b)]]

-- | The entry with the lowest (highest) first position, and that position.
firstEntry, lastEntry :: Scoreboard -> Maybe (Pos, Sent)
firstEntry = IntMap.lookupMin . entries
lastEntry = IntMap.lookupMax . entries

-- | Whether the byte at a position arrived.
sackedFrom :: Pos -> Scoreboard -> Bool
sackedFrom p b = maybe False ((> p) . snd) (IntMap.lookupLE p (sacked b))

-- Changes ----------------------------------------------------------------------------

-- | A range was sent for the first time.
recordSent :: Instant -> Pos -> Pos -> Scoreboard -> Scoreboard
recordSent at from to b =
  b
    { entries = IntMap.insert from (Sent to at n False False) (entries b),
      order = IntMap.insert n from (order b),
      boardSize = boardSize b + 1,
      nextTransmission = n + (to - from)
    }
  where
    n = nextTransmission b

-- | Everything before a position was acknowledged. Returns the entries that had not been reported before, cut at the
-- position.
acknowledgeTo :: Pos -> Scoreboard -> ([(Pos, Sent)], Scoreboard)
acknowledgeTo p b0 = (gone, foldl' (flip (removeEntry . fst)) dropped gone)
  where
    b = cutAt p b0
    gone = IntMap.toAscList (fst (IntMap.split p (entries b)))
    dropped = dropSacked b
    dropSacked x = case IntMap.minViewWithKey (sacked x) of
      Just ((a, e), rest)
        | e <= p -> dropSacked x {sacked = rest, sackedBytes = sackedBytes x - (e - a), boardSize = boardSize x - 1}
        | a < p -> x {sacked = IntMap.insert p e rest, sackedBytes = sackedBytes x - (p - a)}
      _ -> x

-- | A range arrived (a SACK block). Returns the entries that had not been reported before. Entries that the range
-- covers in part are split, unless there are too many: then they count as not arrived, which costs a retransmission
-- but no memory.
acknowledgeRange :: Int -> Pos -> Pos -> Scoreboard -> ([(Pos, Sent)], Scoreboard)
acknowledgeRange limit from to b0 = (gone, foldl' cover (foldl' (flip (removeEntry . fst)) b gone) gone)
  where
    b = if boardSize b0 < limit then cutAt to (cutAt from b0) else b0
    gone = takeWhile ((<= to) . sentEnd . snd) (IntMap.toAscList (between (entries b)))
    between m = let (_, here, above) = IntMap.splitLookup from (fst (IntMap.split to m)) in maybe above (\s -> IntMap.insert from s above) here
    cover x (a, s) = addSacked a (sentEnd s) x

addSacked :: Pos -> Pos -> Scoreboard -> Scoreboard
addSacked from to b = b {sacked = m, sackedBytes = sackedBytes b + (to - from), boardSize = boardSize b + grown}
  where
    (m, grown) = mergeRange from to (sacked b)

-- | Add a range to ranges from start to end, and merge it with those that it meets. Returns also by how many they grow.
mergeRange :: Pos -> Pos -> IntMap Pos -> (IntMap Pos, Int)
mergeRange from to ranges = merge from to ranges 1
  where
    merge !a !e r !n
      | Just (k, f) <- IntMap.lookupLE e r, f >= a = merge (min a k) (max e f) (IntMap.delete k r) (n - 1)
      | otherwise = (IntMap.insert a e r, n :: Int)

-- | Add a range to ranges from start to end, and merge it with those that it meets.
addRange :: Pos -> Pos -> IntMap Pos -> IntMap Pos
addRange from to = fst . mergeRange from to

-- | The number of bytes between two positions that lie in the ranges.
bytesWithin :: Pos -> Pos -> IntMap Pos -> Int
bytesWithin from to ranges = sum [max 0 (min e to - max a from) | (a, e) <- maybe id (:) (IntMap.lookupLT from ranges) inside]
  where
    inside = takeWhile ((< to) . fst) (IntMap.toAscList (snd (IntMap.split (from - 1) ranges)))

removeEntry :: Pos -> Scoreboard -> Scoreboard
removeEntry k b = case IntMap.lookup k (entries b) of
  Nothing -> b
  Just s
    | isLost s -> less {lostOnes = IntSet.delete k (lostOnes b), lostBytes = lostBytes b - (sentEnd s - k)}
    | otherwise -> less {order = IntMap.delete (sentNumber s) (order b)}
  where
    less = b {entries = IntMap.delete k (entries b), boardSize = boardSize b - 1}

-- | Split the entry that contains a position, if there is one.
cutAt :: Pos -> Scoreboard -> Scoreboard
cutAt p b = case IntMap.lookupLT p (entries b) of
  Just (k, s)
    | sentEnd s > p ->
      let n = sentNumber s + (p - k)
          cut = IntMap.insert p s {sentNumber = n} (IntMap.insert k s {sentEnd = p} (entries b))
          b' = b {entries = cut, boardSize = boardSize b + 1}
       in if isLost s
            then b' {lostOnes = IntSet.insert p (lostOnes b)}
            else b' {order = IntMap.insert n p (order b)}
  _ -> b

-- | Mark the entry at a position as lost.
markLost :: Pos -> Scoreboard -> Scoreboard
markLost k b = case IntMap.lookup k (entries b) of
  Just s
    | not (isLost s) ->
      b
        { entries = IntMap.insert k s {isLost = True} (entries b),
          order = IntMap.delete (sentNumber s) (order b),
          lostOnes = IntSet.insert k (lostOnes b),
          lostBytes = lostBytes b + (sentEnd s - k)
        }
  _ -> b

-- | Mark everything from a position on as lost.
markLostFrom :: Pos -> Scoreboard -> Scoreboard
markLostFrom p b0 = foldl' (flip markLost) b (IntMap.keys (snd (IntMap.split (p - 1) (entries b))))
  where
    b = cutAt p b0

-- | The lost entry at a position was retransmitted up to another position. The rest of it remains lost.
recordRetransmission :: Instant -> Pos -> Pos -> Scoreboard -> Scoreboard
recordRetransmission at from to b0 = case IntMap.lookup from (entries b) of
  Nothing -> b
  Just s ->
    b
      { entries = IntMap.insert from s {sentAt = at, sentNumber = n, retransmitted = True, isLost = False} (entries b),
        order = IntMap.insert n from (IntMap.delete (sentNumber s) (order b)),
        lostOnes = IntSet.delete from (lostOnes b),
        lostBytes = lostBytes b - (if isLost s then sentEnd s - from else 0),
        nextTransmission = n + (sentEnd s - from)
      }
  where
    b = cutAt to b0
    n = nextTransmission b

-- | The peer has discarded data that it had reported (RFC 2018, section 8). All reported data counts as lost, and as
-- sent at the given time.
forgetSacked :: Instant -> Scoreboard -> Scoreboard
forgetSacked at b = foldl' back b {sacked = IntMap.empty, sackedBytes = 0, boardSize = boardSize b - IntMap.size (sacked b)} (IntMap.toList (sacked b))
  where
    back x (from, to) = let y = recordSent at from to x in markLost from y {entries = IntMap.adjust (\s -> s {retransmitted = True}) from (entries y)}

-- | Whether the indices agree, and the entries and ranges together cover everything from the first position to the
-- second without overlaps.
boardConsistent :: Pos -> Pos -> Scoreboard -> Bool
boardConsistent una nxt b =
  tiles una (IntMap.toAscList (IntMap.union (sentEnd <$> entries b) (sacked b)))
    && boardSize b == IntMap.size (entries b) + IntMap.size (sacked b)
    && sackedBytes b == sum [e - a | (a, e) <- IntMap.toList (sacked b)]
    && lostBytes b == sum [sentEnd s - a | (a, s) <- IntMap.toList (entries b), isLost s]
    && IntSet.toList (lostOnes b) == [a | (a, s) <- IntMap.toList (entries b), isLost s]
    && order b == IntMap.fromList [(sentNumber s, a) | (a, s) <- IntMap.toList (entries b), not (isLost s)]
    && IntMap.size (order b) + IntSet.size (lostOnes b) == IntMap.size (entries b)
  where
    tiles at [] = at == nxt
    tiles at ((a, e) : rest) = a == at && e > a && tiles e rest
