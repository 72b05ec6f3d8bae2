-- |
-- From frames that a core wants sent to bytes, with HPACK's encoder: a server's and a client's. Pure.
module Weft.Http2.Encoding
  ( encodeFrame,
    encodeHeaders,
    dataHead,
    joinSmall,
  )
where

import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Data.Word (Word8)
import Weft.Http2.Core.Types (Field, Frame (..), StreamId)
import Weft.Http2.Frame
import Weft.Http2.Hpack.Encoder (Encoder, encodeBlock, limitEncoder)

-- | The bytes of a frame, and the encoder behind it: frames are sent in the order in which they were encoded. Data are
-- sent by 'dataHead'; here they have no bytes, as those of a stream that has ended.
encodeFrame :: Frame -> Encoder -> ([ByteString], Encoder)
encodeFrame f encoder = case f of
  SendHeaders n fields final -> encodeHeaders n fields final encoder
  SendSettings parameters -> same (frame typeSettings 0 0 (settingsPayload parameters))
  SendSettingsAck sizes -> ([frame typeSettings flagAck 0 B.empty], foldl (flip limitEncoder) encoder sizes)
  SendData n _ final -> same (dataHead n final 0)
  SendReset n code -> same (frame typeReset 0 n (errorNumber code))
  SendWindow n by -> same (frame typeWindowUpdate 0 n (number by))
  SendPing payload -> same (frame typePing 0 0 payload)
  SendPingAck payload -> same (frame typePing flagAck 0 payload)
  SendGoAway n code -> same (frame typeGoAway 0 0 (number n <> errorNumber code))
  where
    same bytes = ([bytes], encoder)
    number n = B.drop 5 (frameHead 0 0 n 0)

-- | The frames of a head or of trailers, and whether they end the stream.
encodeHeaders :: StreamId -> [Field] -> Bool -> Encoder -> ([ByteString], Encoder)
encodeHeaders n fields final encoder = case encodeBlock fields encoder of
  (block, next) -> (headerFrames (ending final) n 16384 block, next)

-- | The header of a frame of data, given whether it ends the stream, and the bytes that follow.
dataHead :: StreamId -> Bool -> Int -> ByteString
dataHead n final = frameHead typeData (ending final) n

ending :: Bool -> Word8
ending final = if final then flagEndStream else 0

-- | Small strings are joined, for a transport that takes a list of strings; others stay as they are.
joinSmall :: [ByteString] -> [ByteString]
joinSmall strings = case strings of
  [] -> []
  _ -> case span ((<= 4096) . B.length) strings of
    ([], large : rest) -> large : joinSmall rest
    (small, rest) -> B.concat small : joinSmall rest
