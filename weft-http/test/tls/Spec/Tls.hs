-- |
-- TLS: the laws of connections over it, and servers with @openssl@ and @curl@ as clients.
module Spec.Tls
  ( tests,
  )
where

import Control.Concurrent
import Control.Exception
import Control.Monad
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as B8
import Data.Foldable (fold)
import Data.IORef
import Data.List (isInfixOf, sort)
import Data.Tuple (swap)
import Foreign.C.Error (eCONNRESET, errnoToIOError)
import GHC.Clock (getMonotonicTime)
import GHC.IO.Exception (IOErrorType (ProtocolError, ResourceVanished))
import Network.Socket (SockAddr (..), tupleToHostAddress)
import Support
import System.Directory
import System.Exit
import System.FilePath
import System.IO
import System.IO.Error (ioeGetErrorType)
import System.Posix.IO (closeFd, handleToFd)
import System.Process
import Test.Tasty
import Test.Tasty.HUnit hiding (testCase)
import Weft.Duration
import Weft.Test.Skip
import Weft.Tls
import Weft.Transport
import Weft.Transport.Laws

tests :: TestTree
tests = withFiles $ \files ->
  testGroup
    "TLS"
    [ testGroup
        ("laws over " <> name)
        [ testCase (lawName law) (files >>= \f -> pairOver f below >>= \p -> lawHolds law (Implementation p bound (contentsOf f)))
          | law <- connectionLaws
        ]
      | (name, bound, below) <- [("memory", 200000, inMemory), ("TCP", 4000000, overTcp)]
    ]
    `with` [openssl files, clients files, failures files]
  where
    with group more = testGroup "Weft.Tls" (group : more)

-- | The client's and the server's end, after the handshake.
pairOver :: Files -> IO (Connection, Connection) -> IO (IO (Connection, Connection))
pairOver files below = do
  server <- newTlsServer (settingsFor files ["one"])
  pure $ do
    (a, b) <- below
    accepted <- newEmptyMVar
    _ <- forkIO (try (tlsAccept server b) >>= putMVar accepted)
    c <- tlsConnect (clientFor files) "one.test" a
    s <- takeMVar accepted >>= either (throwIO :: IOException -> IO a) pure
    pure (c, s)

-- With openssl's client -------------------------------------------------------------------

