-- |
-- Description : How often each client may ask
--
-- Limits of requests in a time, for each client. A client may ask as often at once as the burst says, and then once in
-- each interval (the generic cell rate algorithm, ITU-T I.371): what is kept for it is the instant at which it would
-- have been idle for long enough. Any thread may call these functions.
--
-- Clients are divided into shards, so that two of them seldom meet at one reference. Those who could ask as often as
-- strangers are forgotten when there are many. Memory is bounded: where more than 65,536 ask all the time, those are
-- who would be soonest.
module Weft.Tools.Serve.Rate
  ( Buckets,
    newBuckets,
    charge,

    -- * One client
    charged,
  )
where

import Data.Bits (shiftR, xor, (.&.))
import Data.IORef
import Data.IP (IP (..), fromIPv4w, fromIPv6w)
import Data.Int (Int64)
import Data.List (sort)
import qualified Data.Map.Strict as Map
import Data.Primitive.SmallArray
import Data.Word (Word32)
import Weft.Core.Time (Instant (..))
import Weft.Tools.Serve.Rules (Rate (..))

-- | For each client ('Weft.Tools.Serve.Forwarded.clientNetwork') that has asked lately, its instant. Changed
-- atomically, by requests.
newtype Buckets = Buckets (SmallArray (IORef (Map.Map (Maybe IP) Int64)))

-- | No client has asked.
newBuckets :: IO Buckets
newBuckets = Buckets . smallArrayFromList <$> mapM (const (newIORef Map.empty)) [1 .. shards]

shards, mostInShard :: Int
shards = 64
mostInShard = 1024

-- | Count a request of a client. 'Just' if it is one too many: after so many seconds, one or more, there is room for
-- another one. O(log n) for the n clients of a shard, and O(n log n) once in n of them.
charge :: Rate -> Buckets -> Instant -> Maybe IP -> IO (Maybe Int)
charge rate (Buckets refs) (Instant now) client = atomicModifyIORef' (indexSmallArray refs (shardOf client)) $ \known ->
  case charged rate now (Map.lookup client known) of
    Left wait -> (known, Just wait)
    Right idle -> (Map.insert client idle (if Map.size known >= mostInShard then withRoom now known else known), Nothing)

-- | What is kept for a client after another request, or the seconds until there is room for it. Arguments: now, and
-- what was kept.
charged :: Rate -> Int64 -> Maybe Int64 -> Either Int Int64
charged (Rate interval burst) now kept
  | early > 0 = Left (fromIntegral ((early + 999999999) `quot` 1000000000))
  | otherwise = Right (idle + interval)
  where
    idle = maybe now (max now) kept
    early = idle - now - fromIntegral (burst - 1) * interval

-- | Without those that are no different from strangers; if that is not enough, without the half that is the least so.
withRoom :: Int64 -> Map.Map (Maybe IP) Int64 -> Map.Map (Maybe IP) Int64
withRoom now known
  | Map.size active <= mostInShard `quot` 2 = active
  | otherwise = Map.filter (> middle) active
  where
    active = Map.filter (> now) known
    middle = sort (Map.elems active) !! (Map.size active `quot` 2)

shardOf :: Maybe IP -> Int
shardOf client = fromIntegral (mixed `shiftR` 16) .&. (shards - 1)
  where
    mixed = 2654435761 * bits
    bits :: Word32
    bits = case client of
      Nothing -> 0
      Just (IPv4 a) -> fromIPv4w a
      Just (IPv6 a) -> let (p, q, _, _) = fromIPv6w a in p `xor` (q * 40503)
