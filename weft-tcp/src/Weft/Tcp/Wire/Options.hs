-- |
-- TCP options: maximum segment size (RFC 9293, section 3.2), window scale and
-- timestamps (RFC 7323), selective acknowledgment (RFC 2018).
--
-- @since 0.1.0
module Weft.Tcp.Wire.Options
  ( Options (..),
    Timestamps (..),
    SackBlock (..),
    noOptions,
    decodeOptions,
    putOptions,
    maxSackBlocks,
  )
where

import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Data.Maybe (isJust)
import Data.Word (Word16, Word32, Word8)
import Weft.Wire.Peek
import Weft.Wire.Put

-- | The options of a segment. If an option is repeated, the last one is used.
data Options = Options
  { maximumSegmentSize :: !(Maybe Word16),
    -- | As on the wire. The core uses 14 for larger shifts (RFC 7323, section 2.3).
    windowScale :: !(Maybe Word8),
    sackPermitted :: !Bool,
    timestamps :: !(Maybe Timestamps),
    -- | At most four; the first may report a duplicate (RFC 2883).
    sackBlocks :: ![SackBlock]
  }
  deriving (Eq, Show)

-- | TSval and TSecr.
data Timestamps = Timestamps {-# UNPACK #-} !Word32 {-# UNPACK #-} !Word32
  deriving (Eq, Show)

-- | The first sequence number of a received block, and the sequence number after its last byte.
data SackBlock = SackBlock {-# UNPACK #-} !Word32 {-# UNPACK #-} !Word32
  deriving (Eq, Show)

-- | The empty list of options.
noOptions :: Options
noOptions = Options Nothing Nothing False Nothing []

-- | Whether there is no option at all.
isNoOptions :: Options -> Bool
isNoOptions (Options Nothing Nothing False Nothing []) = True
isNoOptions _ = False

-- | The number of SACK blocks that fit into a segment, with or without timestamps.
maxSackBlocks :: Bool -> Int
maxSackBlocks withTimestamps = if withTimestamps then 3 else 4

-- | Decode the bytes between the fixed header and the data. Unknown options and options of a wrong length are skipped
-- (MUST-6). An option with a length below two, or beyond the end, ends the list (MUST-7).
decodeOptions :: ByteString -> Options
decodeOptions = go noOptions
  where
    go !o b = case B.uncons b of
      Nothing -> o
      Just (0, _) -> o
      Just (1, rest) -> go o rest
      Just (kind, rest)
        | B.null rest || len < 2 || len > B.length b -> o
        | otherwise -> go (option o kind (slice 2 (len - 2) b)) (B.drop len b)
        where
          len = fromIntegral (word8At b 1)

option :: Options -> Word8 -> ByteString -> Options
option o kind body = case (kind, B.length body) of
  (2, 2) -> o {maximumSegmentSize = Just (word16At body 0)}
  (3, 1) -> o {windowScale = Just (word8At body 0)}
  (4, 0) -> o {sackPermitted = True}
  (5, n) | n > 0, n `mod` 8 == 0 -> o {sackBlocks = [SackBlock (word32At body i) (word32At body (i + 4)) | i <- [0, 8 .. n - 8]]}
  (8, 8) -> o {timestamps = Just (Timestamps (word32At body 0) (word32At body 4))}
  _ -> o

-- | Encode options, padded to a multiple of four bytes. At most 40 bytes: SACK blocks that do not fit are left out.
putOptions :: Options -> Put
putOptions o@Options {timestamps = Just (Timestamps v e)}
  | isNoOptions o {timestamps = Nothing} = putWord32 0x0101080a <> putWord32 v <> putWord32 e
putOptions o = fixed <> sacks <> putZeros (negate (putLength fixed + putLength sacks) `mod` 4)
  where
    fixed =
      foldMap (\m -> putWord16 0x0204 <> putWord16 m) (maximumSegmentSize o)
        <> (if sackPermitted o then putWord16 0x0402 else mempty)
        <> foldMap (\(Timestamps v e) -> (if sackPermitted o then mempty else putWord16 0x0101) <> putWord16 0x080a <> putWord32 v <> putWord32 e) (timestamps o)
        <> foldMap (\s -> putWord8 1 <> putWord16 0x0303 <> putWord8 s) (windowScale o)
    room = (40 - putLength fixed - 4) `div` 8
    blocks = take (min room (maxSackBlocks (isJust (timestamps o)))) (sackBlocks o)
    sacks
      | null blocks = mempty
      | otherwise =
        putWord16 0x0101 <> putWord8 5 <> putWord8 (fromIntegral (2 + 8 * length blocks))
          <> foldMap (\(SackBlock l r) -> putWord32 l <> putWord32 r) blocks
