-- |
-- The body of a response as it is received, in each of its framings, with the trailer section of a chunked one. Pure
-- and total. The result does not depend on how the body is divided into segments.
module Weft.Http.Parser.ResponseBody
  ( Place,
    placeFor,
    advance,
    Progress (..),
    endsWithConnection,
    takeWhole,
    wantedFor,
    wantedFirst,
    wantedAgain,
  )
where

import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Network.HTTP.Types (Header)
import Weft.Http.Limits
import Weft.Http.Parser.Chunked
import Weft.Http.Parser.Head (Resume, start)
import Weft.Http.Parser.Response

-- | A position in a body.
data Place
  = -- | This many bytes are left.
    Remaining !Int
  | InChunks !Decoder
  | -- | The trailer section, from its first byte, which stays in the buffer.
    InTrailers !Resume
  | ToTheEnd
  deriving (Eq, Show)

-- | The beginning of a body.
placeFor :: ResponseFraming -> Place
placeFor framing = case framing of
  ResponseEmpty -> Remaining 0
  ResponseSized n -> Remaining n
  ResponseChunked -> InChunks newDecoder
  ResponseToEnd -> ToTheEnd

-- | Whether the end of the connection is the end of the body. Otherwise it cuts the body off.
endsWithConnection :: Place -> Bool
endsWithConnection place = place == ToTheEnd

-- | At the beginning of a body with a length: all of it, if the string has it, and what is behind it.
takeWhole :: Place -> ByteString -> Maybe (ByteString, ByteString)
takeWhole place bytes = case place of
  Remaining n | B.length bytes >= n -> Just (B.splitAt n bytes)
  _ -> Nothing

-- | How many bytes to ask a connection for within a body: 32 KiB, or what is left of one with a length, up to 64 KiB.
-- One byte more than is left: a result without that byte shows that the kernel has nothing else.
wantedFor :: Place -> Int
wantedFor place = case place of
  Remaining n | n >= wantedFirst -> min 65536 (n + 1)
  _ -> wantedFirst

-- | How many bytes to ask for at the beginning of a connection's first response: 32 KiB.
wantedFirst :: Int
wantedFirst = 32768

-- | How many bytes to ask for at the beginning of the next response, after one with a head of so many bytes and with
-- this framing. It is probably similar; if it is large, but not too large, it is then received with its head in one
-- call.
wantedAgain :: Int -> ResponseFraming -> Int
wantedAgain headBytes framing = case framing of
  ResponseSized n | n >= wantedFirst, n <= 131072 -> headBytes + n + 1
  _ -> wantedFirst

-- | What the received bytes are.
data Progress
  = -- | Bytes of the body, at least one; what is left of the string; the position behind them.
    Piece !ByteString !ByteString !Place
  | -- | More has to be received, to be put behind what is left.
    Needs !ByteString !Place
  | -- | The body is complete; its trailer fields, and what is left.
    Complete ![Header] !ByteString
  | Broken !Violation
  deriving (Eq, Show)

-- | Take the next piece from the received bytes.
advance :: Limits -> Place -> ByteString -> Progress
advance limits place bytes = case place of
  Remaining 0 -> Complete [] bytes
  Remaining n
    | B.null bytes -> Needs B.empty place
    | (mine, rest) <- B.splitAt n bytes -> Piece mine rest (Remaining (n - B.length mine))
  ToTheEnd
    | B.null bytes -> Needs B.empty place
    | otherwise -> Piece bytes B.empty place
  InChunks decoder -> case decodeData limits decoder bytes of
    Bytes part rest next -> Piece part rest (InChunks next)
    More next -> Needs B.empty (InChunks next)
    End rest -> advance limits (InTrailers start) rest
    Invalid HeadTooLarge -> Broken TooManyFields
    Invalid _ -> Broken BadChunk
  InTrailers resume -> case resumeTrailers limits resume bytes of
    TrailersIncomplete next -> Needs bytes (InTrailers next)
    Trailers fields end -> Complete fields (B.drop end bytes)
    TrailersInvalid why -> Broken why
