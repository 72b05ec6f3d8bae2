{-# LANGUAGE OverloadedStrings #-}

-- |
-- Builds the response for a resource and a request.
module Weft.Static.Answer
  ( answer,
    plain,
  )
where

import Control.Monad (forM_)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Builder as BB
import Data.ByteString.Builder.Extra (byteStringCopy, byteStringInsert)
import qualified Data.ByteString.Char8 as C
import Data.Foldable (fold)
import Data.List (sortOn)
import Data.Ord (Down (..))
import Network.HTTP.Types
import Network.HTTP.Types.Header
import Network.Wai
import Weft.File (File, filePath, readAt, withFileFd)
import Weft.Http.Conditional
import Weft.Http.FileResponse (chosenBy, withOpenFile)
import Weft.Static.Accept (weightOf, weighted)
import Weft.Static.Boundary (newBoundary)
import Weft.Static.File
import Weft.Static.Folders (Coding (..), codingName)
import Weft.Static.OpenFiles (briefly, withPermit)

-- | Answer a GET or HEAD request with a resource. If its file has been replaced, it is looked up again, at most the
-- given number of times.
answer :: Int -> DocumentRoot -> Request -> Resource -> (Response -> IO ResponseReceived) -> IO ResponseReceived
answer again root request given respond
  | null (resourceVariants given), null (resourceCodings given) = answerWith again root request given respond
  | otherwise = negotiate again root request given respond
{-# INLINE answer #-}

negotiate :: Int -> DocumentRoot -> Request -> Resource -> (Response -> IO ResponseReceived) -> IO ResponseReceived
{-# NOINLINE negotiate #-}
negotiate again root request given respond = chosen root request given >>= \r -> answerWith again root request r respond

answerWith :: Int -> DocumentRoot -> Request -> Resource -> (Response -> IO ResponseReceived) -> IO ResponseReceived
{-# NOINLINE answerWith #-}
answerWith again root request r respond = case verdict (requestHeaders request) (resourceValid r) of
  -- The most frequent case, without allocating what the others need.
  Proceed False | InMemory bytes <- resourceBody r -> respond (wholeInMemory request r bytes)
  judged -> answerAs again judged root request r respond

-- | Over HTTP\/1 a small body is copied behind its head. Over HTTP\/2 many responses are sent together, each from where
-- it lies.
wholeInMemory :: Request -> Resource -> ByteString -> Response
wholeInMemory request r bytes = responseBuilder ok200 (resourceHeaders r) (if copied then byteStringCopy bytes else byteStringInsert bytes)
  where
    copied = B.length bytes <= 4096 && httpVersion request < http20

answerAs :: Int -> Verdict -> DocumentRoot -> Request -> Resource -> (Response -> IO ResponseReceived) -> IO ResponseReceived
{-# NOINLINE answerAs #-}
answerAs again judged root request r respond = case judged of
  NotModified -> respond (responseLBS notModified304 (filter kept (resourceHeaders r)) "")
  PreconditionFailed -> respond (plain preconditionFailed412 (chosenBy headers))
  -- Ranges are for GET only (RFC 9110, 14.2).
  Proceed part -> case if part && requestMethod request == methodGet then ranges (lookup hRange (requestHeaders request)) size else Whole of
    Whole -> whole
    Unsatisfiable -> respond (plain requestedRangeNotSatisfiable416 ((hContentRange, "bytes */" <> number size) : chosenBy headers))
    Part range -> single range
    Parts several -> multiple several
  where
    size = resourceSize r
    headers = resourceHeaders r
    -- RFC 9110, 15.4.5: fields that describe the contents are left out.
    kept (field, _) = field `notElem` [hContentType, hContentLength, hContentEncoding, hAcceptRanges]
    whole = case resourceBody r of
      InMemory bytes -> respond (wholeInMemory request r bytes)
      OnDisk -> fromDisk ok200 (Extent 0 size)
    single range@(Extent from count) = case resourceBody r of
      InMemory bytes -> respond (responseBuilder partialContent206 (partial range) (BB.byteString (slice from count bytes)))
      OnDisk -> fromDisk partialContent206 range
    partial range@(Extent _ count) = (hContentRange, contentRange range size) : (hContentLength, number count) : without [hContentLength] headers
    fromDisk status range = withPermit (rootOpenFiles root) $ \permitted ->
      if permitted
        then onDisk $ \file -> fromFile file status range
        else respond (responseStream status (partOf status range) (\write _ -> reopening root r range write))
    fromFile file status range@(Extent from count) = withFileFd file $ \fd -> withOpenFile request (filePath file) fd $ \direct ->
      if direct
        then respond (responseFile status (partOf status range) (filePath file) (Just (FilePart from count size)))
        else respond (responseStream status (partOf status range) (\write _ -> copy file range write))
    partOf status range = if status == ok200 then headers else partial range
    onDisk act = withBody root r act >>= maybe changed pure
    changed
      | again > 0 = rootAgain root (again - 1) request respond
      | otherwise = respond (plain serviceUnavailable503 [("Retry-After", "1")])
    multiple several = do
      boundary <- newBoundary
      let (fields, total, open, closing) = multipart boundary (lookup hContentType headers) size several
          given' = (hContentType, fields) : (hContentLength, number total) : without [hContentLength, hContentType] headers
          finish = BB.byteString closing
      case resourceBody r of
        InMemory bytes ->
          respond . responseBuilder partialContent206 given' $
            mconcat [BB.byteString (open range) <> BB.byteString (slice from count bytes) | range@(Extent from count) <- several] <> finish
        OnDisk -> withPermit (rootOpenFiles root) $ \permitted ->
          let parts send = responseStream partialContent206 given' $ \write _ -> do
                forM_ several $ \range -> write (BB.byteString (open range)) >> send range write
                write finish
           in if permitted then onDisk (respond . parts . copy) else respond (parts (reopening root r))

-- | A part of an open file, in chunks.
copy :: File -> Extent -> (BB.Builder -> IO ()) -> IO ()
copy file = chunked 65536 (\at n -> Just <$> readAt file (fromInteger at) (fromInteger n))

-- | A part of a resource on disk, in chunks. The file is opened for each chunk, so that no descriptor is held while
-- waiting for the client. Many clients may be waiting then: the chunks are small.
reopening :: DocumentRoot -> Resource -> Extent -> (BB.Builder -> IO ()) -> IO ()
reopening root r = chunked 16384 (\at n -> briefly (rootOpenFiles root) (withBody root r (\file -> readAt file (fromInteger at) (fromInteger n))))

-- | A part of something that can be read by offset and length, in chunks of at most so many bytes.
chunked :: Integer -> (Integer -> Integer -> IO (Maybe ByteString)) -> Extent -> (BB.Builder -> IO ()) -> IO ()
chunked most readPart (Extent from count) write = go from count
  where
    go at left
      | left <= 0 = pure ()
      | otherwise = do
        bytes <- fold <$> readPart at (min most left)
        if B.null bytes
          then ioError (userError "the file became shorter, or another, while it was being sent")
          else write (BB.byteString bytes) >> go (at + toInteger (B.length bytes)) (left - toInteger (B.length bytes))

-- | The variant that the client prefers (RFC 9110, 12.5.3), and of equally preferred ones the best. The file itself has
-- the weight of @identity@, if the client gives it one, and else the least. A GET whose client prefers a coding in
-- which the server has not compressed the file yet has that done, unless there is a file that the client accepts, and
-- gets the best that there is.
chosen :: DocumentRoot -> Request -> Resource -> IO Resource
{-# NOINLINE chosen #-}
chosen root request r = case [value | (name, value) <- requestHeaders request, name == hAcceptEncoding] of
  [] -> pure r
  fields ->
    let accepted = weighted fields
        itself = weightOf ["identity", "*"] accepted
        weightFor coding = weightOf (namesOf coding) accepted
        acceptable coding = weightFor coding > 0 && weightFor coding >= itself
        begin = requestMethod request == methodGet && not (any (acceptable . fst) (resourceVariants r))
     in firstOf begin (sortOn (Down . weightFor . fst) (filter (acceptable . fst) choices))
  where
    choices = sortOn fst ([(coding, Just v) | (coding, v) <- resourceVariants r] <> [(coding, Nothing) | coding <- resourceCodings r])
    namesOf coding = codingName coding : ["x-gzip" | coding == Gzip] <> ["*"]
    firstOf :: Bool -> [(Coding, Maybe Resource)] -> IO Resource
    firstOf _ [] = pure r
    firstOf _ ((_, Just v) : _) = pure v
    firstOf begin ((coding, Nothing) : others) =
      compressed root begin r coding >>= maybe (firstOf False others) pure

-- | A response with a status and the status message as text.
plain :: Status -> ResponseHeaders -> Response
plain status headers =
  responseBuilder status ((hContentType, "text/plain; charset=utf-8") : (hContentLength, number (toInteger (B.length text))) : headers) (BB.byteString text)
  where
    text = number (toInteger (statusCode status)) <> " " <> statusMessage status <> "\n"

-- | The content type of a multipart response with that boundary (RFC 9110, 14.6), its length, and the texts before
-- each part and after the last one.
multipart :: ByteString -> Maybe ByteString -> Integer -> [Extent] -> (ByteString, Integer, Extent -> ByteString, ByteString)
multipart boundary mime size several = ("multipart/byteranges; boundary=" <> boundary, total, open, closing)
  where
    open range =
      B.concat $
        ["\r\n--", boundary, "\r\n"]
          <> maybe [] (\m -> ["Content-Type: ", m, "\r\n"]) mime
          <> ["Content-Range: ", contentRange range size, "\r\n\r\n"]
    total = sum [toInteger (B.length (open range)) + count | range@(Extent _ count) <- several] + toInteger (B.length closing)
    closing = "\r\n--" <> boundary <> "--\r\n"

contentRange :: Extent -> Integer -> ByteString
contentRange (Extent from count) size = B.concat ["bytes ", number from, "-", number (from + count - 1), "/", number size]

slice :: Integer -> Integer -> ByteString -> ByteString
slice from count = B.take (fromInteger count) . B.drop (fromInteger from)

without :: [HeaderName] -> ResponseHeaders -> ResponseHeaders
without names = filter ((`notElem` names) . fst)

number :: Integer -> ByteString
number = C.pack . show
