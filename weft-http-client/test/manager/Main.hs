{-# LANGUAGE OverloadedStrings #-}

-- |
-- Tests of managers of @http-client@ on Weft: with Weft's server, with scripted peers that stop in each phase, and with
-- TLS.
module Main (main) where

import Control.Concurrent
import Control.Exception
import Control.Monad
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import qualified Data.ByteString.Lazy as L
import Data.IORef
import Network.HTTP.Client hiding (host, port, proxyPort)
import Network.HTTP.Types
import qualified Network.Wai as Wai
import System.Directory (createDirectory, getTemporaryDirectory, removePathForcibly)
import System.Exit (ExitCode (..))
import System.FilePath ((</>))
import System.Process (readProcessWithExitCode)
import Test.Tasty (testGroup)
import Test.Tasty.HUnit
import Weft.Dial (DialError, defaultDialOptions)
import Weft.Duration (milliseconds)
import qualified Weft.Http as Weft
import Weft.Http.Client.Manager
import Weft.Socket (SockAddr (..))
import Weft.Test.Descriptors (openCount, openCountAfter)
import Weft.Test.Main (defaultMain)
import Weft.Test.Peer
import Weft.Timer (sleep)
import Weft.Tls

main :: IO ()
main =
  defaultMain $
    testGroup
      "http-client on Weft"
      [ testCase "requests, uploads, streams, and connections that are kept" . serving $ \port -> do
          manager <- newManager weftManagerSettings
          (L.toStrict . responseBody <$> httpLbs (to port "/") manager) `gives` "GET / "
          (L.toStrict . responseBody <$> httpLbs (to port "/up") {method = "POST", requestBody = RequestBodyBS "body"} manager) `gives` "POST /up body"
          left <- newIORef (replicate 50 (C.replicate 10000 'x') <> [""])
          let pieces give = give (atomicModifyIORef' left (\ps -> (drop 1 ps, B.concat (take 1 ps))))
          answer <- httpLbs (to port "/") {method = "PUT", requestBody = RequestBodyStreamChunked pieces} manager
          L.length (responseBody answer) @?= 500006,
        testCase "one connection for requests one after the other" $ do
          connections <- newIORef (0 :: Int)
          let script _ c = modifyIORef' connections (+ 1) >> forever (hearRequest c >> say c "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")
          withPeer script $ \port -> do
            manager <- newManager weftManagerSettings
            replicateM_ 20 ((responseBody <$> httpLbs (to port "/") manager) `gives` "hi")
          readIORef connections >>= (@?= 1),
        testCase "a kept connection that the server has ended is replaced" $
          withPeer (\n c -> hearRequest c >> say c "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n" >> say c (C.pack (show n))) $ \port -> do
            manager <- newManager weftManagerSettings
            forM_ ["0", "1", "2"] $ \n -> (responseBody <$> httpLbs (to port "/") manager) `gives` n,
        testCase "nobody listens: the error has each address" $ do
          port <- withPeer (\_ _ -> pure ()) pure
          manager <- newManager weftManagerSettings
          content <- contentOf (httpLbs (to port "/") manager)
          case content of
            ConnectionFailure e | Just why <- fromException e -> assertBool (show why) ("127.0.0.1" `B.isInfixOf` C.pack (show (why :: DialError)))
            _ -> assertFailure (show content),
        testCase "a name that is no name" $ do
          manager <- newManager weftManagerSettings
          content <- contentOf (httpLbs (parseRequest_ "http://no..name/") manager)
          case content of
            ConnectionFailure _ -> pure ()
            _ -> assertFailure (show content),
        testCase "responseTimeout holds while the peer takes nothing, answers nothing, stops in the head and in the body" $
          forM_ ([("request", nothing), ("answer", hearRequest'), ("head", \c -> hearRequest' c >> say c "HTTP/1.1 200 OK\r\nA: b")] <> [("body", \c -> hearRequest' c >> say c ("HTTP/1.1 200 OK\r\nContent-Length: " <> size <> "\r\n\r\nhi")) | size <- ["9", "000000000000000000100", "+2"]]) $ \(phase, script) ->
            withPeer (\_ c -> script c >> threadDelay 80000000) $ \port ->
              forM_ [(defaultManagerSettings {managerResponseTimeout = responseTimeoutMicro 300000}, id), (defaultManagerSettings, \r -> r {responseTimeout = responseTimeoutMicro 300000})] $ \(settings, limiting) -> do
                manager <- newManager (onWeft settings)
                let body = if phase == ("request" :: String) then RequestBodyBS (B.replicate 50000000 0) else RequestBodyBS ""
                content <- within (contentOf (httpLbs (limiting (to port "/") {method = "POST", requestBody = body}) manager))
                case content of
                  ResponseTimeout -> pure ()
                  _ -> assertFailure (phase <> ": " <> show content),
        testCase "a body that drips is not cut off, as long as each piece comes in time" $
          withPeer (\_ c -> hearRequest' c >> say c "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n" >> replicateM_ 10 (say c "x" >> threadDelay 400000) >> heardEnd c) $ \port -> do
            manager <- newManager (onWeft defaultManagerSettings {managerResponseTimeout = responseTimeoutMicro 3000000})
            (responseBody <$> httpLbs (to port "/") manager) `gives` "xxxxxxxxxx",
        testCase "TLS: the host's name is checked" . withCertificate $ \certificate key ->
          servingTls certificate key $ \port -> do
            manager <- newManager (onWeftWith defaultDialOptions defaultTlsClientSettings {tlsTrust = TrustAuthorities certificate} defaultManagerSettings)
            let secured name = parseRequest_ ("https://" <> name <> ":" <> show port <> "/x")
            replicateM_ 3 ((responseBody <$> httpLbs (secured "localhost") manager) `gives` "GET /x ")
            void (contentOf (httpLbs (secured "127.0.0.1") manager))
            untrusting <- newManager weftManagerSettings
            void (contentOf (httpLbs (secured "localhost") untrusting)),
        testCase "TLS through a proxy, to the server that is named in CONNECT" . withCertificate $ \certificate key ->
          servingTls certificate key $ \port -> do
            asked <- newEmptyMVar
            let proxying _ c = hearRequest c >>= putMVar asked >> say c "HTTP/1.1 200 Connected\r\n\r\n" >> relay c port
            withPeer proxying $ \proxyPort -> do
              manager <- newManager (through proxyPort (onWeftWith defaultDialOptions defaultTlsClientSettings {tlsTrust = TrustAuthorities certificate} defaultManagerSettings))
              (responseBody <$> httpLbs (parseRequest_ ("https://localhost:" <> show port <> "/x")) manager) `gives` "GET /x "
              h <- within (takeMVar asked)
              assertBool (show h) (("CONNECT localhost:" <> C.pack (show port)) `B.isPrefixOf` h)
            withPeer (\_ c -> hearRequest c >> say c "HTTP/1.1 403 No\r\n\r\n" >> heardEnd c) $ \proxyPort -> do
              manager <- newManager (through proxyPort weftManagerSettings)
              content <- contentOf (httpLbs (parseRequest_ ("https://localhost:" <> show port <> "/")) manager)
              case content of
                ProxyConnectException {} -> pure ()
                _ -> assertFailure (show content),
        testCase "requests that are interrupted leave no descriptor" $
          withPeer (\_ c -> forever (hearRequest c >> say c "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nh" >> yield >> say c "i")) $ \port -> do
            before <- openCountAfter (sleep (milliseconds 1))
            manager <- newManager weftManagerSettings {managerIdleConnectionCount = 0}
            forM_ [1 .. 500 :: Int] $ \i -> do
              done <- newEmptyMVar
              t <- forkFinally (void (httpLbs (to port "/") manager)) (const (putMVar done ()))
              replicateM_ (i `mod` 13) yield
              when (even i) (threadDelay (i `mod` 400))
              killThread t
              within (takeMVar done)
            eventually "descriptors are left" ((<= before + 1) <$> openCount)
      ]
  where
    nothing _ = pure ()
    through proxyPort = managerSetProxy (useProxy (Proxy "127.0.0.1" proxyPort))
    hearRequest' c = void (hearRequest c)

-- | A request to a server on this port.
to :: Int -> String -> Request
to port path' = parseRequest_ ("http://127.0.0.1:" <> show port <> path')

contentOf :: IO a -> IO HttpExceptionContent
contentOf act =
  try act >>= \r -> case r of
    Left (HttpExceptionRequest _ content) -> pure content
    Left e -> assertFailure (show e)
    Right _ -> assertFailure "the request succeeded"

-- | Run an action with the port of a server that answers with the method, the path and the body of a request.
serving :: (Int -> IO ()) -> IO ()
serving = Weft.withApplicationSettings Weft.defaultSettings (pure application)

-- | The same server over TLS.
servingTls :: FilePath -> FilePath -> (Int -> IO ()) -> IO ()
servingTls certificate key act = do
  tls <- Weft.loadTls certificate key
  Weft.withServerWith Weft.defaultOptions {Weft.optionTls = Just tls} (Weft.setHost "127.0.0.1" (Weft.setPort 0 Weft.defaultSettings)) application $ \server ->
    case Weft.serverAddress server of
      SockAddrInet port _ -> act (fromIntegral port)
      other -> assertFailure (show other)

application :: Wai.Application
application request respond = do
  body <- Wai.strictRequestBody request
  respond (Wai.responseLBS status200 [] (L.fromStrict (Wai.requestMethod request <> " " <> Wai.rawPathInfo request <> " ") <> body))

-- | A certificate for localhost, and its key.
withCertificate :: (FilePath -> FilePath -> IO a) -> IO a
withCertificate act = do
  base <- getTemporaryDirectory
  -- A port of ours is a name that nobody else has.
  withPeer (\_ _ -> pure ()) $ \port -> do
    let folder = base </> ("weft-manager-" <> show port)
    bracket_ (createDirectory folder) (removePathForcibly folder) $ do
      (code, _, why) <- readProcessWithExitCode "openssl" (words "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost -keyout" <> [folder </> "key.pem", "-out", folder </> "cert.pem"]) ""
      when (code /= ExitSuccess) (assertFailure why)
      act (folder </> "cert.pem") (folder </> "key.pem")
