{-# LANGUAGE FlexibleInstances #-}

-- |
-- Compressed fields (HPACK, RFC 7541), by the @http2@ package. All that is used of that package is here.
module Weft.Http2.Hpack
  ( Decoder,
    newDecoder,
    decodeFields,
    Encoder,
    newEncoder,
    encodeFields,
    limitEncoder,
  )
where

import Control.Exception (try)
import Data.Bifunctor (first)
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

-- | The fields of a header block; why it is wrong. After a failure the state is good for nothing.
decodeFields :: Decoder -> ByteString -> IO (Either DecodeError [(ByteString, ByteString)])
decodeFields (Decoder table) block = fmap (map (first nameBytes)) <$> try (decodeHeader table block)

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

-- | The peer keeps a table of so many bytes.
limitEncoder :: Int -> Encoder -> IO ()
limitEncoder size (Encoder table) = setLimitForEncoding size table
