{-# LANGUAGE OverloadedStrings #-}

-- |
-- The tables of HPACK (RFC 7541, 2.3): the static one of appendix A, and the dynamic one, the newest fields of a
-- connection in one direction. Pure; for the encoder and the decoder.
--
-- @since 0.1.0
module Weft.Http2.Hpack.Table
  ( Field,
    fieldSize,

    -- * The static table
    staticCount,
    staticFields,

    -- * The dynamic table
    Dynamic,
    emptyDynamic,
    capacity,
    occupied,
    addField,
    resize,

    -- * Both
    fieldAt,
  )
where

import Data.Array (Array, elems, listArray, (!))
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Data.Sequence (Seq, ViewR (..), viewr, (<|))
import qualified Data.Sequence as Seq

-- | Name and value.
type Field = (ByteString, ByteString)

-- | The size of a field, as limits define it (4.1; RFC 9113, 6.5.2): bytes, and 32.
fieldSize :: Field -> Int
fieldSize (name, value) = B.length name + B.length value + 32

-- The static table -------------------------------------------------------------------

-- | The entries of the static table. They have the indexes from 1 on.
staticCount :: Int
staticCount = 61

-- | The entries of the static table with their indexes.
staticFields :: [(Int, Field)]
staticFields = zip [1 ..] (elems static)

static :: Array Int Field
static =
  listArray
    (1, staticCount)
    [ (":authority", ""),
      (":method", "GET"),
      (":method", "POST"),
      (":path", "/"),
      (":path", "/index.html"),
      (":scheme", "http"),
      (":scheme", "https"),
      (":status", "200"),
      (":status", "204"),
      (":status", "206"),
      (":status", "304"),
      (":status", "400"),
      (":status", "404"),
      (":status", "500"),
      ("accept-charset", ""),
      ("accept-encoding", "gzip, deflate"),
      ("accept-language", ""),
      ("accept-ranges", ""),
      ("accept", ""),
      ("access-control-allow-origin", ""),
      ("age", ""),
      ("allow", ""),
      ("authorization", ""),
      ("cache-control", ""),
      ("content-disposition", ""),
      ("content-encoding", ""),
      ("content-language", ""),
      ("content-length", ""),
      ("content-location", ""),
      ("content-range", ""),
      ("content-type", ""),
      ("cookie", ""),
      ("date", ""),
      ("etag", ""),
      ("expect", ""),
      ("expires", ""),
      ("from", ""),
      ("host", ""),
      ("if-match", ""),
      ("if-modified-since", ""),
      ("if-none-match", ""),
      ("if-range", ""),
      ("if-unmodified-since", ""),
      ("last-modified", ""),
      ("link", ""),
      ("location", ""),
      ("max-forwards", ""),
      ("proxy-authenticate", ""),
      ("proxy-authorization", ""),
      ("range", ""),
      ("referer", ""),
      ("refresh", ""),
      ("retry-after", ""),
      ("server", ""),
      ("set-cookie", ""),
      ("strict-transport-security", ""),
      ("transfer-encoding", ""),
      ("user-agent", ""),
      ("vary", ""),
      ("via", ""),
      ("www-authenticate", "")
    ]

-- The dynamic table ------------------------------------------------------------------

-- | The entries, the newest first, with their size and the largest size that is allowed, in bytes. Each entry counts 32
-- bytes more than it has, so that there are at most 128 in a table of 4,096 bytes.
data Dynamic = Dynamic !(Seq Field) !Int !Int

-- | A table without entries, of the given capacity.
emptyDynamic :: Int -> Dynamic
emptyDynamic = Dynamic Seq.empty 0

-- | The largest size in bytes.
capacity :: Dynamic -> Int
capacity (Dynamic _ _ most) = most

-- | The size of all entries in bytes; at most 'capacity'.
occupied :: Dynamic -> Int
occupied (Dynamic _ size _) = size

-- | Add a field in front. Returns the fields that had to go, the oldest first. A field that is larger than the table
-- empties it, and is not added (4.4).
addField :: Field -> Dynamic -> ([Field], Dynamic)
addField field@(!_, !_) (Dynamic entries size most)
  | fieldSize field > most = evict 0 (Dynamic entries size most)
  | otherwise =
    let (gone, Dynamic kept size' _) = evict (most - fieldSize field) (Dynamic entries size most)
     in (gone, Dynamic (field <| kept) (size' + fieldSize field) most)

-- | Change the capacity. Returns the fields that had to go, the oldest first.
resize :: Int -> Dynamic -> ([Field], Dynamic)
resize most (Dynamic entries size _) = evict most (Dynamic entries size most)

-- | Take out the oldest entries until the others have at most the given size.
evict :: Int -> Dynamic -> ([Field], Dynamic)
evict most table@(Dynamic entries size limit)
  | size <= most = ([], table)
  | otherwise = case viewr entries of
    EmptyR -> ([], Dynamic Seq.empty 0 limit)
    rest :> oldest -> let (gone, left) = evict most (Dynamic rest (size - fieldSize oldest) limit) in (oldest : gone, left)

-- Both -------------------------------------------------------------------------------

-- | The field with an index (2.3.3). O(log n).
fieldAt :: Int -> Dynamic -> Maybe Field
fieldAt index (Dynamic entries _ _)
  | index < 1 = Nothing
  | index <= staticCount = Just (static ! index)
  | otherwise = Seq.lookup (index - staticCount - 1) entries
