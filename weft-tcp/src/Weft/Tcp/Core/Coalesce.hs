-- |
-- Segments that arrive together and continue each other are processed as one. The conditions are those of the kernel's
-- generic receive offload: apart from the data, the segments must say the same. So the result of a step does not
-- depend on it, except that a long stream costs less: the caller limits how many are joined, as each group is
-- acknowledged.
--
-- @since 0.1.0
module Weft.Tcp.Core.Coalesce
  ( coalesceFirst,
  )
where

import qualified Data.ByteString as B
import Data.Word (Word32)
import Weft.Tcp.Core.Buffer (isNoHeld)
import Weft.Tcp.Core.State
import Weft.Tcp.Core.Time (wrap)
import Weft.Tcp.Wire.Segment

-- | Join to the first segment those behind it that continue it, up to the given number in all, and return the others.
-- Nothing is joined unless the first segment is the next one in sequence and no out-of-order data is held: after a
-- loss, each segment is to be acknowledged and reported by itself (RFC 5681, section 4.2). O(segments joined).
coalesceFirst :: Int -> Conn -> Segment -> [Segment] -> (Segment, [Segment])
coalesceFirst most c s following = case following of
  next : _
    | isNoHeld (rcvHeld r), seqNumber s == wrap (rcvNxt r), hasOnlyData s, continues s end next -> gather (most - 1) s end (reverse (payload s)) following
  _ -> (s, following)
  where
    r = receiveSide c
    end = endOf s

-- | Join what continues the segment, given how many more may be joined, the number behind the data so far, and that
-- data in reverse order.
gather :: Int -> Segment -> Word32 -> [B.ByteString] -> [Segment] -> (Segment, [Segment])
gather more s end parts following = case following of
  next : others
    | more > 0, continues s end next -> gather (more - 1) s {flags = flags s <> flags next} (endOf next) (foldl (flip (:)) parts (payload next)) others
  _ -> (s {payload = reverse parts}, following)

-- | The sequence number behind the segment's data.
endOf :: Segment -> Word32
endOf s = seqNumber s + fromIntegral (payloadLength s)

-- | Whether a segment begins at that number and says what the first one said.
continues :: Segment -> Word32 -> Segment -> Bool
continues s end next =
  seqNumber next == end
    && hasOnlyData next
    && ackNumber next == ackNumber s
    && window next == window s
    && options next == options s

-- | Whether it has data and an acknowledgment, and no control bit but PSH.
hasOnlyData :: Segment -> Bool
hasOnlyData s = not (null (payload s)) && (flags s == ack || flags s == ack <> psh)
