{-# LANGUAGE FlexibleInstances #-}

-- |
-- Field compression (HPACK, RFC 7541), by the @http2@ package. Only this module uses that package.
module Weft.Http2.Hpack
  ( Decoder,
    newDecoder,
    decodeFields,
    Decoded (..),
    Encoder,
    newEncoder,
    encodeFields,
    limitEncoder,
  )
where

import Control.Exception (SomeAsyncException (..), displayException, fromException, throwIO, try)
import Data.Bifunctor (first)
import Data.Bits
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Data.CaseInsensitive (CI)
import qualified Data.CaseInsensitive as CI
import Network.HPACK

-- | Abstracts over the type of a field's name, which differs between versions of the package.
class FieldName a where
  nameBytes :: a -> ByteString
  bytesName :: ByteString -> a

instance FieldName ByteString where
  nameBytes = id
  bytesName = id

-- The package's table has names in mixed case; HTTP/2 allows lower case only.
instance FieldName (CI ByteString) where
  nameBytes = CI.foldedCase
  bytesName = CI.mk

-- | The state of the receiving side. For one thread.
newtype Decoder = Decoder DynamicTable

-- | A decoder with a table of 4,096 bytes, the size that peers assume.
newDecoder :: IO Decoder
newDecoder = Decoder <$> newDynamicTableForDecoding defaultDynamicTableSize longestString

-- | The longest Huffman-coded name or value in bytes after decoding, for which each decoder has a buffer. 'withoutLong'
-- takes care of longer ones.
longestString :: Int
longestString = 8192

-- | The block with plain strings in place of Huffman-coded ones that may be longer than 'longestString' after decoding:
-- the shortest code has five bits. Each of these is decoded by a decoder of its own.
withoutLong :: ByteString -> IO ByteString
withoutLong block
  | B.length block <= longestCoded = pure block
  | otherwise = B.concat <$> fields block
  where
    longestCoded = longestString * 5 `div` 8
    fields bytes = case B.uncons bytes of
      Nothing -> pure []
      Just (c, _)
        | testBit c 7 -> kept (snd (prefixed 7 bytes))
        | testBit c 6 -> literal 6
        | testBit c 5 -> kept (snd (prefixed 5 bytes))
        | otherwise -> literal 4
      where
        kept rest = (upTo rest :) <$> fields rest
        upTo rest = B.take (B.length bytes - B.length rest) bytes
        literal bits = do
          let (index, rest) = prefixed bits bytes
          (name, rest') <- if index == 0 then string rest else pure (B.empty, rest)
          (value, rest'') <- string rest'
          ([upTo rest, name, value] <>) <$> fields rest''
    string rest
      | isHuffman rest && n > longestCoded && B.length behind >= n = (\s -> (plain s, after)) <$> alone n whole
      | otherwise = pure (whole, after)
      where
        (n, behind) = prefixed 7 rest
        after = B.drop n behind
        whole = B.take (B.length rest - B.length after) rest
    -- As the value of a field that is not added to the table.
    alone n coded = do
      table <- newDynamicTableForDecoding defaultDynamicTableSize (n * 8 `div` 5 + 1)
      B.concat . map snd <$> decodeHeader table (B.concat [B.pack [0x10, 1, 0x78], coded])
    plain s = B.concat [integer7 (B.length s), s]
    integer7 n
      | n < 127 = B.singleton (fromIntegral n)
      | otherwise = B.pack (127 : groups (n - 127))
    groups n
      | n < 128 = [fromIntegral n]
      | otherwise = fromIntegral (n .&. 127 .|. 128) : groups (n `shiftR` 7)

-- | The fields of a header block, and whether a name with an upper-case letter was added to the table. A later block
-- could refer to such a name without the check noticing it.
data Decoded = Decoded [(ByteString, ByteString)] !Bool

-- | The fields of a header block, with their names as they were sent, or the error. After an error the decoder is
-- unusable.
decodeFields :: Decoder -> ByteString -> IO (Either String Decoded)
decodeFields (Decoder table) given = tryDecoding $ do
  block <- withoutLong given
  fields <- map (first nameBytes) <$> decode block
  let sources = nameSources block
  -- The package converts names to lower case (RFC 9113, 8.2.1, wants them rejected) but leaves values as they are. So
  -- it decodes the Huffman-coded names as values of fields that are not added to the table.
  coded <- decode (B.concat [B.concat [B.pack [0x10, 1, 0x78], name] | Literal _ (Coded name) <- sources])
  let named = zipWith rename (withNames sources (map snd coded)) fields
      kept = or [upper name | (Literal True _, (name, _)) <- zip sources named]
  pure (Decoded named kept)
  where
    -- The package rejects an empty string as too short.
    decode bytes = if B.null bytes then pure [] else decodeHeader table bytes
    rename sent (name, value) = (maybe name id sent, value)
    upper = B.any (\c -> c >= 0x41 && c <= 0x5a)
    withNames sources coded = case sources of
      [] -> []
      Indexed : rest -> Nothing : withNames rest coded
      Literal _ (Plain name) : rest -> Just name : withNames rest coded
      Literal _ (Coded _) : rest -> case coded of
        name : more -> Just name : withNames rest more
        [] -> []

-- | If a block ends too early, the package throws an exception of the library below it instead of its own
-- @DecodeError@.
tryDecoding :: IO a -> IO (Either String a)
tryDecoding act = try act >>= either failed (pure . Right)
  where
    failed e
      | Just (SomeAsyncException _) <- fromException e = throwIO e
      | otherwise = pure (Left (takeWhile (/= '\n') (displayException e)))

-- | How a field's name is given.
data NameSource
  = -- | By an index into a table.
    Indexed
  | -- | Literally. The flag says whether it is added to the table.
    Literal !Bool !LiteralName

-- | A plain name, or a Huffman-coded string with its length in front.
data LiteralName = Plain !ByteString | Coded !ByteString

-- | How the names of a valid block are given, in the order of its fields (RFC 7541, 6).
nameSources :: ByteString -> [NameSource]
nameSources bytes = case B.uncons bytes of
  Nothing -> []
  Just (c, _)
    | testBit c 7 -> Indexed : nameSources (snd (prefixed 7 bytes))
    | testBit c 6 -> literal True 6
    | testBit c 5 -> nameSources (snd (prefixed 5 bytes))
    | otherwise -> literal False 4
  where
    literal kept bits = case prefixed bits bytes of
      (0, rest) ->
        let (n, behind) = prefixed 7 rest
            name = B.take n behind
            whole = B.take (B.length rest - B.length behind + n) rest
         in Literal kept (if isHuffman rest then Coded whole else Plain name) : nameSources (afterString (B.drop n behind))
      (_, rest) -> Indexed : nameSources (afterString rest)
    afterString rest = let (n, behind) = prefixed 7 rest in B.drop n behind

-- | Whether a string, which begins with its length, is Huffman-coded.
isHuffman :: ByteString -> Bool
isHuffman bytes = not (B.null bytes) && testBit (B.head bytes) 7

-- | An integer in the low bits of a byte and, if it does not fit, in the bytes after it (RFC 7541, 5.1).
prefixed :: Int -> ByteString -> (Int, ByteString)
prefixed bits bytes = case B.uncons bytes of
  Nothing -> (0, bytes)
  Just (c, rest)
    | value < full -> (value, rest)
    | otherwise -> go value 0 rest
    where
      full = bit bits - 1
      value = fromIntegral c .&. full
  where
    go n shift' rest = case B.uncons rest of
      Just (c, rest')
        | shift' <= 28 ->
          let n' = n + (fromIntegral (c .&. 0x7f) `shiftL` shift')
           in if testBit c 7 then go n' (shift' + 7) rest' else (n', rest')
      _ -> (n, rest)

-- | The state of the sending side. For one thread at a time.
newtype Encoder = Encoder DynamicTable

-- | An encoder with a table of 4,096 bytes.
newEncoder :: IO Encoder
newEncoder = Encoder <$> newDynamicTableForEncoding defaultDynamicTableSize

-- | Encode fields as a header block. Their names must be in lower case.
encodeFields :: Encoder -> [(ByteString, ByteString)] -> IO ByteString
encodeFields (Encoder table) fields =
  encodeHeader defaultEncodeStrategy room table [(bytesName name, value) | (name, value) <- fields]
  where
    -- A literal needs at most two lengths of six bytes each; table size updates need six more.
    room = 32 + sum [B.length name + B.length value + 16 | (name, value) <- fields]

-- | Limit the table to the given number of bytes, the peer's limit.
limitEncoder :: Int -> Encoder -> IO ()
limitEncoder size (Encoder table) = setLimitForEncoding size table
