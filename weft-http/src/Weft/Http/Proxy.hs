{-# LANGUAGE OverloadedStrings #-}

-- |
-- A reverse proxy as a WAI application: it passes requests on to one of several servers of HTTP\/1.1, over kept
-- connections ("Weft.Http.Client"), and their responses back.
--
-- > servers <- either fail pure (mapM parseUrl ["http://127.0.0.1:3000", "http://127.0.0.1:3001"])
-- > withProxy defaultProxySettings servers (run 8080)
--
-- * /Choice./ The server with the fewest requests that this capability has under way, the next one in turn if several
--   have. A server that could not be connected to, or that gave no answer, 'proxyMostFailures' times in a row is passed
--   over for 'proxyPause', as long as there are others.
-- * /Repetition./ If a server cannot be connected to, another one is asked, whatever the method: it got nothing. If it
--   ends the connection without an answer, another one is asked only if the method is idempotent and the body is at
--   hand (RFC 9110, 9.2.2). Each server is asked once at most.
-- * /Bodies/ are passed on in pieces as they come, in both directions; a server is read from as fast as the client
--   takes them. A request's body of at most 64 KiB with a length is read before the server is asked.
-- * /Fields./ Those that concern one connection (RFC 9110, 7.6.1), those that @Connection@ names and @Expect@ are
--   dropped. The fields @X-Forwarded-For@, @X-Forwarded-Host@, @X-Forwarded-Proto@ and @Via@ are set; what the client
--   sent of the first three and of @Forwarded@ is dropped, since anybody can send it. @Host@ is the client's. An upgrade
--   is not passed on.
-- * /Errors./ 502 if there is no response that can be relied on, 503 if no connection to the server is free in time,
--   504 if a time limit passes. If a response breaks off, so does that of the proxy.
--
-- Any thread may use the application. Interim responses of the server are dropped.
--
-- @since 0.1.0
module Weft.Http.Proxy
  ( withProxy,
    proxyOver,
    ProxySettings (..),
    defaultProxySettings,
  )
where

import Control.Exception
import Control.Monad
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Data.ByteString.Builder (byteString)
import qualified Data.ByteString.Char8 as C
import qualified Data.CaseInsensitive as CI
import Data.IORef
import Data.List (sortOn)
import Network.HTTP.Types
import Network.HTTP.Types.Header
import qualified Network.Wai as Wai
import Weft.Core.Each
import Weft.Duration
import Weft.Http.Client hiding (request)
import Weft.Http.Client.Render (isIdempotent)
import Weft.Http.Parser.Bytes (trimBlanks)
import Weft.Socket (SockAddr (..), hostAddress6ToTuple, hostAddressToTuple)
import Weft.Sys (OwnRef, newOwnRef, readOwnRef, updateOwnRef)
import Weft.Transport (Instant, deadlineIn, noDeadline)

-- | Settings of a proxy. Begin with 'defaultProxySettings'.
data ProxySettings = ProxySettings
  { -- | The connections to the servers, and the time limits of each phase.
    proxyClient :: !ClientSettings,
    -- | After so many failures in a row a server is passed over.
    proxyMostFailures :: !Int,
    -- | For how long.
    proxyPause :: !Duration,
    -- | Called for each failure of a server, with its URL.
    proxyOnFailure :: Url -> ClientError -> IO ()
  }

-- | 256 connections to each server; five seconds to connect; a server that failed three times in a row is passed over
-- for ten seconds.
defaultProxySettings :: ProxySettings
defaultProxySettings =
  ProxySettings
    { proxyClient = defaultClientSettings {clientMostPerServer = 256, clientConnectTime = seconds 5},
      proxyMostFailures = 3,
      proxyPause = seconds 10,
      proxyOnFailure = \_ _ -> pure ()
    }

-- | A server that requests are passed on to.
data Upstream = Upstream
  { upstreamUrl :: !Url,
    -- | The requests that a capability has under way with it, and their number so far. Written by the capability's
    -- threads.
    upstreamLoad :: !(Each (OwnRef Load)),
    -- | Failures in a row, and until when it is passed over. Written when a server fails, and when one that had failed
    -- answers; read by each request.
    upstreamHealth :: !(IORef Health)
  }

data Load = Load !Int !Int

data Health = Health !Int !(Maybe Instant)

-- | Run an action with an application that passes requests on to these servers. The paths of the URLs do not matter. At
-- the end of the action, the connections to the servers are closed.
withProxy :: ProxySettings -> [Url] -> (Wai.Application -> IO a) -> IO a
withProxy settings urls act = withClient (proxyClient settings) $ \client -> proxyOver settings client urls >>= act

-- | An application that passes requests on to these servers, over the connections of a client: several proxies can
-- share one, and one that is not used any more need not be closed. 'proxyClient' has no meaning here.
proxyOver :: ProxySettings -> Client -> [Url] -> IO Wai.Application
proxyOver settings client urls = do
  upstreams <- forM urls $ \u -> Upstream u <$> newEach (newOwnRef (Load 0 0)) <*> newIORef (Health 0 Nothing)
  pure (proxied settings client upstreams)

proxied :: ProxySettings -> Client -> [Upstream] -> Wai.Application
proxied settings client upstreams request respond = do
  body <- bodyOf request
  candidates <- inOrder upstreams
  go body candidates
  where
    go body candidates = case candidates of
      [] -> respond (failure badGateway502)
      upstream : others -> do
        started <- newIORef False
        let asked = Request (Wai.requestMethod request) (upstreamUrl upstream) {urlPath = target} (forwardedFields request) body
        outcome <- try . counted upstream . withResponse client noDeadline asked $ \response -> do
          writeIORef started True
          healthy upstream
          respond (passedBack response)
        case outcome of
          Right received -> pure received
          Left e -> do
            under <- readIORef started
            case fromException e of
              -- Behind the response's first bytes there is nothing but to break it off.
              Just failed | under -> proxyOnFailure settings (upstreamUrl upstream) failed >> throwIO e
              Just failed@(ClientError _ phase cause) -> do
                let blamed = isBlamed phase cause
                when blamed (unhealthy settings upstream) >> proxyOnFailure settings (upstreamUrl upstream) failed
                if blamed && mayRepeat body phase cause && not (null others)
                  then go body others
                  else respond (failure (statusOf phase cause))
              Nothing -> throwIO e
    target = Wai.rawPathInfo request <> Wai.rawQueryString request
    mayRepeat body phase cause = case (phase, cause) of
      (Connecting, _) -> True
      (_, NoAnswer _) -> isIdempotent (Wai.requestMethod request) && atHand body
      _ -> False
    atHand body = case body of
      StreamBody _ _ -> False
      _ -> True

-- | Whether an error speaks against the server.
isBlamed :: Phase -> Cause -> Bool
isBlamed phase cause = case cause of
  NoAnswer _ -> True
  _ -> phase == Connecting

statusOf :: Phase -> Cause -> Status
statusOf phase cause = case (phase, cause) of
  (Queueing, _) -> serviceUnavailable503
  (_, TimedOut) -> gatewayTimeout504
  (_, InvalidRequest _) -> badRequest400
  _ -> badGateway502

-- | A response of the proxy itself.
failure :: Status -> Wai.Response
failure status = Wai.responseLBS status [(hContentType, "text/plain; charset=utf-8"), (hCacheControl, "no-store")] mempty

-- Servers ----------------------------------------------------------------------------

-- | The servers in the order in which they are asked.
inOrder :: [Upstream] -> IO [Upstream]
inOrder upstreams = do
  t <- deadlineIn (nanoseconds 0)
  ranked <- forM upstreams $ \upstream -> do
    Load busy total <- readOwnRef =<< own (upstreamLoad upstream)
    Health _ until' <- readIORef (upstreamHealth upstream)
    pure ((maybe False (> t) until', busy, total), upstream)
  pure (map snd (sortOn fst ranked))

-- | Run a request to a server.
counted :: Upstream -> IO a -> IO a
counted upstream act = mask $ \restore -> do
  load <- own (upstreamLoad upstream)
  _ <- updateOwnRef load (\(Load busy total) -> Load (busy + 1) (total + 1))
  restore act `finally` updateOwnRef load (\(Load busy total) -> Load (busy - 1) total)

healthy :: Upstream -> IO ()
healthy upstream = do
  Health failures _ <- readIORef (upstreamHealth upstream)
  when (failures > 0) (atomicWriteIORef (upstreamHealth upstream) (Health 0 Nothing))

unhealthy :: ProxySettings -> Upstream -> IO ()
unhealthy settings upstream = do
  pause <- deadlineIn (proxyPause settings)
  atomicModifyIORef' (upstreamHealth upstream) $ \(Health failures before) ->
    (Health (failures + 1) (if failures + 1 >= proxyMostFailures settings then Just pause else before), ())

-- Requests ---------------------------------------------------------------------------

-- | The body of a request. A short one is read first.
bodyOf :: Wai.Request -> IO RequestBody
bodyOf request = case Wai.requestBodyLength request of
  Wai.KnownLength 0 -> pure EmptyBody
  Wai.KnownLength n
    | n <= 65536 -> BytesBody . B.concat <$> pieces
    | otherwise -> pure (StreamBody (Just (fromIntegral n)) next)
  Wai.ChunkedBody -> pure (StreamBody Nothing next)
  where
    next = Wai.getRequestBodyChunk request
    pieces = next >>= \piece -> if B.null piece then pure [] else (piece :) <$> pieces

-- | The fields of a request for the server.
forwardedFields :: Wai.Request -> [Header]
forwardedFields request = filter ((`notElem` dropped) . fst) (endToEnd (Wai.requestHeaders request)) <> new
  where
    dropped = ["Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "Proxy", hHost, hExpect, hContentLength]
    new =
      [("X-Forwarded-For", address) | Just address <- [addressOf (Wai.remoteHost request)]]
        -- HTTP/2 has the host in a field of its own.
        <> concat [[(hHost, host), ("X-Forwarded-Host", host)] | Just host <- [Wai.requestHeaderHost request]]
        <> [("X-Forwarded-Proto", if Wai.isSecure request then "https" else "http"), (hVia, version <> " weft")]
    HttpVersion major minor = Wai.httpVersion request
    version = C.pack (if major == 1 then show major <> "." <> show minor else show major)

-- | The client's address; 'Nothing' for Unix sockets.
addressOf :: SockAddr -> Maybe ByteString
addressOf address = case address of
  SockAddrInet _ host | (a, b, c, d) <- hostAddressToTuple host -> Just (C.intercalate "." (map (C.pack . show) [a, b, c, d]))
  SockAddrInet6 _ _ host _ -> case hostAddress6ToTuple host of
    -- An IPv4 address of a socket for both.
    (0, 0, 0, 0, 0, 0xffff, high, low) -> Just (C.intercalate "." [C.pack (show n) | word <- [high, low], n <- [word `div` 256, word `mod` 256]])
    _ -> Just (C.takeWhile (/= ']') (C.drop 1 (C.pack (show (SockAddrInet6 0 0 host 0)))))
  _ -> Nothing

-- | The response for the client.
passedBack :: Response -> Wai.Response
passedBack response = Wai.responseStream (responseStatus response) (endToEnd (responseFields response)) $ \write flush ->
  let go = do
        piece <- responsePiece response
        unless (B.null piece) (write (byteString piece) >> flush >> go)
   in go

-- | The fields that do not concern one connection only (RFC 9110, 7.6.1).
endToEnd :: [Header] -> [Header]
endToEnd fields = filter (\(name, _) -> name `notElem` hopByHop && name `notElem` named) fields
  where
    named = [CI.mk (trimBlanks option) | (name, value) <- fields, name == hConnection, option <- C.split ',' value]
    hopByHop = [hConnection, "Keep-Alive", "Proxy-Connection", "Proxy-Authenticate", "Proxy-Authorization", "Proxy-Authentication-Info", hTE, hTrailer, hTransferEncoding, hUpgrade]
