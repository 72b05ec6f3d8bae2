{-# LANGUAGE RankNTypes #-}

-- |
-- Managers of the package @http-client@ with connections of Weft, for programs that use it, or something that is built
-- on it.
--
-- > manager <- newManager weftManagerSettings
--
-- What changes:
--
-- * Names are looked up by "Weft.Resolver", and the addresses of a name are tried in a race ("Weft.Dial").
-- * TLS is "Weft.Tls", OpenSSL 3, with the name of the host, which is checked.
-- * @responseTimeout@ holds in each phase: for the look-up of the name, the connection, the handshake, the request with
--   its body and the head of the response together, redirects included; and for each piece of the response's body.
--   @http-client@ itself limits neither sending nor the body.
--
-- Connections are kept, and HTTP is spoken, by @http-client@, as before. The exceptions are its own: 'ResponseTimeout' in
-- each phase, and 'ConnectionFailure' with a 'DialError' or an 'IOError'. Any thread may use a manager.
--
-- The connections of a manager are kept by @http-client@, which takes no notice of forks: a child of
-- 'System.Posix.Process.forkProcess' makes a manager of its own. With that of its parent it would send requests over
-- connections that the parent uses. (The settings may be those of the parent.)
--
-- "Weft.Http.Client" of @weft-http@ is a client without this package; its clients can be used in a forked child.
--
-- @since 0.1.0
module Weft.Http.Client.Manager
  ( weftManagerSettings,
    onWeft,
    onWeftWith,
  )
where

import Control.Applicative ((<|>))
import Control.Exception
import Control.Monad (unless)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import Data.Char (isDigit)
import Data.IORef
import Data.String (fromString)
import Network.HTTP.Client
  ( HttpException (HttpExceptionRequest),
    HttpExceptionContent (ConnectionFailure, ResponseTimeout),
    ManagerSettings,
    Request,
    defaultManagerSettings,
    getOriginalRequest,
    managerModifyResponse,
    managerRawConnection,
    managerResponseTimeout,
    managerTlsConnection,
    managerWrapException,
    responseBody,
    responseHeaders,
    responseTimeoutNone,
  )
import Network.HTTP.Types (Header, hContentEncoding, hContentLength)
import Network.Socket (HostAddress, SockAddr (SockAddrInet))
import Weft.Dial
import Weft.Duration
import Weft.Http.Client.Manager.Internal
import Weft.Timer (within)
import Weft.Tls
import qualified Weft.Transport as W

-- | 'onWeft' of 'defaultManagerSettings'.
weftManagerSettings :: ManagerSettings
weftManagerSettings = onWeft defaultManagerSettings

-- | The settings, with connections of Weft. Settings of time limits belong into the argument:
--
-- > newManager (onWeft defaultManagerSettings {managerResponseTimeout = responseTimeoutMicro 5000000})
--
-- The result's own 'managerResponseTimeout' is none, since a second timer for the same limit would cost a quarter of a
-- small request. One that is set there holds beside the argument's, and for the head only.
onWeft :: ManagerSettings -> ManagerSettings
onWeft = onWeftWith defaultDialOptions defaultTlsClientSettings

-- | 'onWeft' with settings for dialling and for TLS. The trusted authorities are loaded once for a manager, with its
-- first connection that needs them.
onWeftWith :: DialOptions -> TlsClientSettings -> ManagerSettings -> ManagerSettings
onWeftWith options tls settings =
  settings
    { managerResponseTimeout = responseTimeoutNone,
      managerRawConnection = pure (dialled options),
      managerTlsConnection = do
        secured <- securing tls
        pure $ \address host port -> dialled options {dialUpgrade = \due c -> dialUpgrade options due c >>= secured due host} address host port,
      managerTlsProxyConnection = do
        secured <- securing tls
        -- The proxy is asked by the bytes of a CONNECT; the function checks its answer.
        pure $ \asking check server address host port ->
          bracketOnError (connected options address host port) (connectionClose . fst) $ \(plain, taken) -> do
            connectionWrite plain asking
            check plain
            fst <$> (taken >>= secured W.noDeadline server >>= adapted),
      managerWrapException = \request act -> do
        let failing = throwIO . HttpExceptionRequest request
        managerWrapException settings request $
          catchJust (content request) (limited (timeLimit settings request) (failing ResponseTimeout) act) failing,
      managerModifyResponse = \response -> do
        let request = getOriginalRequest response
            piece = limited (timeLimit settings request) (throwIO (HttpExceptionRequest request ResponseTimeout)) (responseBody response)
        reading <- untilLength (bodyLength (responseHeaders response)) piece (responseBody response)
        managerModifyResponse settings response {responseBody = reading}
    }

-- | What an exception below is to be: of a dial that failed, and of a request's own limit, which @http-client@ sets a
-- timer for too. While a connection is made, either of the two timers may be the first.
content :: Request -> SomeException -> Maybe HttpExceptionContent
content request e
  | Just why <- fromException e = Just (ConnectionFailure (toException (why :: DialError)))
  | couldNotConnectInTime request e = Just ResponseTimeout
  | otherwise = Nothing

-- | The length of a body that ends by its length, if the pieces that are read of it are those that come.
bodyLength :: [Header] -> Maybe Int
bodyLength = go Nothing
  where
    go known [] = known >>= decimal
    go known ((name, value) : more)
      | name == hContentLength = go (known <|> Just value) more
      | name == hContentEncoding || name == transferEncoding = Nothing
      | otherwise = go known more
    transferEncoding = fromString "Transfer-Encoding"
    -- Without a sign, and short enough for an 'Int': of others it is not certain how @http-client@ reads them.
    decimal text
      | B.length text <= 18 && C.all isDigit text = fst <$> C.readInt text
      | otherwise = Nothing

-- | Read a body of a known length by the first action, and by the second one when all of it has been read: the end is
-- then known to @http-client@ too, and is told without waiting. Without a length, by the first action.
untilLength :: Maybe Int -> IO ByteString -> IO ByteString -> IO (IO ByteString)
untilLength Nothing piece _ = pure piece
untilLength (Just size) piece end = do
  -- Written by the thread that reads the body.
  left <- newIORef size
  pure $ do
    n <- readIORef left
    if n <= 0
      then end
      else do
        bytes <- piece
        writeIORef left $! n - B.length bytes
        pure bytes

limited :: Duration -> IO a -> IO a -> IO a
limited time late act
  | time == maxBound = act
  | otherwise = within time act >>= maybe late pure

-- | TLS with a host over a connection, with the authorities loaded at the first call.
securing :: TlsClientSettings -> IO (W.Instant -> String -> W.Connection -> IO W.Connection)
securing tls = do
  trusted <- loadTrustOnce (tlsTrust tls)
  pure $ \due host below -> do
    trust <- trusted
    left <- W.untilDeadline due
    tlsConnect tls {tlsTrust = trust, tlsOffer = [C.pack "http/1.1"], tlsConnectTime = min left (tlsConnectTime tls)} host below

-- | A connection to the address, or else to the host.
dialled :: DialOptions -> Maybe HostAddress -> String -> Int -> IO Connection
dialled options address host port = fst <$> connected options address host port

-- | Throws a 'DialError', which 'managerWrapException' makes an exception of the request.
connected :: DialOptions -> Maybe HostAddress -> String -> Int -> IO (Connection, IO W.Connection)
connected options address host port =
  mask_ $ dialConnection options W.noDeadline (maybe (Host host (show port)) (At . SockAddrInet (fromIntegral port)) address) >>= adapted

-- | A connection as @http-client@ has them, and an action that takes the connection back, with what was received and
-- not used.
adapted :: W.Connection -> IO (Connection, IO W.Connection)
adapted c = do
  -- Read and written by the thread that has the connection, as the connection itself.
  unread <- newIORef B.empty
  pure
    ( Connection
        { connectionRead = do
            bytes <- readIORef unread
            if B.null bytes then W.connReceive c W.noDeadline 32768 else bytes <$ writeIORef unread B.empty,
          connectionUnread = \bytes -> readIORef unread >>= \held -> writeIORef unread $! bytes <> held,
          connectionWrite = \bytes -> unless (B.null bytes) (W.connSendBytes c W.noDeadline bytes),
          connectionClose = W.connClose c
        },
      readIORef unread >>= \bytes -> writeIORef unread B.empty >> W.withReceived bytes c
    )
