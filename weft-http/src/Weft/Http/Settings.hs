{-# LANGUAGE OverloadedStrings #-}

-- |
-- Settings of a server, with Warp's names. @doc\/warp.md@ lists what is the same, different and absent.
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
  )
where

import Control.Exception
import Control.Monad (when)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Lazy.Char8 as L
import Data.Maybe (isJust)
import Data.String (IsString (..))
import qualified Data.Text as T
import qualified Data.Text.Encoding as T
import GHC.IO.Exception (IOErrorType (..))
import Network.HTTP.Types
import Network.Wai (Request, Response, responseLBS)
import System.IO (stderr)
import System.IO.Error (ioeGetErrorType)
import Weft.Http.Limits (Refusal)
import Weft.Socket (SockAddr)

-- | A TCP port.
type Port = Int

-- | Where to listen. As a string: see 'setHost'.
data HostPreference
  = -- | @*@: every address.
    HostAny
  | -- | @*4@: every address, of IPv4 rather than IPv6.
    HostIPv4
  | -- | @!4@: every address of IPv4.
    HostIPv4Only
  | -- | @*6@: every address, of IPv6 rather than IPv4.
    HostIPv6
  | -- | @!6@: every address of IPv6.
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

-- | Whether connections begin with a header of the PROXY protocol.
data ProxyProtocol
  = -- | No.
    ProxyProtocolNone
  | -- | A header is used if there is one. Only for listeners that no one but proxies can reach.
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

-- | Port 3000 of all IPv4 addresses, a timeout of 30 seconds; exceptions are printed to the standard
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

-- | The address to listen on: @*@ is all addresses; @*4@ and @!4@ all IPv4 addresses; @*6@ all addresses,
-- by an IPv6 socket, which takes IPv4 as well; @!6@ all IPv6 addresses only.
setHost :: HostPreference -> Settings -> Settings
setHost host s = s {settingsHost = host}

-- | Called with an exception of an application and its request; with 'Nothing' for the exception of a
-- connection.
setOnException :: (Maybe Request -> SomeException -> IO ()) -> Settings -> Settings
setOnException handler s = s {settingsOnException = handler}

-- | The response if an application throws before its response has begun.
setOnExceptionResponse :: (SomeException -> Response) -> Settings -> Settings
setOnExceptionResponse make s = s {settingsOnExceptionResponse = make}

-- | Called on each new connection; 'False' closes it.
setOnOpen :: (SockAddr -> IO Bool) -> Settings -> Settings
setOnOpen act s = s {settingsOnOpen = act}

-- | Called when a connection has ended.
setOnClose :: (SockAddr -> IO ()) -> Settings -> Settings
setOnClose act s = s {settingsOnClose = act}

-- | Seconds in which a client has to send a head, to send each 2 KiB of a body ('setSlowlorisSize'), to take each
-- 128 KiB of a response, and to begin its next request. 'Weft.Http.Limits' replace the first and the last of these. Zero
-- or less is no limit.
setTimeout :: Int -> Settings -> Settings
setTimeout time s = s {settingsTimeout = time}

-- | Bytes of a body for which a client gets the timeout again.
setSlowlorisSize :: Int -> Settings -> Settings
setSlowlorisSize size s = s {settingsSlowlorisSize = size}

-- | Run when clients can connect, before the first one is served.
setBeforeMainLoop :: IO () -> Settings -> Settings
setBeforeMainLoop act s = s {settingsBeforeMainLoop = act}

-- | Called when the server starts, with the action that begins a graceful shutdown.
setInstallShutdownHandler :: (IO () -> IO ()) -> Settings -> Settings
setInstallShutdownHandler install s = s {settingsInstallShutdownHandler = install}

-- | Seconds that a graceful shutdown waits for requests at most; 'Nothing' is no limit.
setGracefulShutdownTimeout :: Maybe Int -> Settings -> Settings
setGracefulShutdownTimeout time s = s {settingsGracefulShutdownTimeout = time}

-- | The @Server@ field of responses that have none; an empty name adds none.
setServerName :: ByteString -> Settings -> Settings
setServerName name s = s {settingsServerName = name}

-- | An @Alt-Svc@ field for every response.
setAltSvc :: ByteString -> Settings -> Settings
setAltSvc value s = s {settingsAltSvc = Just value}

-- | How many bytes of a request's body, which the application did not read, are read and dropped, so
-- that the connection can go on. 'Nothing' is no limit.
setMaximumBodyFlush :: Maybe Int -> Settings -> Settings
setMaximumBodyFlush bytes s = s {settingsMaximumBodyFlush = bytes}

-- | The largest size in bytes of a request's head. 'Weft.Http.Limits' replace it.
setMaxTotalHeaderLength :: Int -> Settings -> Settings
setMaxTotalHeaderLength bytes s = s {settingsMaxTotalHeaderLength = bytes}

-- | Called when a response was sent, with the size of its file if it is one.
setLogger :: (Request -> Status -> Maybe Integer -> IO ()) -> Settings -> Settings
setLogger logger s = s {settingsLogger = Just logger}

-- | Connections begin with a request.
setProxyProtocolNone :: Settings -> Settings
setProxyProtocolNone s = s {settingsProxyProtocol = ProxyProtocolNone}

-- | Connections begin with a header of the PROXY protocol, version 1 or 2.
setProxyProtocolRequired :: Settings -> Settings
setProxyProtocolRequired s = s {settingsProxyProtocol = ProxyProtocolRequired}

-- | Connections may begin with such a header. Only for listeners that no one but proxies can reach.
setProxyProtocolOptional :: Settings -> Settings
setProxyProtocolOptional s = s {settingsProxyProtocol = ProxyProtocolOptional}

-- | No HTTP\/2, neither within TLS nor without.
setHTTP2Disabled :: Settings -> Settings
setHTTP2Disabled s = s {settingsHTTP2Enabled = False, settingsHTTP2Cleartext = False}

-- | Accept HTTP\/2 without TLS, from clients that begin with its preface.
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

-- | Thrown by reading a request's body if the client does not send it correctly.
data RequestError
  = -- | The connection ended before the body did.
    BodyIncomplete
  | -- | The chunked coding is invalid.
    BodyInvalid !Refusal
  deriving (Eq, Show)

instance Exception RequestError

-- | Print the exception to the standard error, if it should be displayed. It is one write, so that the output of two threads
-- does not mix.
defaultOnException :: Maybe Request -> SomeException -> IO ()
defaultOnException _ e = when (defaultShouldDisplayException e) (B.hPut stderr (T.encodeUtf8 (T.pack (displayException e <> "\n"))))

-- | 'False' for exceptions that only say that a client has gone or was wrong, and for 'ThreadKilled'.
defaultShouldDisplayException :: SomeException -> Bool
defaultShouldDisplayException e
  | Just ThreadKilled <- fromException e = False
  | isJust (fromException e :: Maybe RequestError) = False
  | Just io <- fromException e, ioeGetErrorType io `elem` [ResourceVanished, InvalidArgument, TimeExpired] = False
  | otherwise = True

-- | 500 without details.
defaultOnExceptionResponse :: SomeException -> Response
defaultOnExceptionResponse _ =
  responseLBS internalServerError500 [(hContentType, "text/plain; charset=utf-8")] "Something went wrong"

-- | 500 with the exception's text: not for the public.
exceptionResponseForDebug :: SomeException -> Response
exceptionResponseForDebug e =
  responseLBS internalServerError500 [(hContentType, "text/plain; charset=utf-8")] ("Exception: " <> L.pack (show e))
