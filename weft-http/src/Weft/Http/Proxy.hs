{-# LANGUAGE OverloadedStrings #-}

-- |
-- A reverse proxy as a WAI application: it passes requests on to one of several servers of HTTP\/1.1 or HTTP\/2, over
-- kept connections ("Weft.Http.Client"), and their responses back.
--
-- > servers <- either fail pure (mapM parseUrl ["http://127.0.0.1:3000", "http://127.0.0.1:3001"])
-- > withProxy defaultProxySettings servers (run 8080)
--
-- * /Choice./ The server with the fewest requests that this capability has under way, the next one in turn if several
--   have. A server that could not be connected to, or that gave no answer, 'proxyMostFailures' times in a row is passed
--   over for 'proxyPause'; so is one whose health checks fail ('proxyCheck'), until they pass again. If all are passed
--   over, all are asked.
-- * /Repetition./ If a server cannot be connected to, another one is asked, whatever the method: it got nothing. If it
--   ends the connection without an answer, another one is asked only if the method is idempotent and the body is at
--   hand (RFC 9110, 9.2.2); if it says by HTTP\/2 that it has not acted on the request, only if the body is at hand.
--   Each server is asked once at most.
-- * /Bodies/ are passed on in pieces as they come, in both directions; a server is read from as fast as the client
--   takes them. A request's body of at most 64 KiB with a length is read before the server is asked. A response whose
--   body has come with its head is sent as one, when the connection to the server is free again.
-- * /Trailers/ are passed on to clients and to servers of HTTP\/2 (RFC 9113, 8.1), so that calls of gRPC go through. If
--   a client resets its stream, so does the proxy at the server; if the server does, the response to the client breaks
--   off.
-- * /Upgrades/ (WebSockets) are passed on for requests of HTTP\/1.1 without a body, if a server of HTTP\/1.1 answers
--   101 and names a protocol that was asked for. Then bytes are passed on in both directions; when the client ends its
--   direction, so does the proxy, and when the server does, the connection ends. It also ends when both are silent for
--   the client's timeout ('Weft.Http.setTimeout'). Upgrades to HTTP\/2 and TLS are not passed on.
-- * /Clients that go./ When a client of HTTP\/1 is gone while its server is silent, the server's connection is closed,
--   and another request can have its place: at once if the client's connection was reset, else when the server has been
--   silent for 'proxyHalfClosed' after its end. One of HTTP\/2 resets its stream, or ends its connection. Whether a
--   client is there is looked at when the server has been silent for 100 ms. The log has status 499, as nginx's.
-- * /Fields./ Those that concern one connection (RFC 9110, 7.6.1), those that @Connection@ names and @Expect@ are
--   dropped. The fields @X-Forwarded-For@, @X-Forwarded-Host@, @X-Forwarded-Proto@ and @Via@ are set; what the client
--   sent of the first three and of @Forwarded@ is dropped, since anybody can send it. @Host@ is the client's.
-- * /Errors./ 502 if there is no response that can be relied on, 503 if no connection to the server is free in time
--   or it refuses the request, 504 if a time limit passes. If a response breaks off, so does that of the proxy.
--
-- A child of 'System.Posix.Process.forkProcess' that uses the application of its parent has connections of its own
-- ("Weft.Http.Client"), and checks the servers itself, from its first request on.
--
-- Any thread may use the application. Interim responses of the server are dropped.
--
-- @since 0.1.0
module Weft.Http.Proxy
  ( -- * Proxies
    withProxy,
    Proxy,
    openProxy,
    proxyApplication,
    closeProxy,

    -- * Settings
    ProxySettings (..),
    defaultProxySettings,
    HealthCheck (..),
    defaultHealthCheck,
    ProxyHeader (..),
  )
where

import Control.Concurrent
import Control.Exception
import Control.Monad
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Data.ByteString.Builder (byteString)
import qualified Data.CaseInsensitive as CI
import Data.IORef
import GHC.Conc (labelThread)
import GHC.IO.Exception (IOErrorType (ResourceVanished), IOException (..))
import Network.HTTP.Types
import qualified Network.Wai as Wai
import Weft.Core.PerProcess
import Weft.Duration
import Weft.Http.Client hiding (request)
import Weft.Http.Client.Render (isIdempotent)
import Weft.Http.Proxy.Fields
import Weft.Http.Proxy.Header
import Weft.Http.Proxy.Servers
import Weft.Http.Proxy.Tunnel
import Weft.Http.Request (clientEnd)
import Weft.Http2.Data
import Weft.Timer (sleep, within)
import Weft.Transport (Connection, PeerState (..), deadlineIn, noDeadline)

-- | Settings of a proxy. Begin with 'defaultProxySettings'.
data ProxySettings = ProxySettings
  { -- | The connections to the servers, and the time limits of each phase.
    proxyClient :: !ClientSettings,
    -- | After so many failures in a row a server is passed over.
    proxyMostFailures :: !Int,
    -- | For how long.
    proxyPause :: !Duration,
    -- | How each server is checked, if at all.
    proxyCheck :: !(Maybe HealthCheck),
    -- | Whether servers are told the address of the client by a header of the PROXY protocol, and which. Each request
    -- then has a connection of its own. Not for @https@: there the header would have to come before the handshake; nor
    -- for HTTP\/2.
    proxyHeader :: !(Maybe ProxyHeader),
    -- | How long a server may be silent when the client of HTTP\/1 has ended its direction, before the request is given
    -- up. Such a client has closed its connection, which is the rule, or only says that it has no further request, and
    -- waits for the response; the two look the same until something is sent. Zero gives requests up at once, as nginx
    -- does unless told otherwise; 'maxBound' lets them go on until the connection is known to be gone.
    proxyHalfClosed :: !Duration,
    -- | Called for each failure of a server, with its URL. By the request's thread, which ignores its exceptions.
    proxyOnFailure :: Url -> ClientError -> IO (),
    -- | Called when checks have begun to fail at a server, or to pass again ('True'), with its URL. By the thread that
    -- checks this server, which ignores its exceptions.
    proxyOnCheck :: Url -> Bool -> IO ()
  }

-- | 256 connections to each server; five seconds to connect; a server that failed three times in a row is passed over
-- for ten seconds; a second of silence for a client that has ended its direction; no checks, and no PROXY protocol.
defaultProxySettings :: ProxySettings
defaultProxySettings =
  ProxySettings
    { proxyClient = defaultClientSettings {clientMostPerServer = 256, clientConnectTime = seconds 5},
      proxyMostFailures = 3,
      proxyPause = seconds 10,
      proxyCheck = Nothing,
      proxyHeader = Nothing,
      proxyHalfClosed = seconds 1,
      proxyOnFailure = \_ _ -> pure (),
      proxyOnCheck = \_ _ -> pure ()
    }

-- | An open proxy.
data Proxy = Proxy
  { -- | The application that passes requests on.
    proxyApplication :: Wai.Application,
    -- | Ends the checks of this process, and waits for their threads. Requests may go on.
    closeProxy :: IO ()
  }

-- | Run an action with an application that passes requests on to these servers. The paths of the URLs do not matter. At
-- the end of the action, the checks end and the connections to the servers are closed. What they speak is the
-- 'clientProtocol' of 'proxyClient'.
withProxy :: ProxySettings -> [Url] -> (Wai.Application -> IO a) -> IO a
withProxy settings urls act = withClient (proxyClient settings) $ \client ->
  bracket (openProxy settings client [(clientProtocol (proxyClient settings), url) | url <- urls]) closeProxy (act . proxyApplication)

-- | A proxy for these servers, with what each speaks, over the connections of a client: several can share one.
-- 'proxyClient' has a meaning for upgrades only. One without checks need not be closed.
openProxy :: ProxySettings -> Client -> [(ClientProtocol, Url)] -> IO Proxy
openProxy settings client servers = do
  upstreams <- mapM (uncurry newUpstream) servers
  let application = proxied settings client upstreams
  case proxyCheck settings of
    Nothing -> pure (Proxy application (pure ()))
    Just check -> do
      closed <- newIORef False
      checks <- checking settings client upstreams check >>= newPerProcessFrom (\_ -> begin closed upstreams check)
      pure . Proxy (\request respond -> ofThisProcess checks >> application request respond) $ do
        writeIORef closed True
        join (ofThisProcess checks)
  where
    -- In a forked child.
    begin closed upstreams check = do
      over <- readIORef closed
      if over then pure (pure ()) else checking settings client upstreams check

proxied :: ProxySettings -> Client -> [Upstream] -> Wai.Application
proxied settings client upstreams request respond = do
  body <- bodyOf request
  (turn, candidates) <- inOrder upstreams
  go body turn candidates
  where
    go body turn candidates = case candidates of
      [] -> respond (failure badGateway502)
      upstream : others -> do
        started <- newIORef False
        let asked = Request (Wai.requestMethod request) (upstreamUrl upstream) {urlPath = target} (fieldsFor (upstreamProtocol upstream)) body
            got response = do
              answered upstream
              whole <- responseWhole response
              case (responseSwitched response, whole) of
                (Just server, _) -> begin >> Sent <$> respond (switchedTo (proxyClient settings) response server)
                (_, Just bytes) -> trailing True response >> Whole (builtFrom response bytes) <$ begin
                _ -> do
                  -- Masked, and kept apart: a piece that has come is not lost to the end of the time.
                  came <- newIORef Nothing
                  _ <- mask_ (within firstPieceTime (responsePiece response >>= writeIORef came . Just))
                  first <- readIORef came
                  trailing False response
                  begin
                  Sent <$> respond (passedBack response first)
            begin = writeIORef started True
        outcome <- counted turn upstream $ \restore -> withResponseIn (speaking (upstreamProtocol upstream) client) manner noDeadline asked (restore . got)
        case outcome of
          Right (Sent received) -> pure received
          Right (Whole response) -> respond response
          Left e -> do
            under <- readIORef started
            case fromException e of
              -- That of a send to such a client: it concerns nobody else.
              Just (ClientError _ _ Abandoned) | under -> ioError (IOError Nothing ResourceVanished "Weft.Http.Proxy" "the client has gone" Nothing Nothing)
              -- Behind the response's first bytes there is nothing but to break it off.
              Just why | under -> alone (proxyOnFailure settings (upstreamUrl upstream) why) >> throwIO e
              Just why@(ClientError _ phase cause) -> do
                let blamed = isBlamed phase cause
                when blamed (failed passing upstream)
                unless (isAbandoned cause) (alone (proxyOnFailure settings (upstreamUrl upstream) why))
                if mayRepeat body phase cause && not (null others)
                  then go body turn others
                  else respond (failure (statusOf phase cause))
              Nothing -> throwIO e
    target = Wai.rawPathInfo request <> Wai.rawQueryString request
    fieldsFor protocol = case protocol of
      OnlyHttp1 -> forwardedFields request (askedUpgrades request)
      _ -> forwardedFields request [] <> askedTrailers request
    overHttp2 = httpMajor (Wai.httpVersion request) >= 2
    -- HTTP/1 gets no trailers. Those of a response that is at hand are known.
    trailing atHand' response
      | not overHttp2 = pure ()
      | atHand' = do
        trailers <- responseTrailers response
        unless (null trailers) (setHTTP2Data request (Just defaultHTTP2Data {http2dataTrailers = constantTrailers (endToEnd trailers)}))
      | otherwise =
        let maker part = case part of
              Just _ -> pure (NextTrailersMaker maker)
              Nothing -> Trailers . endToEnd <$> responseTrailers response
         in setHTTP2Data request (Just defaultHTTP2Data {http2dataTrailers = maker})
    prefix = maybe B.empty (\version -> proxyHeaderFor version (Just (Wai.remoteHost request))) (proxyHeader settings)
    manner = Manner prefix (untilGone (proxyHalfClosed settings) <$> clientEnd request)
    passing = Passing (proxyMostFailures settings) (proxyPause settings)
    mayRepeat body phase cause = case (phase, cause) of
      (Connecting, _) -> True
      (_, NoAnswer _) -> isIdempotent (Wai.requestMethod request) && atHand body
      (_, NotProcessed) -> atHand body
      _ -> False
    atHand body = case body of
      StreamBody _ _ -> False
      TrailedBody {} -> False
      _ -> True

-- | Wait until a request's client is gone, or has ended its direction for so long, given how to wait for its states.
untilGone :: Duration -> (PeerState -> IO ()) -> IO ()
untilGone time await
  | time == maxBound = await PeerGone
  | otherwise = await PeerFinished >> void (within time (await PeerGone))

isAbandoned :: Cause -> Bool
isAbandoned cause = case cause of
  Abandoned -> True
  _ -> False

-- | What came of a request: a response that was sent while it came, or one that is at hand.
data Outcome = Sent !Wai.ResponseReceived | Whole !Wai.Response

-- | Whether an error speaks against the server.
isBlamed :: Phase -> Cause -> Bool
isBlamed phase cause = case cause of
  NoAnswer _ -> True
  _ -> phase == Connecting

statusOf :: Phase -> Cause -> Status
statusOf phase cause = case (phase, cause) of
  (Queueing, _) -> serviceUnavailable503
  (_, NotProcessed) -> serviceUnavailable503
  (_, TimedOut) -> gatewayTimeout504
  (_, InvalidRequest _) -> badRequest400
  -- Nginx's, for the log; a client that has only ended its direction sees it.
  (_, Abandoned) -> mkStatus 499 "Client Closed Request"
  _ -> badGateway502

-- | A response of the proxy itself.
failure :: Status -> Wai.Response
failure status = Wai.responseLBS status [(hContentType, "text/plain; charset=utf-8"), (hCacheControl, "no-store")] mempty

-- Checks -----------------------------------------------------------------------------

-- | Check servers until the action that is returned is run.
checking :: ProxySettings -> Client -> [Upstream] -> HealthCheck -> IO (IO ())
checking settings client upstreams check = mask_ $ do
  ends <- forM upstreams $ \upstream -> do
    ended <- newEmptyMVar
    thread <- forkIOWithUnmask $ \unmask ->
      unmask (forever (alone (checkOnce settings client check upstream) >> sleep (checkInterval check))) `finally` putMVar ended ()
    labelThread thread ("Weft.Http.Proxy: checks of " <> showUrl (upstreamUrl upstream))
    pure (thread, ended)
  pure (mapM_ (killThread . fst) ends >> mapM_ (readMVar . snd) ends)

-- | Run an action whose failure concerns nobody else: a function that is told of something, a check that cannot be
-- made.
alone :: IO () -> IO ()
alone act =
  act `catch` \e -> case fromException e of
    Just (SomeAsyncException _) -> throwIO e
    Nothing -> pure ()

checkOnce :: ProxySettings -> Client -> HealthCheck -> Upstream -> IO ()
checkOnce settings client check upstream = do
  due <- deadlineIn (checkInterval check)
  outcome <- try (withResponseIn (speaking (upstreamProtocol upstream) client) plainly {mannerPrefix = prefix} due asked (pure . passes . responseStatus))
  let verdict = case outcome of
        Right passed -> Just passed
        -- Nothing was asked.
        Left (ClientError _ Queueing _) -> Nothing
        Left (ClientError _ _ ClientClosed) -> Nothing
        Left _ -> Just False
  changed <- maybe (pure Nothing) (noteCheck check upstream) verdict
  forM_ changed (proxyOnCheck settings (upstreamUrl upstream))
  where
    asked = Request methodGet (upstreamUrl upstream) {urlPath = checkPath check} [(hUserAgent, "weft")] EmptyBody
    prefix = maybe B.empty (`proxyHeaderFor` Nothing) (proxyHeader settings)
    passes status = statusIsSuccessful status || statusIsRedirection status

-- Bodies -----------------------------------------------------------------------------

-- | The body of a request. A short one is read first.
bodyOf :: Wai.Request -> IO RequestBody
bodyOf request = case Wai.requestBodyLength request of
  Wai.KnownLength 0 -> pure EmptyBody
  Wai.KnownLength n
    | n <= 65536 -> BytesBody . B.concat <$> pieces
    | otherwise -> pure (StreamBody (Just (fromIntegral n)) next)
  Wai.ChunkedBody -> pure (TrailedBody Nothing next (maybe [] endToEnd <$> getRequestTrailers request))
  where
    next = Wai.getRequestBodyChunk request
    pieces = next >>= \piece -> if B.null piece then pure [] else (piece :) <$> pieces

-- | How long a response's head waits for the first piece of its body: a body that breaks off at once is 502, and one that
-- is long in coming (events, long polls) does not keep the head back.
firstPieceTime :: Duration
firstPieceTime = milliseconds 20

-- | The response for the client, with the first piece of its body if that has come.
passedBack :: Response -> Maybe ByteString -> Wai.Response
passedBack response first = Wai.responseStream (responseStatus response) (endToEnd (responseFields response)) $ \write flush ->
  let go = responsePiece response >>= pass
      pass piece = unless (B.null piece) (write (byteString piece) >> flush >> go)
   in maybe (flush >> go) pass first

-- | The response for the client, of which this is the body.
builtFrom :: Response -> ByteString -> Wai.Response
builtFrom response = Wai.responseBuilder (responseStatus response) (endToEnd (responseFields response)) . byteString

-- | The response to a client that speaks another protocol from now on, as does the server.
switchedTo :: ClientSettings -> Response -> Connection -> Wai.Response
switchedTo settings response server = Wai.responseRaw talk (Wai.responseLBS status fields mempty)
  where
    status = responseStatus response
    fields = switchedFields (responseFields response)
    talk receive send = do
      send (B.concat (["HTTP/1.1 101 ", statusMessage status, "\r\n"] <> concat [[CI.original name, ": ", value, "\r\n"] | (name, value) <- fields] <> ["\r\n"]))
      tunnel settings server receive send
