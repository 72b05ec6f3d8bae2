-- |
-- Description : Texts in GHC's event log that are not in UTF-8
--
-- Pure. The run-time system writes texts as it finds them: arguments and labels may be any bytes. The library
-- @ghc-events@ expects UTF-8, and fails at others. The layout of events is that of rts\/EventLogFormat.h.
module Weft.Tools.Trace.Texts
  ( Sizes,
    sizesOf,
    inUtf8,
  )
where

import qualified Data.ByteString as B
import qualified Data.ByteString.Lazy as L
import Data.Either (isLeft)
import qualified Data.IntMap.Strict as M
import qualified Data.Text.Encoding as T
import qualified GHC.RTS.Events as G

-- | The number of bytes behind the head of an event of each type; 'Nothing' if each event has its own.
type Sizes = M.IntMap (Maybe Int)

-- | Those that the head of a log declares.
sizesOf :: G.Header -> Sizes
sizesOf header = M.fromList [(fromIntegral (G.num kind), fromIntegral <$> G.size kind) | kind <- G.eventTypes header]

-- | Replace the bytes beyond ASCII in the texts of these events that are not in UTF-8, each by a question mark;
-- 'Nothing' if there is no such text. Events behind one of an unknown type are left as they are.
inUtf8 :: Sizes -> L.ByteString -> Maybe L.ByteString
inUtf8 sizes events
  | replaced == parts = Nothing
  | otherwise = Just (L.fromChunks replaced)
  where
    parts = divide sizes (L.toStrict events)
    replaced = map readable parts

-- | One event each, and what is not understood at the end.
divide :: Sizes -> B.ByteString -> [B.ByteString]
divide sizes bytes
  | B.null bytes = []
  | B.length bytes >= 12, Just size <- M.lookup (number 0 bytes) sizes = next (maybe (12 + number 10 bytes) (10 +) size)
  | otherwise = [bytes]
  where
    next size = let (event, rest) = B.splitAt size bytes in event : divide sizes rest

-- | An event whose text is in UTF-8.
readable :: B.ByteString -> B.ByteString
readable event
  | Just place <- lookup (number 0 event) texts,
    (start, text) <- B.splitAt (12 + place) event,
    isLeft (T.decodeUtf8' text) =
    start <> B.map (\byte -> if byte < 0x80 then byte else 0x3f) text
  | otherwise = event

-- | The events that have a text, by type, and what is before it: nothing, or the number of a set of capabilities or of
-- a thread. Messages, user events and markers; identification, arguments and environment; labels.
texts :: [(Int, Int)]
texts = [(16, 0), (19, 0), (58, 0), (29, 4), (30, 4), (31, 4), (44, 4)]

-- | Two bytes, the higher one first.
number :: Int -> B.ByteString -> Int
number place bytes = case B.unpack (B.take 2 (B.drop place bytes)) of
  [high, low] -> 256 * fromIntegral high + fromIntegral low
  _ -> 0
