{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : Middleware in front of a site's files
--
-- WAI middleware for additional header fields, error pages, a fallback page, redirects and CORS. Without settings of
-- its kind, each is the identity.
module Weft.Tools.Serve.Respond
  ( withHeaders,
    withLastingOf,
    withFileFieldsOf,
    withErrorPages,
    withFallback,
    withRedirects,
    withProxies,
    withChallenges,
    toHttps,
    withCors,
    requesting,
    plainText,
  )
where

import Data.ByteString (ByteString)
import qualified Data.ByteString.Char8 as B
import qualified Data.ByteString.Lazy as L
import qualified Data.CaseInsensitive as CI
import Data.List (sortOn)
import Data.Maybe (isJust)
import Network.HTTP.Types
import Network.HTTP.Types.Header (hContentLanguage, hContentRange, hETag, hIfMatch, hIfNoneMatch, hIfUnmodifiedSince, hVary)
import Network.Wai
import Weft.Static (encodeUrl)
import Weft.Tools.Serve.Paths (nextByte)
import Weft.Tools.Serve.Rules (Places, Rule, fieldsFor)
import Weft.Tools.Serve.Values (Redirect (..))

-- | Pass requests on whose paths begin so, the longest prefix first. One that does not end with a slash has to end
-- where a segment of the path does. A path with the segments @.@ or @..@, encoded or not, with parameters or without,
-- gets 400: the server behind could understand another path. CONNECT, which asks for a tunnel and has no path, gets
-- 501: nothing here is the other end of one (RFC 9110, 9.3.6 and 15.6.2).
withProxies :: [(ByteString, Application)] -> Middleware
withProxies [] app = app
withProxies passing app = \request respond -> case filter (covers (rawPathInfo request) . fst) sorted of
  _ | requestMethod request == methodConnect -> respond (plainText notImplemented501 [])
  [] -> app request respond
  (_, proxy) : _
    | hasDots (rawPathInfo request) -> respond (plainText badRequest400 [])
    | otherwise -> proxy request respond
  where
    sorted = sortOn (negate . B.length . fst) passing
    covers path prefix = prefix `B.isPrefixOf` path && ("/" `B.isSuffixOf` prefix || B.take 1 (B.drop (B.length prefix) path) `elem` ["", "/"])

-- | Whether a path has a segment @.@ or @..@, encoded or not, possibly with parameters. A path in which nothing is
-- encoded and no dot begins a segment, as in most, is not taken apart.
hasDots :: ByteString -> Bool
hasDots path = (B.elem '%' path || beginsSegment path) && any ((`elem` [".", ".."]) . B.takeWhile (/= ';')) (B.splitWith isSlash (urlDecode False path))
  where
    -- A dot at the beginning, or behind a slash.
    beginsSegment rest = case B.elemIndex '.' rest of
      Nothing -> False
      Just i -> i == 0 || isSlash (B.index rest (i - 1)) || beginsSegment (B.dropWhile (== '.') (B.drop i rest))
    isSlash c = c == '/' || c == '\\'

-- | Add header fields to responses: those that are about the file to responses with one (2xx and 304), all others, for
-- example for security, to every response. Those that may occur only once (RFC 9110, 5.3) replace the response's own.
withHeaders :: ResponseHeaders -> Middleware
withHeaders [] app = app
withHeaders fields app = \request respond -> app request $ \response ->
  respond ((if hasFile response then withAll else withLasting) response)
  where
    withAll = with fields
    withLasting = with (filter (not . aboutFile) fields)

-- | As 'withHeaders', with the fields of the rules for the request's places: those that are not about a file.
withLastingOf :: [Rule Header] -> (ByteString -> Places) -> Middleware
withLastingOf rules places app request respond = app request $ \response ->
  respond (with (filter (not . aboutFile) (fieldsFor rules (places (rawPathInfo request)))) response)

-- | Those that are about a file. In front of an application that has files: the path of a request that it gets in place
-- of another one, as for a fallback page, is that of the page.
withFileFieldsOf :: [Rule Header] -> (ByteString -> Places) -> Middleware
withFileFieldsOf rules places app request respond = app request $ \response ->
  respond (if hasFile response then with (filter aboutFile (fieldsFor rules (places (rawPathInfo request)))) response else response)

-- | Add fields to a response. The media type of several ranges says where each one begins (RFC 9110, 14.6), and stays.
with :: ResponseHeaders -> Response -> Response
with new = mapResponseHeaders change
  where
    change own
      | null replaced = own <> new
      | hContentType `elem` replaced, any ranges own = filter ((`notElem` filter (/= hContentType) replaced) . fst) own <> filter ((/= hContentType) . fst) new
      | otherwise = filter ((`notElem` replaced) . fst) own <> new
    replaced = filter (`elem` [hContentType, hCacheControl, hServer, "Access-Control-Allow-Origin"]) (map fst new)
    ranges (name, value) = name == hContentType && "multipart/byteranges" `B.isPrefixOf` value

-- | Whether a response is one with a file, or for one that the client has.
hasFile :: Response -> Bool
hasFile response = statusIsSuccessful (responseStatus response) || responseStatus response == notModified304

-- | Whether a field is about the file of a response, and wrong in an error or a redirect: what kind of content it has,
-- and that it may be kept, for a year perhaps. A @Cache-Control@ that forbids keeping is right everywhere.
aboutFile :: Header -> Bool
aboutFile (name, value)
  | name `elem` [hCacheControl, "CDN-Cache-Control", "Surrogate-Control"] = not (any (`elem` ["no-store", "no-cache"]) (directives value))
  | otherwise = name `elem` [hContentType, hContentLanguage, "Content-Disposition", "Expires"]
  where
    directives = map (CI.mk . B.dropWhileEnd blank . B.dropWhile blank) . B.split ','
    blank c = c == ' ' || c == '\t'

-- | Pages for responses with certain statuses, from the files of the site. Without a page the response stays as it was.
withErrorPages :: [(Int, ByteString)] -> Application -> Middleware
withErrorPages [] _ app = app
withErrorPages pages files app = \request respond -> app request $ \response ->
  case lookup (statusCode (responseStatus response)) pages of
    Nothing -> respond response
    Just path -> files (unconditional request path) $ \page ->
      if responseStatus page /= ok200
        then respond response
        else respond (mapResponseStatus (const (responseStatus response)) (mapResponseHeaders (\own -> filter (lasting . fst) own <> [noRanges] <> kept (responseHeaders response)) page))
  where
    -- Without it the server would say that a file which it sends from the disk has ranges.
    noRanges = ("Accept-Ranges", "none")
    -- Fields that describe the page itself.
    lasting name = name `notElem` [hETag, hLastModified, "Accept-Ranges"]
    -- The fields of the response that its status needs (RFC 9110, 11.6.1, 10.2.1, 14.4).
    kept = filter ((`elem` ["WWW-Authenticate", "Allow", hContentRange, "Retry-After"]) . fst)

-- | The request as a GET for another path, without conditions and ranges. A HEAD stays a HEAD.
unconditional :: Request -> ByteString -> Request
unconditional request path =
  (requesting path request)
    { requestMethod = if requestMethod request == methodHead then methodHead else methodGet,
      requestHeaders = filter ((`notElem` [hRange, hIfMatch, hIfNoneMatch, hIfModifiedSince, hIfUnmodifiedSince, hIfRange]) . fst) (requestHeaders request),
      requestHeaderRange = Nothing
    }

-- | The request for another path, without a query.
requesting :: ByteString -> Request -> Request
requesting path request = request {rawPathInfo = path, pathInfo = decodePathSegments path, rawQueryString = "", queryString = []}

-- | The page for paths that do not exist.
withFallback :: Maybe ByteString -> Application -> Application
withFallback Nothing files = files
withFallback (Just path) files = \request respond -> files request $ \response ->
  if statusCode (responseStatus response) == 404 && requestMethod request `elem` [methodGet, methodHead]
    then files (requesting path request) $ \page ->
      -- A folder would redirect to below the client's path.
      respond (if statusCode (responseStatus page) == 301 then response else page)
    else respond response

-- | Apply the first redirect that matches the path, however it is spelled. If the target has no query, it gets the
-- request's, before its fragment (RFC 3986, 3).
withRedirects :: [Redirect] -> Middleware
withRedirects [] app = app
withRedirects rules app = \request respond ->
  case [(target, redirectStatus rule) | rule <- rules, Just target <- [redirected rule request]] of
    (target, status) : _ -> respond (moved status target)
    [] -> app request respond

redirected :: Redirect -> Request -> Maybe ByteString
redirected rule request = case behind (redirectFrom rule) (rawPathInfo request) of
  Just rest | redirectPrefix rule || B.null rest -> Just (located rest)
  _ -> Nothing
  where
    located rest =
      let (whole, fragment) = B.break (== '#') (redirectTo rule)
          target = encodeUrl (ownHost (whole <> (if redirectAppends rule then rest else "")))
       in target <> (if B.elem '?' whole then "" else encodeUrl (rawQueryString request)) <> B.take 1 fragment <> encodeUrl (B.drop 1 fragment)
    -- A target that begins with two slashes would name another host.
    ownHost target
      | "/" `B.isPrefixOf` target = "/" <> B.dropWhile (`elem` ("/\\" :: String)) target
      | otherwise = target

-- | What follows a prefix in a path. Both may be spelled in any way that leads to the same file.
behind :: ByteString -> ByteString -> Maybe ByteString
behind prefix path = case (nextByte prefix, nextByte path) of
  (Nothing, _) -> Just path
  (Just (a, prefix'), Just (b, path')) | a == b -> behind prefix' path'
  _ -> Nothing

-- | A response that leads to a target, which is encoded.
moved :: Int -> ByteString -> Response
moved code target = responseLBS (toEnum code) [(hLocation, target), (hContentType, "text/plain; charset=utf-8"), (hContentLength, B.pack (show (B.length text)))] (L.fromStrict text)
  where
    text = "see " <> target <> "\n"

-- | Use the first application for challenges of certificate authorities (RFC 8555, 8.3).
withChallenges :: Application -> Middleware
withChallenges files app request
  | requestMethod request `elem` [methodGet, methodHead], Just token <- B.stripPrefix "/.well-known/acme-challenge/" (rawPathInfo request), not (B.null token) = files request
  | otherwise = app request

-- | Redirect requests to the same URL over HTTPS on a port, except challenges of certificate authorities.
toHttps :: Int -> Middleware
toHttps port app = withChallenges app $ \request respond -> case requestHeaderHost request of
  Just host | not (B.null host) -> respond (moved 308 (encodeUrl ("https://" <> name host <> (if port == 443 then "" else ":" <> B.pack (show port)) <> path (rawPathInfo request) <> rawQueryString request)))
  _ -> respond (plainText badRequest400 [])
  where
    -- The target of OPTIONS may be an asterisk (RFC 9112, 3.2.4), which is no part of a URL.
    path target = if "/" `B.isPrefixOf` target then target else "/"
    name host = case B.breakEnd (== ':') host of
      (before, digits) | not (B.null before), B.all (`elem` ("0123456789" :: String)) digits -> B.init before
      _ -> host

-- | Cross-origin requests of pages of these origins (the Fetch standard's CORS protocol).
withCors :: [ByteString] -> Middleware
withCors [] app = app
withCors origins app = \request respond ->
  let asked name = lookup name (requestHeaders request)
      answered = mapResponseHeaders (<> allowed (asked "Origin"))
   in if requestMethod request == methodOptions && isJust (asked "Origin") && isJust (asked "Access-Control-Request-Method")
        then respond (answered (responseLBS noContent204 (preflight (asked "Access-Control-Request-Headers")) ""))
        else app request (respond . answered)
  where
    anyOrigin = "*" `elem` origins
    -- The response depends on the origin, also if the origin is not allowed.
    allowed origin
      | anyOrigin = [("Access-Control-Allow-Origin", "*")]
      | Just o <- origin, o `elem` origins = [("Access-Control-Allow-Origin", o), (hVary, "Origin")]
      | otherwise = [(hVary, "Origin")]
    preflight wanted =
      [("Access-Control-Allow-Methods", "GET, HEAD, OPTIONS"), ("Access-Control-Max-Age", "86400")]
        <> [("Access-Control-Allow-Headers", fields) | Just fields <- [wanted]]

-- | A response with the status's reason phrase as its text.
plainText :: Status -> ResponseHeaders -> Response
plainText status fields = responseLBS status ((hContentType, "text/plain; charset=utf-8") : (hContentLength, B.pack (show (B.length text))) : fields) (L.fromStrict text)
  where
    text = B.pack (show (statusCode status)) <> " " <> statusMessage status <> "\n"
