{-# LANGUAGE OverloadedStrings #-}

-- |
-- TLS and HTTP\/2 over TLS, with the clients @curl@ and @openssl@.
module Spec.Secure (tests, certificate) where

import Application
import Client
import Configurations
import Control.Concurrent (forkFinally)
import Control.Concurrent.Async (concurrently_, forConcurrently_, wait, withAsync)
import Control.Concurrent.MVar
import Control.Exception (IOException, bracket, handle, try)
import Control.Monad (forM_, forever, replicateM, void)
import qualified Data.ByteString as B
import qualified Data.ByteString.Lazy.Char8 as L
import Data.IORef
import Data.List (isInfixOf, isPrefixOf, sort)
import Data.Maybe (fromMaybe)
import Network.HTTP.Types (status200)
import qualified Network.Socket as S
import qualified Network.Socket.ByteString as S
import Network.Wai (Application, remoteHost, responseLBS)
import System.Directory (removeDirectoryRecursive)
import System.Exit (ExitCode (..))
import System.FilePath ((</>))
import System.Posix.Temp (mkdtemp)
import System.Process (readProcessWithExitCode)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Duration (milliseconds, seconds)
import Weft.Http
import Weft.Static
import Weft.Tls
import Weft.Transport

tests :: Configuration -> TestTree
tests on =
  testGroup
    "TLS"
    [ testOn on "HTTP/2 by ALPN, HTTP/1.1 for clients that ask for it" . secure id application $ \_ _ port ask' -> do
        fetch port ask' "/hello" ["-w", " %{http_version}"] >>= (@?= "hello 2")
        fetch port ask' "/hello" ["--http1.1", "-w", " %{http_version}"] >>= (@?= "hello 1.1")
        fetch port ask' "/hello" ["--no-alpn", "-w", " %{http_version}"] >>= (@?= "hello 1.1")
        fetch port ask' "/hello" ["--tls-max", "1.2", "-w", " %{http_version}"] >>= (@?= "hello 2"),
      testOn on "requestSecurity: the client's certificate and the name that it asked for; nothing without TLS" . withFolder $ \folder -> do
        (ca, key) <- certificate folder "server"
        (own, ownKey) <- certificate folder "client"
        (code, _, err) <- openssl ["x509", "-in", own, "-outform", "DER", "-out", folder </> "client.der"] ""
        (code, err) @?= (ExitSuccess, "")
        der <- B.readFile (folder </> "client.der")
        tls <- newTlsServer defaultTlsServerSettings {tlsCertificates = [CertificateFiles ca key], tlsClientCertificates = RequiredClientCertificates own, tlsProtocols = ["h2", "http/1.1"]}
        let seen request = case requestSecurity request of
              Nothing -> "none"
              Just security -> L.fromChunks (fromMaybe "no name" (securityServerName security) : securityPeerCertificates security)
            serving options = withServerWith options (quiet (setHost "127.0.0.1" (setPort 0 defaultSettings))) (\request respond -> respond (responseLBS status200 [] (seen request)))
        serving defaultOptions {optionTls = Just tls} $ \server -> forM_ ["--http2", "--http1.1"] $ \version -> do
          _ <- curl ["--cacert", ca, "--cert", own, "--key", ownKey, version, "-o", folder </> "seen", "https://localhost:" <> show (portOf (serverAddress server)) <> "/"]
          found <- B.readFile (folder </> "seen")
          found @?= "localhost" <> der
        serving defaultOptions $ \server -> curl ["http://127.0.0.1:" <> show (portOf (serverAddress server)) <> "/"] >>= (@?= "none"),
      testOn on "a record that was changed on its way ends the connection, and is no exception of the server" . withFolder $ \folder -> do
        files@(ca, _) <- certificate folder "test"
        tls <- uncurry loadTls files
        thrown <- newIORef []
        let settings = setOnException (\_ e -> atomicModifyIORef' thrown (\es -> (show e : es, ()))) (setHost "127.0.0.1" (setPort 0 defaultSettings))
        withServerWith defaultOptions {optionTls = Just tls} settings application $ \server ->
          relaying (portOf (serverAddress server)) "" changing $ \relay -> do
            (code, _, _) <- within 120 "curl" (readProcessWithExitCode "curl" ["-sS", "--noproxy", "*", "--http1.1", "--tls-max", "1.2", "--cacert", ca, "https://localhost:" <> show relay <> "/hello"] "")
            assertBool "an answer" (code /= ExitSuccess)
            eventually "the connection has ended" ((== 0) <$> serverConnections server)
        readIORef thrown >>= (@?= []),
      testOn on "HTTP/2 that is disabled is not offered" . withFolder $ \folder -> do
        files <- certificate folder "test"
        tls <- uncurry loadTls files
        withServerWith defaultOptions {optionTls = Just tls} (quiet (setHTTP2Disabled (setHost "127.0.0.1" (setPort 0 defaultSettings)))) application $ \server ->
          fetch (portOf (serverAddress server)) files "/hello" ["--http2", "-w", " %{http_version}"] >>= (@?= "hello 1.1"),
      testOn on "header fields that are too large are refused with that reason, over HTTP/1.1 and HTTP/2" . secure (\l -> l {limitHead = 4096}) application $ \refusals _ port (ca, _) -> do
        forM_ ["--http2", "--http1.1"] $ \version ->
          void (within 120 "curl" (readProcessWithExitCode "curl" ["-sS", "--noproxy", "*", "--cacert", ca, version, "-H", "X-Large: " <> replicate 20000 'x', "https://localhost:" <> show port <> "/hello"] ""))
        eventually "both are refused" ((== [HeadTooLarge, HeadTooLarge]) <$> readIORef refusals),
      testOn on "large responses and request bodies" . withFolder $ \folder -> secure id application $ \_ _ port ask' -> forM_ ["--http2", "--http1.1"] $ \version -> do
        B.writeFile (folder </> "body") (filler 300000)
        text <- fetch port ask' "/large?n=3000000" [version, "-w", " %{size_download}", "-o", "/dev/null"]
        text @?= " 3000000"
        fetch port ask' "/count" [version, "--data-binary", "@" <> folder </> "body"] >>= (@?= "300000")
        chunks <- fetch port ask' "/chunks" [version]
        length (lines chunks) @?= 100,
      testOn on "sixty requests at once on one connection" . secure id application $ \_ _ port (ca, _) -> do
        let urls = concat [["https://localhost:" <> show port <> "/large?n=" <> show (1000 * n), "-o", "/dev/null"] | n <- [1 .. 60 :: Int]]
        text <- curl (["--cacert", ca, "--parallel", "--http2", "-w", "%{http_code} %{size_download}\n"] <> urls)
        sort (lines text) @?= sort ["200 " <> show (1000 * n) | n <- [1 .. 60 :: Int]],
      testOn on "files and ranges of files" . withFolder $ \folder -> do
        B.writeFile (folder </> "small") (filler 1000)
        B.writeFile (folder </> "large") (filler 2000000)
        withStatic defaultStaticSettings folder $ \static -> secure id (staticApp static) $ \_ _ port ask' ->
          forM_ ["--http2", "--http1.1"] $ \version -> do
            forM_ [("/small", 1000), ("/large", 2000000)] $ \(path, n) -> do
              void (fetch port ask' path [version, "-o", folder </> "got"])
              B.readFile (folder </> "got") >>= \got -> assertBool path (got == filler n)
            void (fetch port ask' "/large" [version, "-r", "1500000-1599999", "-o", folder </> "got"])
            B.readFile (folder </> "got") >>= \got -> assertBool "a part" (got == B.take 100000 (B.drop 1500000 (filler 2000000))),
      testOn on "a client without TLS gets a 400 that names https" . secure id application $ \refusals server port _ -> do
        withClient port $ \client -> do
          say client "GET / HTTP/1.1\r\nHost: h\r\n\r\n"
          answer <- hearAnswer client
          answerStatus answer @?= 400
          assertBool (show answer) ("https://" `B.isInfixOf` answerBody answer)
        withClient port $ \client -> do
          -- A handshake message of an unknown type.
          say client "\x16\x03\x01\x00\x04\x63\x00\x00\x00"
          void (handle gone (void (hearEnd client)))
        noConnections server
        readIORef refusals >>= (@?= [HandshakeFailed, HandshakeFailed]),
      testOn on "a connection that ends before it says anything is no failed handshake" . secure id application $ \refusals server port _ -> do
        withClient port $ \client -> finishSaying client >> hearEnd client >>= (@?= "")
        noConnections server
        readIORef refusals >>= (@?= []),
      testOn on "a client that closes without ending its session, between requests or in a record, is no error and no refusal" . withFolder $ \folder -> do
        tls <- certificate folder "test" >>= uncurry loadTls
        found <- newIORef []
        let note what = atomicModifyIORef' found (\all' -> (what : all', ()))
            options = defaultOptions {optionTls = Just tls, optionOnRefused = \_ r -> note (show r)}
            settings = setOnException (\_ e -> note (show e)) (setHost "127.0.0.1" (setPort 0 defaultSettings))
        withServerWith options settings application $ \server -> do
          -- The header of a record of 100 bytes, and its first byte.
          forM_ ["", "\x17\x03\x03\x00\x64\x00"] $ \rest -> do
            deadline <- deadlineIn (seconds 60)
            below <- transportConnect socketTransport deadline (serverAddress server)
            c <- tlsConnect defaultTlsClientSettings {tlsTrust = TrustAnything} "localhost" below
            connSendBytes c deadline "GET /hello HTTP/1.1\r\nHost: h\r\n\r\n"
            connReceive c deadline 65536 >>= (@?= "HTTP/1.1 200") . B.take 12
            connSendBytes below deadline rest
            connClose below
          noConnections server
          readIORef found >>= (@?= []),
      testOn on "a client that does not complete its handshake is disconnected" . secure (\l -> l {limitHeadTime = milliseconds 500}) application $ \refusals server port _ -> do
        forConcurrently_ ["", "\x16", "\x16\x03\x01\x02\x00\x01"] $ \bytes -> withClient port $ \client -> do
          say client bytes
          void (handle gone (void (hearEnd client)))
        noConnections server
        readIORef refusals >>= (@?= replicate 3 HeadTooSlow),
      testOn on "incomplete handshakes do not keep other clients out" . secure (\l -> l {limitConnections = 10}) application $ \_ server port ask' ->
        bracket (replicateM 10 (connectTo port)) (mapM_ hangUp) $ \_ -> do
          eventually "it is full" ((== 10) <$> serverConnections server)
          forM_ [1 .. 12 :: Int] $ \_ -> fetch port ask' "/hello" [] >>= (@?= "hello"),
      patientOn on "limits on requests apply inside of TLS" . secure (\l -> l {limitHeadTime = seconds 2}) application $ \refusals server port _ -> do
        (_, out, _) <- openssl ["s_client", "-quiet", "-connect", "localhost:" <> show port] "GET / HTTP/1.1\nHost: h\r\n\r\n"
        assertBool out ("HTTP/1.1 400" `isInfixOf` out)
        void (openssl ["s_client", "-quiet", "-connect", "localhost:" <> show port] "GET / HTTP/1.1\r\n")
        noConnections server
        eventually "both are refused" ((== [HeadTooSlow, BadRequest]) <$> readIORef refusals),
      testOn on "the server sends close_notify before it closes" . secure id application $ \_ _ port _ ->
        conversation port "/ignore" >>= endsWithNotice,
      testOn on "close_notify after an idle timeout" . secure (\l -> l {limitIdle = milliseconds 300}) application $ \_ _ port _ ->
        conversation port "/hello" >>= endsWithNotice,
      testOn on "close_notify when the server makes room, and when it drains" $ do
        answered <- newEmptyMVar
        let reporting request respond = application request respond <* putMVar answered ()
        secure (\l -> l {limitConnections = 1}) reporting $ \_ server port ask' ->
          withAsync (conversation port "/hello") $ \first -> do
            within 60 "the first response" (takeMVar answered)
            fetch port ask' "/hello" [] >>= (@?= "hello")
            within 60 "the second response" (takeMVar answered)
            within 60 "its end" (wait first) >>= endsWithNotice
            withAsync (conversation port "/hello") $ \last' -> do
              within 60 "the third response" (takeMVar answered)
              drained <- within 25 "the end" (drainServer server (seconds 20))
              drained @?= True
              within 60 "its end" (wait last') >>= endsWithNotice,
      testOn on "a drain that begins during a request over TLS waits for its response" $ do
        begun <- newEmptyMVar
        let reporting request respond = putMVar begun () >> application request respond
        secure id reporting $ \_ server port ask' ->
          withAsync (fetch port ask' "/slow?n=700" []) $ \fetched -> do
            within 60 "the request" (takeMVar begun)
            drained <- within 25 "the end" (drainServer server (seconds 20))
            drained @?= True
            within 25 "the response" (wait fetched) >>= (@?= "slowly"),
      testOn on "the certificate can be replaced while the server runs" . withFolder $ \folder -> do
        (ca, key) <- certificate folder "one"
        tls <- loadTls ca key
        withServerWith defaultOptions {optionTls = Just tls} (quiet (setHost "127.0.0.1" (setPort 0 defaultSettings))) application $ \server -> do
          let port = portOf (serverAddress server)
          fetch port (ca, key) "/hello" [] >>= (@?= "hello")
          (ca2, key2) <- certificate folder "two"
          -- Only the certificate has been replaced, and not its key: the old pair stays in use.
          B.readFile ca2 >>= B.writeFile ca
          failed <- reloadTlsServer tls
          map (("is not the key" `isInfixOf`) . show) failed @?= [True]
          B.readFile key2 >>= B.writeFile key
          reloadTlsServer tls >>= (@?= [])
          fetch port (ca2, key2) "/hello" [] >>= (@?= "hello"),
      testOn on "the header of the PROXY protocol precedes the handshake, and a connection without it is refused" . withFolder $ \folder -> do
        files <- certificate folder "test"
        tls <- uncurry loadTls files
        let settings = setProxyProtocolRequired (setHost "127.0.0.1" (setPort 0 defaultSettings))
            whoAsks request respond = respond (responseLBS status200 [] (L.pack (show (remoteHost request))))
        withServerWith defaultOptions {optionTls = Just tls} (quiet settings) whoAsks $ \server -> do
          let port = portOf (serverAddress server)
          forM_ [["--http2"], ["--http1.1"], ["--tls-max", "1.2"]] $ \version -> do
            withRelay port "PROXY TCP4 192.0.2.1 192.0.2.2 5000 443\r\n" $ \relay -> fetch relay files "/" version >>= (@?= "192.0.2.1:5000")
            own <- fetch port files "/" ("--haproxy-protocol" : version)
            assertBool own ("127.0.0.1:" `isPrefixOf` own)
            (code, out, _) <- within 120 "curl" (readProcessWithExitCode "curl" (["-sS", "--noproxy", "*", "--cacert", fst files, "https://localhost:" <> show port <> "/"] <> version) "")
            assertBool (show (code, out)) (code /= ExitSuccess && null out)
          noConnections server,
      testOn on "files without a certificate or key are refused" . withFolder $ \folder -> do
        (ca, key) <- certificate folder "good"
        let empty = folder </> "empty"
            rubbish = folder </> "rubbish"
        B.writeFile empty ""
        B.writeFile rubbish "-----BEGIN PRIVATE KEY-----\nrubbish\n-----END PRIVATE KEY-----\n"
        forM_ [(folder </> "none", key, "none"), (ca, folder </> "none", "none"), (empty, key, "no certificate"), (ca, empty, "no private key"), (key, ca, "no certificate"), (ca, rubbish, "rubbish")] $
          \(chain, private, words') -> do
            loaded <- try (loadTls chain private)
            case loaded of
              Left e -> assertBool (show e) (words' `isInfixOf` show (e :: IOException))
              Right _ -> assertFailure ("loaded: " <> show (chain, private))
    ]
  where
    gone :: IOException -> IO ()
    gone _ = pure ()
    -- What openssl prints of a connection that it leaves open after a request.
    conversation port path = do
      (_, out, err) <- openssl ["s_client", "-msg", "-ign_eof", "-connect", "localhost:" <> show (port :: Int)] ("GET " <> path <> " HTTP/1.1\r\nHost: h\r\n\r\n")
      pure (out <> err)
    endsWithNotice out = assertBool out (any (\line -> "<<<" `isPrefixOf` line && "close_notify" `isInfixOf` line) (lines out))
    fetch port (ca, _) path more = curl (["--cacert", ca, "https://localhost:" <> show (port :: Int) <> path] <> more)

-- | Run a server with TLS. The action gets the refusals that it reports (the last one first), the server, its port, and
-- the files of its certificate and key.
secure :: (Limits -> Limits) -> Application -> (IORef [Refusal] -> Server -> Int -> (FilePath, FilePath) -> IO ()) -> IO ()
secure change app act = withFolder $ \folder -> do
  files <- certificate folder "test"
  tls <- uncurry loadTls files
  refusals <- newIORef []
  let options =
        defaultOptions
          { optionTls = Just tls,
            optionLimits = Just (change defaultLimits),
            optionOnRefused = \_ r -> atomicModifyIORef' refusals (\rs -> (r : rs, ()))
          }
  withServerWith options (quiet (setHost "127.0.0.1" (setPort 0 defaultSettings))) app $ \server ->
    act refusals server (portOf (serverAddress server)) files

-- | A proxy on a port of its own: it sends these bytes to the server at the start of each connection.
withRelay :: Int -> B.ByteString -> (Int -> IO a) -> IO a
withRelay port bytes = relaying port bytes copying

-- | The same, with the action that passes on what clients send.
relaying :: Int -> B.ByteString -> (S.Socket -> S.Socket -> IO ()) -> (Int -> IO a) -> IO a
relaying port bytes forward act = bracket (S.socket S.AF_INET S.Stream S.defaultProtocol) S.close $ \listener -> do
  S.bind listener (S.SockAddrInet 0 loopback)
  S.listen listener 8
  own <- S.socketPort listener
  withAsync (forever (S.accept listener >>= \(near, _) -> forkFinally (relay near) (const (S.close near)))) (const (act (fromIntegral own)))
  where
    loopback = S.tupleToHostAddress (127, 0, 0, 1)
    relay near = bracket (S.socket S.AF_INET S.Stream S.defaultProtocol) S.close $ \far -> do
      S.connect far (S.SockAddrInet (fromIntegral port) loopback)
      S.sendAll far bytes
      concurrently_ (forward near far) (copying far near)

copying :: S.Socket -> S.Socket -> IO ()
copying from to = do
  piece <- S.recv from 65536
  if B.null piece then S.shutdown to S.ShutdownSend else S.sendAll to piece >> copying from to

-- | Pass on TLS records, and change the last byte of each that contains application data.
changing :: S.Socket -> S.Socket -> IO ()
changing from to = do
  start <- exactly 5
  record <- if B.length start < 5 then pure B.empty else exactly (fromIntegral (B.index start 3) * 256 + fromIntegral (B.index start 4))
  if B.null record
    then S.shutdown to S.ShutdownSend
    else do
      S.sendAll to (start <> if B.head start == 23 then B.snoc (B.init record) (B.last record + 1) else record)
      changing from to
  where
    exactly n = do
      piece <- S.recv from n
      if B.null piece || B.length piece == n then pure piece else (piece <>) <$> exactly (n - B.length piece)

withFolder :: (FilePath -> IO a) -> IO a
withFolder = bracket (mkdtemp "/tmp/weft-tls-") removeDirectoryRecursive

-- | A new certificate for localhost, and its key.
certificate :: FilePath -> String -> IO (FilePath, FilePath)
certificate folder name = do
  let ca = folder </> name <> ".pem"
      key = folder </> name <> ".key"
  (code, _, err) <-
    openssl
      ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", ca]
      ""
  case code of
    ExitSuccess -> pure (ca, key)
    ExitFailure _ -> assertFailure err

openssl :: [String] -> String -> IO (ExitCode, String, String)
openssl arguments = within 120 "openssl" . readProcessWithExitCode "openssl" arguments
