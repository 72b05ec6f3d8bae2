-- |
-- Keyed hashes (SipHash): initial sequence numbers (RFC 6528), timestamp offsets (RFC 7323, section 5.4) and SYN
-- cookies (RFC 4987, section 3.6). Pure: the key and the time are passed in.
--
-- @since 0.1.0
module Weft.Tcp.Core.Secret
  ( Flow (..),
    Secret,
    secretFrom,
    sequenceFor,
    offsetFor,

    -- * SYN cookies
    Promise (..),
    cookieFor,
    readCookie,
    cookieLifetime,
    synHash,
    addressHash,
    pairHash,
    promiseStamp,
    readStamp,
  )
where

import Data.Bits (complement, shiftL, shiftR, testBit, (.&.), (.|.))
import Data.ByteArray.Hash (SipHash (..), SipKey (..), sipHash)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Data.Maybe (listToMaybe)
import Data.Word (Word16, Word32, Word64, Word8)
import Weft.Tcp.Core.Time
import Weft.Tcp.Wire.Address
import Weft.Wire.Peek
import Weft.Wire.Put

-- | The addresses and ports of a connection, which identify it. The fields that differ most come first.
data Flow = Flow
  { remotePort :: {-# UNPACK #-} !Word16,
    remoteAddress :: !Address,
    localPort :: {-# UNPACK #-} !Word16,
    localAddress :: !Address
  }
  deriving (Eq, Ord, Show)

-- | A secret SipHash key of 128 bits.
newtype Secret = Secret SipKey

-- | From sixteen random bytes; missing ones count as zero.
secretFrom :: ByteString -> Secret
secretFrom b = Secret (SipKey (word64At key 0) (word64At key 8))
  where
    key = B.take 16 (b <> B.replicate 16 0)

-- | The hash of a flow and more words, for a purpose.
hash :: Secret -> Word8 -> Flow -> [Word32] -> Word64
hash (Secret key) purpose f more = h
  where
    SipHash h = sipHash key (runPut (putWord8 purpose <> putWord16 (remotePort f) <> putWord16 (localPort f) <> putAddress (remoteAddress f) <> putAddress (localAddress f) <> foldMap putWord32 more))

-- | The initial sequence number: a clock of 4 microseconds, moved by a secret amount
-- for each flow (RFC 6528, section 3).
sequenceFor :: Secret -> Instant -> Flow -> Word32
sequenceFor s (Instant t) f = fromIntegral (t `div` 4) + fromIntegral (hash s 1 f [])

-- | The timestamp offset of a flow.
offsetFor :: Secret -> Flow -> Word32
offsetFor s f = fromIntegral (hash s 2 f [])

-- | A hash of a SYN, given its sequence number.
synHash :: Secret -> Flow -> Word32 -> Word64
synHash s f n = hash s 4 f [n]

-- | A hash of an address; for IPv6, of its network of 64 bits, which one host may have to itself.
addressHash :: Secret -> Address -> Word64
addressHash s a = hash s 5 (Flow 0 network 0 network) []
  where
    network = case a of
      V4 _ -> a
      V6 high _ -> V6 high 0

-- | A hash of two addresses.
pairHash :: Secret -> Address -> Address -> Word64
pairHash s from to = hash s 6 (Flow 0 to 0 from) []

-- | The options of a SYN that its cookie encodes.
data Promise = Promise
  { promisedMss :: !Int,
    -- | Known only with timestamps.
    promisedScale :: !(Maybe Word8),
    promisedSack :: !Bool
  }
  deriving (Eq, Show)

-- | The sizes that fit into three bits.
sizes :: [Int]
sizes = [216, 536, 1220, 1340, 1440, 1460, 4312, 8940]

-- | The period of a cookie's clock: 64 seconds. Cookies are valid for one to two periods.
cookiePeriod :: Micros
cookiePeriod = secs 64

period :: Instant -> Word32
period (Instant t) = fromIntegral (t `div` fromIntegral cookiePeriod)

-- | Our initial sequence number, given the client's and the MSS that it named: five bits
-- of time, three of MSS, and a keyed hash of 24 bits.
cookieFor :: Secret -> Instant -> Flow -> Word32 -> Int -> Word32
cookieFor s t f client mss = assemble s (period t) f client index
  where
    index = fromIntegral (length (takeWhile (<= max 216 mss) sizes) - 1)

assemble :: Secret -> Word32 -> Flow -> Word32 -> Word32 -> Word32
assemble s when' f client index =
  ((when' .&. 31) `shiftL` 27) .|. (index `shiftL` 24) .|. (fromIntegral (hash s 3 f [when', client, index]) .&. 0xffffff)

-- | The MSS that a cookie was made for, if it is one of ours, for this flow and the
-- client's initial sequence number, and not too old.
readCookie :: Secret -> Instant -> Flow -> Word32 -> Word32 -> Maybe Int
readCookie s t f client cookie = listToMaybe [sizes !! fromIntegral index | when' <- [period t, period t - 1], assemble s when' f client index == cookie]
  where
    index = (cookie `shiftR` 24) .&. 7

-- | The longest time for which a cookie is valid, in microseconds: this period and the one before.
cookieLifetime :: Micros
cookieLifetime = 2 * cookiePeriod

-- | A TSval near the present one, that says in its low six bits what else was offered.
promiseStamp :: Word32 -> Promise -> Word32
promiseStamp stamp p = (stamp - 64) .&. complement 63 .|. bits
  where
    bits = fromIntegral (maybe 15 (min 14) (promisedScale p)) .|. (if promisedSack p then 16 else 0)

-- | What an echoed TSval says.
readStamp :: Int -> Word32 -> Promise
readStamp mss e = Promise mss (if scale == 15 then Nothing else Just scale) (testBit e 4)
  where
    scale = fromIntegral (e .&. 15)
