-- |
-- The types of "Weft.Http.Client": requests, responses, settings and errors.
module Weft.Http.Client.Types
  ( -- * Requests
    Request (..),
    RequestBody (..),
    Manner (..),
    plainly,
    Errand (..),
    abandonedAfter,

    -- * Responses
    Response (..),

    -- * Settings
    ClientSettings (..),
    defaultClientSettings,
    ClientProtocol (..),
    clientLimits,

    -- * Errors
    ClientError (..),
    Phase (..),
    Cause (..),
  )
where

import Control.Exception (Exception, IOException)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Network.HTTP.Types (Header, Method, Status)
import Weft.Dial (DialError, DialOptions, defaultDialOptions)
import Weft.Duration
import Weft.Http.Client.Url
import Weft.Http.Limits
import Weft.Http.Parser.Response (Violation (..))
import Weft.Tls (TlsClientSettings (..), defaultTlsClientSettings)
import Weft.Transport (Connection, Instant)

-- | A request. @Host@ is added if the fields do not have it; the framing is the client's: @Content-Length@ and
-- @Transfer-Encoding@ among the fields are an error ('InvalidRequest'), as are CR, LF and other bytes that would end a
-- field. With the field @Expect: 100-continue@ the body is sent when the server asks for it, or after
-- 'clientContinueTime', or not at all if an answer comes before.
data Request = Request
  { -- | Any but @CONNECT@.
    requestMethod :: !Method,
    requestUrl :: !Url,
    requestFields :: ![Header],
    requestBody :: !RequestBody
  }

-- | The body of a request.
data RequestBody
  = EmptyBody
  | -- | Bytes, which can be sent again.
    BytesBody !ByteString
  | -- | Pieces, from an action that returns an empty string at the end. It is run once, by a thread of its own while the
    -- response is awaited and read, and asked for a piece when the last one was sent. With a length, it has to give
    -- exactly as many bytes; without, the body is chunked. An exception of the action ends the request, and is thrown.
    StreamBody !(Maybe Int) !(IO ByteString)
  | -- | The same, with trailer fields, from an action that is run at the end. Over HTTP\/1.1 they are not sent.
    TrailedBody !(Maybe Int) !(IO ByteString) !(IO [Header])

-- | A response. Its body can be read until the function that got the response returns.
data Response = Response
  { responseStatus :: !Status,
    responseFields :: ![Header],
    -- | The next piece of the body, without its framing; empty at the end, any number of times. Receives only if
    -- nothing has been received before: a server is read from as fast as this is called. One thread at a time.
    responsePiece :: IO ByteString,
    -- | The whole body, if nothing of it was read and all of it was received with the head, as that of a small response
    -- with a length is; it counts as read then. Receives nothing.
    responseWhole :: IO (Maybe ByteString),
    -- | The trailer fields. Empty before the end of the body.
    responseTrailers :: IO [Header],
    -- | The connection, if the server has switched to another protocol (101), as a request without a body can ask for
    -- by the fields @Upgrade@ and @Connection: upgrade@ (RFC 9110, 7.8). What has come behind the head is received
    -- first. It is closed when the function that got the response returns. That the protocol is one that was asked for
    -- is checked.
    responseSwitched :: !(Maybe Connection)
  }

-- | Settings of a client. Begin with 'defaultClientSettings'. Each time is a limit on one phase of a request; the
-- deadline that is given with the request holds for all of them together.
data ClientSettings = ClientSettings
  { -- | How to connect, before the deadline: 'Nothing' dials with 'clientDial', and TLS by 'clientTls' for @https@.
    clientConnect :: !(Maybe (Instant -> Url -> IO Connection)),
    clientDial :: !DialOptions,
    -- | Trusted authorities, and a client certificate. The authorities are loaded once.
    clientTls :: !TlsClientSettings,
    -- | Which versions of HTTP are spoken.
    clientProtocol :: !ClientProtocol,
    -- | The most requests at a time on one connection of HTTP\/2, if the server allows as many. A request counts until
    -- the function that got its response has returned.
    clientMostStreams :: !Int,
    -- | How many bytes of a response over HTTP\/2 are received before they are read, from 65,535. A server that is far
    -- away sends no more than that in the first round trip.
    clientStreamWindow :: !Int,
    -- | Where a response is read as fast as it comes, the server may send more of it before it is read: up to 4 MiB, and
    -- so many bytes for all responses of a connection together. With 0, it may not.
    clientSpareWindow :: !Int,
    -- | The most connections to one server (scheme, host and port) at a time. If all are in use, requests wait in the
    -- order in which they came.
    clientMostPerServer :: !Int,
    -- | How long a request waits for a connection, if all are in use; the time for connecting is within it.
    clientQueueTime :: !Duration,
    -- | How long a connection is kept without a request.
    clientIdleTime :: !Duration,
    -- | The look-up of the name, the connection and the TLS handshake.
    clientConnectTime :: !Duration,
    -- | The time in which the server has to take the head of the request, and each piece of its body.
    clientSendTime :: !Duration,
    -- | From the last byte of the request to the end of the response's head. Interim responses do not extend it.
    clientAnswerTime :: !Duration,
    -- | The time to wait for each piece of the response's body.
    clientReadTime :: !Duration,
    -- | How long a body with @Expect: 100-continue@ is held back (RFC 9110, 10.1.1).
    clientContinueTime :: !Duration,
    -- | Bytes of a response's head, and of a trailer section.
    clientHeadLimit :: !Int,
    -- | Fields of a response's head, and of a trailer section.
    clientFieldLimit :: !Int,
    -- | Bytes of a body that 'Weft.Http.Client.request' returns.
    clientBodyLimit :: !Int
  }