openssl :: IO Files -> TestTree
openssl get =
  testGroup
    "openssl"
    [ testCase "only cipher suites with forward secrecy and authenticated encryption" $ do
        files <- get
        serving (settingsFor files ["one"]) $ \port _ _ -> do
          (_, listed, _) <- run "openssl" ["ciphers", "-v", "ALL:@SECLEVEL=0"] ""
          let suites = [head' (words l) | l <- lines listed, "TLSv1.3" `notElem` words l]
          accepted <- filterM (\suite -> accepts port ["-tls1_2", "-cipher", suite <> ":@SECLEVEL=0"]) suites
          sort accepted
            @?= sort
              [ "ECDHE-RSA-AES128-GCM-SHA256",
                "ECDHE-RSA-AES256-GCM-SHA384",
                "ECDHE-RSA-CHACHA20-POLY1305"
              ]
          forM_ ["TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"] $ \suite ->
            accepts port ["-tls1_3", "-ciphersuites", suite] >>= assertBool suite
          forM_ ["-tls1", "-tls1_1"] $ \version ->
            accepts port [version, "-cipher", "ALL:@SECLEVEL=0"] >>= assertBool version . not,
      testCase "a session is resumed, with TLS 1.2 and 1.3" $ do
        files <- get
        serving (settingsFor files ["one"]) $ \port seen _ -> forM_ ["-tls1_2", "-tls1_3"] $ \version -> do
          let kept = folderOf files </> "session" <> version
          _ <- client files port [version, "-sess_out", kept] "hello\n"
          writeIORef seen []
          (_, out, _) <- client files port [version, "-sess_in", kept] "hello\n"
          assertBool out ("Reused, " `isInfixOf` out)
          securities <- readIORef seen
          map securityResumed securities @?= [True],
      testCase "a resumed session of TLS 1.3 has tickets of its own" $ do
        files <- get
        serving (settingsFor files ["one"]) $ \port seen _ -> do
          let kept n = folderOf files </> ("session-own-" <> show (n :: Int))
          _ <- client files port ["-tls1_3", "-sess_out", kept 0] "hello\n"
          -- Each ticket is used once.
          forM_ [1, 2] $ \n -> do
            writeIORef seen []
            _ <- client files port ["-tls1_3", "-sess_in", kept (n - 1), "-sess_out", kept n] "hello\n"
            readIORef seen >>= (@?= [True]) . map securityResumed
            doesFileExist (kept n) >>= assertBool "no ticket",
      testCase "resuming a session does not lengthen its life, and removes no other" $ do
        files <- get
        let settings = (settingsFor files ["one"]) {tlsSessions = 2, tlsSessionLife = seconds 4}
        serving settings $ \port seen _ -> do
          let kept name = folderOf files </> "session-" <> name
              resumed name = do
                writeIORef seen []
                _ <- client files port ["-tls1_2", "-sess_in", kept name] "hello\n"
                map securityResumed <$> readIORef seen
          forM_ ["a", "b"] (\name -> client files port ["-tls1_2", "-sess_out", kept name] "hello\n")
          replicateM 4 (resumed "a") >>= (@?= replicate 4 [True])
          resumed "b" >>= (@?= [True])
          threadDelay 2000000
          _ <- resumed "a"
          threadDelay 2000000
          resumed "a" >>= (@?= [False]),
      testCase "no session is resumed if the server keeps none" $ do
        files <- get
        serving (settingsFor files ["one"]) {tlsSessions = 0} $ \port seen _ -> do
          forM_ ["-tls1_2", "-tls1_3"] $ \version -> do
            let kept = folderOf files </> "session-none" <> version
            _ <- client files port [version, "-sess_out", kept] "hello\n"
            -- Without a ticket there is nothing to keep.
            there <- doesFileExist kept
            when there (void (client files port [version, "-sess_in", kept] "hello\n"))
          securities <- readIORef seen
          filter securityResumed securities @?= [],
      testCase "a session is not resumed with another certificate than it began with" $ do
        files <- get
        serving (settingsFor files ["one", "two"]) $ \port seen _ -> forM_ ["-tls1_2", "-tls1_3"] $ \version -> do
          let kept = folderOf files </> "session-of-one" <> version
              resuming name = do
                writeIORef seen []
                _ <- run "openssl" ["s_client", "-connect", at port, "-servername", name, version, "-sess_in", kept, "-ign_eof"] "hello\n"
                map securityResumed <$> atLeast 1 seen
          _ <- client files port [version, "-sess_out", kept] "hello\n"
          mapM resuming ["two.test", "any.wild.test", "one.test", "unknown.test"] >>= (@?= [[False], [False], [True], [True]]),
      testCase "each name gets its certificate, an unknown name the first one" $ do
        files <- get
        serving (settingsFor files ["one", "two"]) $ \port seen _ ->
          forM_ (zip [1 ..] [("one.test", "one.test"), ("two.test", "two.test"), ("any.wild.test", "two.test"), ("wild.test", "one.test"), ("unknown.test", "one.test")]) $ \(number, (asked, shown)) -> do
            (_, out, _) <- run "openssl" ["s_client", "-connect", at port, "-servername", asked] ""
            -- Blanks around the equals sign depend on the version of openssl.
            assertBool (asked <> ": " <> out) (any (`isInfixOf` out) ["CN = " <> shown, "CN=" <> shown])
            -- The client may end before the server has recorded it.
            securities <- atLeast number seen
            fmap securityServerName (take 1 securities) @?= [Just (B8.pack asked)],
      testCase "ALPN: the server's preference decides; without a common protocol there is none" $ do
        files <- get
        serving (settingsFor files ["one"]) $ \port _ _ -> do
          (_, both, _) <- client files port ["-alpn", "http/1.1,h2"] ""
          assertBool both ("ALPN protocol: h2" `isInfixOf` both)
          (_, none, _) <- client files port ["-alpn", "spdy/3"] ""
          assertBool none ("No ALPN negotiated" `isInfixOf` none),
      testCase "a required client certificate: valid, missing, expired, of another authority" $ do
        files <- get
        let settings = (settingsFor files ["one"]) {tlsClientCertificates = RequiredClientCertificates (folderOf files </> "ca.pem")}
        serving settings $ \port seen _ -> forM_ ["-tls1_2", "-tls1_3"] $ \version -> do
          let ask name = (\(_, out, _) -> "echo" `isInfixOf` out) <$> client files port (version : credentialsOf files name) "echo\n"
          mapM ask [Just "client", Nothing, Just "expired", Just "foreign"] >>= (@?= [True, False, False, False])
          securities <- readIORef seen
          map (not . null . peerCertificates) (take 1 securities) @?= [True],
      testCase "an optional client certificate" $ do
        files <- get
        let settings = (settingsFor files ["one"]) {tlsClientCertificates = OptionalClientCertificates (folderOf files </> "ca.pem")}
        serving settings $ \port _ _ -> do
          let ask more name = (\(_, out, _) -> "echo" `isInfixOf` out) <$> client files port (more <> credentialsOf files name) "echo\n"
          let versions = [["-tls1_2"], []]
          forM_ versions $ \version -> mapM (ask version . Just) ["client", "expired"] >>= (@?= [True, False])
          mapM (`ask` Nothing) versions >>= (@?= [True, True]),
      testCase "a handshake that stalls ends with the deadline" $ do
        files <- get
        serving (settingsFor files ["one"]) {tlsHandshakeTime = milliseconds 300} $ \port _ errors -> do
          forM_ [B.empty, B.pack [0x16, 3, 1], B.pack [0x16, 3, 1, 2, 0, 1]] $ \start -> do
            before <- getMonotonicTime
            c <- transportConnect socketTransport noDeadline (SockAddrInet (fromIntegral port) (tupleToHostAddress (127, 0, 0, 1)))
            unless (B.null start) (connSendBytes c noDeadline start)
            r <- try (receiveAll c) :: IO (Either IOException B.ByteString)
            after' <- getMonotonicTime
            connClose c
            assertBool (show (after' - before, fmap B.length r)) (after' - before >= 0.3)
          -- The client may see the end before the server has recorded the error.
          seen <- atLeast 3 errors
          map isTimeout seen @?= [True, True, True],
      testCase "a handshake message that its client never ends is refused long before the time limit" $ do
        files <- get
        serving (settingsFor files ["one"]) {tlsHandshakeTime = seconds 600} $ \port _ errors -> do
          c <- transportConnect socketTransport noDeadline (SockAddrInet (fromIntegral port) (tupleToHostAddress (127, 0, 0, 1)))
          -- Records of 16,000 bytes; the first begins a ClientHello of 16 MB.
          let record bytes = B.pack [0x16, 3, 1, 0x3e, 0x80] <> bytes <> B.replicate (16000 - B.length bytes) 0
          _ <- try (connSendMany c noDeadline (record (B.pack [1, 0xff, 0xff, 0xff]) : replicate 20 (record B.empty))) :: IO (Either IOException ())
          seen <- atLeast 1 errors
          connClose c
          map isTimeout seen @?= [False],
      testCase "bytes that are not TLS are refused" $ do
        files <- get
        serving (settingsFor files ["one"]) $ \port _ errors -> do
          c <- transportConnect socketTransport noDeadline (SockAddrInet (fromIntegral port) (tupleToHostAddress (127, 0, 0, 1)))
          connSendBytes c noDeadline (B8.pack "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
          _ <- try (receiveAll c) :: IO (Either IOException B.ByteString)
          connClose c
          seen <- atLeast 1 errors
          length seen @?= 1,
      testCase "a reload changes the certificate for new connections, and old connections continue" $ do
        files <- get
        let there name = folderOf files </> name
        copyFile (there "one.pem") (there "live.pem") >> copyFile (there "one.key") (there "live.key")
        server <- newTlsServer (settingsFor files ["live"])
        let connectAs name = do
              (a, b) <- inMemory
              accepted <- newEmptyMVar
              _ <- forkIO (tlsAccept server b >>= putMVar accepted)
              c <- tlsConnect (clientFor files) name a
              (,) c <$> takeMVar accepted
        (c, s) <- connectAs "one.test"
        copyFile (there "two.pem") (there "live.pem") >> copyFile (there "two.key") (there "live.key")
        reloadTlsServer server >>= (@?= [])
        (c2, _) <- connectAs "two.test"
        connSendBytes c noDeadline (B8.pack "still")
        connReceive s noDeadline 10 >>= (@?= "still") . B8.unpack
        mapM_ connClose [c, s, c2]
        writeFile (there "live.pem") "rubbish"
        failed <- reloadTlsServer server
        map ((there "live.pem" `isInfixOf`) . show) failed @?= [True]
        (c3, _) <- connectAs "two.test"
        connClose c3,
      testCase "a reload replaces what can be loaded, and names the rest" $ do
        files <- get
        let there name = folderOf files </> name
            put from to = forM_ [".pem", ".key"] $ \end -> copyFile (there (from <> end)) (there (to <> end))
        put "one" "first" >> put "one" "second" >> copyFile (there "ca.pem") (there "clients.pem")
        server <- newTlsServer (settingsFor files ["first", "second"]) {tlsClientCertificates = RequiredClientCertificates (there "clients.pem")}
        let accepts' name authority own = do
              (a, b) <- inMemory
              accepted <- newEmptyMVar
              _ <- forkIO (try (tlsAccept server b) >>= putMVar accepted)
              _ <- try (tlsConnect (clientFor files) {tlsTrust = TrustAuthorities (there authority), tlsClientCertificate = Just (sourceOf files own)} name a) :: IO (Either IOException Connection)
              either (const False :: IOException -> Bool) (const True) <$> takeMVar accepted
        put "two" "first" >> writeFile (there "second.key") "rubbish" >> copyFile (there "ca2.pem") (there "clients.pem")
        failed <- reloadTlsServer server
        map ((there "second.key" `isInfixOf`) . show) failed @?= [True]
        mapM (\(name, own) -> accepts' name "ca.pem" own) [("two.test", "foreign"), ("one.test", "foreign"), ("two.test", "client")] >>= (@?= [True, True, False])
        writeFile (there "first.pem") "rubbish" >> put "two" "second" >> writeFile (there "clients.pem") "rubbish"
        again <- reloadTlsServer server
        [or [there name `isInfixOf` show e | e <- again] | name <- ["first.pem", "second.pem", "clients.pem"]] @?= [True, False, True]
        accepts' "two.test" "ca.pem" "foreign" >>= (@?= True),
      testCase "a certificate from memory; a key of another certificate is refused" $ do
        files <- get
        let there name = B.readFile (folderOf files </> name)
        chain <- there "one.pem"
        key <- there "one.key"
        other <- there "two.key"
        _ <- newTlsServer defaultTlsServerSettings {tlsCertificates = [CertificateMemory chain key]}
        r <- try (newTlsServer defaultTlsServerSettings {tlsCertificates = [CertificateMemory chain other]})
        case r of
          Left e -> assertBool (show e) ("is not the key" `isInfixOf` show (e :: IOException))
          Right _ -> assertFailure "a key that does not fit",
      testCase "a client refuses a server with another name or authority" $ do
        files <- get
        server <- newTlsServer (settingsFor files ["one"])
        let connectAs settings name = do
              (a, b) <- inMemory
              _ <- forkIO (void (try (tlsAccept server b) :: IO (Either IOException Connection)))
              r <- try (tlsConnect settings name a) :: IO (Either IOException Connection)
              either (const False) (const True) r <$ connClose a
        good <- connectAs (clientFor files) "one.test"
        name <- connectAs (clientFor files) "other.test"
        authority <- connectAs (clientFor files) {tlsTrust = TrustAuthorities (folderOf files </> "ca2.pem")} "one.test"
        anything <- connectAs (clientFor files) {tlsTrust = TrustAnything} "other.test"
        [good, name, authority, anything] @?= [True, False, False, True],
      testCase "curl gets a page" $ do
        needProgram "curl"
        files <- get
        serving (settingsFor files ["one"]) $ \port _ _ -> do
          (code, out, err) <-
            run
              "curl"
              ["-sS", "--noproxy", "*", "--http1.1", "--cacert", folderOf files </> "ca.pem", "--resolve", "one.test:" <> show port <> ":127.0.0.1", "https://one.test:" <> show port <> "/"]
              ""
          (code, out) @?= (ExitSuccess, "hello")
          err @?= ""
    ]
  where
    accepts port arguments = do
      (code, out, _) <- run "openssl" (["s_client", "-connect", at port] <> arguments) ""
      pure (code == ExitSuccess && "Cipher is (NONE)" `notIn` out)
    notIn x y = not (x `isInfixOf` y)
    head' = concat . take 1
    credentialsOf files = maybe [] (\name -> ["-cert", folderOf files </> name <> ".pem", "-key", folderOf files </> name <> ".key"])

-- Clients -----------------------------------------------------------------------------

clients :: IO Files -> TestTree
clients get =
  testGroup
    "clients"
    [ testCase "an IP address is looked for among the addresses of the certificate, and is not sent as a name" $ do
        files <- get
        let ask certificate name = either (const Nothing) (Just . asked) <$> connectTo (settingsFor files [certificate]) (clientFor files) name
            asked (_, s) = connSecurity s >>= securityServerName
        mapM (ask "address") ["127.0.0.1", "::1", "0:0:0:0:0:0:0:1"] >>= (@?= replicate 3 (Just Nothing))
        ask "address" "one.test" >>= (@?= Just (Just (B8.pack "one.test")))
        mapM (ask "address") ["127.0.0.2", "::2", "other.test"] >>= (@?= replicate 3 Nothing)
        -- One has the address as a DNS name, the other as its common name.
        mapM (`ask` "127.0.0.1") ["disguised", "common"] >>= (@?= [Nothing, Nothing])
        -- All else is checked as for names.
        let distrustful = (clientFor files) {tlsTrust = TrustAuthorities (folderOf files </> "ca2.pem")}
        connectTo (settingsFor files ["address"]) distrustful "127.0.0.1" >>= assertBool "another authority" . either (const True) (const False)
        connectTo (settingsFor files ["one"]) (clientFor files) {tlsTrust = TrustAnything} "127.0.0.1"
          >>= assertBool "anything" . either (const False) (const True),
      testCase "the end of the stream is given any number of times, though the connection stays open" $ do
        files <- get
        forM_ [id, swap] $ \roles -> do
          (from, to) <- connectTo (settingsFor files ["one"]) (clientFor files) "one.test" >>= either throwIO (pure . roles)
          connSendBytes from noDeadline (B8.pack "last")
          connShutdownSend from noDeadline
          soon <- deadlineIn (seconds 5)
          replicateM 3 (connReceive to soon 100) >>= (@?= [B8.pack "last", B.empty, B.empty]),
      -- Without a ticket, the library waits for one when it closes. The server answers each line with the line
      -- reversed.
      testCase "closing one direction takes nothing from the other, with a server that sends no ticket" $ do
        files <- get
        withReversingServer files $ \port -> do
          c <- connecting files port
          connSendBytes c noDeadline (B8.pack "unread\n")
          threadDelay 300000
          connShutdownSend c noDeadline
          got <- receiveAll c
          connClose c
          got @?= B8.pack "daernu\n",
      testCase "closing one direction while a thread receives, with a server that sends no ticket" $ do
        files <- get
        withReversingServer files $ \port -> forM_ [1 .. 20 :: Int] $ \_ -> do
          c <- connecting files port
          received <- newEmptyMVar
          _ <- forkIO (try (receiveAll c) >>= putMVar received)
          threadDelay 2000
          forM_ ["one", "two"] (\line -> connSendBytes c noDeadline (B8.pack (line <> "\n")))
          connShutdownSend c noDeadline
          got <- takeMVar received
          connClose c
          either (\e -> Left (show (e :: IOException))) Right got @?= Right (B8.pack "eno\nowt\n"),
      testCase "closing one direction, with a deadline, to a server that sends no ticket" $ do
        files <- get
        withReversingServer files $ \port -> do
          c <- connecting files port
          begun <- getMonotonicTime
          r <- deadlineIn (milliseconds 1) >>= try . connShutdownSend c
          took <- subtract begun <$> getMonotonicTime
          connAbort c
          either isTimeout (const True) r @? "no timeout"
          (took < 10) @? show took,
      -- The receiving thread is not masked: bytes may be lost with their call, but all records are decrypted in order.
      testCase "a receive that is interrupted at any moment leaves the session whole" $ do
        files <- get
        (from, to) <- connectTo (settingsFor files ["one"]) (clientFor files) "one.test" >>= either throwIO pure
        got <- newIORef (0 :: Int)
        ended <- newEmptyMVar
        let receiveAllOf = do
              r <- try (interruptible (allowInterrupt >> connReceive to noDeadline 16384))
              case r of
                Left ThreadKilled -> receiveAllOf
                Left e -> throwIO e
                Right bytes -> unless (B.null bytes) (modifyIORef' got (+ B.length bytes) >> receiveAllOf)
        receiving <- mask_ . forkIO $ do
          r <- try receiveAllOf
          connAbort to
          putMVar ended r
        let interrupting n = do
              going <- isEmptyMVar ended
              unless (not going || n == (0 :: Int)) (killThread receiving >> threadDelay (n `mod` 150) >> interrupting (n - 1))
        killer <- forkIO (interrupting 20000)
        sent <- try (replicateM_ 1500 (connSendBytes from noDeadline (B.replicate 16384 120)) >> connShutdownSend from noDeadline)
        r <- readMVar ended
        killThread killer
        either (\e -> Left (show (e :: SomeException))) Right r @?= Right ()
        either (\e -> Left (show (e :: SomeException))) Right sent @?= Right ()
        total <- readIORef got
        (total > 0 && total <= 1500 * 16384) @? show total,
      testCase "a client knows the chain that its server sent" $ do
        files <- get
        shell' (folderOf files) "openssl x509 -in one.pem -outform DER -out one.der"
        sent <- B.readFile (folderOf files </> "one.der")
        (c, s) <- connectTo (settingsFor files ["one"]) (clientFor files) "one.test" >>= either throwIO pure
        fmap securityPeerCertificates (connSecurity c) @?= Just [sent]
        fmap (length . peerCertificates) (connSecurity c) @?= Just 1
        fmap securityPeerCertificates (connSecurity s) @?= Just []
        (unchecked, _) <- connectTo (settingsFor files ["one"]) (clientFor files) {tlsTrust = TrustAnything} "other.test" >>= either throwIO pure
        fmap securityPeerCertificates (connSecurity unchecked) @?= Just [sent],
      testCase "authorities from memory, of a client and of a server" $ do
        files <- get
        [ca, ca2] <- mapM (B.readFile . (folderOf files </>)) ["ca.pem", "ca2.pem"]
        let trusting pem own = (clientFor files) {tlsTrust = TrustMemory pem, tlsClientCertificate = sourceOf files <$> own}
            asking policy = (settingsFor files ["one"]) {tlsClientCertificates = policy ca}
            shownTo policy settings = either (const Nothing) (fmap (length . peerCertificates) . connSecurity . snd) <$> connectTo (asking policy) settings "one.test"
        mapM (shownTo RequiredClientCertificatesMemory . uncurry trusting) [(ca, Just "client"), (ca, Just "foreign"), (ca, Nothing), (ca2, Just "client")]
          >>= (@?= [Just 1, Nothing, Nothing, Nothing])
        mapM (shownTo OptionalClientCertificatesMemory . trusting ca . Just) ["client", "foreign"] >>= (@?= [Just 1, Nothing])
        r <- try (loadTrust (TrustMemory (B8.pack "rubbish")))
        either (\e -> show (e :: IOException)) (const "loaded") r @?= "user error (the text of the authorities holds no certificate in PEM)"
    ]

-- | Run openssl's server, which answers each line with the line reversed, and sends no session tickets. The action gets
-- its port.
withReversingServer :: Files -> (Int -> IO a) -> IO a
withReversingServer files act = withFile "/dev/null" WriteMode $ \nowhere -> withCreateProcess server {std_in = CreatePipe, std_out = CreatePipe, std_err = UseHandle nowhere} $ \_ out _ process -> do
  out' <- maybe (assertFailure "no pipe") pure out
  port <- listening out'
  _ <- forkIO (void (try (B.hGetContents out') :: IO (Either IOException B.ByteString)))
  act port `finally` terminateProcess process
  where
    server = proc "timeout" (["90", "openssl", "s_server", "-accept", "127.0.0.1:0", "-num_tickets", "0", "-rev"] <> certificate)
    certificate = ["-cert", folderOf files </> "one.pem", "-key", folderOf files </> "one.key"]
    -- The line "ACCEPT 127.0.0.1:PORT".
    listening out = do
      line <- hGetLine out
      case words line of
        ["ACCEPT", address] -> pure (read (drop 1 (dropWhile (/= ':') address)))
        _ -> listening out

-- | A client of that server, after the handshake.
connecting :: Files -> Int -> IO Connection
connecting files port = transportConnect socketTransport noDeadline address >>= tlsConnect (clientFor files) "one.test"
  where
    address = SockAddrInet (fromIntegral port) (tupleToHostAddress (127, 0, 0, 1))

-- Errors ------------------------------------------------------------------------------

failures :: IO Files -> TestTree
failures get =
  testGroup
    "errors"
    [ testCase "a file is sent whole from a file system that always waits" $ do
        files <- get
        -- preadv(2) with RWF_NOWAIT is refused there, and pread(2) is not.
        let path = "/proc/version"
        there <- doesFileExist path
        unless there (skip ("there is no " <> path))
        contents <- B.readFile path
        (s, c) <- swap <$> join (pairOver files inMemory)
        bracket (openBinaryFile path ReadMode >>= handleToFd) closeFd $ \fd ->
          connSendFile s noDeadline [B8.pack "head "] (FileRange fd 0 (fromIntegral (B.length contents)))
        connShutdownSend s noDeadline
        receiveAll c >>= (@?= B8.pack "head " <> contents)
        mapM_ connClose [s, c],
      testCase "a peer's alert is the error, although the connection is gone when it is answered" $ do
        files <- get
        server <- newTlsServer (settingsFor files ["one"])
        -- RFC 8446, 6.2: fatal; no_application_protocol, bad_certificate.
        asClient <- dying 1 (alert 120) >>= failing . tlsConnect (clientFor files) "one.test"
        hello <- firstBytes files
        asServer <- dying 1 (Just (hello <> fold (alert 42))) >>= failing . tlsAccept server
        map ioeGetErrorType [asClient, asServer] @?= [ProtocolError, ProtocolError]
        assertBool (show asClient) ("the peer's alert: no application protocol" `isInfixOf` show asClient)
        assertBool (show asServer) ("the peer's alert: bad certificate" `isInfixOf` show asServer),
      testCase "an error of the connection below is the error" $ do
        files <- get
        server <- newTlsServer (settingsFor files ["one"])
        asClient <- dying 0 (alert 120) >>= failing . tlsConnect (clientFor files) "one.test"
        asServer <- dying 0 Nothing >>= failing . tlsAccept server
        map ioeGetErrorType [asClient, asServer] @?= [ResourceVanished, ResourceVanished]
    ]
  where
    alert number = Just (B.pack [0x15, 3, 3, 0, 2, 2, number])
    failing act = try act >>= either pure (const (assertFailure "a handshake"))

-- | What a client sends first.
firstBytes :: Files -> IO B.ByteString
firstBytes files = do
  (a, b) <- inMemory
  t <- forkIO (void (try (tlsConnect (clientFor files) "one.test" a) :: IO (Either IOException Connection)))
  connReceive b noDeadline 16384 <* killThread t

-- | A connection on which a number of sends succeed, and which receives these bytes. All other operations fail with
-- @ECONNRESET@.
dying :: Int -> Maybe B.ByteString -> IO Connection
dying sends received = do
  (a, _) <- inMemory
  left <- newIORef sends
  come <- newIORef received
  let reset = ioError (errnoToIOError "test" eCONNRESET Nothing Nothing)
      send = atomicModifyIORef' left (\n -> (n - 1, n > 0)) >>= \ok -> unless ok reset
      receive n = atomicModifyIORef' come (\bytes -> (fmap (B.drop n) bytes, fmap (B.take n) bytes)) >>= maybe reset pure
  pure $ case a of
    Connection operations s ->
      Connection operations {opReceive = \_ _ -> receive, opSend = \_ _ _ -> send, opSendMany = \_ _ _ -> send} s

-- | Run openssl's client, which sends a text and reads until the server closes.
client :: Files -> Int -> [String] -> String -> IO (ExitCode, String, String)
client files port arguments =
  run "openssl" (["s_client", "-connect", at port, "-servername", "one.test", "-CAfile", folderOf files </> "ca.pem", "-ign_eof"] <> arguments)

receiveAll :: Connection -> IO B.ByteString
receiveAll c = do
  bytes <- connReceive c noDeadline 4096
  if B.null bytes then pure B.empty else (bytes <>) <$> receiveAll c

-- | What was recorded, when there are at least the given number, or after thirty seconds.
atLeast :: Int -> IORef [a] -> IO [a]
atLeast n recorded = go (3000 :: Int)
  where
    go left = do
      seen <- readIORef recorded
      if length seen >= n || left == 0 then pure seen else threadDelay 10000 >> go (left - 1)
