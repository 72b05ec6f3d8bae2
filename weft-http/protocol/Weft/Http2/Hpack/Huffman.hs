{-# LANGUAGE OverloadedStrings #-}

-- |
-- The Huffman code of HPACK (RFC 7541, 5.2 and appendix B). Pure; for the encoder and the decoder of header blocks.
--
-- The code is canonical: among the codes of one length, a larger symbol has a larger code, and shorter codes come
-- first. So the lengths define it, and only they are written down here.
--
-- The decoder takes four bits at a time. A table for eight would be read half as often, but it has 64 times 1,024
-- entries instead of 4,096, which do not stay in a core's first cache beside the rest of a server.
--
-- @since 0.1.0
module Weft.Http2.Hpack.Huffman
  ( -- * Encoding
    codedLength,
    writeCoded,

    -- * Decoding
    HuffmanFault (..),
    decodeCoded,
  )
where

import Data.Array.Base (unsafeAt)
import Data.Array.Unboxed
import Data.Bits
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Internal as B (createUptoN')
import qualified Data.ByteString.Unsafe as B
import Data.List (sortOn)
import qualified Data.Map.Strict as Map
import Data.Word
import Foreign.Ptr
import Foreign.Storable
import System.IO.Unsafe (unsafeDupablePerformIO)

-- The code ---------------------------------------------------------------------------

-- | The end of a string. It must not occur in one: only its first bits do, as padding.
endSymbol :: Int
endSymbol = 256

-- | Bits of the code of each symbol: appendix B.
lengths :: [Int]
lengths =
  concat
    [ [13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28],
      [28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6],
      [12, 10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6, 15, 5],
      [6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20, 22],
      [22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22, 21],
      [20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22],
      [23, 26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26],
      [28, 27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27],
      [28, 27, 27, 27, 27, 27, 26, 30]
    ]

-- | Length, code and symbol, in the order of the codes.
codes :: [(Int, Word64, Int)]
codes = go 0 0 (sortOn fst (zip lengths [0 ..]))
  where
    go _ _ [] = []
    go before next ((size, symbol) : rest) =
      let code = next `shiftL` (size - before) in (size, code, symbol) : go size (code + 1) rest

-- Encoding ---------------------------------------------------------------------------

-- | For each byte its code, shifted left by 5 bits, and the code's length.
encodings :: UArray Int Word64
encodings = array (0, 255) [(symbol, code `shiftL` 5 .|. fromIntegral size) | (size, code, symbol) <- codes, symbol /= endSymbol]
{-# NOINLINE encodings #-}

-- | The bytes that a string takes when it is coded. O(n).
codedLength :: ByteString -> Int
codedLength bytes = (B.foldl' (\n c -> n + fromIntegral (unsafeAt encodings (fromIntegral c) .&. 31)) 0 bytes + 7) `shiftR` 3

-- | Write a string coded; 'codedLength' bytes have to be there. Returns the end.
writeCoded :: ByteString -> Ptr Word8 -> IO (Ptr Word8)
writeCoded bytes = byte 0 0 0
  where
    byte :: Int -> Word64 -> Int -> Ptr Word8 -> IO (Ptr Word8)
    byte !i !acc !have !p
      | i < B.length bytes =
        let e = unsafeAt encodings (fromIntegral (B.unsafeIndex bytes i))
            size = fromIntegral (e .&. 31)
         in full (i + 1) (acc `unsafeShiftL` size .|. e `unsafeShiftR` 5) (have + size) p
      | have == 0 = pure p
      | otherwise = do
        -- Padded by the first bits of the end's code, which are ones.
        poke p (fromIntegral (acc `unsafeShiftL` (8 - have)) .|. (bit (8 - have) - 1))
        pure (p `plusPtr` 1)
    -- Of the accumulator only the lowest bits count, of which there are less than 8 + 30.
    full i acc have p
      | have >= 8 = poke p (fromIntegral (acc `unsafeShiftR` (have - 8))) >> full i acc (have - 8) (p `plusPtr` 1)
      | otherwise = byte i acc have p

-- Decoding ---------------------------------------------------------------------------

-- | Why a string is not decoded (5.2).
data HuffmanFault
  = -- | It has the code of the end in it.
    HuffmanEnd
  | -- | It ends in a code that is not complete, and not with at most seven ones.
    HuffmanPadding
  deriving (Eq, Show)

-- | For each state, which is an inner node of the tree, and four bits: the symbol in the lowest 8 bits, 'emits',
-- 'fails', and the next state from bit 16 on. The shortest code has five bits, so that four complete one symbol at
-- most.
moves :: UArray Int Word32
moves = listArray (0, 256 * 16 - 1) [move (4 :: Int) 0 node nibble | node <- Map.keys states, nibble <- [0 .. 15]]
  where
    leaves = Map.fromList [((size, code), symbol) | (size, code, symbol) <- codes]
    move 0 out node _ = out .|. fromIntegral (states Map.! node) `shiftL` 16
    move n out (size, path) nibble =
      let next = (size + 1, path `shiftL` 1 .|. (if testBit (nibble :: Int) (n - 1) then 1 else 0))
       in case Map.lookup next leaves of
            Nothing -> move (n - 1) out next nibble
            Just symbol
              | symbol == endSymbol -> fails
              | otherwise -> move (n - 1) (emits .|. fromIntegral symbol) (0, 0) nibble
{-# NOINLINE moves #-}

-- | The inner nodes of the tree, by the bits that lead to them, with their numbers; the root, which comes first, has 0.
states :: Map.Map (Int, Word64) Int
states = Map.fromDistinctAscList (zip (Map.keys nodes) [0 ..])
  where
    nodes = Map.fromList [((n, code `shiftR` (size - n)), ()) | (size, code, _) <- codes, n <- [0 .. size - 1]]

-- | Whether a string may end in a state: fewer than eight ones lead to it from the root.
accepts :: UArray Int Bool
accepts = listArray (0, 255) [size < 8 && path == bit size - 1 | (size, path) <- Map.keys states]
{-# NOINLINE accepts #-}

emits, fails :: Word32
emits = bit 8
fails = bit 9

-- | Decode a string. The result has at most 8 bytes for 5 of the input, and shares no memory with it. O(n).
decodeCoded :: ByteString -> Either HuffmanFault ByteString
decodeCoded coded = case decoded of
  (_, Just fault) -> Left fault
  -- The copy has no room behind it, and may be kept.
  (bytes, Nothing) -> Right (B.copy bytes)
  where
    decoded = unsafeDupablePerformIO (B.createUptoN' (B.length coded * 8 `div` 5 + 1) (\start -> go start start 0 0))
    go :: Ptr Word8 -> Ptr Word8 -> Int -> Int -> IO (Int, Maybe HuffmanFault)
    go !start !p !i !state
      | i >= B.length coded = pure (p `minusPtr` start, if unsafeAt accepts state then Nothing else Just HuffmanPadding)
      | (high .|. low) .&. fails /= 0 = pure (0, Just HuffmanEnd)
      | otherwise = do
        p' <- emit high p
        p'' <- emit low p'
        go start p'' (i + 1) (next low)
      where
        c = fromIntegral (B.unsafeIndex coded i) :: Int
        high = unsafeAt moves (state `unsafeShiftL` 4 .|. c `unsafeShiftR` 4)
        low = unsafeAt moves (next high `unsafeShiftL` 4 .|. (c .&. 15))
    next m = fromIntegral (m `unsafeShiftR` 16) :: Int
    emit m p
      | m .&. emits /= 0 = poke p (fromIntegral m) >> pure (p `plusPtr` 1)
      | otherwise = pure p
