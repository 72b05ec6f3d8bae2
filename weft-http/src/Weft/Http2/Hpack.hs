{-# LANGUAGE FlexibleInstances #-}

-- |
-- Compressed fields (HPACK, RFC 7541), by the @http2@ package. All that is used of that package is here.
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

-- | Versions of the package differ in the type of a field's name.
class FieldName a where
  nameBytes :: a -> ByteString
  bytesName :: ByteString -> a

instance FieldName ByteString where
  nameBytes = id
  bytesName = id

-- The package's own table of names has them in mixed case; HTTP/2 knows lower case only.
instance FieldName (CI ByteString) where
  nameBytes = CI.foldedCase
  bytesName = CI.mk

-- | The state of the receiving side. One thread.
newtype Decoder = Decoder DynamicTable

-- | With the table of 4,096 bytes that peers assume.
newDecoder :: IO Decoder
newDecoder = Decoder <$> newDynamicTableForDecoding defaultDynamicTableSize longestString

-- | The most bytes of a name or value that comes in the Huffman code, decoded.
longestString :: Int
longestString = 8192

-- | The fields of a header block, and whether a name with an upper-case letter was put into the table, from where a later
-- block can have it without our seeing that.
data Decoded = Decoded [(ByteString, ByteString)] !Bool

-- | The fields of a header block, with their names as they were sent; why it is wrong. After a failure the state is good for nothing.
decodeFields :: Decoder -> ByteString -> IO (Either String Decoded)
decodeFields (Decoder table) block = tryDecoding $ do
  fields <- map (first nameBytes) <$> decode block
  let sources = nameSources block
  -- The package gives names in lower case, whatever came (RFC 9113, 8.2.1), but values as they are: so it decodes the names
  -- that are in the Huffman code as values of fields that are put into no table.
  coded <- decode (B.concat [B.concat [B.pack [0x10, 1, 0x78], name] | Literal _ (Coded name) <- sources])
  let named = zipWith rename (withNames sources (map snd coded)) fields
      kept = or [upper name | (Literal True _, (name, _)) <- zip sources named]
  pure (Decoded named kept)
  where
    -- The package refuses an empty string as too short.
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

-- | Beside its 'DecodeError' the package throws what the one below it does, for a block that ends too early.
tryDecoding :: IO a -> IO (Either String a)
tryDecoding act = try act >>= either failed (pure . Right)
  where
    failed e
      | Just (SomeAsyncException _) <- fromException e = throwIO e
      | otherwise = pure (Left (takeWhile (/= '\n') (displayException e)))

-- | Where a field has its name from.
data NameSource
  = -- | From a table.
    Indexed
  | -- | From the block; does it go into the table?
    Literal !Bool !LiteralName

-- | A name, or a string in the Huffman code with its length before it.
data LiteralName = Plain !ByteString | Coded !ByteString

-- | The sources of a block that is in order, in the order of its fields (RFC 7541, 6).
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
         in Literal kept (if huffman rest then Coded whole else Plain name) : nameSources (afterString (B.drop n behind))
      (_, rest) -> Indexed : nameSources (afterString rest)
    huffman rest = not (B.null rest) && testBit (B.head rest) 7
    afterString rest = let (n, behind) = prefixed 7 rest in B.drop n behind

-- | An integer in the low bits of a byte and, if it does not fit, in those behind it (RFC 7541, 5.1).
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

-- | The state of the sending side. One thread at a time.
newtype Encoder = Encoder DynamicTable

-- | With a table of 4,096 bytes.
newEncoder :: IO Encoder
newEncoder = Encoder <$> newDynamicTableForEncoding defaultDynamicTableSize

-- | The header block of fields, whose names are in lower case.
encodeFields :: Encoder -> [(ByteString, ByteString)] -> IO ByteString
encodeFields (Encoder table) fields =
  encodeHeader defaultEncodeStrategy room table [(bytesName name, value) | (name, value) <- fields]
  where
    -- A literal has at most two lengths of six bytes beside itself; the table's own news are six more.
    room = 32 + sum [B.length name + B.length value + 16 | (name, value) <- fields]

-- | Limit the table to this many bytes, as the peer's table is.
limitEncoder :: Int -> Encoder -> IO ()
limitEncoder size (Encoder table) = setLimitForEncoding size table
