-- |
-- A client of HTTP\/1.1 and, if asked for ('clientProtocol'), HTTP\/2, on the connections, deadlines and pools of
-- @weft@.
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
-- Over HTTP\/2 requests share a connection, up to the limit that the server and 'clientMostStreams' set, before another
-- one is made. For the numbers above:
--
-- 1. A response that breaks a rule of RFC 9113 fails, and if the rule is the connection's, so do all others on it.
-- 2. Of each response, no more than 'clientStreamWindow' is held before it is read, and of those that were read as fast
--    as they came 'clientSpareWindow' more together; one that is not read stops no other one.
-- 3. A request is sent again besides if the server has said that it has not acted on it (REFUSED_STREAM, GOAWAY; RFC
--    9113, 8.7), whatever its method, if its body is not a stream: five times at most.
-- 4. A server that takes nothing for 'clientSendTime' loses the connection. After a request was given up for which
--    nothing at all has come for five seconds, the connection gets no further ones.
-- 5. The stream of an interrupted request is reset. The connection goes on.
--
-- Redirects are not followed, bodies are not decompressed, and cookies are not kept.
--
-- A child of 'System.Posix.Process.forkProcess' can use the client of its parent. It makes connections of its own and
-- neither uses nor ends those that the parent has, and its limits count its own alone. The client ends in the process
-- that has called 'withClient'; in the child it stays open.
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
    withResponseIn,
    Manner (..),
    plainly,
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
    ClientProtocol (..),
    speaking,
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
import Weft.Core.PerProcess
import Weft.Core.Time (Instant (..))
import Weft.Dial
import Weft.Duration
import Weft.Http.Client.Exchange
import Weft.Http.Client.Http2
import Weft.Http.Client.Places
import Weft.Http.Client.Render
import Weft.Http.Client.Types
import Weft.Http.Client.Url
import Weft.Http.Parser.Response (Violation (..))
import Weft.Pool
import Weft.Scope
import Weft.Timer (sleep)
import Weft.Tls (TlsClientSettings (..), loadTrustOnce, tlsConnect)
import Weft.Transport hiding (Instant)

-- | A client: settings, and a pool of connections for each server that was used lately.
data Client = Client
  { clientSettings :: !ClientSettings,
    -- | Connects before the deadline, offering these protocols by ALPN.
    clientConnecting :: [ByteString] -> Instant -> Url -> IO Connection,
    -- | Runs a thread for each pool, which owns it. (In a forked child it never ends.)
    clientScope :: !Scope,
    -- | Made anew in a forked child.
    clientConnections :: !(PerProcess Connections),
    -- | Servers that have chosen HTTP\/1.1 where HTTP\/2 was preferred, and until when that is remembered.
    clientOlder :: !(IORef (Map Server Instant))
  }

