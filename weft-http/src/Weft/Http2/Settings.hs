{-# LANGUAGE OverloadedStrings #-}
{-# LANGUAGE RankNTypes #-}

-- |
-- The settings of an HTTP\/2 server, and its limits on clients.
module Weft.Http2.Settings
  ( Http2Settings (..),
    defaultHttp2Settings,
    Http2Limits (..),
    defaultHttp2Limits,
    Rate (..),
    FileBody (..),
    WithFile,
    openWithoutConditions,
  )
where

import Control.Exception (SomeException, bracket, onException)
import Data.ByteString.Builder (Builder, byteString)
import qualified Data.ByteString.Char8 as B8
import Data.Vault.Lazy (Vault)
import qualified Data.Vault.Lazy as Vault
import Network.HTTP.Types (ResponseHeaders, Status, hContentType, internalServerError500, notFound404)
import Network.Socket (SockAddr)
import Network.Wai (FilePart (..), Request, Response, responseLBS)
import System.IO.Error (catchIOError)
import System.Posix.Types (Fd (..))
import Weft.Blocking (blockingOr)
import Weft.Duration
import Weft.FFI.Errno (throwIfNegative)
import Weft.FFI.Path (withPath)
import Weft.FFI.Socket (cCloseFile, cFileSize, cOpenRead)
import Weft.Http.Limits (Refusal)
import Weft.Http2.Budget
import Weft.Http2.Frame (ErrorCode)
import Weft.Transport (FileRange (..))

-- | Settings of an HTTP\/2 server. Begin with 'defaultHttp2Settings'.
data Http2Settings = Http2Settings
  { http2Limits :: Http2Limits,
    -- | Fields that are added to every response that does not have them.
    http2Fields :: IO ResponseHeaders,
    -- | Makes the initial vault of a request.
    http2Vault :: IO Vault,
    -- | Called with each exception that an application throws.
    http2OnException :: Maybe Request -> SomeException -> IO (),
    -- | The response to an exception that an application throws before it has responded.
    http2OnExceptionResponse :: SomeException -> Response,
    -- | Called after each response that was sent completely, with its status and, for a part of a file, its size in
    -- bytes.
    http2OnResponse :: Request -> Status -> Maybe Integer -> IO (),
    -- | Called when a stream is reset or the connection ends because of a client's error, with the reason.
    http2OnRefused :: SockAddr -> Refusal -> ErrorCode -> String -> IO (),
    -- | Opens the file for a response.
    http2WithFile :: WithFile
  }

-- | Open the file for a response and decide on the response, given the request, status, fields, path and part. The file
-- stays open while the action runs. The first argument waits for a place among 'limitFiles'; not for a file that the
-- application has open.
type WithFile = forall a. (IO a -> IO a) -> Request -> Status -> ResponseHeaders -> FilePath -> Maybe FilePart -> (FileBody -> IO a) -> IO a

-- | A part of an open file, or a response without the file.
data FileBody
  = FileBody !Status !ResponseHeaders !FileRange
  | OtherBody !Status !ResponseHeaders !Builder

-- | The limits on a connection. A connection that exceeds one ends with @ENHANCE_YOUR_CALM@, unless stated otherwise.
data Http2Limits = Http2Limits
  { -- | Concurrent streams. There are at most twice as many threads: threads of streams that were reset, or whose
    -- response has been sent, count until they have ended, and delay new ones.
    limitStreams :: !Int,
    -- | Files that are opened for responses and open at the same time.
    limitFiles :: !Int,
    -- | Bytes of a header block, compressed, with its continuations. It may have 64 of them.
    limitHeaderBlock :: !Int,
    -- | Bytes of the decoded fields, plus 32 for each field (RFC 9113, 6.5.2); a request with more gets 431.
    limitHeaderList :: !Int,
    -- | Fields of a request, with all its cookies counted as one, and of its trailers; a request with more gets 431.
    -- Zero or less means no limit.
    limitFields :: !Int,
    -- | Streams that the client resets, or that are reset because of its errors. Each completed response allows two
    -- more, so that a proxy can share a connection among many users. Each frame of a body that is sent allows one of a
    -- stream that is over: some clients answer so what was under way. Streams above 'limitStreams' do not count until
    -- the client has acknowledged the server's SETTINGS.
    limitResets :: !Rate,
    limitPings :: !Rate,
    limitSettings :: !Rate,
    limitPriorities :: !Rate,
    -- | Each frame of a body that is sent allows four more window updates.
    limitWindowUpdates :: !Rate,
    -- | Frames without a payload that end nothing, GOAWAY frames, and frames of unknown types.
    limitEmptyFrames :: !Rate,
    -- | Bytes of request bodies that were received and not read yet, over all streams. From 65,535, the window that the
    -- protocol gives to every client, to 2,147,483,647; other values count as the nearer one of these. Bodies that no
    -- application reads get at most 1 MiB of it. The rest is for those whose application reads as fast as the client
    -- sends: with a round trip of 50 ms, each MiB allows 20 MB/s.
    limitBodies :: !Int,
    -- | How long a connection without streams stays open; pings do not count.
    limitIdle :: !Duration,
    -- | How long it may take to receive a frame or a header block, and to send a frame.
    limitFrame :: !Duration,
    -- | How long a client with open streams may send nothing: then it is asked by a PING whether it is still there, and
    -- has 'limitFrame' for an answer (RFC 9113, 6.7). A client without its network would keep its streams for ever.
    limitSilence :: !Duration,
    -- | How long a stream may wait for its client (for window space, or for a body that the application waits for).
    -- Waiting uses up this time, and each byte transferred earns the time that it takes at the least rate, up to this
    -- value plus the time of 65,535 bytes. So a client that was fast cannot stall for long either.
    --
    -- A client may be silent without limit in a body that has no @Content-Length@ once the response has begun, that is,
    -- its first bytes were flushed: that is a call in both directions, as gRPC has them. Nor is there a limit on an
    -- application that is silent.
    limitWait :: !Duration,
    -- | The least rate, in bytes a second, at which a client takes a response. The streams that are open share it; with
    -- more than eight, each has an eighth. A request's body may be as slow as an eighth of it.
    limitRate :: !Int
  }

-- | 100 streams, 16 files; 32 KiB of head and 100 fields; 16 MiB of unread bodies; a PING after two minutes of silence;
-- half a minute of waiting, at least 4,369 bytes a second (128 KiB in half a minute), which limits the wait of a stream
-- that is alone to 45 seconds, and of one among many, or of a body, to 150.
defaultHttp2Limits :: Http2Limits
defaultHttp2Limits =
  Http2Limits
    { limitStreams = 100,
      limitFiles = 16,
      limitHeaderBlock = 32768,
      limitHeaderList = 32768,
      limitFields = 100,
      limitResets = Rate 50 250,
      limitPings = Rate 10 100,
      limitSettings = Rate 5 50,
      limitPriorities = Rate 100 1000,
      limitWindowUpdates = Rate 200 2000,
      limitEmptyFrames = Rate 20 200,
      limitBodies = 16777216,
      limitIdle = seconds 60,
      limitFrame = seconds 30,
      limitSilence = seconds 120,
      limitWait = seconds 30,
      limitRate = 4369
    }

-- | The default limits; no fields; exceptions get a 500; exceptions, responses and refusals are not reported; files are
-- opened without conditions.
defaultHttp2Settings :: Http2Settings
defaultHttp2Settings =
  Http2Settings
    { http2Limits = defaultHttp2Limits,
      http2Fields = pure [],
      http2Vault = pure Vault.empty,
      http2OnException = \_ _ -> pure (),
      http2OnExceptionResponse = const (responseLBS internalServerError500 [(hContentType, "text/plain; charset=utf-8")] "Something went wrong"),
      http2OnResponse = \_ _ _ -> pure (),
      http2OnRefused = \_ _ _ _ -> pure (),
      http2WithFile = openWithoutConditions
    }

-- | Send the whole file or the part that the application names; 404 if it cannot be opened. Conditions and ranges of
-- the request are ignored. Throws 'Control.Exception.ErrorCall' if the part is not one of the file.
openWithoutConditions :: WithFile
openWithoutConditions placed _ status fields path part act =
  placed . bracket ((Just <$> open) `catchIOError` const (pure Nothing)) (mapM_ (\(Fd fd, _) -> cCloseFile fd)) $ \opened -> act $ case (opened, part) of
    (Nothing, _) -> OtherBody notFound404 [] (byteString (B8.pack "File not found"))
    (Just (fd, size), Just (FilePart offset count _))
      | offset >= 0 && count >= 0 && offset + count <= toInteger size -> FileBody status fields (FileRange fd (fromInteger offset) (fromInteger count))
      | otherwise -> error "Weft.Http2: a part of a file with a negative offset or length, or beyond the end of the file"
    (Just (fd, size), Nothing) -> FileBody status fields (FileRange fd 0 size)
  where
    open = blockingOr (\(Fd fd, _) -> cCloseFile fd) $
      withPath "Weft.Http2: open" path $ \p -> do
        fd <- throwIfNegative "Weft.Http2: open" (cOpenRead p)
        size <- throwIfNegative "Weft.Http2: size" (cFileSize fd) `onException` cCloseFile fd
        pure (Fd fd, size)
