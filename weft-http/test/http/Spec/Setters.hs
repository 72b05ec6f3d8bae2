{-# LANGUAGE OverloadedStrings #-}

-- |
-- Setters of "Weft.Http" that change what is sent or accepted: each test fails if its setter does nothing.
module Spec.Setters (tests) where

import Application
import Client
import Configurations
import Control.Concurrent (threadDelay)
import Control.Exception (IOException, handle, try)
import Control.Monad (forM_, replicateM_)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import Data.IORef
import Data.List (isInfixOf, sort)
import Data.Maybe (isJust)
import Network.HTTP.Types
import Network.Wai
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Http

tests :: Configuration -> TestTree
tests on =
  testGroup
    "setters"
    [ testOn on "setServerName: another name, none, and an application's own" $ do
        let served settings path = withQuietServer settings app $ \_ port -> withClient port (\client -> header "server" <$> get client path)
        served defaultSettings "/hello" >>= (@?= Just "weft")
        served (setServerName "other/1" defaultSettings) "/hello" >>= (@?= Just "other/1")
        served (setServerName "" defaultSettings) "/hello" >>= (@?= Nothing)
        served (setServerName "other/1" defaultSettings) "/own" >>= (@?= Just "mine"),
      testOn on "setAltSvc: in every response" . withQuietServer (setAltSvc "h3=\":443\"" defaultSettings) app $ \_ port ->
        withClient port $ \client -> forM_ ["/hello", "/own", "/fail", "/nothing"] $ \path -> do
          answer <- get client path
          header "alt-svc" answer @?= Just "h3=\":443\"",
      testOn on "setLogger: each response, its status, the size of a part of a file" $ do
        logged <- newIORef []
        let logger request status size = atomicModifyIORef' logged (\ls -> ((rawPathInfo request, statusCode status, size) : ls, ()))
            settings = setHTTP2Cleartext True (setLogger logger defaultSettings)
            paths = ["/hello", "/nothing", "/part", "/fail"]
            expected = [("/hello", 200, Nothing), ("/nothing", 404, Nothing), ("/part", 200, Just 5), ("/fail", 500, Nothing)]
        withQuietServer settings app $ \_ port -> withClient port $ \client -> forM_ paths (get client)
        readIORef logged >>= (@?= expected) . reverse
        writeIORef logged []
        withQuietServer settings app $ \_ port -> do
          mapM_ (overHttp2 port) paths
          eventually "four responses are logged" ((== 4) . length <$> readIORef logged)
        readIORef logged >>= (@?= sort expected) . sort,
      testOn on "setOnExceptionResponse" $ do
        let teapot e = responseLBS status418 [("X-Why", C.pack (takeWhile (/= '\n') (show e)))] "short and stout"
        withQuietServer (setHTTP2Cleartext True (setOnExceptionResponse teapot defaultSettings)) app $ \_ port -> do
          withClient port $ \client -> do
            answer <- get client "/fail"
            (answerStatus answer, answerBody answer, header "x-why" answer) @?= (418, "short and stout", Just "user error (on purpose)")
          overHttp2 port "/fail" >>= (@?= "short and stout 418"),
      patientOn on "setSlowlorisSize: with a large size, a slow upload times out" $ do
        let upload size = withQuietServer (setTimeout 2 (size defaultSettings)) app $ \_ port -> withClient port $ \client -> do
              say client "POST /count HTTP/1.1\r\nHost: test\r\nContent-Length: 15000\r\n\r\n"
              -- The pauses add up to three seconds.
              handle (\e -> const (pure ()) (e :: IOException)) (replicateM_ 5 (threadDelay 600000 >> say client (B.replicate 3000 120)))
              B.take 12 <$> hearEndOrReset' client
        upload (setSlowlorisSize 1000000) >>= (@?= ""),
      testOn on "setMaximumBodyFlush: whether the rest of an unread body is skipped" . forM_ [(Just 200000, True), (Just 1000, False), (Nothing, True)] $ \(most, goesOn) ->
        withQuietServer (setMaximumBodyFlush most defaultSettings) app $ \_ port ->
          forM_ [("Content-Length: 100000\r\n\r\n", B.replicate 100000 120), ("Transfer-Encoding: chunked\r\n\r\n", "186a0\r\n" <> B.replicate 100000 120 <> "\r\n0\r\n\r\n")] $ \(framing, body) ->
            withClient port $ \client -> do
              say client ("POST /hello HTTP/1.1\r\nHost: test\r\n" <> framing)
              say client (body <> "GET /hello HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n")
              heard <- hearEndOrReset client
              let told = "\r\nConnection: close" `B.isInfixOf` fst (B.breakSubstring "\r\n\r\n" heard)
                  -- Of chunks, all may have been received or not.
                  likely = if goesOn && not ("T" `B.isPrefixOf` framing && isJust most) then [2] else [1, 2]
              assertBool (show (most, framing, heard)) (statusLines heard `elem` likely && (goesOn || statusLines heard == 1))
              (most, framing, statusLines heard) @?= (most, framing, if told then 1 else 2),
      testOn on "setServerName, setAltSvc: a control character is refused" . forM_ [setServerName "a\r\nX-Injected: b", setAltSvc "h3\n", setServerName "a\DEL"] $ \set -> do
        started <- try (withQuietServer (set defaultSettings) app (\_ _ -> pure ()))
        either (\e -> assertBool (show e) ("control character" `isInfixOf` show (e :: IOException))) (const (assertFailure "it starts")) started,
      testOn on "setMaxTotalHeaderLength: a longer head is refused" $ do
        let asked settings = withServer (setHost "127.0.0.1" (setPort 0 (quiet settings))) app $ \server ->
              withClient (portOf (serverAddress server)) $ \client -> do
                ask client "/hello" ["X-Long: " <> C.replicate 3000 'x']
                answerStatus <$> hearAnswer client
        asked defaultSettings >>= (@?= 200)
        asked (setMaxTotalHeaderLength 2000 defaultSettings) >>= (@?= 431)
        asked (setMaxTotalHeaderLength 4000 defaultSettings) >>= (@?= 200)
    ]
  where
    -- The server may have reset the connection before the client reads.
    hearEndOrReset' = handle (\e -> const (pure "") (e :: IOException)) . hearEndOrReset
    overHttp2 port path = curl ["--http2-prior-knowledge", "-w", " %{http_code}", "http://127.0.0.1:" <> show port <> C.unpack path]
    statusLines bytes = case B.breakSubstring "HTTP/1.1 " bytes of
      (_, "") -> 0 :: Int
      (_, rest) -> 1 + statusLines (B.drop 9 rest)

app :: Application
app request respond = case rawPathInfo request of
  "/own" -> respond (responseLBS status200 [("Server", "mine")] "mine")
  "/part" -> respond (responseFile status200 [] "weft-http.cabal" (Just (FilePart 3 5 1000)))
  _ -> application request respond