-- | How a request is made, beside what it says. Begin with 'plainly'.
data Manner = Manner
  { -- | Bytes that are not of HTTP, such as a header of the PROXY protocol: the connection begins with them, and is for
    -- this request alone. Over TLS the server gets them within the session, not before it. Not over HTTP\/2.
    mannerPrefix :: !ByteString,
    -- | Waits until nobody is interested in the response any more, if that can happen. When it has returned while the
    -- request waits for its response's head or for a piece of the body, the request fails with 'Abandoned', and its
    -- connection is closed (over HTTP\/2 its stream is reset). It runs in a thread beside a wait that has lasted for
    -- 'abandonedAfter', from the beginning for each wait, and is killed when something comes. An 'IOError' counts as
    -- returning.
    mannerUnless :: !(Maybe (IO ()))
  }

-- | Without a prefix, and until the response has come.
plainly :: Manner
plainly = Manner B.empty Nothing

-- | A request on its way: with which settings, unless what happens ('mannerUnless'), and by when.
data Errand = Errand
  { errandSettings :: !ClientSettings,
    errandUnless :: !(Maybe (IO ())),
    errandDue :: !Instant,
    errandRequest :: !Request
  }

-- | How long a wait lasts before it is watched whether somebody is interested in its outcome: 100 ms. Until then that
-- costs nothing, and a server that answers at once never sees a difference.
abandonedAfter :: Duration
abandonedAfter = milliseconds 100

-- | Which versions of HTTP a client speaks. Whatever is chosen for @https@ is negotiated by ALPN (RFC 7301); over clear
-- text the server has to be known to speak it (RFC 9113, 3.3).
data ClientProtocol
  = -- | HTTP\/1.1.
    OnlyHttp1
  | -- | For @https@ HTTP\/2 if the server chooses it, and else HTTP\/1.1; over clear text HTTP\/1.1. That a server speaks
    -- HTTP\/1.1 is remembered for ten minutes.
    PreferHttp2
  | -- | HTTP\/2, over clear text too.
    OnlyHttp2
  deriving (Eq, Ord, Show, Enum, Bounded)

-- | HTTP\/1.1 (a program that has not asked for HTTP\/2 may rely on what it lacks: upgrades, and a connection of its
-- own for each request, whose end concerns no other one). Sixteen connections to a server, for which a request waits 30
-- seconds at most, kept for 30 seconds; 10 seconds to connect, 30 seconds for each piece that is sent, 60 seconds for
-- the head of the response and for each piece of its body; a body is held back for one second; heads of 64 KiB with 200
-- fields; bodies of 16 MiB. Over HTTP\/2, 100 requests on a connection, with windows
-- of 256 KiB, which grow up to 4 MiB where the response is read as fast as it comes, by 16 MiB all together.
defaultClientSettings :: ClientSettings
defaultClientSettings =
  ClientSettings
    { clientConnect = Nothing,
      clientDial = defaultDialOptions,
      clientTls = defaultTlsClientSettings,
      clientProtocol = OnlyHttp1,
      clientMostStreams = 100,
      clientStreamWindow = 262144,
      clientSpareWindow = 16777216,
      clientMostPerServer = 16,
      clientQueueTime = seconds 30,
      clientIdleTime = seconds 30,
      clientConnectTime = seconds 10,
      clientSendTime = seconds 30,
      clientAnswerTime = seconds 60,
      clientReadTime = seconds 60,
      clientContinueTime = seconds 1,
      clientHeadLimit = 65536,
      clientFieldLimit = 200,
      clientBodyLimit = 16777216
    }

