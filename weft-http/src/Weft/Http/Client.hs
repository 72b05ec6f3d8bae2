-- |
-- A client of HTTP\/1.1, on the connections, deadlines and pools of @weft@.
--
-- > withClient defaultClientSettings $ \client -> do
-- >   soon <- deadlineIn (seconds 10)
-- >   answer <- request client soon (getUrl "https://www.example.org/")
-- >   print (answerStatus answer)
--
-- What holds:
--
-- 1. /Responses are parsed strictly/, by the parsers of the server: what two programs could understand differently is
--    an error. Heads, lines, trailer sections and interim responses are bounded.
-- 2. /Connections are kept/ for each server (scheme, host and port, or Unix socket), and used again only if the
--    response was received whole, the request was sent whole, and nothing has come since. Bytes that no request has
--    asked for end a connection: they are not taken for the next response.
-- 3. /A request is sent again/ only if the connection was kept from an earlier request and ended before the first byte
--    of a response, and only if the request can be repeated: its method is idempotent (RFC 9110, 9.2.2) and its body is
--    not a stream. Connections that are known to have ended are not used at all.
-- 4. /Every phase has a time limit/ ('ClientSettings'), and the deadline of the request holds for all.
-- 5. /An interrupted request leaves nothing/: its connection is closed, and its thread, if the body is long, has ended.
--
-- Redirects are not followed, bodies are not decompressed, and cookies are not kept.
--
-- Any thread may use a client. All functions are interruptible. Errors are 'ClientError's, and exceptions of the
-- caller's own functions.
--
-- @since 0.1.0
module Weft.Http.Client
  ( -- * Clients
    Client,
    withClient,

    -- * Requests
    request,
    Answer (..),
    withResponse,
    withResponseAfter,
    Response (..),
    Request (..),
    RequestBody (..),
    getRequest,
    getUrl,

    -- * URLs
    Url (..),
    parseUrl,
    parseUrlOrSocket,
    showUrl,
    hostAndPort,
    socketPathFits,

    -- * Settings
    ClientSettings (..),
    defaultClientSettings,
    connectUrl,

    -- * Errors
    ClientError (..),
    Phase (..),
    Cause (..),
    Violation (..),

    -- * Counts
    clientCounts,
  )
where

import Control.Concurrent.MVar
import Control.Exception
import Control.Monad
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import Data.IORef
import Data.Map.Strict (Map)
import qualified Data.Map.Strict as Map
import Data.Maybe (catMaybes, isJust)
import Network.HTTP.Types (Header, Status, methodGet)
import Weft.Core.Time (Instant (..))
import Weft.Dial
import Weft.Duration
import Weft.Http.Client.Exchange
import Weft.Http.Client.Render
import Weft.Http.Client.Types
import Weft.Http.Client.Url
import Weft.Http.Parser.Response (Violation (..))
import Weft.Pool
import Weft.Scope
import Weft.Timer (sleep)
import Weft.Tls (TlsClientSettings (..), loadTrust, tlsConnect)
import Weft.Transport hiding (Instant)

-- | A client: settings, and a pool of connections for each server that was used lately.
data Client = Client
  { clientSettings :: !ClientSettings,
    -- | Runs a thread for each pool, which owns it.
    clientScope :: !Scope,
    -- | An entry is added by the first request for a server, and removed by the pool's thread. Read by each request.
    clientPools :: !(IORef (Map Server Entry))
  }

-- | Scheme, host, port and Unix socket, and whether each connection is for one request.
type Server = (Bool, String, String, Maybe FilePath, Bool)

-- | The pool of a server, and what to wait for until there is one. Both are filled by the pool's thread, the second
-- with 'Nothing' if it ends before. Requests read the first: 'readMVar' locks, and so moves a cache line to each
-- capability that calls it.
data Entry = Entry
  { entryPool :: !(IORef (Maybe (Pool HttpConnection))),
    entryBegun :: !(MVar (Maybe (Pool HttpConnection)))
  }

instance Eq Entry where
  a == b = entryPool a == entryPool b

-- | Run an action with a new client. At its end all connections are closed.
withClient :: ClientSettings -> (Client -> IO a) -> IO a
withClient settings act = do
  trust <- newMVar Nothing
  pools <- newIORef Map.empty
  withScope $ \scope -> act (Client (loaded trust) scope pools)
  where
    loaded trust = case clientConnect settings of
      Just _ -> settings
      Nothing -> settings {clientConnect = Just (connecting trust)}
    -- The authorities are loaded for the first connection that needs them.
    connecting trust limit url
      | urlSecure url = do
        known <- modifyMVar trust $ \before -> do
          now' <- maybe (loadTrust (tlsTrust (clientTls settings))) pure before
          pure (Just now', now')
        connectUrl settings {clientTls = (clientTls settings) {tlsTrust = known}} limit url
      | otherwise = connectUrl settings limit url

