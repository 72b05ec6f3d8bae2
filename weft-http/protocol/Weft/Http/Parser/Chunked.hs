-- |
-- Chunked bodies (RFC 9112, 7.1): sizes; extensions, which are checked and ignored; and trailer
-- fields, which are checked and dropped. Pure, total and incremental. Each byte is examined
-- once. The result does not depend on how the body is divided into segments.
--
-- Extensions are bounded, those of a chunk and those of a whole body: a client could otherwise have 4 KiB examined for
-- each byte of the body that an application limits. The bytes of extensions that may still come are the body's credit.
module Weft.Http.Parser.Chunked
  ( Decoder,
    newDecoder,
    decode,
    decodeData,
    Step (..),
  )
where

import Data.Bits (unsafeShiftL, unsafeShiftR, (.|.))
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Unsafe as B
import Data.Word (Word8)
import Weft.Http.Limits
import Weft.Http.Parser.Bytes

-- | A position in a chunked body. All but the last two have the credit first; that of a chunk counts the chunk's data.
data Decoder
  = -- | Within the digits of a size: its value so far, and the number of digits.
    Size !Int !Int !Int
  | -- | After the digits: the size, the bytes of extensions so far, and the position in the extensions.
    Extensions !Int !Int !Int !Extension
  | -- | After the CR of a size line.
    SizeEnd !Int !Int
  | -- | Within a chunk: the number of bytes left.
    Chunk !Int !Int
  | -- | After a chunk's last byte; a CR has to follow.
    ChunkCr !Int
  | -- | After that CR; an LF has to follow.
    ChunkLf !Int
  | -- | In the trailer section: bytes and fields so far, and the position in a line.
    Trailer !Int !Int !Line
  | -- | The trailer section is complete.
    Finished
  deriving (Eq, Show)

-- | A position in @*( BWS ";" BWS name [ BWS "=" BWS ( token / quoted-string ) ] )@.
data Extension
  = -- | After blanks; a semicolon has to follow.
    BeforeSemicolon
  | -- | After a semicolon, before the name.
    BeforeName
  | InName
  | -- | In blanks after a name; an equals sign or a semicolon has to follow.
    AfterName
  | -- | After an equals sign.
    BeforeValue
  | InToken
  | InQuotes
  | -- | After a backslash.
    Escaped
  | -- | After the closing quote.
    AfterQuotes
  deriving (Eq, Show)

-- | A position in a line of the trailer section.
data Line = LineStart | FieldName | FieldValue | FieldEnd | LastEnd
  deriving (Eq, Show)

-- | The decoder at the beginning of a body.
newDecoder :: Decoder
newDecoder = Size freeExtensions 0 0

-- | The result of decoding a string.
data Step
  = -- | Bytes of the body, at least one; the rest of the string; the position after them.
    Bytes !ByteString !ByteString !Decoder
  | -- | The whole string was consumed.
    More !Decoder
  | -- | The body is complete; the rest of the string.
    End !ByteString
  | Invalid !Refusal
  deriving (Eq, Show)

-- | Decode the next bytes of the body; trailer fields are dropped.
decode :: Limits -> Decoder -> ByteString -> Step
decode = decodeWith False

-- | Decode the next bytes of the body up to the trailer section: it is at the beginning of the rest that 'End' has.
decodeData :: Limits -> Decoder -> ByteString -> Step
decodeData = decodeWith True

decodeWith :: Bool -> Limits -> Decoder -> ByteString -> Step
decodeWith stops limits from bytes = go from 0
  where
    end = B.length bytes
    go place !i
      | Finished <- place = End (B.unsafeDrop i bytes)
      | i >= end = More place
      | otherwise = case place of
        Size credit n digits -> size credit n digits i
        Extensions credit n len at
          | len >= maxExtensions -> Invalid BadRequest
          | otherwise -> maybe (Invalid BadRequest) (`go` (i + 1)) (extension credit n len at (byteAt bytes i))
        SizeEnd credit n
          | byteAt bytes i /= 10 -> Invalid BadRequest
          | n == 0 -> if stops then End (B.unsafeDrop (i + 1) bytes) else go (Trailer 0 0 LineStart) (i + 1)
          | otherwise -> go (Chunk (credit + n `unsafeShiftR` 2) n) (i + 1)
        Chunk credit left
          | left > end - i -> Bytes (B.unsafeDrop i bytes) B.empty (Chunk credit (left - (end - i)))
          | otherwise -> Bytes (slice bytes i (i + left)) (B.unsafeDrop (i + left) bytes) (ChunkCr credit)
        ChunkCr credit -> if byteAt bytes i == 13 then go (ChunkLf credit) (i + 1) else Invalid BadRequest
        ChunkLf credit -> if byteAt bytes i == 10 then go (Size credit 0 0) (i + 1) else Invalid BadRequest
        Trailer count fields line -> either Invalid (`go` (i + 1)) (trailer limits count fields line (byteAt bytes i))
    size credit n digits i
      | d >= 0 = if digits < maxDigits then go (Size credit (n `unsafeShiftL` 4 .|. d) (digits + 1)) (i + 1) else Invalid BadRequest
      | digits == 0 = Invalid BadRequest
      | c == 13 = go (SizeEnd credit n) (i + 1)
      | credit <= 0 = Invalid BadRequest
      | c == 59 = go (Extensions credit n 1 BeforeName) (i + 1)
      | isBlank c = go (Extensions credit n 1 BeforeSemicolon) (i + 1)
      | otherwise = Invalid BadRequest
      where
        c = byteAt bytes i
        d = hexDigit c
    -- A byte after a size or in its extensions.
    extension credit n len at c = case at of
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
        to next = if len < credit then Just (Extensions credit n (len + 1) next) else Nothing
        ended 13 = Just (SizeEnd (credit - len) n)
        ended 59 = to BeforeName
        ended _ = Nothing
{-# INLINE decodeWith #-}

-- | Consume a byte of the trailer section. Fails if it exceeds a limit or is malformed.
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

-- | The most hexadecimal digits of a size; their value fits into a word.
maxDigits :: Int
maxDigits = 15

-- | The most bytes of extensions of one chunk, with the CR behind them.
maxExtensions :: Int
maxExtensions = 4096

-- | The bytes of extensions that a body may have without any data; a quarter of each chunk's size is added to them.
freeExtensions :: Int
freeExtensions = 16384
