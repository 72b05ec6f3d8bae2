{-# LANGUAGE OverloadedStrings #-}

-- |
-- Encodes header blocks (RFC 7541). Pure; for the sending side of a connection. A block is written into one buffer.
--
-- A field whose value seldom comes again is not added to the table, and one that is secret never is (7.1.3): else an
-- attacker who can have fields added would guess the secret by the size of the blocks.
--
-- @since 0.1.0
module Weft.Http2.Hpack.Encoder
  ( Encoder,
    newEncoder,
    limitEncoder,
    encodeBlock,
  )
where

import Data.Bits
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Internal as B (createUptoN')
import qualified Data.ByteString.Unsafe as B
import Data.Map.Strict (Map)
import qualified Data.Map.Strict as Map
import Data.Word
import Foreign.Marshal.Utils (copyBytes)
import Foreign.Ptr
import Foreign.Storable
import System.IO.Unsafe (unsafeDupablePerformIO)
import Weft.Http2.Hpack.Huffman
import Weft.Http2.Hpack.Table

-- | The state between blocks.
data Encoder = Encoder
  { -- | The largest table that we want, in bytes.
    encoderMost :: !Int,
    encoderTable :: !Dynamic,
    -- | How many fields were ever added. The field that was added as number n has the index
    -- @staticCount + added - n + 1@.
    encoderAdded :: !Int,
    -- | The number of the oldest field in the table, less one.
    encoderGone :: !Int,
    -- | The newest field of the table with this name and value, and the newest with this name: their numbers.
    encoderFields :: !(Map Field Int),
    encoderNames :: !(Map ByteString Int),
    -- | The smallest capacity since the last block, if the capacity was changed: the peer has to be told (4.2).
    encoderSmallest :: !(Maybe Int),
    encoderLast :: !Last
  }

-- | The last block, as long as the same fields would give the same bytes, which is until the table changes; and its
-- fields, if it came twice. Most responses of a connection have the fields of the one before.
data Last = Last !ByteString [Field]

noLast :: Last
noLast = Last B.empty []

-- | An encoder whose table has the given size in bytes, which is what the peer assumes: 4,096 at first. It is also the
-- most that the table will have.
newEncoder :: Int -> Encoder
newEncoder most = Encoder most (emptyDynamic most) 0 0 Map.empty Map.empty Nothing noLast

-- | The peer has set @SETTINGS_HEADER_TABLE_SIZE@. To be called for each value, in their order, also if one frame has
-- several (RFC 9113, 6.5.3).
limitEncoder :: Int -> Encoder -> Encoder
limitEncoder limit e
  | size == capacity (encoderTable e) = e
  | otherwise = forget gone e {encoderTable = table, encoderSmallest = Just (maybe size (min size) (encoderSmallest e)), encoderLast = noLast}
  where
    size = min limit (encoderMost e)
    (gone, table) = resize size (encoderTable e)

-- | These fields have left the table, the oldest first.
forget :: [Field] -> Encoder -> Encoder
forget [] e = e
forget (field : rest) e =
  forget
    rest
    e
      { encoderGone = number,
        encoderFields = Map.update unless' field (encoderFields e),
        encoderNames = Map.update unless' (fst field) (encoderNames e)
      }
  where
    number = encoderGone e + 1
    unless' n = if n == number then Nothing else Just n

-- | Add a field that the table has room for.
remember :: Field -> Encoder -> Encoder
remember field e =
  e'
    { encoderTable = table,
      encoderAdded = number,
      encoderFields = Map.insert field number (encoderFields e'),
      encoderNames = Map.insert (fst field) number (encoderNames e')
    }
  where
    (gone, table) = addField field (encoderTable e)
    e' = forget gone e
    number = encoderAdded e + 1

-- What is known of names -------------------------------------------------------------

-- | How a field is sent that is in no table: added to the table, not added, never to be added by anybody on the way.
data Handling = Added | NotAdded | NeverAdded
  deriving (Eq)

-- | A name of the static table: its first index, its handling, and the indexes of its values.
data Known = Known !Int !Handling [(ByteString, Int)]

known :: Map ByteString Known
known = Map.fromListWith merge [(name, Known index (handling name) [(value, index)]) | (index, (name, value)) <- staticFields]
  where
    merge (Known b h new) (Known a _ old) = Known (min a b) h (old <> new)
    handling name
      | name `elem` ["authorization", "proxy-authorization", "cookie", "set-cookie"] = NeverAdded
      | name `elem` oneOff = NotAdded
      | otherwise = Added
    oneOff =
      [":path", "age", "content-length", "content-range", "etag", "if-modified-since", "if-none-match"]
        <> ["if-range", "if-unmodified-since", "last-modified", "range"]
{-# NOINLINE known #-}

-- Blocks -----------------------------------------------------------------------------

-- | Encode fields, whose names have to be in lower case, as a block. O(n log n) in the fields; O(n) if they are those
-- of the last two blocks.
encodeBlock :: [Field] -> Encoder -> (ByteString, Encoder)
encodeBlock fields e
  | Last block (field : rest) <- encoderLast e, equal fields (field : rest) = (block, e)
  | otherwise = (block', e' {encoderLast = last'})
  where
    (block', e') = encodeFields fields e
    last'
      | encoderAdded e' /= encoderAdded e || changed e = noLast
      -- Copies, since the fields may be part of something large.
      | Last block _ <- encoderLast e, block == block' = Last block [(B.copy name, B.copy value) | (name, value) <- fields]
      | otherwise = Last block' []
    changed = maybe False (const True) . encoderSmallest

equal :: [Field] -> [Field] -> Bool
equal ((a, b) : fields) ((c, d) : others) = a == c && b == d && equal fields others
equal fields others = null fields && null others

encodeFields :: [Field] -> Encoder -> (ByteString, Encoder)
encodeFields fields e = unsafeDupablePerformIO . B.createUptoN' room $ \start -> do
  begun <- sizeUpdates start
  (done, e') <- go begun e {encoderSmallest = Nothing} fields
  pure (done `minusPtr` start, e')
  where
    -- Sizes of the table and lengths, of six bytes each at most, an index, and the strings, which are not coded if that
    -- is longer.
    room = 12 + sum [18 + B.length name + B.length value | (name, value) <- fields]
    sizeUpdates p = case encoderSmallest e of
      Nothing -> pure p
      Just smallest -> do
        let size = capacity (encoderTable e)
        p' <- if smallest < size then writeInteger 5 0x20 smallest p else pure p
        writeInteger 5 0x20 size p'
    go !p !state [] = pure (p, state)
    go !p !state (field : rest) = do
      (p', state') <- writeField field state p
      go p' state' rest

writeField :: Field -> Encoder -> Ptr Word8 -> IO (Ptr Word8, Encoder)
writeField field@(name, value) e p = case Map.lookup name known of
  Just (Known index NeverAdded _) -> (\p' -> (p', e)) <$> literal 4 0x10 index
  Just (Known index how values)
    | Just whole <- lookup value values -> reference whole
    | how == NotAdded || large -> (\p' -> (p', e)) <$> literal 4 0 index
    | otherwise -> dynamic (Just index)
  Nothing -> dynamic Nothing
  where
    reference index = (\p' -> (p', e)) <$> writeInteger 7 0x80 index p
    dynamic static = case Map.lookup field (encoderFields e) of
      Just number -> reference (indexOf number)
      Nothing -> do
        let index = maybe (maybe 0 indexOf (Map.lookup name (encoderNames e))) id static
        if large
          then (\p' -> (p', e)) <$> literal 4 0 index
          else (\p' -> (p', remember (B.copy name, B.copy value) e)) <$> literal 6 0x40 index
    indexOf number = staticCount + encoderAdded e - number + 1
    -- It would take most of the table from the others.
    large = fieldSize field * 4 > capacity (encoderTable e) * 3
    literal bits kind index = do
      p' <- writeInteger bits kind index p
      p'' <- if index == 0 then writeString name p' else pure p'
      writeString value p''

-- | Write an integer whose first bits stand in the low bits of a byte, with the byte's other bits (5.1).
writeInteger :: Int -> Word8 -> Int -> Ptr Word8 -> IO (Ptr Word8)
writeInteger bits kind n p
  | n < full = poke p (kind .|. fromIntegral n) >> pure (p `plusPtr` 1)
  | otherwise = poke p (kind .|. fromIntegral full) >> more (n - full) (p `plusPtr` 1)
  where
    full = bit bits - 1
    more :: Int -> Ptr Word8 -> IO (Ptr Word8)
    more !left !q
      | left < 128 = poke q (fromIntegral left) >> pure (q `plusPtr` 1)
      | otherwise = poke q (fromIntegral left .|. 0x80) >> more (left `unsafeShiftR` 7) (q `plusPtr` 1)

-- | Write a string with its length, Huffman-coded if that is shorter (5.2).
writeString :: ByteString -> Ptr Word8 -> IO (Ptr Word8)
writeString bytes p
  | coded < B.length bytes = writeInteger 7 0x80 coded p >>= writeCoded bytes
  | otherwise = do
    p' <- writeInteger 7 0 (B.length bytes) p
    B.unsafeUseAsCStringLen bytes (\(from, n) -> copyBytes p' (castPtr from) n)
    pure (p' `plusPtr` B.length bytes)
  where
    coded = codedLength bytes
