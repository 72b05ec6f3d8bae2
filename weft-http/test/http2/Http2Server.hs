{-# LANGUAGE OverloadedStrings #-}

-- | An HTTP\/2 server that runs as a separate process, so that a test can watch its memory and descriptors. It prints
-- its port, and ends when its standard input ends.
module Http2Server
  ( runServer,
  )
where

import Control.Concurrent
import Control.Exception
import Control.Monad
import qualified Data.ByteString as B
import Data.ByteString.Builder
import qualified Data.ByteString.Char8 as B8
import qualified Data.ByteString.Lazy as L
import Data.IORef
import Network.HTTP.Types
import Network.Socket (SockAddr (..), tupleToHostAddress)
import Network.Wai
import Network.Wai.Internal (ResponseReceived (..))
import System.IO
import Weft.Duration
import Weft.Http2
import Weft.Tls
import Weft.Transport

-- | Arguments: a large file, the time limits in milliseconds, and optionally certificate and key for TLS.
runServer :: [String] -> IO ()
runServer arguments = do
  hSetBuffering stdout LineBuffering
  (file, milli, tls) <- case arguments of
    [f, ms] -> pure (f, read ms, Nothing)
    [f, ms, chain, key] -> do
      server <- newTlsServer defaultTlsServerSettings {tlsCertificates = [CertificateFiles chain key], tlsProtocols = ["h2"]}
      pure (f, read ms, Just server)
    _ -> ioError (userError "FILE MILLISECONDS [CERTIFICATE KEY]")
  running <- newIORef (0 :: Int)
  let limits = defaultHttp2Limits {limitIdle = milliseconds (2 * milli), limitFrame = milliseconds milli, limitWait = milliseconds milli}
      settings =
        defaultHttp2Settings
          { http2Limits = limits,
            http2OnRefused = \_ _ code why -> putStrLn ("refused " <> show code <> " " <> why),
            http2OnException = \_ e -> putStrLn ("exception " <> show e)
          }
  l <- transportListen socketTransport (SockAddrInet 0 (tupleToHostAddress (127, 0, 0, 1)))
  case listenerAddress l of
    SockAddrInet port _ -> putStrLn ("port " <> show port)
    other -> print other
  _ <- forkIO . forever $ do
    c <- listenerAccept l
    forkIO $ do
      r <- try $ do
        secure <- maybe pure tlsAccept tls c
        serveHttp2 settings (const (pure ())) secure (application file running)
      either (\e -> const (pure ()) (e :: IOException)) pure r
      connClose c
  let untilEnd = isEOF >>= \end -> unless end (getLine >> untilEnd)
  untilEnd

application :: FilePath -> IORef Int -> Application
application file running request respond = bracket_ (count 1) (count (-1)) $ case pathInfo request of
  ["file"] -> respond (responseFile ok200 [(hContentType, "application/octet-stream")] file Nothing)
  ["hello"] -> respond (responseLBS ok200 [(hContentType, "text/plain")] "hello")
  ["running"] -> readIORef running >>= \n -> respond (responseLBS ok200 [] (L.fromStrict (B8.pack (show n))))
  ["echo"] -> respond . responseStream ok200 [] $ \send flush -> do
    let go = do
          piece <- getRequestBodyChunk request
          unless (B.null piece) (send (byteString piece) >> flush >> go)
    go
  ["sum"] -> do
    let go n = do
          piece <- getRequestBodyChunk request
          if B.null piece then pure n else go (n + B.length piece)
    total <- go (0 :: Int)
    respond (responseLBS ok200 [] (L.fromStrict (B8.pack (show total))))
  ["ignore"] -> respond (responseLBS ok200 [] "ignored")
  ["sleep"] -> threadDelay 60000000 >> respond (responseLBS ok200 [] "slept")
  ["nap"] -> threadDelay 500000 >> respond (responseLBS ok200 [] "napped")
  ["throw"] -> throwIO (userError "thrown")
  ["late"] -> respond (responseStream ok200 [] (\send flush -> send "begun" >> flush >> throwIO (userError "thrown late")))
  ["none"] -> pure ResponseReceived
  ["twice"] -> respond (responseLBS ok200 [] "first") >> respond (responseLBS ok200 [] "second")
  ["after"] -> respond (responseLBS ok200 [] "whole") >> throwIO (userError "thrown after")
  ["interim"] -> respond (responseLBS status101 [] "interim")
  ["length-over"] -> respond (responseLBS ok200 [("Content-Length", "3")] "hello")
  ["length-under"] -> respond (responseLBS ok200 [("Content-Length", "30")] "hello")
  ["length-stream"] -> respond (responseStream ok200 [("Content-Length", "10")] (\send flush -> send "whole" >> flush >> send "longer"))
  ["length-of-none"] -> respond (responseLBS noContent204 [("Content-Length", "5")] "")
  ["length-invalid"] -> respond (responseLBS ok200 [("Content-Length", "-5")] "hello")
  ["length-twice"] -> respond (responseLBS ok200 [("Content-Length", "5"), ("Content-Length", "6")] "hello")
  ["line-feed-in-name"] -> respond (responseLBS ok200 [("X-A: b\r\nX-Injected", "c")] "clean")
  ["line-feed"] -> respond (responseLBS ok200 [("X-Injected", "a\r\nb")] "clean")
  ["large"] -> respond (responseLBS ok200 [] (L.replicate 3000000 120))
  ["headers"] -> respond (responseLBS ok200 [("X-Large", B8.replicate 40000 'v'), ("Connection", "close")] "")
  ["fields"] -> respond (responseLBS ok200 [] (L.fromStrict (B8.pack (show (requestMethod request, rawPathInfo request, rawQueryString request, requestHeaders request)))))
  _ -> respond (responseLBS notFound404 [] "")
  where
    count n = atomicModifyIORef' running (\k -> (k + n, ()))