-- | The connections of a process.
data Connections = Connections
  { -- | An entry is added by the first request for a server, and removed by the pool's thread. Read by each request.
    keptPools :: !(IORef (Map Server Entry)),
    -- | The connections of HTTP\/2. An entry is added by the first request for a server, and removed when it has none
    -- left.
    keptShared :: !(IORef (Map (Server, ClientProtocol) (Places Http2Connection)))
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
  trusted <- loadTrustOnce (tlsTrust (clientTls settings))
  kept <- newPerProcess (Connections <$> newIORef Map.empty <*> newIORef Map.empty)
  older <- newIORef Map.empty
  withScope $ \scope -> act (Client settings (connecting trusted) scope kept older)
  where
    -- The authorities are loaded for the first connection that needs them.
    connecting trusted offers limit url
      | urlSecure url,
        Nothing <- clientConnect settings = do
        known <- trusted
        connectOffering offers settings {clientTls = (clientTls settings) {tlsTrust = known}} limit url
      | otherwise = connectOffering offers settings limit url

-- | The client, as one that speaks these versions of HTTP: with the same limits and, as far as they are of use to both,
-- the same connections.
speaking :: ClientProtocol -> Client -> Client
speaking protocol client = client {clientSettings = (clientSettings client) {clientProtocol = protocol}}

-- | Connect to a URL's server for HTTP\/1.1, before the deadline and within 'clientConnectTime', with TLS for @https@.
-- Throws 'DialError' and 'IOError'.
connectUrl :: ClientSettings -> Instant -> Url -> IO Connection
connectUrl = connectOffering [http1Name]

-- | The names of the protocols (RFC 7301, 6; RFC 9113, 3.2).
http1Name, http2Name :: ByteString
http1Name = C.pack "http/1.1"
http2Name = C.pack "h2"

-- | Connect, offering these protocols by ALPN.
connectOffering :: [ByteString] -> ClientSettings -> Instant -> Url -> IO Connection
connectOffering offers settings due url = do
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
      tlsConnect tls {tlsOffer = offers, tlsConnectTime = min left (tlsConnectTime tls)} (urlHost url) below

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
withResponse client = withResponseIn client plainly

-- | 'withResponse' in a manner: behind some bytes, or unless nobody is interested any more.
withResponseIn :: Client -> Manner -> Instant -> Request -> (Response -> IO a) -> IO a
withResponseIn client (Manner prefix unless') due r act = speaksHttp2 client (requestUrl r) >>= \speaks -> if speaks then overHttp2 else overHttp1
  where
    overHttp2
      | not (B.null prefix) = throwIO (ClientError (describe r) Sending (InvalidRequest "a connection of HTTP/2 begins with nothing else"))
      -- It has turned out to speak HTTP/1.1.
      | otherwise = withResponseShared client errand act >>= maybe overHttp1 pure
    overHttp1 = withResponseAlone client prefix errand act
    errand = Errand (clientSettings client) unless' due r

-- | The same over HTTP\/1.1.
withResponseAlone :: Client -> ByteString -> Errand -> (Response -> IO a) -> IO a
withResponseAlone client prefix errand@(Errand _ _ due r) act = case renderRequest r of
  Left why -> failed Sending (InvalidRequest why)
  Right rendered -> attempt (if alone then rendered {renderedHead = prefix <> renderedHead rendered, renderedCloses = True} else rendered)
  where
    alone = not (B.null prefix)
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
        result <- try (exchangeRendered errand c rendered (\response -> begin response >> restore (act response)))
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
    repeatable = isRepeatable r

-- | Whether a request may be sent again if its connection ends without a response.
isRepeatable :: Request -> Bool
isRepeatable r = isIdempotent (requestMethod r) && isAtHand (requestBody r)

-- | Whether a body can be sent again.
isAtHand :: RequestBody -> Bool
isAtHand body = case body of
  EmptyBody -> True
  BytesBody _ -> True
  StreamBody _ _ -> False
  TrailedBody {} -> False

-- | How far a request has come: its response has begun; it speaks another protocol, and its connection has left the
-- pool.
data Stage = Asked | Begun | Detached
  deriving (Eq)

-- | A connection to the request's server: a kept one, or a new one. Masked.
--
-- The pool has looked at what the manager has reported of a kept one. For a request that cannot be sent again, the
-- kernel is asked too: it knows of an end that came a moment ago.
leaseFor :: Client -> Bool -> Instant -> Request -> IO (Pool HttpConnection, Lease HttpConnection)
leaseFor client alone due r = do
  pool <- poolFor client alone (requestUrl r) `catch` \ScopeEnded -> failed Connecting ClientClosed
  limit <- min due <$> deadlineIn (clientQueueTime (clientSettings client))
  found <- try (acquire pool limit)
  case found of
    Right lease
      | isRepeatable r -> pure (pool, lease)
      | otherwise -> do
        fit <- (stillQuiet (leased lease) `catch` \e -> const (pure False) (e :: IOException)) `onException` discard pool lease
        if fit then pure (pool, lease) else discard pool lease >> leaseFor client alone due r
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
  pools <- keptPools <$> ofThisProcess (clientConnections client)
  entry <- readIORef pools >>= maybe (newIORef Nothing >>= \pool -> newEmptyMVar >>= enter pools . Entry pool) pure . Map.lookup server
  -- A thread that cannot be forked, or is killed, leaves 'Nothing'.
  readIORef (entryPool entry) >>= maybe (readMVar (entryBegun entry) >>= maybe (throwIO ScopeEnded) pure) pure
  where
    server = serverOf alone url
    settings = clientSettings client
    enter pools new = mask_ $ do
      entry <- atomicModifyIORef' pools $ \known -> case Map.lookup server known of
        Just there -> (known, there)
        Nothing -> (Map.insert server new known, new)
      when (entry == new) $
        void (forkDaemon (clientScope client) (keeper pools new)) `onException` leave pools new
      pure entry
    leave pools entry = do
      atomicModifyIORef' pools (\known -> (Map.update (\e -> if e == entry then Nothing else Just e) server known, ()))
      void (tryPutMVar (entryBegun entry) Nothing)
    keeper pools entry = (`finally` leave pools entry) $
      withPool poolSettings $ \pool -> do
        writeIORef (entryPool entry) (Just pool)
        putMVar (entryBegun entry) (Just pool)
        untilUnused pool False
        leave pools entry
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
          poolValidate = \_ c -> connIsQuiet (httpConnection c) >>= \known -> if known then pure True else stillQuiet c
        }
    connect due = connectTo client [http1Name] due url >>= newHttpConnection

-- | Whether nothing has come on a connection between requests, as the kernel knows it: one system call.
stillQuiet :: HttpConnection -> IO Bool
stillQuiet = fmap (== Quiet) . idleUntil (Instant 0)

-- | Connect, with errors of the client.
connectTo :: Client -> [ByteString] -> Instant -> Url -> IO Connection
connectTo client offers due url = clientConnecting client offers due url `catches` [Handler dialling, Handler broken]
  where
    dialling e = connectFailed (NotConnected e)
    broken e = connectFailed (if isTimeout e then TimedOut else ConnectionBroken e)
    connectFailed = throwIO . ClientError (showUrl url) Connecting

-- Shared connections -----------------------------------------------------------------

-- | Whether HTTP\/2 is to be tried with the URL's server.
speaksHttp2 :: Client -> Url -> IO Bool
speaksHttp2 client url = case clientProtocol (clientSettings client) of
  OnlyHttp1 -> pure False
  OnlyHttp2 -> pure True
  PreferHttp2
    | not (urlSecure url) -> pure False
    | otherwise -> do
      known <- Map.lookup (serverOf False url) <$> readIORef (clientOlder client)
      case known of
        Nothing -> pure True
        Just until' -> (until' <=) <$> deadlineIn (nanoseconds 0)

