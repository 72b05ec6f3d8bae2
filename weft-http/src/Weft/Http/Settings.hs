{-# LANGUAGE OverloadedStrings #-}

-- |
-- Settings of a server, with Warp's names. @doc\/warp.md@ lists the differences.
module Weft.Http.Settings
  ( -- * Settings
    Settings (..),
    defaultSettings,
    Port,
    HostPreference (..),
    ProxyProtocol (..),

    -- * Setters
    setPort,
    setHost,
    setOnException,
    setOnExceptionResponse,
    setOnOpen,
    setOnClose,
    setTimeout,
    setSlowlorisSize,
    setBeforeMainLoop,
    setInstallShutdownHandler,
    setGracefulShutdownTimeout,
    setServerName,
    setAltSvc,
    setMaximumBodyFlush,
    setMaxTotalHeaderLength,
    setLogger,
    setProxyProtocolNone,
    setProxyProtocolRequired,
    setProxyProtocolOptional,
    setHTTP2Disabled,
    setHTTP2Cleartext,

    -- * Getters
    getPort,
    getHost,
    getOnOpen,
    getOnClose,
    getOnException,
    getGracefulShutdownTimeout,

    -- * Exceptions
    defaultOnException,
    defaultOnExceptionResponse,
    defaultShouldDisplayException,
    exceptionResponseForDebug,
    RequestError (..),
    ApplicationError (..),
  )
where

import Control.Exception
import Control.Monad (when)
import Data.ByteString (ByteString)
import qualified Data.ByteString.Lazy.Char8 as L
import Data.Maybe (isJust, isNothing)
import Data.String (IsString (..))
import GHC.IO.Exception (IOErrorType (..))
import Network.HTTP.Types
import Network.Wai (Request, Response, responseLBS)
import System.IO.Error (ioeGetErrorType, ioeGetFileName)
import Weft.Http.Limits (Refusal)
import Weft.Socket (SockAddr)
import Weft.StandardError (reportLine)

-- | A TCP port.
type Port = Int

-- | Where to listen. 'setHost' explains the strings.
data HostPreference
  = -- | @*@: all addresses.
    HostAny
  | -- | @*4@: all IPv4 addresses.
    HostIPv4
  | -- | @!4@: all IPv4 addresses.
    HostIPv4Only
  | -- | @*6@: all addresses, by an IPv6 socket that accepts IPv4 as well.
    HostIPv6
  | -- | @!6@: all IPv6 addresses, and IPv6 only.
    HostIPv6Only
  | -- | A name or an address.
    Host String
  deriving (Eq, Ord, Read, Show)

instance IsString HostPreference where
  fromString text = case text of
    "*" -> HostAny
    "*4" -> HostIPv4
    "!4" -> HostIPv4Only
    "*6" -> HostIPv6
    "!6" -> HostIPv6Only
    _ -> Host text

-- | Whether connections begin with a PROXY protocol header.
data ProxyProtocol
  = -- | No.
    ProxyProtocolNone
  | -- | A header is used if there is one. Only for listeners that only proxies can reach.
    ProxyProtocolOptional
  | -- | A connection without a header is refused.
    ProxyProtocolRequired
  deriving (Eq, Show)

-- | Settings of a server. Begin with 'defaultSettings' and change it by the setters, where the fields are documented.
data Settings = Settings
  { settingsPort :: !Port,
    settingsHost :: !HostPreference,
    settingsOnException :: !(Maybe Request -> SomeException -> IO ()),
    settingsOnExceptionResponse :: !(SomeException -> Response),
    settingsOnOpen :: !(SockAddr -> IO Bool),
    settingsOnClose :: !(SockAddr -> IO ()),
    -- | In seconds.
    settingsTimeout :: !Int,
    -- | In bytes.
    settingsSlowlorisSize :: !Int,
    settingsBeforeMainLoop :: !(IO ()),
    settingsInstallShutdownHandler :: !(IO () -> IO ()),
    -- | In seconds.
    settingsGracefulShutdownTimeout :: !(Maybe Int),
    settingsServerName :: !ByteString,
    settingsAltSvc :: !(Maybe ByteString),
    settingsMaximumBodyFlush :: !(Maybe Int),
    settingsMaxTotalHeaderLength :: !Int,
    settingsLogger :: !(Maybe (Request -> Status -> Maybe Integer -> IO ())),
    settingsProxyProtocol :: !ProxyProtocol,
    settingsHTTP2Enabled :: !Bool,
    settingsHTTP2Cleartext :: !Bool
  }

-- | Port 3000 on all IPv4 addresses; a timeout of 30 seconds; exceptions are printed to the standard
-- error; a graceful shutdown waits for requests without a limit.
defaultSettings :: Settings
defaultSettings =
  Settings
    { settingsPort = 3000,
      settingsHost = "*4",
      settingsOnException = defaultOnException,
      settingsOnExceptionResponse = defaultOnExceptionResponse,
      settingsOnOpen = const (pure True),
      settingsOnClose = const (pure ()),
      settingsTimeout = 30,
      settingsSlowlorisSize = 2048,
      settingsBeforeMainLoop = pure (),
      settingsInstallShutdownHandler = const (pure ()),
      settingsGracefulShutdownTimeout = Nothing,
      settingsServerName = "weft",
      settingsAltSvc = Nothing,
      settingsMaximumBodyFlush = Just 65536,
      settingsMaxTotalHeaderLength = 32768,
      settingsLogger = Nothing,
      settingsProxyProtocol = ProxyProtocolNone,
      settingsHTTP2Enabled = True,
      settingsHTTP2Cleartext = False
    }

-- Setters --------------------------------------------------------------------------------

-- | The port to listen on; 0 lets the system choose one.
setPort :: Port -> Settings -> Settings
setPort port s = s {settingsPort = port}

-- | The address to listen on. @*@: all addresses. @*4@ and @!4@: all IPv4 addresses. @*6@: all addresses,
-- by an IPv6 socket that accepts IPv4 as well. @!6@: all IPv6 addresses, and IPv6 only.
setHost :: HostPreference -> Settings -> Settings
setHost host s = s {settingsHost = host}

-- | Called with each exception of an application and the request, or with 'Nothing' for an exception of the
-- connection.
setOnException :: (Maybe Request -> SomeException -> IO ()) -> Settings -> Settings
setOnException handler s = s {settingsOnException = handler}

-- | The response to send if an application throws before it has responded. An asynchronous exception, such as
-- 'ThreadKilled' or 'Control.Exception.StackOverflow', gets none: it ends the connection, or the stream of HTTP\/2.
setOnExceptionResponse :: (SomeException -> Response) -> Settings -> Settings
setOnExceptionResponse make s = s {settingsOnExceptionResponse = make}

-- | Called for each new connection; if it returns 'False', the connection is closed.
setOnOpen :: (SockAddr -> IO Bool) -> Settings -> Settings
setOnOpen act s = s {settingsOnOpen = act}

-- | Called when a connection is closed.
setOnClose :: (SockAddr -> IO ()) -> Settings -> Settings
setOnClose act s = s {settingsOnClose = act}

-- | The client timeout in seconds: for sending a head, for sending each 2 KiB of a body ('setSlowlorisSize'), for
-- taking each 128 KiB of a response, and for beginning the next request. 'Weft.Http.Limits' replace the first and the
-- last of these. Zero or less means no limit.
--
-- Where the application has taken over the connection ('Network.Wai.responseRaw', WebSockets), it is the time in which
-- the client has to send something while the application receives, and to take something while it sends; otherwise the
-- connection is closed, and what the application was doing with it throws an error that satisfies
-- 'Weft.Transport.isTimeout'. A WebSocket that may be silent for longer needs pings, for example by @withPingThread@ of
-- the package @websockets@, since a client answers each.
setTimeout :: Int -> Settings -> Settings
setTimeout time s = s {settingsTimeout = time}

-- | How many bytes of a body a client has to send within each timeout.
setSlowlorisSize :: Int -> Settings -> Settings
setSlowlorisSize size s = s {settingsSlowlorisSize = size}

-- | Run once clients can connect, before the first connection is served.
setBeforeMainLoop :: IO () -> Settings -> Settings
setBeforeMainLoop act s = s {settingsBeforeMainLoop = act}

-- | Called when the server starts, with the action that begins a graceful shutdown.
setInstallShutdownHandler :: (IO () -> IO ()) -> Settings -> Settings
setInstallShutdownHandler install s = s {settingsInstallShutdownHandler = install}

-- | How many seconds a graceful shutdown waits for requests at most; 'Nothing' means no limit.
setGracefulShutdownTimeout :: Maybe Int -> Settings -> Settings
setGracefulShutdownTimeout time s = s {settingsGracefulShutdownTimeout = time}

-- | The @Server@ field for responses that have none; an empty name disables it.
setServerName :: ByteString -> Settings -> Settings
setServerName name s = s {settingsServerName = name}

-- | An @Alt-Svc@ field that is added to every response.
setAltSvc :: ByteString -> Settings -> Settings
setAltSvc value s = s {settingsAltSvc = Just value}

-- | How many bytes of a request's body that the application has not read are read and discarded, so
-- that the connection can be reused. 'Nothing' means no limit. With a limit, the response to a request in chunks whose
-- end has not been received says @Connection: close@, since nobody knows how much is left.
setMaximumBodyFlush :: Maybe Int -> Settings -> Settings
setMaximumBodyFlush bytes s = s {settingsMaximumBodyFlush = bytes}

-- | The largest size of a request's head in bytes; zero or less means no limit. 'Weft.Http.Limits' replace it.
setMaxTotalHeaderLength :: Int -> Settings -> Settings
setMaxTotalHeaderLength bytes s = s {settingsMaxTotalHeaderLength = bytes}

-- | Called after each response, with the file's size if the response is a file.
setLogger :: (Request -> Status -> Maybe Integer -> IO ()) -> Settings -> Settings
setLogger logger s = s {settingsLogger = Just logger}

-- | Connections begin with a request, without a PROXY protocol header.
setProxyProtocolNone :: Settings -> Settings
setProxyProtocolNone s = s {settingsProxyProtocol = ProxyProtocolNone}

-- | Connections must begin with a PROXY protocol header, version 1 or 2.
setProxyProtocolRequired :: Settings -> Settings
setProxyProtocolRequired s = s {settingsProxyProtocol = ProxyProtocolRequired}

-- | Connections may begin with a PROXY protocol header. Only for listeners that only proxies can reach.
setProxyProtocolOptional :: Settings -> Settings
setProxyProtocolOptional s = s {settingsProxyProtocol = ProxyProtocolOptional}

-- | Disable HTTP\/2, with and without TLS.
setHTTP2Disabled :: Settings -> Settings
setHTTP2Disabled s = s {settingsHTTP2Enabled = False, settingsHTTP2Cleartext = False}

-- | Whether to accept HTTP\/2 without TLS from clients that begin with its connection preface.
setHTTP2Cleartext :: Bool -> Settings -> Settings
setHTTP2Cleartext on s = s {settingsHTTP2Cleartext = on}

-- Getters --------------------------------------------------------------------------------

-- | The port set by 'setPort'.
getPort :: Settings -> Port
getPort = settingsPort

-- | The host preference set by 'setHost'.
getHost :: Settings -> HostPreference
getHost = settingsHost

-- | The action set by 'setOnOpen'.
getOnOpen :: Settings -> SockAddr -> IO Bool
getOnOpen = settingsOnOpen

-- | The action set by 'setOnClose'.
getOnClose :: Settings -> SockAddr -> IO ()
getOnClose = settingsOnClose

-- | The action set by 'setOnException'.
getOnException :: Settings -> Maybe Request -> SomeException -> IO ()
getOnException = settingsOnException

-- | The time set by 'setGracefulShutdownTimeout', in seconds.
getGracefulShutdownTimeout :: Settings -> Maybe Int
getGracefulShutdownTimeout = settingsGracefulShutdownTimeout

-- Exceptions -----------------------------------------------------------------------------

-- | Thrown when an application reads a request's body that the client has not sent correctly.
data RequestError
  = -- | The connection ended before the body did, or with HTTP\/2 the stream did.
    BodyIncomplete
  | -- | The chunked coding is invalid.
    BodyInvalid !Refusal
  deriving (Eq, Show)

instance Exception RequestError

-- | Reported ('setOnException') when an application breaks WAI's rule of one response for each request.
data ApplicationError
  = -- | It returned without a response. The client gets the one of 'setOnExceptionResponse'.
    NoResponse
  | -- | It responded a second time, where this was thrown. The client gets the first response.
    ResponseTwice
  deriving (Eq, Show)

instance Exception ApplicationError

-- | Print the exception to the standard error, if it should be displayed. The output is a single write, so that
-- messages of two threads are not interleaved.
defaultOnException :: Maybe Request -> SomeException -> IO ()
defaultOnException _ e = when (defaultShouldDisplayException e) (reportLine (displayException e))

-- | 'False' for exceptions that only mean that a client has disconnected or sent something invalid, and for
-- 'ThreadKilled'. 'True' for errors of files, which have the same types on network file systems.
defaultShouldDisplayException :: SomeException -> Bool
defaultShouldDisplayException e
  | Just ThreadKilled <- fromException e = False
  | isJust (fromException e :: Maybe RequestError) = False
  | Just io <- fromException e, isNothing (ioeGetFileName io), ioeGetErrorType io `elem` [ResourceVanished, InvalidArgument, TimeExpired, ProtocolError] = False
  | otherwise = True

-- | A response with status 500 that reveals no details.
defaultOnExceptionResponse :: SomeException -> Response
defaultOnExceptionResponse _ =
  responseLBS internalServerError500 [(hContentType, "text/plain; charset=utf-8")] "Something went wrong"

-- | A response with status 500 that contains the exception's text; not for production.
exceptionResponseForDebug :: SomeException -> Response
exceptionResponseForDebug e =
  responseLBS internalServerError500 [(hContentType, "text/plain; charset=utf-8")] ("Exception: " <> L.pack (show e))
