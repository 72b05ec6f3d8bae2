-- |
-- Decodes header blocks (RFC 7541). Pure; for the receiving side of a connection.
--
-- The fields and the table share no memory with the block: a peer that could keep a few bytes of each block would keep
-- the whole buffer in which it was received. What comes from the table is shared with it, so a block of references to
-- a large field costs a few words for each, and fields beyond the caller's limit are not kept at all.
--
-- @since 0.1.0
module Weft.Http2.Hpack.Decoder
  ( Decoder,
    newDecoder,
    tableSize,
    sameTable,
    decodeBlock,
    Decoded (..),
    Fault (..),
    describe,
  )
where

import Data.Bits
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Unsafe as B
import Weft.Http2.Hpack.Huffman
import Weft.Http2.Hpack.Table

-- | The state between blocks: the capacity that the peer may set, which is what our SETTINGS allow, the table, and how
-- often it was changed.
data Decoder = Decoder !Int !Dynamic !Int

-- | A decoder whose table may take the given number of bytes, as @SETTINGS_HEADER_TABLE_SIZE@ has announced; 4,096 if
-- nothing was announced.
newDecoder :: Int -> Decoder
newDecoder limit = Decoder limit (emptyDynamic limit) 0

-- | The size of the table's fields in bytes, at most its limit.
tableSize :: Decoder -> Int
tableSize (Decoder _ table _) = occupied table

-- | Whether the blocks between two states of a decoder have left the table as it was, so that they would be decoded to
-- the same fields again.
sameTable :: Decoder -> Decoder -> Bool
sameTable (Decoder _ _ a) (Decoder _ _ b) = a == b

-- | What a block has.
data Decoded = Decoded
  { -- | The fields in their order, with names as they were sent: upper case is kept. If 'decodedSize' is larger than the
    -- caller's limit, only the first of them.
    decodedFields :: [Field],
    -- | The size of all fields in bytes, as @SETTINGS_MAX_HEADER_LIST_SIZE@ counts it (RFC 9113, 6.5.2).
    decodedSize :: !Int
  }
  deriving (Eq, Show)

-- | Why a block cannot be decoded. The connection has to end (RFC 9113, 4.3), since the tables differ from here on.
data Fault
  = -- | It ends inside a field.
    Truncated
  | -- | An integer has more than 32 bits, or more bytes than those need (5.1).
    IntegerTooLarge
  | -- | No field has this index (2.3.3).
    NoSuchIndex !Int
  | -- | A string is not coded as it has to be (5.2).
    NotHuffman !HuffmanFault
  | -- | The size of the table is changed after a field (4.2).
    LateSizeUpdate
  | -- | The size of the table is set to more than the limit (6.3).
    SizeUpdateTooLarge !Int
  deriving (Eq, Show)

-- | The fault in words, for a log.
describe :: Fault -> String
describe fault = case fault of
  Truncated -> "a header block ends inside a field"
  IntegerTooLarge -> "an integer of a header block is too large"
  NoSuchIndex index -> "no field has the index " <> show index
  NotHuffman HuffmanEnd -> "a Huffman-coded string with an end in it"
  NotHuffman HuffmanPadding -> "a Huffman-coded string with wrong padding"
  LateSizeUpdate -> "a size of the table after a field"
  SizeUpdateTooLarge size -> "a table of " <> show size <> " bytes, which is more than was allowed"

-- | Decode a complete block. The fields up to the given size in bytes are returned; all are read, so that the table
-- stays the peer's. O(n) in the block.
decodeBlock :: Int -> ByteString -> Decoder -> Either Fault (Decoded, Decoder)
decodeBlock most block (Decoder limit table0 changes0) = sizes changes0 table0 0
  where
    end = B.length block

    -- Before the first field the table's size may change.
    sizes !changes !table !at
      | at < end && B.unsafeIndex block at .&. 0xe0 == 0x20 = do
        At size at' <- integer 5 block at
        if size > limit then Left (SizeUpdateTooLarge size) else sizes (changes + 1) (snd (resize size table)) at'
      | otherwise = fields changes table [] 0 at

    fields !changes !table kept !size !at
      | at >= end = Right (Decoded (reverse kept) size, Decoder limit table changes)
      | testBit c 7 = do
        At index at' <- integer 7 block at
        field <- indexed table index
        next changes table field at'
      | testBit c 6 = do
        At field at' <- literal table 6
        next (changes + 1) (snd (addField field table)) field at'
      | testBit c 5 = Left LateSizeUpdate
      -- Not added to the table, or never to be.
      | otherwise = do
        At field at' <- literal table 4
        next changes table field at'
      where
        c = B.unsafeIndex block at
        next changes' table' field at' =
          let size' = size + fieldSize field in fields changes' table' (if size' > most then kept else field : kept) size' at'
        literal table' bits = do
          At index at' <- integer bits block at
          At name at'' <- if index == 0 then string block at' else (`At` at') . fst <$> indexed table' index
          At value at''' <- string block at''
          pure (At (name, value) at''')

    indexed table index = maybe (Left (NoSuchIndex index)) Right (fieldAt index table)

-- | Something that was read, and where what follows begins.
data At a = At !a !Int

-- | An integer in the low bits of a byte and, if it does not fit, in the bytes after it (5.1).
integer :: Int -> ByteString -> Int -> Either Fault (At Int)
integer bits block start
  | start >= B.length block = Left Truncated
  | first < full = Right (At first (start + 1))
  | otherwise = more full 0 (start + 1)
  where
    full = bit bits - 1
    first = fromIntegral (B.unsafeIndex block start) .&. full
    more !n !shift' !at
      | at >= B.length block = Left Truncated
      | n' >= bit 32 = Left IntegerTooLarge
      | not (testBit c 7) = Right (At n' (at + 1))
      | shift' >= 28 = Left IntegerTooLarge
      | otherwise = more n' (shift' + 7) (at + 1)
      where
        c = B.unsafeIndex block at
        n' = n + fromIntegral (c .&. 0x7f) `shiftL` shift'

-- | A string with its length in front (5.2).
string :: ByteString -> Int -> Either Fault (At ByteString)
string block start = do
  At size at <- integer 7 block start
  let bytes = B.unsafeTake size (B.unsafeDrop at block)
  if size > B.length block - at
    then Left Truncated
    else
      if testBit (B.unsafeIndex block start) 7
        then either (Left . NotHuffman) (\decoded -> Right (At decoded (at + size))) (decodeCoded bytes)
        else Right (At (B.copy bytes) (at + size))