-- | What a server that has chosen HTTP\/1.1 gives to all who wait for a connection.
data Older = Older
  deriving (Show)

instance Exception Older

-- | 'withResponse' over a connection that is shared; 'Nothing' if the server has chosen HTTP\/1.1.
withResponseShared :: Client -> Errand -> (Response -> IO a) -> IO (Maybe a)
withResponseShared client errand@(Errand _ _ due r) act = case listRequest r of
  Left why -> failed Sending (InvalidRequest why)
  Right listed -> attempt listed mostRepetitions
  where
    failed phase = throwIO . ClientError (describe r) phase
    attempt listed left = do
      outcome <- mask $ \restore -> do
        place <- placeFor client due r
        forM place $ \(places, number, h) -> do
          begun <- newIORef False
          again <- newIORef False
          result <- try $ do
            http2Served h >>= writeIORef again . (> 0)
            exchangeHttp2 errand h listed (\response -> writeIORef begun True >> restore (act response))
          leavePlace places number
          case result of
            Right a -> pure a
            Left e -> do
              under <- readIORef begun
              kept <- readIORef again
              let repeatable cause = case cause of
                    NotProcessed -> isAtHand (requestBody r)
                    NoAnswer _ -> kept && isIdempotent (requestMethod r) && isAtHand (requestBody r)
                    _ -> False
              case fromException e of
                Just (ClientError _ _ cause) | not under && left > 0 && repeatable cause -> pure Nothing
                _ -> throwIO e
      case outcome of
        Nothing -> pure Nothing
        Just (Just a) -> pure (Just a)
        Just Nothing
          | left > 0 -> attempt listed (left - 1)
          | otherwise -> failed Sending NotProcessed

-- | How often a request is sent again.
mostRepetitions :: Int
mostRepetitions = 5

-- | A place on a connection to the request's server, and its number. Masked.
placeFor :: Client -> Instant -> Request -> IO (Maybe (Places Http2Connection, Int, Http2Connection))
placeFor client due r = do
  places <- placesFor client (requestUrl r)
  limit <- min due <$> deadlineIn (clientQueueTime (clientSettings client))
  grant <- takePlace limit places
  case grant of
    Nothing -> failed Queueing TimedOut
    Just (Placed number h) -> pure (Just (places, number, h))
    Just Vacated -> placeFor client due r
    Just (Failed e)
      | Just Older <- fromException e -> pure Nothing
      | Just (ClientError _ phase cause) <- fromException e -> failed phase cause
      | otherwise -> throwIO e
  where
    failed phase = throwIO . ClientError (describe r) phase

