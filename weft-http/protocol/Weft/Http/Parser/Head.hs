{-# LANGUAGE OverloadedStrings #-}
-- Passes the string and the offsets unboxed; by default, GHC does not unbox more than ten arguments.
{-# OPTIONS_GHC -fmax-worker-args=32 #-}

-- |
-- Parses request heads of HTTP\/1 (RFC 9112) in the receive buffer. Pure and total. The framing of a request is
-- determined only here; later stages never examine these
-- bytes again. Every string in the result is a slice of the buffer or a shared constant.
--
-- A head may arrive in any number of segments. The result depends only on the bytes: a line is
-- judged when it is complete, or when it is longer than any line may be. A head of n bytes in
-- segments of one byte costs one scan of each byte and one parse for each line, of at most
-- 'limitFields' lines.
module Weft.Http.Parser.Head
  ( -- * Parsing
    resumeHead,
    Outcome (..),
    Resume (..),
    start,

    -- * Heads
    Head (..),
    Framing (..),
    Flags,
    expectsContinue,
    isSet,
    flagOld,
    flagClose,
    flagKeepAlive,
    flagExpect,
    flagHead,
    connectionFlags,
  )
where

import Data.Bits (complement, (.&.), (.|.))
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import qualified Data.CaseInsensitive as CI
import Network.HTTP.Types (Header, Method)
import Network.HTTP.Types.Header (hHost)
import Weft.Http.Limits
import Weft.Http.Parser.Bytes
import Weft.Http.Parser.Host
import Weft.Http.Parser.Names

-- | A request's head.
data Head = Head
  { headMethod :: !Method,
    -- | As it was sent, without scheme and authority; not decoded.
    headPath :: !ByteString,
    -- | The query with its question mark; empty if there is none.
    headQuery :: !ByteString,
    headFlags :: !Flags,
    headFraming :: !Framing,
    -- | The fields in the order in which they were sent.
    headFields :: ![Header],
    -- | The target's authority if it has one (RFC 9112, 3.2.2), or else the @Host@ field.
    headHost :: !(Maybe ByteString),
    headRange :: !(Maybe ByteString),
    headReferer :: !(Maybe ByteString),
    headUserAgent :: !(Maybe ByteString),
    -- | The offset of the first byte after the head.
    headEnd :: !Int
  }
  deriving (Eq, Show)

-- | The framing of the body (RFC 9112, 6.3).
data Framing = NoBody | Sized !Int | Chunked
  deriving (Eq, Show)

-- | A set of the flags below.
type Flags = Int

-- | The request is HTTP\/1.0; @Connection@ contains @close@; it contains @keep-alive@; the client expects
-- a 100 (Continue) before it sends its body; the method is HEAD.
flagOld, flagClose, flagKeepAlive, flagExpect, flagHead :: Flags
flagOld = 1
flagClose = 2
flagKeepAlive = 4
flagExpect = 8
flagHead = 64

-- | Used within the parser: there was a host field; there was a transfer coding.
flagHost, flagCoding :: Flags
flagHost = 16
flagCoding = 32

-- | Does the set in the second argument contain one of the flags in the first?
isSet :: Flags -> Flags -> Bool
isSet flag flags = flags .&. flag /= 0
{-# INLINE isSet #-}

-- | The result of parsing the bytes received so far.
data Outcome
  = -- | The head is not complete.
    Incomplete !Resume
  | Complete !Head
  | Refused !Refusal
  | -- | The first line of the HTTP\/2 preface (RFC 9113, 3.4).
    Preface
  deriving (Eq, Show)

-- | Up to which offset an incomplete head was searched for the end of a line, and the number of bytes up to
-- which another attempt is useless unless a line has ended.
data Resume = Resume !Int !Int
  deriving (Eq, Show)

-- | The state for a head that has not been examined yet.
start :: Resume
start = Resume 0 0

-- | Parse a head, part of which was parsed before. The string begins with that part.
resumeHead :: Limits -> Resume -> ByteString -> Outcome
resumeHead limits (Resume searched quiet) bytes
  | B.length bytes <= quiet && lineFeedFrom bytes searched < 0 = Incomplete (Resume (B.length bytes) quiet)
  | otherwise = parseHead limits bytes

-- | Parse the head at the beginning of a string.
parseHead :: Limits -> ByteString -> Outcome
parseHead limits bytes = leading 0
  where
    end = B.length bytes
    -- RFC 9112, 2.2: empty lines before a request are ignored, up to a limit.
    leading i
      | i >= end = nothingYet
      | c == 13 = if i + 1 >= end then nothingYet else if byteAt bytes (i + 1) == 10 && i < maxLeading then leading (i + 2) else Refused BadRequest
      | isToken c = requestLine limits bytes i
      | otherwise = Refused BadRequest
      where
        c = byteAt bytes i
    nothingYet = Incomplete (Resume end end)

-- | The most bytes of empty lines before a request that are ignored.
maxLeading :: Int
maxLeading = 8

-- Lines ----------------------------------------------------------------------------------

-- | The result for a line that is malformed or not complete. It is malformed if it is complete and within the limit.
-- The first offset is the beginning of the head, the second that of the line.
unusable :: Limits -> ByteString -> Int -> Int -> Outcome
unusable limits bytes base from
  | size > allowed = Refused (if from == base && size > limitTarget limits then TargetTooLong else HeadTooLarge)
  | lineFeed < 0 = Incomplete (Resume (B.length bytes) (base + allowed))
  | otherwise = Refused BadRequest
  where
    lineFeed = lineFeedFrom bytes from
    size = (if lineFeed < 0 then B.length bytes else lineFeed + 1) - base
    allowed = if from == base then min (limitTarget limits) (limitHead limits) else limitHead limits
{-# NOINLINE unusable #-}

-- | A method, a target and a version with one space between them (RFC 9112, 3).
requestLine :: Limits -> ByteString -> Int -> Outcome
requestLine limits bytes base
  | afterTarget + 10 >= end = again
  | byteAt bytes afterMethod /= 32 || byteAt bytes afterTarget /= 32 || afterTarget == afterMethod + 1 = again
  | byteAt bytes (afterTarget + 9) /= 13 || byteAt bytes (afterTarget + 10) /= 10 = again
  | lineEnd - base > min (limitTarget limits) (limitHead limits) = again
  | version == http11 || version == http10 || laterMinor =
    target bytes method (afterMethod + 1) afterTarget $ \line ->
      fieldLines limits bytes base line lineEnd (if version == http10 then flagOld .|. isHead else isHead)
  | version == http20 && slice bytes base afterTarget == "PRI *" = Preface
  | otherwise = unsupported
  where
    end = B.length bytes
    afterMethod = skipToken bytes base
    afterTarget = skipTarget bytes (afterMethod + 1)
    lineEnd = afterTarget + 11
    version = wordAt bytes (afterTarget + 1)
    again = unusable limits bytes base base
    -- Evaluated here, so that the following code can pass it on directly.
    !method = methodAt bytes base afterMethod
    isHead = if afterMethod == base + 4 && method == "HEAD" then flagHead else 0
    -- RFC 9110, 2.5: a request of a later minor version is processed as one of HTTP/1.1.
    laterMinor = slice bytes (afterTarget + 1) (afterTarget + 8) == "HTTP/1." && isDigit (byteAt bytes (afterTarget + 8))
    unsupported
      | "HTTP/" `B.isPrefixOf` text && isDigit (byteAt text 5) && byteAt text 6 == 46 && isDigit (byteAt text 7) = Refused UnknownVersion
      | otherwise = Refused BadRequest
      where
        text = slice bytes (afterTarget + 1) (afterTarget + 9)
    -- "HTTP/1.1" and so on, as little-endian words.
    http11 = littleEndian 0x312e312f50545448
    http10 = littleEndian 0x302e312f50545448
    http20 = littleEndian 0x302e322f50545448

-- | The offset of the first byte that is not allowed in a target, or the end. Control characters,
-- spaces, DEL, and the number sign, which begins a fragment, are not allowed. Bytes from 0x80 on are accepted,
-- as other servers do.
skipTarget :: ByteString -> Int -> Int
skipTarget bytes = go
  where
    end = B.length bytes
    go i
      | i < end && ok (byteAt bytes i) = go (i + 1)
      | otherwise = i
    ok c = c > 32 && c /= 127 && c /= 35
{-# INLINE skipTarget #-}

-- | The first line of a request, without its version.
data RequestLine = RequestLine
  { lineMethod :: !Method,
    linePath :: !ByteString,
    lineQuery :: !ByteString,
    -- | The target's authority if it has one.
    lineAuthority :: !(Maybe ByteString)
  }

-- | Parse a target between two offsets, in one of its four forms (RFC 9112, 3.2), and continue with the line.
target :: ByteString -> Method -> Int -> Int -> (RequestLine -> Outcome) -> Outcome
target bytes method from to continue
  | byteAt bytes from == 47 && method /= "CONNECT" = origin from
  | otherwise = otherForm
  where
    origin i
      | i >= to = continue (RequestLine method (slice bytes from to) B.empty Nothing)
      | byteAt bytes i == 63 = continue (RequestLine method (slice bytes from i) (slice bytes i to) Nothing)
      | otherwise = origin (i + 1)
    text = slice bytes from to
    split whole authority = let (path, query) = C.break (== '?') whole in continue (RequestLine method path query authority)
    otherForm
      | method == "CONNECT" = if validAuthority text then split text (Just text) else Refused BadRequest
      | text == "*" = if method == "OPTIONS" then split text Nothing else Refused BadRequest
      | Just rest <- afterScheme text,
        (authority, path) <- C.span (\c -> c /= '/' && c /= '?') rest,
        validHost authority =
        if "/" `B.isPrefixOf` path then split path (Just authority) else split ("/" <> path) (Just authority)
      | otherwise = Refused BadRequest
{-# INLINE target #-}

-- | What follows the scheme of a target in absolute form.
afterScheme :: ByteString -> Maybe ByteString
afterScheme text
  | CI.mk (B.take 7 text) == "http://" = Just (B.drop 7 text)
  | CI.mk (B.take 8 text) == "https://" = Just (B.drop 8 text)
  | otherwise = Nothing

-- Fields ---------------------------------------------------------------------------------

-- | What the field lines so far say.
data Fields = Fields
  { seenFlags :: !Flags,
    -- | The length of @Content-Length@, or -1.
    seenLength :: !Int,
    -- | The last one first.
    seenFields :: ![Header],
    seenHost :: !(Maybe ByteString),
    seenRange :: !(Maybe ByteString),
    seenReferer :: !(Maybe ByteString),
    seenUserAgent :: !(Maybe ByteString)
  }

-- | Parse the field lines up to the empty line (RFC 9112, 5), given the offsets at which the head and the first field
-- line begin.
fieldLines :: Limits -> ByteString -> Int -> RequestLine -> Int -> Flags -> Outcome
fieldLines limits bytes base !request !from0 !flags0 = go from0 0 (Fields flags0 (-1) [] Nothing Nothing Nothing Nothing)
  where
    end = B.length bytes
    !most = if limitFields limits > 0 then limitFields limits else maxBound
    go !from !count !seen
      | from + 1 >= end = again
      | first == 13 && byteAt bytes (from + 1) == 10 =
        if from + 2 - base > limitHead limits then again else finish request seen (from + 2)
      | otherwise = line from count seen (fieldEnds bytes from)
      where
        first = byteAt bytes from
        again = unusable limits bytes base from
    line from count seen (Ends colon valueEnd)
      | colon == from || valueEnd + 1 >= end = again
      | byteAt bytes colon /= 58 || byteAt bytes valueEnd /= 13 || byteAt bytes (valueEnd + 1) /= 10 = again
      | next - base > limitHead limits = again
      | count >= most = Refused HeadTooLarge
      | !value <- valueBetween bytes (colon + 1) valueEnd = case fieldName bytes from colon of
        Known tag name ->
          let !field = (name, value)
              !flags = seenFlags seen
              more = seen {seenFields = field : seenFields seen}
              flagged flag = more {seenFlags = flags .|. flag}
              continue = go next (count + 1)
           in case tag of
                Other -> continue more
                Host
                  | isSet flagHost flags || not (validHost value) -> Refused BadRequest
                  | otherwise -> continue (flagged flagHost) {seenHost = Just value}
                UserAgent -> continue more {seenUserAgent = Just value}
                Referer -> continue more {seenReferer = Just value}
                Range -> continue more {seenRange = Just value}
                Connection -> continue (flagged (connectionFlags value))
                ContentLength
                  | seenLength seen >= 0 || given < 0 -> Refused BadRequest
                  | otherwise -> continue more {seenLength = given}
                  where
                    given = decimal value
                TransferEncoding
                  | CI.mk value /= "chunked" -> Refused UnknownCoding
                  | isSet (flagCoding .|. flagOld) flags -> Refused BadRequest
                  | otherwise -> continue (flagged flagCoding)
                Expect
                  | isSet flagOld flags -> continue more
                  | expectsContinue value -> continue (flagged flagExpect)
                  | otherwise -> Refused UnknownExpectation
      where
        next = valueEnd + 2
        again = unusable limits bytes base from
    {-# INLINE line #-}

-- | Does the list of an @Expect@ field have @100-continue@ and nothing else (RFC 9110, 10.1.1)?
expectsContinue :: ByteString -> Bool
expectsContinue value = not (null members) && all (== "100-continue") members
  where
    members = filter (/= "") (map (CI.mk . trimBlanks) (C.split ',' value))

-- | Combine what the lines say after the empty line was read; the offset is the one behind it.
finish :: RequestLine -> Fields -> Int -> Outcome
finish request seen behind
  | not (isSet (flagHost .|. flagOld) flags) = Refused BadRequest
  | isSet flagCoding flags && seenLength seen >= 0 = Refused BadRequest
  | otherwise =
    Complete
      Head
        { headMethod = lineMethod request,
          headPath = linePath request,
          headQuery = lineQuery request,
          headFlags = if framing == NoBody then flags .&. complement flagExpect else flags,
          headFraming = framing,
          headFields = maybe reversed (\a -> map (replaced a) reversed) authority,
          headHost = maybe (seenHost seen) Just authority,
          headRange = seenRange seen,
          headReferer = seenReferer seen,
          headUserAgent = seenUserAgent seen,
          headEnd = behind
        }
  where
    authority = lineAuthority request
    flags = seenFlags seen
    reversed = case seenFields seen of
      one@[_] -> one
      fields -> reverse fields
    framing
      | isSet flagCoding flags = Chunked
      | seenLength seen > 0 = Sized (seenLength seen)
      | otherwise = NoBody
    -- RFC 9112, 3.2.2: the target's authority replaces the field.
    replaced a field@(name, _)
      | name == hHost = (name, a)
      | otherwise = field

-- | What a @Connection@ field asks for (RFC 9110, 7.6.1): a list of case-insensitive
-- options.
connectionFlags :: ByteString -> Flags
connectionFlags value
  | isWord "keep-alive" value = flagKeepAlive
  | isWord "close" value = flagClose
  | otherwise = foldr ((.|.) . option . CI.mk . trimBlanks) 0 (C.split ',' value)
  where
    option name
      | name == "close" = flagClose
      | name == "keep-alive" = flagKeepAlive
      | otherwise = 0
