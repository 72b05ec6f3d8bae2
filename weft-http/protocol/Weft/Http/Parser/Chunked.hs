-- |
-- Chunked bodies (RFC 9112, 7.1): sizes, extensions, which are checked and ignored, and trailer
-- fields, which are checked and dropped. Pure, total and incremental; every byte is looked
-- at once, and a body in segments of any size decodes to the same bytes.
module Weft.Http.Parser.Chunked
  ( Decoder,
    newDecoder,
    decode,
    Step (..),
  )
where

import Data.Bits (unsafeShiftL, (.|.))
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Unsafe as B
import Data.Word (Word8)
import Weft.Http.Limits
import Weft.Http.Parser.Bytes

-- | A place in a chunked body.
data Decoder
  = -- | In the digits of a size: its value, and how many digits there were.
    Size !Int !Int
  | -- | Behind the digits: the size, bytes of the line so far, and where in the extensions.
    Extensions !Int !Int !Extension
  | -- | A size line's CR has come.
    SizeEnd !Int
  | -- | Bytes that are left of a chunk.
    Chunk !Int
  | -- | Behind a chunk's last byte, before its CR; behind the CR.
    ChunkCr
  | ChunkLf
  | -- | In the trailer section: bytes and fields so far, and where in a line.
    Trailer !Int !Int !Line
  | -- | The trailer section is complete.
    Finished
  deriving (Eq, Show)

-- | A place in @*( BWS ";" BWS name [ BWS "=" BWS ( token / quoted-string ) ] )@.
data Extension
  = -- | Blanks came, and a semicolon has to.
    BeforeSemicolon
  | -- | Behind a semicolon, before the name.
    BeforeName
  | InName
  | -- | Blanks behind a name: an equals sign or a semicolon has to come.
    AfterName
  | -- | Behind an equals sign.
    BeforeValue
  | InToken
  | InQuotes
  | -- | Behind a backslash.
    Escaped
  | -- | Behind the closing quote.
    AfterQuotes
  deriving (Eq, Show)

-- | A place in a line of the trailer section.
data Line = LineStart | FieldName | FieldValue | FieldEnd | LastEnd
  deriving (Eq, Show)

-- | At the beginning of a body.
newDecoder :: Decoder
newDecoder = Size 0 0

-- | The contents of a string.
data Step
  = -- | Bytes of the body, at least one; the rest of the string; the place behind them.
    Bytes !ByteString !ByteString !Decoder
  | -- | The string is used up.
    More !Decoder
  | -- | The body is complete; what follows it.
    End !ByteString
  | Invalid !Refusal
  deriving (Eq, Show)

-- | Decode up to the next bytes of the body.
decode :: Limits -> Decoder -> ByteString -> Step
decode limits from bytes = go from 0
  where
    end = B.length bytes
    go place !i
      | Finished <- place = End (B.unsafeDrop i bytes)
      | i >= end = More place
      | otherwise = case place of
        Size n digits -> size n digits i
        Extensions n len at
          | len >= maxExtensions -> Invalid BadRequest
          | otherwise -> maybe (Invalid BadRequest) (`go` (i + 1)) (extension n (len + 1) at (byteAt bytes i))
        SizeEnd n
          | byteAt bytes i /= 10 -> Invalid BadRequest
          | n == 0 -> go (Trailer 0 0 LineStart) (i + 1)
          | otherwise -> go (Chunk n) (i + 1)
        Chunk left
          | left > end - i -> Bytes (B.unsafeDrop i bytes) B.empty (Chunk (left - (end - i)))
          | otherwise -> Bytes (slice bytes i (i + left)) (B.unsafeDrop (i + left) bytes) ChunkCr
        ChunkCr -> if byteAt bytes i == 13 then go ChunkLf (i + 1) else Invalid BadRequest
        ChunkLf -> if byteAt bytes i == 10 then go (Size 0 0) (i + 1) else Invalid BadRequest
        Trailer count fields line -> either Invalid (`go` (i + 1)) (trailer limits count fields line (byteAt bytes i))
    size n digits i
      | d >= 0 = if digits < maxDigits then go (Size (n `unsafeShiftL` 4 .|. d) (digits + 1)) (i + 1) else Invalid BadRequest
      | digits == 0 = Invalid BadRequest
      | c == 13 = go (SizeEnd n) (i + 1)
      | c == 59 = go (Extensions n 1 BeforeName) (i + 1)
      | isBlank c = go (Extensions n 1 BeforeSemicolon) (i + 1)
      | otherwise = Invalid BadRequest
      where
        c = byteAt bytes i
        d = hexDigit c
    -- The byte behind a size and in its extensions.
    extension n len at c = case at of
      BeforeSemicolon
        | c == 59 -> to BeforeName
        | isBlank c -> to BeforeSemicolon
      BeforeName
        | isToken c -> to InName
        | isBlank c -> to BeforeName
      InName
        | isToken c -> to InName
        | c == 61 -> to BeforeValue
        | isBlank c -> to AfterName
        | otherwise -> ended c
      AfterName
        | c == 61 -> to BeforeValue
        | c == 59 -> to BeforeName
        | isBlank c -> to AfterName
      BeforeValue
        | isToken c -> to InToken
        | c == 34 -> to InQuotes
        | isBlank c -> to BeforeValue
      InToken
        | isToken c -> to InToken
        | isBlank c -> to BeforeSemicolon
        | otherwise -> ended c
      InQuotes
        | c == 34 -> to AfterQuotes
        | c == 92 -> to Escaped
        | isFieldByte c -> to InQuotes
      Escaped
        | isFieldByte c -> to InQuotes
      AfterQuotes
        | isBlank c -> to BeforeSemicolon
        | otherwise -> ended c
      _ -> Nothing
      where
        to = Just . Extensions n len
        ended 13 = Just (SizeEnd n)
        ended 59 = to BeforeName
        ended _ = Nothing

-- | A byte of the trailer section: a limit passed, or not in order, or the next place.
trailer :: Limits -> Int -> Int -> Line -> Word8 -> Either Refusal Decoder
trailer limits count fields line c
  | count >= limitHead limits = Left HeadTooLarge
  | otherwise = case line of
    LineStart
      | c == 13 -> to fields LastEnd
      | isToken c, limitFields limits > 0 && fields >= limitFields limits -> Left HeadTooLarge
      | isToken c -> to (fields + 1) FieldName
    FieldName
      | c == 58 -> to fields FieldValue
      | isToken c -> to fields FieldName
    FieldValue
      | c == 13 -> to fields FieldEnd
      | isFieldByte c -> to fields FieldValue
    FieldEnd | c == 10 -> to fields LineStart
    LastEnd | c == 10 -> Right Finished
    _ -> Left BadRequest
  where
    to n = Right . Trailer (count + 1) n

-- | Hexadecimal digits of a size: their value fits into a word.
maxDigits :: Int
maxDigits = 15

-- | Bytes of the extensions of one chunk.
maxExtensions :: Int
maxExtensions = 4096
