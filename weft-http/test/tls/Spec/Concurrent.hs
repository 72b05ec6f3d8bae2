-- |
-- Sessions that several threads use at the same time: both directions, closing, and reloads while others shake hands.
-- And what a session tells of itself.
module Spec.Concurrent
  ( tests,
  )
where

import Control.Concurrent
import Control.Exception
import Control.Monad
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as B8
import Data.IORef
import Support
import System.FilePath
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Test.Forked (inChild)
import Weft.Test.Limits
import Weft.Tls
import Weft.Transport

tests :: TestTree
tests = withFiles $ \get ->
  testGroup
    "concurrent"
    [ testCase "twenty connections carry both directions at once, while twenty others are closed at any moment" $ do
        files <- get
        server <- newTlsServer (settingsFor files ["one"])
        bounded $ do
          finished <- forM [0 .. 39 :: Int] $ \i -> do
            (c, s) <- pairOf files server
            let sent = B8.replicate 300000 'x'
                send from = void (try (connSendBytes from noDeadline sent >> connShutdownSend from noDeadline) :: IO (Either IOException ()))
                receive to = either (const 0 :: IOException -> Int) id <$> try (total to 0)
            results <- forM [send c >> pure 0, send s >> pure 0, receive c, receive s] $ \act -> do
              done <- newEmptyMVar
              done <$ forkIO (act >>= putMVar done)
            when (odd i) . void . forkIO $ threadDelay (i * 300) >> (if i `mod` 4 == 1 then connClose else connAbort) (if i `mod` 8 < 4 then c else s)
            pure (i, results, [c, s])
          forM_ finished $ \(i, results, ends) -> do
            -- One side of those was closed; the other learns it, or waits.
            when (odd i) (threadDelay 1000 >> mapM_ connAbort ends)
            got <- mapM takeMVar results
            unless (odd i) (drop 2 got @?= [300000, 300000])
            mapM_ connClose ends,
      -- Alone: the child's collector writes what handles of the parent hold, and other tests write files.
      after AllFinish "!/forked while others shake hands/" . testCase "forked while others shake hands" $ do
        files <- get
        server <- newTlsServer (settingsFor files ["one"])
        ends <- forM [1 .. 6 :: Int] $ \_ -> forkIO (forever (pairOf files server >>= \(c, s) -> connAbort c >> connAbort s))
        replicateM_ 5 (inChild (replicateM_ 4 (pairOf files server))) `finally` mapM_ killThread ends,
      testCase "handshakes go on during reloads, and established connections too" $ do
        files <- get
        server <- newTlsServer (settingsFor files ["one", "two"])
        (c, s) <- pairOf files server
        stop <- newIORef False
        reloading <- newEmptyMVar
        let reload = do
              errors <- reloadTlsServer server
              over <- readIORef stop
              if over || not (null errors) then putMVar reloading (map show errors) else yield >> reload
        _ <- forkIO reload
        bounded $ do
          shaking <- replicateM 4 $ do
            done <- newEmptyMVar
            done <$ forkIO (try (replicateM_ 10 (pairOf files server >>= \(a, b) -> connSendBytes a noDeadline (B8.pack "x") >> connReceive b noDeadline 10 >>= (@?= B8.pack "x") >> connClose a >> connClose b)) >>= putMVar done)
          forM_ shaking (takeMVar >=> either (throwIO :: SomeException -> IO ()) pure)
          connSendBytes c noDeadline (B8.pack "still")
          connReceive s noDeadline 10 >>= (@?= B8.pack "still")
        writeIORef stop True
        takeMVar reloading >>= (@?= []),
      testCase "a burst of handshakes: an established connection waits for few of them" $ do
        files <- get
        shell' (folderOf files) "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj /CN=fast -keyout fast.key -out fast.pem"
        server <- newTlsServer (settingsFor files ["fast"])
        hello <- clientHello files
        (a, b) <- inMemory
        accepted <- newEmptyMVar
        _ <- forkOn 0 (tlsAccept server b >>= putMVar accepted)
        c <- tlsConnect (clientFor files) {tlsTrust = TrustAnything} "one.test" a
        s <- takeMVar accepted
        answered <- newIORef (0 :: Int)
        before <- newEmptyMVar
        _ <- forkOn 0 . quietly . forever $ connReceive s noDeadline 10 >>= connSendBytes s noDeadline
        bounded $ do
          ends <- replicateM 300 $ do
            (ours, theirs) <- inMemory
            connSendBytes ours noDeadline hello
            pure (ours, theirs)
          -- All begin in one round of the capability; the answers are counted as they come.
          done <- newEmptyMVar
          _ <- forkOn 0 $ do
            forM_ ends $ \(ours, theirs) -> do
              _ <- forkOn 0 (quietly (void (tlsAccept server theirs)))
              forkOn 0 (quietly (connReceive ours noDeadline 16384 >> modifyIORef' answered (+ 1)))
            _ <- forkOn 0 $ do
              replicateM_ 3 (connSendBytes c noDeadline (B8.pack "x") >> connReceive c noDeadline 10)
              readIORef answered >>= putMVar before
            putMVar done ()
          takeMVar done
          n <- takeMVar before
          assertBool (show n <> " of 300 handshakes before three exchanges") (n < 150)
          mapM_ (\(ours, theirs) -> connClose ours >> connClose theirs) ends,
      testCase "a client that has to be asked for another key share" $ do
        files <- get
        serving (settingsFor files ["one"]) $ \port _ _ -> do
          (_, out, _) <- run "openssl" ["s_client", "-connect", at port, "-servername", "one.test", "-groups", "ffdhe2048:X25519", "-ign_eof"] "echo\n"
          assertBool out ("echo" `elem` lines out),
      testCase "a peer's certificate, decoded; and those of a file" $ do
        files <- get
        (c, _) <- connectTo (settingsFor files ["two"]) (clientFor files) "two.test" >>= either throwIO pure
        let found = maybe [] peerCertificates (connSecurity c)
        map certificateSubject found @?= [B8.pack "CN=two.test"]
        map certificateNames found @?= [map B8.pack ["two.test", "*.wild.test"]]
        text <- B.readFile (folderOf files </> "two.pem")
        certificatesIn (text <> B8.pack "-----BEGIN CERTIFICATE-----\nrubbish\n") @?= map Just found <> [Nothing]
        assertBool (show found) (all (maybe False (\(from, until') -> until' - from == 30 * 86400) . certificateValidity) found),
      testCase "the keys of sessions go to a file if that is asked for" $ do
        files <- get
        let path = folderOf files </> "keys"
        _ <- connectTo (settingsFor files ["one"]) {tlsKeyLog = Just path} (clientFor files) "one.test" >>= either throwIO pure
        told <- B8.lines <$> B.readFile path
        assertBool (show told) (any (B8.pack "CLIENT_TRAFFIC_SECRET_0 " `B.isPrefixOf`) told)
    ]

total :: Connection -> Int -> IO Int
total c n = do
  bytes <- connReceive c noDeadline 16384
  if B.null bytes then pure n else total c (n + B.length bytes)

pairOf :: Files -> TlsServer -> IO (Connection, Connection)
pairOf files server = do
  (a, b) <- inMemory
  accepted <- newEmptyMVar
  _ <- forkIO (try (tlsAccept server b) >>= putMVar accepted)
  c <- tlsConnect (clientFor files) "one.test" a
  s <- takeMVar accepted >>= either (throwIO :: IOException -> IO Connection) pure
  pure (c, s)

-- | For threads whose connection the test closes.
quietly :: IO () -> IO ()
quietly act = void (try act :: IO (Either IOException ()))

bounded :: IO a -> IO a
bounded = within 120 "what two threads do"
