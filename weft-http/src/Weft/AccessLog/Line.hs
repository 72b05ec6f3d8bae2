{-# LANGUAGE OverloadedStrings #-}

-- |
-- The lines of an access log. No data from a client can end a line or a field, or make
-- either longer than its limit.
module Weft.AccessLog.Line
  ( LogFormat (..),
    Subject (..),
    line,
    longestLine,

    -- * The date
    Date,
    dateEnds,
    dateAt,
  )
where

import Data.ByteArray.Encoding (Base (Base64), convertFromBase)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import qualified Data.CaseInsensitive as CI
import Data.Time.Clock.POSIX (POSIXTime, posixSecondsToUTCTime)
import Data.Time.Format (defaultTimeLocale, formatTime)
import Network.HTTP.Types (HttpVersion (..), Status (..), hAuthorization)
import Network.Wai
import Weft.AccessLog.Put
import Weft.Core.Time (Duration (..), Instant (..))
import Weft.Exchange
import Weft.Socket (SockAddr (..), hostAddressToTuple)
import Weft.Socket.Address (hostText, unmapped)

-- | The format of a line.
data LogFormat
  = -- | The combined format of Apache and nginx, with nginx's escaping:
    --
    -- > 192.0.2.7 - - [21/Nov/2026:14:30:24 +0000] "GET /a HTTP/1.1" 200 612 "-" "curl/7.88.1"
    --
    -- The third field is the name of basic authentication (RFC 7617) that the client has sent, also if it was not
    -- accepted, with its spaces escaped, or @-@. An unknown number of bytes is written as @-@. For a refused
    -- connection, the reason stands in place of the request.
    Combined
  | -- | One JSON object (RFC 8259) with @time@ (RFC 3339), @peer@, @user@ (of basic authentication, as above), @host@
    -- (as the client named it, in @Host@ or @:authority@), @method@, @target@, @version@, @status@, @bytes@ (null if
    -- not known), @seconds@ (to the microsecond), @referer@, @agent@, @aborted@; for a refused connection @time@,
    -- @peer@, @status@, @refused@. Strings hold the received bytes, each as the character with that code (ISO 8859-1).
    Json
  deriving (Eq, Show, Enum, Bounded)

-- | What a line is about.
data Subject
  = Answered !Request !Exchange
  | -- | A connection that was closed before the application got a request: the peer, the
    -- status that it was sent, if any, and the reason.
    Refused !SockAddr !(Maybe Status) !ByteString

-- | One line with its line end.
line :: LogFormat -> Date -> Subject -> Put
line format date subject = case format of
  Combined -> combined date subject
  Json -> json date subject
{-# INLINE line #-}

-- | The greatest length of a line in bytes.
longestLine :: Int
longestLine = 6 * (sum [longestUser, longestHost, longestMethod, longestTarget, longestReferer, longestAgent] + 200)

-- The number of bytes shown of each field. The rest is left out, so that a client cannot make a
-- line too long to be written.
longestUser, longestHost, longestMethod, longestTarget, longestReferer, longestAgent :: Int
longestUser = 255
longestHost = 255
longestMethod = 64
longestTarget = 8192
longestReferer = 2048
longestAgent = 1024

combined :: Date -> Subject -> Put
combined date subject = case subject of
  Answered request exchange ->
    peer (remoteHost request)
      <> " - "
      <> maybe "-" name (userOf request)
      <> dated
      <> quoted longestMethod (requestMethod request)
      <> " "
      <> target quoted request
      <> " "
      <> version request
      <> "\" "
      <> decimal (exchangeStatus exchange)
      <> " "
      <> maybe "-" decimal (exchangeBytes exchange)
      <> " \""
      <> field longestReferer (requestHeaderReferer request)
      <> "\" \""
      <> field longestAgent (requestHeaderUserAgent request)
      <> "\"\n"
  Refused sender status reason ->
    peer sender <> " - -" <> dated <> quoted longestMethod reason <> "\" " <> maybe "-" (decimal . statusCode) status <> " 0 \"-\" \"-\"\n"
  where
    dated = " [" <> bytes (dateCombined date) <> "] \""
    name user = if B.null user then "-" else words' (C.split ' ' (B.take longestUser user))
    words' parts = case parts of
      [] -> mempty
      [part] -> escaped "\\x" part
      part : more -> escaped "\\x" part <> "\\x20" <> words' more
    quoted most string = escaped "\\x" (B.take most string)
    field most = maybe "-" (quoted most)

json :: Date -> Subject -> Put
json date subject = case subject of
  Answered request exchange ->
    begin (remoteHost request)
      <> "\",\"user\":"
      <> field longestUser (userOf request)
      <> ",\"host\":"
      <> field longestHost (requestHeaderHost request)
      <> ",\"method\":\""
      <> quoted longestMethod (requestMethod request)
      <> "\",\"target\":\""
      <> target quoted request
      <> "\",\"version\":\""
      <> version request
      <> "\",\"status\":"
      <> decimal (exchangeStatus exchange)
      <> ",\"bytes\":"
      <> maybe "null" decimal (exchangeBytes exchange)
      <> ",\"seconds\":"
      <> secondsOf (exchangeTook exchange)
      <> ",\"referer\":"
      <> field longestReferer (requestHeaderReferer request)
      <> ",\"agent\":"
      <> field longestAgent (requestHeaderUserAgent request)
      <> (if exchangeAborted exchange then ",\"aborted\":true}\n" else ",\"aborted\":false}\n")
  Refused sender status reason ->
    begin sender
      <> "\",\"status\":"
      <> maybe "null" (decimal . statusCode) status
      <> ",\"refused\":\""
      <> quoted longestMethod reason
      <> "\"}\n"
  where
    begin sender = "{\"time\":\"" <> bytes (dateJson date) <> "\",\"peer\":\"" <> peer sender
    quoted most string = escaped "\\u00" (B.take most string)
    field most = maybe "null" (\value -> "\"" <> quoted most value <> "\"")

-- | The name that the client has sent for basic authentication.
userOf :: Request -> Maybe ByteString
userOf request = lookup hAuthorization (requestHeaders request) >>= named

named :: ByteString -> Maybe ByteString
named value = case C.break (== ' ') value of
  (scheme, rest)
    | CI.mk scheme == "basic",
      B.length rest < 1000,
      Right text <- convertFromBase Base64 (C.dropWhile (== ' ') rest),
      (user, password) <- C.break (== ':') text,
      not (B.null password) ->
      Just user
  _ -> Nothing
{-# NOINLINE named #-}

-- | Path and query as they were sent.
target :: (Int -> ByteString -> Put) -> Request -> Put
target quoted request = quoted longestTarget path <> quoted (longestTarget - B.length path) (rawQueryString request)
  where
    path = rawPathInfo request
{-# INLINE target #-}

version :: Request -> Put
version request =
  let HttpVersion major minor = httpVersion request
   in "HTTP/" <> decimal major <> "." <> decimal minor

-- | Whole seconds and six digits.
secondsOf :: Duration -> Put
secondsOf (Duration ns) = decimal whole <> "." <> decimalIn 6 rest
  where
    (whole, rest) = (fromIntegral (max 0 ns) `quot` 1000) `quotRem` 1000000

-- Addresses ------------------------------------------------------------------------------

-- | An address without its port, as 'hostText' has it.
peer :: SockAddr -> Put
peer address = case unmapped address of
  SockAddrInet _ host
    | (a, b, c, d) <- hostAddressToTuple host -> part a <> "." <> part b <> "." <> part c <> "." <> part d
  other -> maybe "unix:" bytes (hostText other)
  where
    part = decimal . fromIntegral

-- The date -------------------------------------------------------------------------------

-- | A second as text, in both formats, and the instant until which it is valid.
data Date = Date
  { dateEnds :: !Instant,
    dateCombined :: !ByteString,
    dateJson :: !ByteString
  }

-- | The text of a time (UTC) that is current at the given instant.
dateAt :: Instant -> POSIXTime -> Date
dateAt (Instant t) time =
  Date
    { dateEnds = Instant (t + ceiling (1e9 * (fromInteger (second + 1) - time))),
      dateCombined = text "%d/%b/%Y:%H:%M:%S +0000",
      dateJson = text "%Y-%m-%dT%H:%M:%SZ"
    }
  where
    second = floor time :: Integer
    text form = C.pack (formatTime defaultTimeLocale form (posixSecondsToUTCTime (fromInteger second)))
