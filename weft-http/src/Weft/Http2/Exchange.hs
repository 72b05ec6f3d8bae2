{-# LANGUAGE OverloadedStrings #-}
{-# OPTIONS_GHC -Wno-deprecations #-}

-- |
-- A request of a stream and its response, in a thread of the connection's crew: it makes the request, runs the
-- application, and decides what becomes of exceptions.
module Weft.Http2.Exchange
  ( exchange,
  )
where

import Control.Concurrent.MVar
import Control.Exception
import Control.Monad
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as B8
import qualified Data.CaseInsensitive as CI
import Data.IORef
import Data.Maybe (isJust)
import Data.Sequence (ViewL (..), viewl)
import qualified Data.Vault.Lazy as Vault
import Network.HTTP.Types
import Network.HTTP.Types.Header
import Network.Wai
import Network.Wai.Internal (Request (..), ResponseReceived (..))
import System.IO.Error (isEOFError)
import Weft.Http.Parser.Head (expectsContinue)
import Weft.Http.Settings (ApplicationError (..), RequestError (..))
import Weft.Http2.Core (Input (..))
import Weft.Http2.Crew
import Weft.Http2.Data
import Weft.Http2.Engine
import Weft.Http2.Frame
import Weft.Http2.Request (Head (..))
import Weft.Http2.Response
import Weft.Http2.Settings
import Weft.Http2.Tunnel
import Weft.Transport

-- | Serve a request from beginning to end, given whether it has no body, and the function that unmasks exceptions. Runs
-- masked; leaves nothing behind.
exchange :: Http2 -> Stream -> Head -> Bool -> (IO () -> IO ()) -> IO ()
exchange h s found final unmask = do
  extras <- newExtras trailers hints
  request <- requestFor h s found final extras
  let respond response = ResponseReceived <$ answering extras request response
      responded = isClaimed s >>= \begun -> unless begun (throwIO NoResponse)
  r <- try (unmask (http2Application h request respond >> responded))
  either (failed extras request) pure r
  where
    answering
      | isTunnel found = respondTunnel h s (mask_ (readBody h s))
      | otherwise = sendResponse h s
    failed extras request e
      | Just StreamCancelled <- fromException e = pure ()
      | Just io <- fromException e = do
        gone <- isCancelled (streamRun s)
        unless (gone && not (isEOFError io)) (report extras request e)
      | otherwise = report extras request e
    -- Errors while a failure is handled: the stream was cancelled, or the handler itself has failed.
    report extras request e = do
      http2OnException (http2Settings h) (Just request) e `catch` quietly
      begun <- isClaimed s
      complete <- isComplete s
      if begun
        then unless complete (allSent s `finally` reset)
        else case fromException e of
          -- It ends the thread and says nothing about the request. Over HTTP/1 the connection is closed without a
          -- response.
          Just (SomeAsyncException _) -> reset
          Nothing -> do
            r <- try (unmask (answering extras request (http2OnExceptionResponse (http2Settings h) e)))
            case r of
              Right () -> pure ()
              Left e'
                | Just StreamCancelled <- fromException e' -> pure ()
                | otherwise -> reset
    trailers = do
      Body _ _ end <- readIORef (streamBody s)
      pure (case end of BodyComplete fields -> Just [(CI.mk name, value) | (name, value) <- fields]; _ -> Nothing)
    hints fields = forM_ (either (const Nothing) Just (validFields fields)) $ \sent ->
      give h (Tell (Interim (streamId s) ((":status", "103") : sent)))
    reset = give h (Tell (Abandon (streamId s) InternalError))
    quietly :: SomeException -> IO ()
    quietly _ = pure ()

-- | The request of a stream. What comes through a tunnel is no body.
requestFor :: Http2 -> Stream -> Head -> Bool -> Extras -> IO Request
requestFor h s sent final extras = do
  body <- if empty then pure (pure B.empty) else bodyReader h s found
  initial <- http2Vault (http2Settings h)
  pure
    Request
      { requestMethod = headMethod found,
        httpVersion = http20,
        rawPathInfo = path,
        rawQueryString = query,
        requestHeaders = headFields found,
        isSecure = isJust (connSecurity (http2Below h)),
        remoteHost = connPeer (http2Below h),
        pathInfo = decodePathSegments path,
        queryString = parseQuery query,
        requestBody = body,
        vault = Vault.insert extrasKey extras initial,
        requestBodyLength = if empty then KnownLength 0 else maybe ChunkedBody (KnownLength . fromIntegral) (headLength found),
        requestHeaderHost = field hHost,
        requestHeaderRange = field hRange,
        requestHeaderReferer = field hReferer,
        requestHeaderUserAgent = field hUserAgent
      }
  where
    found = if isTunnel sent then upgradeOf sent else sent
    empty = final || isTunnel sent
    (path, query) = B8.break (== '?') (headTarget found)
    field name = lookup name (headFields found)

-- | Reads the next piece of the body; empty at its end. Throws 'BodyIncomplete' if the body was broken off.
--
-- Masked, so that an exception from another thread, such as that of a timeout, arrives only while this waits, and loses
-- nothing. To wait for the client counts ('Want'); to give credit back waits for nothing.
bodyReader :: Http2 -> Stream -> Head -> IO (IO ByteString)
bodyReader h s found = do
  asked <- newIORef (maybe False expectsContinue (lookup "expect" (headFields found)))
  pure . mask_ $ do
    first <- readIORef asked
    begun <- isClaimed s
    when (first && not begun) $ do
      writeIORef asked False
      give h (Tell (Interim (streamId s) [(":status", "100")]))
    readBody h s

readBody :: Http2 -> Stream -> IO ByteString
readBody h s = go False
  where
    go waits = do
      next <- atomicModifyIORef' (streamBody s) $ \body@(Body pieces size end) -> case viewl pieces of
        piece :< rest -> (Body rest (size - B.length piece) end, Right piece)
        EmptyL -> (body, Left end)
      case next of
        Right piece -> piece <$ give h (Tell (Consume (streamId s) (B.length piece)))
        Left (BodyComplete _) -> pure B.empty
        Left BodyBroken -> throwIO BodyIncomplete
        Left BodyOpen -> do
          unless waits (give h (Tell (Want (streamId s))))
          takeMVar (streamArrived s)
          go True
