{-# LANGUAGE OverloadedStrings #-}

-- |
-- Parses response heads of HTTP\/1 (RFC 9112) and trailer sections in the receive buffer. Pure and total. The framing
-- of a response is determined only here. Every string in the result is a slice of the buffer or a shared constant.
--
-- A head may arrive in any number of segments. The result depends only on the bytes: a line is judged when it is
-- complete, or when the head is longer than it may be.
--
-- What two recipients could interpret differently is refused: a length beside a transfer coding, several lengths, a
-- coding other than @chunked@, a coding in HTTP\/1.0, lines that end without CR, folded lines, blanks before a colon. A
-- length that is repeated with the same value becomes one (RFC 9110, 8.6).
module Weft.Http.Parser.Response
  ( -- * Heads
    resumeResponse,
    ResponseOutcome (..),
    ResponseHead (..),
    ResponseFraming (..),

    -- * Trailer sections
    resumeTrailers,
    TrailerOutcome (..),

    -- * Reasons
    Violation (..),
  )
where

import Data.Bits ((.&.), (.|.))
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import qualified Data.CaseInsensitive as CI
import Network.HTTP.Types (Header)
import Network.HTTP.Types.Header (hContentLength, hTransferEncoding)
import Weft.Http.Limits
import Weft.Http.Parser.Bytes
import Weft.Http.Parser.Head (Flags, Resume (..), connectionFlags, flagClose, flagKeepAlive, isSet)
import Weft.Http.Parser.Names

-- | A response's head.
data ResponseHead = ResponseHead
  { -- | From 100 to 999.
    headStatus :: !Int,
    headReason :: !ByteString,
    -- | In the order in which they were sent, with one @Content-Length@ at most.
    headResponseFields :: ![Header],
    headResponseFraming :: !ResponseFraming,
    -- | Whether the server keeps the connection open after this response (RFC 9112, 9.3).
    headPersists :: !Bool,
    -- | The offset of the first byte after the head.
    headResponseEnd :: !Int
  }
  deriving (Eq, Show)

-- | The framing of the body (RFC 9112, 6.3).
data ResponseFraming
  = -- | The request was HEAD, or the status is 1xx, 204 or 304.
    ResponseEmpty
  | ResponseSized !Int
  | ResponseChunked
  | -- | The body ends with the connection.
    ResponseToEnd
  deriving (Eq, Show)

-- | Why something is not a response that can be relied on.
data Violation
  = -- | The first line is not a status line.
    NoStatusLine
  | -- | The version is not 1.x.
    OtherVersion
  | -- | A line that is no field, or a field that is malformed.
    BadField
  | -- | There are several lengths, a malformed one, a length beside a transfer coding, or a coding in HTTP\/1.0.
    BadFraming
  | -- | A transfer coding other than @chunked@.
    OtherCoding
  | -- | A chunk's size, its end or its extensions are malformed.
    BadChunk
  | -- | The head or the trailer section has more bytes or fields than the limit.
    TooManyFields
  | -- | There are more interim responses than allowed.
    TooManyInterim
  | -- | The server switches to a protocol that was not asked for (101).
    UnaskedUpgrade
  deriving (Eq, Ord, Show, Enum, Bounded)

-- | The result of parsing the bytes received so far.
data ResponseOutcome
  = -- | The head is not complete.
    ResponseIncomplete !Resume
  | ResponseComplete !ResponseHead
  | ResponseInvalid !Violation
  deriving (Eq, Show)

-- | Parse a head, part of which was parsed before; the string begins with that part. The second argument says whether
-- the request was HEAD. What cannot become a status line is invalid from its first byte on. Of the limits, those on
-- heads and on fields count; the status line belongs to the head.
resumeResponse :: Limits -> Bool -> Resume -> ByteString -> ResponseOutcome
resumeResponse limits toHead (Resume searched _) bytes
  | not (B.take 5 bytes `B.isPrefixOf` "HTTP/") = ResponseInvalid NoStatusLine
  | lineFeedFrom bytes searched < 0 = if tooLong limits (B.length bytes) then ResponseInvalid TooManyFields else ResponseIncomplete (Resume (B.length bytes) 0)
  | otherwise = case lineAt limits bytes 0 of
    Unfinished -> ResponseIncomplete (Resume (B.length bytes) 0)
    Overlong -> ResponseInvalid TooManyFields
    Ended end next -> statusLine limits toHead bytes end next

-- | A line: not complete, beyond the limit, or the offset of its end and that of the next line.
data Line = Unfinished | Overlong | Ended !Int !Int

-- | The line at an offset. It ends before its LF; whether a CR is there is for the one who reads it.
lineAt :: Limits -> ByteString -> Int -> Line
lineAt limits bytes from
  | feed < 0 = if tooLong limits (B.length bytes) then Overlong else Unfinished
  | tooLong limits (feed + 1) = Overlong
  | otherwise = Ended feed (feed + 1)
  where
    feed = lineFeedFrom bytes from

tooLong :: Limits -> Int -> Bool
tooLong limits n = n > limitHead limits

-- | A version, a status of three digits and a reason, which may be empty (RFC 9112, 4). The space before an empty
-- reason may be missing.
statusLine :: Limits -> Bool -> ByteString -> Int -> Int -> ResponseOutcome
statusLine limits toHead bytes feed next
  | end < 12 || byteAt bytes end /= 13 = ResponseInvalid NoStatusLine
  | not (isDigit (byteAt bytes 5) && byteAt bytes 6 == 46 && isDigit (byteAt bytes 7) && byteAt bytes 8 == 32) = ResponseInvalid NoStatusLine
  | byteAt bytes 5 /= 49 = ResponseInvalid OtherVersion
  | status < 100 || (end > 12 && byteAt bytes 12 /= 32) || not (B.all isFieldByte reason) = ResponseInvalid NoStatusLine
  | otherwise = case fieldSection limits bytes next of
    SectionIncomplete -> ResponseIncomplete (Resume (B.length bytes) 0)
    SectionInvalid why -> ResponseInvalid why
    Section fields framing behind -> finish status fields framing behind
  where
    end = feed - 1
    status = decimal (slice bytes 9 12)
    reason = slice bytes (min end 13) end
    old = byteAt bytes 7 == 48
    finish code fields (Framing flags len coded) behind
      | code < 200 || code == 204 || code == 304 || toHead = complete ResponseEmpty
      | old && coded = ResponseInvalid BadFraming
      | coded && len >= 0 = ResponseInvalid BadFraming
      | coded = complete ResponseChunked
      | len >= 0 = complete (ResponseSized len)
      | otherwise = complete ResponseToEnd
      where
        complete framing =
          ResponseComplete
            ResponseHead
              { headStatus = code,
                headReason = reason,
                headResponseFields = fields,
                headResponseFraming = framing,
                headPersists = framing /= ResponseToEnd && not (isSet flagClose flags) && (not old || isSet flagKeepAlive flags),
                headResponseEnd = behind
              }

-- | What fields say of the connection and of the body: flags, the length or -1, and whether the body is chunked.
data Framing = Framing !Flags !Int !Bool

data Section
  = SectionIncomplete
  | SectionInvalid !Violation
  | -- | The fields, what they say, and the offset behind the empty line.
    Section ![Header] !Framing !Int

-- | The field lines from an offset up to the empty line (RFC 9112, 5).
fieldSection :: Limits -> ByteString -> Int -> Section
fieldSection limits bytes = go 0 [] (Framing 0 (-1) False)
  where
    most = if limitFields limits > 0 then limitFields limits else maxBound
    go :: Int -> [Header] -> Framing -> Int -> Section
    go count acc framing from = case lineAt limits bytes from of
      Unfinished -> SectionIncomplete
      Overlong -> SectionInvalid TooManyFields
      Ended feed next
        | feed == from || byteAt bytes (feed - 1) /= 13 -> SectionInvalid BadField
        | feed == from + 1 -> Section (reverse acc) framing next
        | colon == from || byteAt bytes colon /= 58 || valueEnd /= feed - 1 -> SectionInvalid BadField
        | count >= most -> SectionInvalid TooManyFields
        | otherwise -> field count acc framing next (fieldName bytes from colon) (valueBetween bytes (colon + 1) valueEnd)
        where
          Ends colon valueEnd = fieldEnds bytes from
    field count acc framing@(Framing flags len coded) next (Known tag name) value = case tag of
      Connection -> plain (Framing (flags .|. (connectionFlags value .&. (flagClose .|. flagKeepAlive))) len coded)
      ContentLength
        -- RFC 9110, 8.6: several, equal or not, and lists may be refused, and are in requests too.
        | given < 0 || len >= 0 -> SectionInvalid BadFraming
        | otherwise -> go (count + 1) ((name, canonical) : acc) (Framing flags given coded) next
        where
          given = decimal value
          -- Zeros in front are not passed on.
          canonical
            | B.length value > 1 && byteAt value 0 == 48 = C.pack (show given)
            | otherwise = value
      TransferEncoding
        | CI.mk value /= "chunked" -> SectionInvalid OtherCoding
        | coded -> SectionInvalid BadFraming
        | otherwise -> plain (Framing flags len True)
      _ -> plain framing
      where
        plain said = go (count + 1) ((name, value) : acc) said next

-- | The result of parsing a trailer section.
data TrailerOutcome
  = TrailersIncomplete !Resume
  | -- | The fields, and the offset behind the section.
    Trailers ![Header] !Int
  | TrailersInvalid !Violation
  deriving (Eq, Show)

-- | Parse a trailer section (RFC 9112, 7.1.2), part of which was parsed before; the string begins with its first byte.
-- Fields for framing have no meaning in it and are left out (RFC 9110, 6.5.1).
resumeTrailers :: Limits -> Resume -> ByteString -> TrailerOutcome
resumeTrailers limits (Resume searched _) bytes
  | lineFeedFrom bytes searched < 0 = if tooLong limits (B.length bytes) then TrailersInvalid TooManyFields else incomplete
  | otherwise = case fieldSection limits bytes 0 of
    SectionIncomplete -> incomplete
    SectionInvalid why -> TrailersInvalid why
    Section fields _ behind -> Trailers [f | f@(name, _) <- fields, name `notElem` [hContentLength, hTransferEncoding]] behind
  where
    incomplete = TrailersIncomplete (Resume (B.length bytes) 0)
