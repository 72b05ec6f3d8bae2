{-# LANGUAGE OverloadedStrings #-}

-- |
-- The methods and field names of nearly every request, as shared constants, so that recognising one
-- allocates nothing. Constants of @http-types@ are used where they exist, so that an application's comparison
-- with them compares addresses. Pure.
module Weft.Http.Parser.Names
  ( -- * Methods
    methodAt,

    -- * Field names
    FieldTag (..),
    Known (..),
    fieldName,
  )
where

import Data.Bits ((.&.), (.|.))
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.CaseInsensitive as CI
import qualified Data.CaseInsensitive.Unsafe as CI
import Data.List (find)
import Data.Maybe (fromMaybe)
import Data.Word (Word8)
import GHC.Arr (Array, listArray, unsafeAt)
import Network.HTTP.Types
import Network.HTTP.Types.Header
import Weft.Http.Parser.Bytes

-- | The method between two offsets. Methods are case-sensitive (RFC 9110, 9.1).
methodAt :: ByteString -> Int -> Int -> Method
methodAt bytes from to = case to - from of
  3
    | byteAt bytes from == 71 && byteAt bytes (from + 1) == 69 && byteAt bytes (from + 2) == 84 -> methodGet
    | spells bytes from "PUT" -> methodPut
  4
    | spells bytes from "POST" -> methodPost
    | spells bytes from "HEAD" -> methodHead
  5
    | spells bytes from "PATCH" -> methodPatch
    | spells bytes from "TRACE" -> methodTrace
  6 | spells bytes from "DELETE" -> methodDelete
  7
    | spells bytes from "OPTIONS" -> methodOptions
    | spells bytes from "CONNECT" -> methodConnect
  _ -> slice bytes from to

-- | The fields that the parser interprets.
data FieldTag
  = Other
  | Host
  | ContentLength
  | TransferEncoding
  | Connection
  | Expect
  | Range
  | Referer
  | UserAgent
  deriving (Eq, Show)

-- | A recognised name: its meaning, and the name in the
-- case in which it was sent.
data Known = Known !FieldTag !HeaderName

-- | Look up the field name between two offsets. All its bytes must be token bytes. A name
-- in its usual case or in lower case is a constant; other names are allocated.
fieldName :: ByteString -> Int -> Int -> Known
fieldName bytes from to = search (unsafeAt table (hashOf len (byteAt bytes from) (byteAt bytes (to - 1))))
  where
    len = to - from
    search End = made Other (slice bytes from to)
    search (Entry usual@(Known tag name) small@(Known _ folded) rest)
      | B.length (CI.original folded) /= len = search rest
      | spells bytes from (CI.original name) = usual
      | spells bytes from (CI.original folded) = small
      | spellsFolded bytes from (CI.original folded) = made tag (slice bytes from to)
      | otherwise = search rest

-- | Whether that lower-case word stands at the offset, in any case. The string's bytes are compared after their
-- lower-case bit was set. This would also make some other bytes equal to a letter, a digit or a hyphen, but those do
-- not occur in tokens.
spellsFolded :: ByteString -> Int -> ByteString -> Bool
spellsFolded = matches (.|. 0x2020202020202020)

-- | A name that is not a constant. A name in lower case is its own case-folded form.
made :: FieldTag -> ByteString -> Known
made tag bytes
  | B.any (\c -> c - 65 <= 25) bytes = Known tag (CI.mk bytes)
  | otherwise = Known tag (CI.unsafeMk bytes)
{-# NOINLINE made #-}

-- | A chain of the names with the same hash, each in the usual case and in lower case.
data Entry = Entry !Known !Known !Entry | End

hashOf :: Int -> Word8 -> Word8 -> Int
hashOf len first final = (len * 37 + fromIntegral (first .|. 0x20) * 11 + fromIntegral (final .|. 0x20)) .&. 255
{-# INLINE hashOf #-}

-- | The names by hash.
table :: Array Int Entry
table = listArray (0, 255) [foldr chained End [n | n <- names, hash (snd n) == i] | i <- [0 .. 255]]
  where
    hash name = hashOf (B.length name) (B.head name) (B.last name)
    chained (tag, name) = let usual = constant name in Entry (Known tag usual) (Known tag (CI.unsafeMk (CI.foldedCase usual)))
    constant name = let made' = CI.mk name in fromMaybe made' (find (== made') constants)
{-# NOINLINE table #-}

-- | The constants of @http-types@.
constants :: [HeaderName]
constants =
  [ hAccept,
    hAcceptCharset,
    hAcceptEncoding,
    hAcceptLanguage,
    hAcceptRanges,
    hAge,
    hAuthorization,
    hCacheControl,
    hConnection,
    hContentDisposition,
    hContentEncoding,
    hContentLength,
    hContentType,
    hCookie,
    hDate,
    hETag,
    hExpect,
    hExpires,
    hFrom,
    hHost,
    hIfMatch,
    hIfModifiedSince,
    hIfNoneMatch,
    hIfRange,
    hIfUnmodifiedSince,
    hLastModified,
    hLocation,
    hOrigin,
    hPragma,
    hRange,
    hReferer,
    hServer,
    hSetCookie,
    hTE,
    hTrailer,
    hTransferEncoding,
    hUpgrade,
    hUserAgent,
    hVary,
    hVia
  ]

-- | The recognised names, in the case that HTTP\/1 clients use.
names :: [(FieldTag, ByteString)]
names =
  [ (Host, "Host"),
    (ContentLength, "Content-Length"),
    (TransferEncoding, "Transfer-Encoding"),
    (Connection, "Connection"),
    (Expect, "Expect"),
    (Range, "Range"),
    (Referer, "Referer"),
    (UserAgent, "User-Agent")
  ]
    <> map
      ((,) Other)
      [ "Accept",
        "Accept-Charset",
        "Accept-Encoding",
        "Accept-Language",
        "Access-Control-Request-Headers",
        "Access-Control-Request-Method",
        "Authorization",
        "Cache-Control",
        "Content-Disposition",
        "Content-Encoding",
        "Content-Type",
        "Cookie",
        "DNT",
        "Date",
        "Forwarded",
        "From",
        "If-Match",
        "If-Modified-Since",
        "If-None-Match",
        "If-Range",
        "If-Unmodified-Since",
        "Keep-Alive",
        "Origin",
        "Pragma",
        "Priority",
        "Proxy-Connection",
        "Sec-CH-UA",
        "Sec-CH-UA-Mobile",
        "Sec-CH-UA-Platform",
        "Sec-Fetch-Dest",
        "Sec-Fetch-Mode",
        "Sec-Fetch-Site",
        "Sec-Fetch-User",
        "Sec-GPC",
        "Sec-WebSocket-Extensions",
        "Sec-WebSocket-Key",
        "Sec-WebSocket-Protocol",
        "Sec-WebSocket-Version",
        "TE",
        "Trailer",
        "Upgrade",
        "Upgrade-Insecure-Requests",
        "Via",
        "X-Forwarded-For",
        "X-Forwarded-Host",
        "X-Forwarded-Proto",
        "X-Real-IP",
        "X-Request-ID",
        "X-Requested-With"
      ]
    -- Of responses, for clients.
    <> map
      ((,) Other)
      [ "Accept-Ranges",
        "Access-Control-Allow-Origin",
        "Age",
        "Alt-Svc",
        "ETag",
        "Expires",
        "Last-Modified",
        "Location",
        "Referrer-Policy",
        "Server",
        "Set-Cookie",
        "Strict-Transport-Security",
        "Vary",
        "X-Content-Type-Options",
        "X-Frame-Options",
        "X-Powered-By"
      ]