-- | Connect to a URL's server, before the deadline and within 'clientConnectTime', with TLS for @https@. Throws
-- 'DialError' and 'IOError'.
connectUrl :: ClientSettings -> Instant -> Url -> IO Connection
connectUrl settings due url = do
  limit <- min due <$> deadlineIn (clientConnectTime settings)
  case clientConnect settings of
    Just connect -> connect limit url
    Nothing -> dialConnection options limit (maybe (Host (urlHost url) (urlPort url)) UnixPath (urlUnix url))
  where
    options
      | urlSecure url = (clientDial settings) {dialUpgrade = \limit c -> dialUpgrade (clientDial settings) limit c >>= secured limit}
      | otherwise = clientDial settings
    secured limit below = do
      left <- untilDeadline limit
      let tls = clientTls settings
      tlsConnect tls {tlsOffer = [C.pack "http/1.1"], tlsConnectTime = min left (tlsConnectTime tls)} (urlHost url) below

-- Requests ---------------------------------------------------------------------------

-- | A GET for a URL, without further fields.
getRequest :: Url -> Request
getRequest url = Request methodGet url [] EmptyBody

-- | A GET for a URL that is known to be one; an error otherwise. See 'parseUrl'.
getUrl :: String -> Request
getUrl = either (error . ("Weft.Http.Client.getUrl: " <>)) getRequest . parseUrl

-- | A response with its whole body.
data Answer = Answer
  { answerStatus :: !Status,
    answerFields :: ![Header],
    answerBody :: !ByteString,
    answerTrailers :: ![Header]
  }
  deriving (Eq, Show)

-- | Send a request before the deadline, and return the response. 'BodyTooLarge' if its body has more bytes than
-- 'clientBodyLimit'.
request :: Client -> Instant -> Request -> IO Answer
request client due r = withResponse client due r $ \response -> do
  let collect size pieces = do
        piece <- responsePiece response
        let size' = size + B.length piece
        case () of
          _
            | B.null piece -> pure (B.concat (reverse pieces))
            | size' > most -> throwIO (ClientError (describe r) Receiving (BodyTooLarge most))
            | otherwise -> collect size' (piece : pieces)
  body <- collect 0 []
  Answer (responseStatus response) (responseFields response) body <$> responseTrailers response
  where
    most = clientBodyLimit (clientSettings client)

-- | Send a request before the deadline, and run an action on the response. The connection is kept if the action has
-- read the body to its end, or the rest of it has been received already.
withResponse :: Client -> Instant -> Request -> (Response -> IO a) -> IO a
withResponse client = withResponseAfter client B.empty

-- | 'withResponse' behind some bytes that are not of HTTP, such as a header of the PROXY protocol: the connection
-- begins with them, and is for this request alone. Over TLS the server gets them within the session, not before it.
withResponseAfter :: Client -> ByteString -> Instant -> Request -> (Response -> IO a) -> IO a
withResponseAfter client prefix due r act = case renderRequest r of
  Left why -> failed Sending (InvalidRequest why)
  Right rendered -> attempt (if alone then rendered {renderedHead = prefix <> renderedHead rendered, renderedCloses = True} else rendered)
  where
    alone = not (B.null prefix)
    settings = clientSettings client
    failed phase = throwIO . ClientError (describe r) phase
    attempt rendered = do
      outcome <- mask $ \restore -> do
        (pool, lease) <- leaseFor client alone due r
        let c = leased lease
        again <- (> 0) <$> exchangesDone c
        stage <- newIORef Asked
        let begin response
              -- One that speaks another protocol may do so for long, and takes no place from requests.
              | isJust (responseSwitched response) = detach pool lease >> writeIORef stage Detached
              | otherwise = writeIORef stage Begun
            give = readIORef stage >>= \reached -> if reached == Detached then connClose (httpConnection c) else discard pool lease
        result <- try (exchangeRendered settings c due r rendered (\response -> begin response >> restore (act response)))
        case result of
          Right (a, after) -> Right a <$ (if after == Kept then release pool lease else give)
          Left e -> do
            connAbort (httpConnection c)
            give
            reached <- readIORef stage
            case fromException e of
              Just (ClientError _ _ (NoAnswer _)) | again, repeatable, reached == Asked -> pure (Left ())
              _ -> throwIO e
      either (const (attempt rendered)) pure outcome
    repeatable =
      isIdempotent (requestMethod r) && case requestBody r of
        StreamBody _ _ -> False
        _ -> True

