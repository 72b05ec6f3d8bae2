-- |
-- The streams of a connection that are over, and those that never were: what a frame on one of them means (RFC 9113,
-- 5.1 and 5.1.1). Pure, of bounded size: what is older than the limit counts as ended by both sides.
module Weft.Http2.Core.Ended
  ( Ended,
    noneEnded,
    highest,
    Past (..),
    past,
    begin,
    endedHere,
    endedThere,
  )
where

import Data.Bits ((.|.))
import qualified Data.IntMap.Strict as IntMap
import qualified Data.IntSet as IntSet

-- | The streams that have begun, as far as they matter.
data Ended = Ended
  { -- | How many streams and ranges are remembered.
    endedMost :: !Int,
    endedHighest :: !Int,
    -- | Ended by this side while the client was still sending.
    endedEarly :: !IntSet.IntSet,
    -- | Ranges that the client has passed over: the last number by the first.
    endedSkipped :: !(IntMap.IntMap Int)
  }

-- | Nothing has begun; the limit.
noneEnded :: Int -> Ended
noneEnded most = Ended most 0 IntSet.empty IntMap.empty

-- | The highest stream that the client has begun, or 0.
highest :: Ended -> Int
highest = endedHighest

-- | What a stream is that is not open.
data Past
  = -- | Idle: it may begin, if it is the client's.
    Idle
  | -- | The client has begun a higher one instead; so this one is closed.
    PassedOver
  | -- | The server has ended it before the client had: frames that were under way are ignored.
    Early
  | -- | The client has ended or reset it: a frame is an error.
    Over
  deriving (Eq, Show)

-- | What a stream that is not open is. Streams with even numbers are the server's, which begins none.
past :: Int -> Ended -> Past
past n ended
  | n > endedHighest ended || even n = Idle
  | IntSet.member n (endedEarly ended) = Early
  | maybe False ((n <=) . snd) (IntMap.lookupLE n (endedSkipped ended)) = PassedOver
  | otherwise = Over

-- | The client begins a stream above all before.
begin :: Int -> Ended -> Ended
begin n ended
  | n > next = ended {endedHighest = n, endedSkipped = if IntMap.size more > endedMost ended then IntMap.deleteMin more else more}
  | otherwise = ended {endedHighest = n}
  where
    next = (endedHighest ended + 1) .|. 1
    more = IntMap.insert next (n - 2) (endedSkipped ended)

-- | This side has ended a stream, and the client had not.
endedHere :: Int -> Ended -> Ended
endedHere n ended = ended {endedEarly = if IntSet.size more > endedMost ended then IntSet.deleteMin more else more}
  where
    more = IntSet.insert n (endedEarly ended)

-- | The client has ended a stream as well.
endedThere :: Int -> Ended -> Ended
endedThere n ended = ended {endedEarly = IntSet.delete n (endedEarly ended)}