-- | The limits for the parsers.
clientLimits :: ClientSettings -> Limits
clientLimits settings = defaultLimits {limitHead = clientHeadLimit settings, limitFields = clientFieldLimit settings}

-- | A request that failed: which one, in which phase, and why.
data ClientError = ClientError
  { -- | Method and URL.
    errorRequest :: !String,
    errorPhase :: !Phase,
    errorCause :: !Cause
  }

-- | The phases of a request, in their order. (The body of a request may still be sent in the last two.)
data Phase
  = -- | For a connection, since 'clientMostPerServer' are in use.
    Queueing
  | Connecting
  | Sending
  | -- | From the end of the request to the end of the response's head.
    Answering
  | -- | Receiving the body of the response.
    Receiving
  deriving (Eq, Ord, Show, Enum, Bounded)

-- | Why a request failed.
data Cause
  = -- | The time limit of the phase, or the deadline.
    TimedOut
  | NotConnected !DialError
  | -- | An error of the connection, or of its TLS handshake.
    ConnectionBroken !IOException
  | -- | The connection ended, possibly by that error, before the first byte of a response. The server may have seen the
    -- request.
    NoAnswer !(Maybe IOException)
  | -- | The connection ended within the response.
    EndedEarly
  | -- | What came is not a response that can be relied on.
    NotHttp !Violation
  | -- | The server speaks another protocol: how its answer begins, up to 64 bytes.
    OtherProtocol !ByteString
  | -- | The server has broken a rule of HTTP\/2, this one, or does not speak it.
    NotHttp2 !String
  | -- | The server has reset the request's stream, with this code (RFC 9113, 7).
    StreamReset !Int
  | -- | The server has refused the request, or ended the connection, without acting on it (RFC 9113, 8.7), each time that it
    -- was sent.
    NotProcessed
  | -- | The body has more bytes than this limit.
    BodyTooLarge !Int
  | -- | The request cannot be sent, and why; nothing was sent.
    InvalidRequest !String
  | -- | The action of 'StreamBody' gave more or fewer bytes than it was to give.
    WrongLength
  | -- | Nobody is interested in the response any more ('mannerUnless').
    Abandoned
  | -- | The client has ended.
    ClientClosed
  deriving (Show)

instance Show ClientError where
  showsPrec _ (ClientError what phase cause) = showString what . showString ": " . showString (during phase) . showString (because cause)
    where
      during p = case p of
        Queueing -> "waiting for a connection: "
        Connecting -> "connecting: "
        Sending -> "sending the request: "
        Answering -> "waiting for the response: "
        Receiving -> "receiving the response: "
      because c = case c of
        TimedOut -> "timed out"
        NotConnected e -> show e
        ConnectionBroken e -> show e
        NoAnswer e -> "the connection ended without a response" <> maybe "" ((": " <>) . show) e
        EndedEarly -> "the connection ended before the response did"
        NotHttp why -> violation why
        OtherProtocol begins -> "the server does not speak HTTP: it has answered with " <> show begins
        NotHttp2 why -> "not HTTP/2: " <> why
        StreamReset code -> "the server has reset the stream: " <> (if code < length resetNames then resetNames !! code else "error " <> show code)
        NotProcessed -> "the server has refused the request"
        BodyTooLarge n -> "the body has more than " <> show n <> " bytes"
        InvalidRequest why -> why
        WrongLength -> "the body has not the length that was announced"
        Abandoned -> "nobody waits for the response any more"
        ClientClosed -> "the client has ended"
      violation why = case why of
        NoStatusLine -> "the server does not speak HTTP"
        OtherVersion -> "the response is not of HTTP/1"
        BadField -> "a malformed field"
        BadFraming -> "an ambiguous or malformed length"
        OtherCoding -> "an unknown transfer coding"
        BadChunk -> "a malformed chunk"
        TooManyFields -> "the fields exceed the limits"
        TooManyInterim -> "too many interim responses"
        UnaskedUpgrade -> "the server switches to a protocol that was not asked for"

-- | The codes of resets: RFC 9113, 7.
resetNames :: [String]
resetNames =
  ["NO_ERROR", "PROTOCOL_ERROR", "INTERNAL_ERROR", "FLOW_CONTROL_ERROR", "SETTINGS_TIMEOUT", "STREAM_CLOSED", "FRAME_SIZE_ERROR"]
    <> ["REFUSED_STREAM", "CANCEL", "COMPRESSION_ERROR", "CONNECT_ERROR", "ENHANCE_YOUR_CALM", "INADEQUATE_SECURITY", "HTTP_1_1_REQUIRED"]

instance Exception ClientError