-- | How far a request has come: its response has begun; it speaks another protocol, and its connection has left the
-- pool.
data Stage = Asked | Begun | Detached
  deriving (Eq)

-- | A connection to the request's server: a kept one, or a new one. Masked.
leaseFor :: Client -> Bool -> Instant -> Request -> IO (Pool HttpConnection, Lease HttpConnection)
leaseFor client alone due r = do
  pool <- poolFor client alone (requestUrl r) `catch` \ScopeEnded -> failed Connecting ClientClosed
  limit <- min due <$> deadlineIn (clientQueueTime (clientSettings client))
  found <- try (acquire pool limit)
  case found of
    Right lease -> pure (pool, lease)
    -- The pool was idle for long, and was removed meanwhile.
    Left e
      | Just PoolClosed <- fromException e -> leaseFor client alone due r
      | Just (ClientError _ phase cause) <- fromException e -> failed phase cause
      | Just why <- fromException e, isTimeout why -> failed Queueing TimedOut
      | otherwise -> throwIO e
  where
    failed phase = throwIO . ClientError (describe r) phase

-- Pools ------------------------------------------------------------------------------

-- | The pool of a server. Its thread removes it when it has had no connection for as long as a connection is kept.
poolFor :: Client -> Bool -> Url -> IO (Pool HttpConnection)
poolFor client alone url = do
  pools <- readIORef (clientPools client)
  entry <- maybe (newIORef Nothing >>= \pool -> newEmptyMVar >>= enter . Entry pool) pure (Map.lookup server pools)
  -- A thread that cannot be forked, or is killed, leaves 'Nothing'.
  readIORef (entryPool entry) >>= maybe (readMVar (entryBegun entry) >>= maybe (throwIO ScopeEnded) pure) pure
  where
    server = (urlSecure url, urlHost url, urlPort url, urlUnix url, alone)
    settings = clientSettings client
    enter new = mask_ $ do
      entry <- atomicModifyIORef' (clientPools client) $ \pools -> case Map.lookup server pools of
        Just there -> (pools, there)
        Nothing -> (Map.insert server new pools, new)
      when (entry == new) $
        void (forkDaemon (clientScope client) (keeper new)) `onException` leave new
      pure entry
    leave entry = do
      atomicModifyIORef' (clientPools client) (\pools -> (Map.update (\e -> if e == entry then Nothing else Just e) server pools, ()))
      void (tryPutMVar (entryBegun entry) Nothing)
    keeper entry = (`finally` leave entry) $
      withPool poolSettings $ \pool -> do
        writeIORef (entryPool entry) (Just pool)
        putMVar (entryBegun entry) (Just pool)
        untilUnused pool False
        leave entry
    untilUnused pool before = do
      sleep (max (milliseconds 100) (clientIdleTime settings))
      counts <- poolCounts pool
      let unused = countTotal counts == 0 && countWaiting counts == 0
      unless (unused && before) (untilUnused pool unused)
    poolSettings =
      (poolOf connect (connClose . httpConnection))
        { poolMost = clientMostPerServer settings,
          poolIdleTime = clientIdleTime settings,
          poolMaximalAge = maxBound,
          -- Before each use.
          poolValidateAfter = nanoseconds 0,
          poolValidate = fmap (== Quiet) . idleUntil longPast
        }
    longPast = Instant 0
    connect due = (connectUrl settings due url >>= newHttpConnection) `catches` [Handler dialling, Handler broken]
    dialling e = connectFailed (NotConnected e)
    broken e = connectFailed (if isTimeout e then TimedOut else ConnectionBroken e)
    connectFailed = throwIO . ClientError (showUrl url) Connecting

-- | The counts of the pools of all servers that were used lately, by host and port, or the path of the socket.
clientCounts :: Client -> IO [(String, PoolCounts)]
clientCounts client = do
  pools <- readIORef (clientPools client)
  catMaybes <$> mapM counted (Map.toList pools)
  where
    counted ((secure, host, port, file, _), entry) = do
      pool <- readIORef (entryPool entry)
      mapM (fmap ((,) (maybe (hostAndPort (Url host port Nothing B.empty secure)) id file)) . poolCounts) pool