-- | The connections to a server. Each is made, run and closed by a thread of its own.
placesFor :: Client -> Url -> IO (Places Http2Connection)
placesFor client url = do
  shared <- keptShared <$> ofThisProcess (clientConnections client)
  known <- Map.lookup key <$> readIORef shared
  closed <- maybe (pure True) isVacant known
  case known of
    Just places | not closed -> pure places
    _ -> mask_ $ do
      self <- newEmptyMVar
      new <- newPlaces (clientMostPerServer settings) (\number -> readMVar self >>= \places -> started shared places number)
      putMVar self new
      atomicModifyIORef' shared $ \all' -> case Map.lookup key all' of
        -- Another request was first.
        Just there | Just there /= known -> (all', there)
        _ -> (Map.insert key new all', new)
  where
    key = (serverOf False url, clientProtocol settings)
    settings = clientSettings client
    started shared places number =
      void (forkDaemon (clientScope client) (connected shared places number)) `catch` \ScopeEnded -> connectionFailed places (toException (ClientError (showUrl url) Connecting ClientClosed))
    connected shared places number = mask $ \restore -> do
      made <- try $ do
        due <- deadlineIn (clientConnectTime settings)
        c <- restore (connectTo client offers due url)
        newHttp2Connection settings (setPlaces places number) c <* chosen c `onException` connAbort c
      case made of
        Left e -> do
          connectionFailed places (ending e)
          forgotten shared places
          maybe (pure ()) (\(SomeAsyncException _) -> throwIO e) (fromException e)
        Right h -> do
          connectionMade places number h
          restore (runHttp2 h) `finally` (connectionGone places number >> forgotten shared places)
    -- The client has ended.
    ending e = case fromException e of
      Just (SomeAsyncException _) -> toException (ClientError (showUrl url) Connecting ClientClosed)
      Nothing -> e
    forgotten shared places = do
      closed <- isVacant places
      when closed (atomicModifyIORef' shared (\all' -> (Map.update (\there -> if there == places then Nothing else Just there) key all', ())))
    offers = if clientProtocol settings == OnlyHttp2 then [http2Name] else [http2Name, http1Name]
    -- What the server has chosen; over clear text, and connections of the caller's, there is no choice.
    chosen c = case securityAlpn <$> connSecurity c of
      Just found | found /= Just http2Name -> case clientProtocol settings of
        PreferHttp2 -> remember >> throwIO Older
        _ -> throwIO (ClientError (showUrl url) Connecting (NotHttp2 "the server has not chosen h2 by ALPN"))
      _ -> pure ()
    remember = do
      t <- deadlineIn (nanoseconds 0)
      until' <- deadlineIn (seconds 600)
      atomicModifyIORef' (clientOlder client) $ \known ->
        let current = Map.filter (> t) known
         in (Map.insert (serverOf False url) until' (if Map.size current < 1000 then current else Map.empty), ())

serverOf :: Bool -> Url -> Server
serverOf alone url = (urlSecure url, urlHost url, urlPort url, urlUnix url, alone)

-- | The counts of the connections to all servers that were used lately, by host and port, or the path of the socket. Of
-- connections of HTTP\/2, how many there are, how many have no request, and how many requests wait.
clientCounts :: Client -> IO [(String, PoolCounts)]
clientCounts client = do
  kept <- ofThisProcess (clientConnections client)
  pools <- readIORef (keptPools kept)
  shared <- readIORef (keptShared kept)
  (<>) <$> (catMaybes <$> mapM counted (Map.toList pools)) <*> mapM countedShared (Map.toList shared)
  where
    counted (server, entry) = readIORef (entryPool entry) >>= mapM (fmap ((,) (nameOf server)) . poolCounts)
    countedShared ((server, _), places) = do
      (total, idle, waiting) <- placesCounts places
      pure (nameOf server, PoolCounts total idle waiting 0 0 0 0 0 0)
    nameOf (secure, host, port, file, _) = maybe (hostAndPort (Url host port Nothing B.empty secure)) id file
