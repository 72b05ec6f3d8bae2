-- |
-- TLS with peers that answer at the wrong time, or not at all: OpenSSL itself, and connections whose bytes are cut up,
-- held back or refused.
module Spec.Peers
  ( tests,
  )
where

import Control.Concurrent
import Control.Exception
import Control.Monad
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as B8
import Data.IORef
import Data.Tuple (swap)
import Foreign.Ptr (castPtr)
import GHC.IO.Exception (IOErrorType (ProtocolError, TimeExpired), IOException (..))
import Peer (Peer, Update (..))
import qualified Peer as T
import Support
import System.IO.Error (ioeGetErrorType, isFullError)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Duration
import Weft.Tls
import Weft.Transport

tests :: TestTree
tests = withFiles $ \get ->
  testGroup
    "peers"
    [ testCase "the stream ends after session tickets: a client does not take it for the end" $ do
        files <- get
        (c, s) <- connectTo (settingsFor files ["one"]) (clientFor files) "one.test" >>= either throwIO pure
        -- Closes without an alert; the client has not received the ticket.
        connClose s
        r <- inTime (try (connReceive c noDeadline 100))
        either (const "error" :: IOException -> String) show r @?= "error",
      testCase "the stream ends after a key update: a client does not take it for the end" $ do
        files <- get
        (c, below, peer) <- withLibrary files ClientIsOurs
        T.sendData peer (B8.pack "first") >> B8.pack "first" `isReceivedBy` c
        T.updateKey peer OneWay
        connClose below
        r <- inTime (try (connReceive c noDeadline 100))
        either (const "error" :: IOException -> String) show r @?= "error",
      testCase "the stream ends in the middle of a record: an error on both sides, and again" $ do
        files <- get
        forM_ [id, swap] $ \roles -> do
          (from, to, below) <- pairWithBelow files
          let (sender, receiver) = roles (from, to)
              -- The header of a record, and some of its body.
              half = B.pack [0x17, 3, 3, 0, 100, 1, 2, 3]
          connSendBytes sender noDeadline (B8.pack "first") >> B8.pack "first" `isReceivedBy` receiver
          let (raw, _) = roles below
          connSendBytes raw noDeadline half >> connClose raw
          rs <- replicateM 2 (inTime (try (connReceive receiver noDeadline 100)))
          map (either ioeGetErrorType (error . show)) rs @?= [ProtocolError, ProtocolError],
      testCase "the stream ends between two records without an alert: the end for a server, an error for a client" $ do
        files <- get
        outcomes <- forM [id, swap] $ \roles -> do
          (from, to, below) <- pairWithBelow files
          let (sender, receiver) = roles (from, to)
          connSendBytes sender noDeadline (B8.pack "first") >> B8.pack "first" `isReceivedBy` receiver
          connClose (fst (roles below))
          inTime (try (connReceive receiver noDeadline 100))
        map (either (Left . ioeGetErrorType) Right) outcomes @?= [Right B.empty, Left ProtocolError],
      testCase "a key update is answered while the sending direction is blocked, and both go on" $ do
        files <- get
        (s, _, peer) <- withLibrary files ServerIsOurs
        let large = B.replicate 300000 120
        sent <- newEmptyMVar
        _ <- forkIO (try (connSendBytes s noDeadline large >> connSendBytes s noDeadline (B8.pack "after")) >>= putMVar sent)
        threadDelay 100000
        T.updateKey peer TwoWay
        T.sendData peer (B8.pack "data")
        B8.pack "data" `isReceivedBy` s
        got <- inTime (receiveLibrary peer (B.length large + 5))
        B.drop (B.length large) got @?= B8.pack "after"
        takeMVar sent >>= either (throwIO :: IOException -> IO ()) pure,
      testCase "a receive that times out after a key update leaves the sending direction whole" $ do
        files <- get
        (s, _, peer) <- withLibrary files ServerIsOurs
        forM_ [1 .. 5 :: Int] $ \_ -> do
          T.updateKey peer TwoWay
          soon <- deadlineIn (milliseconds 20)
          r <- try (connReceive s soon 100)
          either isTimeout (const False) r @? "no timeout"
        connSendBytes s noDeadline (B8.pack "after")
        inTime (receiveLibrary peer 5) >>= (@?= B8.pack "after"),
      testCase "many key updates of a peer that receives nothing end the session, while a sender is blocked" $ do
        files <- get
        (s, _, peer) <- withLibrary files ServerIsOurs
        _ <- forkIO (void (try (connSendBytes s noDeadline (B.replicate 300000 120)) :: IO (Either IOException ())))
        threadDelay 100000
        flood <- forkIO (void (try (forever (T.updateKey peer TwoWay >> T.sendData peer (B8.pack "x"))) :: IO (Either SomeException ())))
        let go n = do
              r <- try (connReceive s noDeadline 1)
              case r of
                Right bytes | not (B.null bytes), n < (20000 :: Int) -> go (n + 1)
                Right _ -> pure "goes on"
                Left e -> pure (show (ioeGetErrorType e))
        outcome <- inTime (go 0)
        killThread flood
        connAbort s
        outcome @?= show ProtocolError,
      testCase "the peer's end is received while the sending direction is blocked, and the message is sent whole" $ do
        files <- get
        (s, _, peer) <- withLibrary files ServerIsOurs
        let large = B.replicate 300000 120
        sent <- newEmptyMVar
        _ <- forkIO (try (connSendBytes s noDeadline large) >>= putMVar sent)
        threadDelay 100000
        _ <- forkIO (T.end peer)
        inTime (connReceive s noDeadline 100) >>= (@?= B.empty)
        got <- inTime (receiveLibrary peer (B.length large))
        got @?= large
        takeMVar sent >>= either (throwIO :: IOException -> IO ()) pure,
      testCase "records of two bytes are received while the sending direction is blocked" $ do
        files <- get
        (s, _, peer) <- withLibrary files ServerIsOurs
        sent <- newEmptyMVar
        _ <- forkIO (try (connSendBytes s noDeadline (B.replicate 300000 120)) >>= putMVar sent)
        threadDelay 100000
        replicateM_ 3 (T.sendData peer (B8.pack "\r\n"))
        B8.pack "\r\n\r\n\r\n" `isReceivedBy` s
        _ <- inTime (receiveLibrary peer 300000)
        takeMVar sent >>= either (throwIO :: IOException -> IO ()) pure,
      testGroup
        "a server's one ticket, if the request came with the end of the handshake"
        [ testCase name $ do
            files <- get
            (s, peer, sends) <- withRequest files
            first s peer sends
            connSendBytes s noDeadline (B8.pack "answer")
            readIORef sends >>= (@?= count)
            inTime (receiveLibrary peer 6) >>= (@?= B8.pack "answer")
            T.tickets peer >>= (@?= 1)
          | (name, count, first) <- [("goes with its answer", 2, \_ _ _ -> pure ()), ("is sent before the server waits for more", 3, waitForMore)]
        ],
      testCase "three full frames of HTTP/2 with their heads are sent by one call" $ do
        files <- get
        sends <- newIORef 0
        (a, b) <- inMemory
        server <- newTlsServer (settingsFor files ["one"])
        accepted <- newEmptyMVar
        _ <- forkIO (try (tlsAccept server (counting sends b)) >>= putMVar accepted)
        c <- tlsConnect (clientFor files) "one.test" a
        s <- takeMVar accepted >>= either (throwIO :: IOException -> IO a) pure
        writeIORef sends 0
        let strings = concat (replicate 3 [B.replicate 300 1, B.replicate 9 2, B.replicate 16384 3])
        connSendMany s noDeadline strings
        B.concat strings `isReceivedBy` c
        readIORef sends >>= (@?= 1),
      testCase "a server speaks first, to a client with a certificate" $ do
        files <- get
        ca <- B.readFile (folderOf files <> "/ca.pem")
        let asking = (settingsFor files ["one"]) {tlsClientCertificates = RequiredClientCertificatesMemory ca}
        (a, b) <- inMemory
        server <- newTlsServer asking
        _ <- forkIO (tlsAccept server b >>= \s -> connSendBytes s noDeadline (B8.pack "greeting"))
        c <- tlsConnect (clientFor files) {tlsClientCertificate = Just (sourceOf files "client")} "one.test" a
        B8.pack "greeting" `isReceivedBy` c,
      testCase "after a send that failed nothing can be sent, and the peer learns that the stream is incomplete" $ do
        files <- get
        (c, s, refuse) <- withRefusal files
        writeIORef refuse True
        r <- try (connSendBytes s noDeadline (B8.pack "one"))
        either isTimeout (const False) r @? "no timeout"
        writeIORef refuse False
        forM_ [connSendBytes s noDeadline (B8.pack "two"), connSendMany s noDeadline [B8.pack "three"]] $ \send -> do
          again <- try send
          either isFullOrPipe (const False) again @? "sent"
        connShutdownSend s noDeadline
        end <- inTime (try (connReceive c noDeadline 100))
        either (const "error" :: IOException -> String) show end @?= "error",
      testCase "an end of sending that timed out can be repeated" $ do
        files <- get
        (c, s, refuse) <- withRefusal files
        connSendBytes s noDeadline (B8.pack "all")
        writeIORef refuse True
        r <- try (connShutdownSend s noDeadline)
        either isTimeout (const False) r @? "no timeout"
        writeIORef refuse False
        connShutdownSend s noDeadline >> connShutdownSend s noDeadline
        B8.pack "all" `isReceivedBy` c
        -- The alert was cut off.
        end <- inTime (try (connReceive c noDeadline 100))
        either (const "error" :: IOException -> String) show end @?= "error",
      testGroup
        "a ClientHello in several records"
        [ testCase (show pieces) $ do
            files <- get
            (a, b) <- inMemory
            server <- newTlsServer (settingsFor files ["one"])
            cutUp <- cuttingFirst pieces a
            accepted <- newEmptyMVar
            _ <- forkIO (try (tlsAccept server b) >>= putMVar accepted)
            c <- inTime (tlsConnect (clientFor files) "one.test" cutUp)
            s <- takeMVar accepted >>= either (throwIO :: IOException -> IO a) pure
            connSendBytes s noDeadline (B8.pack "hello") >> B8.pack "hello" `isReceivedBy` c
          | pieces <- [[5], [100, 5], [4, 5, 6], [1, 1, 1, 1, 1, 5, 5]]
        ],
      testCase "a record that is too long is refused at once" $ do
        files <- get
        (a, b) <- inMemory
        server <- newTlsServer (settingsFor files ["one"])
        accepted <- newEmptyMVar
        _ <- forkIO (try (tlsAccept server b) >>= putMVar accepted)
        _ <- tlsConnect (clientFor files) "one.test" a
        s <- takeMVar accepted >>= either (throwIO :: IOException -> IO a) pure
        connSendBytes a noDeadline (B.pack [0x17, 3, 3, 0xff, 0xff] <> B.replicate 100 0)
        r <- inTime (try (connReceive s noDeadline 100))
        either (show . ioeGetErrorType) show r @?= show ProtocolError
    ]

-- | A server waits for more, which the client sends when the server has sent twice.
waitForMore :: Connection -> Peer -> IORef Int -> IO ()
waitForMore s peer sends = do
  received <- newEmptyMVar
  _ <- forkIO (try (connReceive s noDeadline 100) >>= putMVar received)
  inTime (untilTrue ((== 2) <$> readIORef sends))
  T.sendData peer (B8.pack "more")
  inTime (takeMVar received) >>= either (throwIO :: IOException -> IO B.ByteString) pure >>= (@?= B8.pack "more")

-- | Throws after a minute, which only a busy machine comes near.
inTime :: IO a -> IO a
inTime act = do
  done <- newEmptyMVar
  t <- mask $ \restore -> forkIO (try (restore act) >>= putMVar done)
  timer <- forkIO (threadDelay 60000000 >> killThread t)
  r <- takeMVar done
  killThread timer
  either (\e -> assertFailure (show (e :: SomeException))) pure r

isReceivedBy :: B.ByteString -> Connection -> Assertion
isReceivedBy expected c = inTime (go expected)
  where
    go left = unless (B.null left) $ do
      bytes <- connReceive c noDeadline (B.length left)
      assertBool (show bytes) (not (B.null bytes) && bytes `B.isPrefixOf` left)
      go (B.drop (B.length bytes) left)

isFullOrPipe :: IOException -> Bool
isFullOrPipe e = not (isTimeout e) && not (isFullError e) && ioe_errno e == Just 32

receiveLibrary :: Peer -> Int -> IO B.ByteString
receiveLibrary peer n
  | n <= 0 = pure B.empty
  | otherwise = do
    bytes <- T.receiveData peer
    if B.null bytes then pure B.empty else (bytes <>) <$> receiveLibrary peer (n - B.length bytes)

-- | Which side is "Weft.Tls".
data Ours = ServerIsOurs | ClientIsOurs
  deriving (Eq)

-- | Our side, and the peer's: its connection, and the peer, after the handshake.
withLibrary :: Files -> Ours -> IO (Connection, Connection, Peer)
withLibrary files ours = do
  (a, b) <- inMemory
  peer <- T.newPeer (if ours == ServerIsOurs then T.Client else T.Server (folderOf files <> "/one.pem") (folderOf files <> "/one.key")) a
  own <- newEmptyMVar
  server <- newTlsServer (settingsFor files ["one"])
  let ownSide = if ours == ServerIsOurs then tlsAccept server b else tlsConnect (clientFor files) "one.test" b
  _ <- forkIO (try ownSide >>= putMVar own)
  T.handshake peer
  c <- takeMVar own >>= either (throwIO :: IOException -> IO a) pure
  pure (c, a, peer)

-- | A server after a handshake whose client's last message came together with a request, which was received; the
-- client; and how often the server has sent: once.
withRequest :: Files -> IO (Connection, Peer, IORef Int)
withRequest files = do
  (a, b) <- inMemory
  sends <- newIORef 0
  server <- newTlsServer (settingsFor files ["one"])
  accepted <- newEmptyMVar
  _ <- forkIO (try (tlsAccept server (counting sends b)) >>= putMVar accepted)
  peer <- T.newPeer T.Client a
  inTime (T.handshakeSaying peer (B8.pack "request"))
  s <- inTime (takeMVar accepted) >>= either (throwIO :: IOException -> IO a) pure
  B8.pack "request" `isReceivedBy` s
  readIORef sends >>= (@?= 1)
  pure (s, peer, sends)

-- | Counts how often something is sent. One thread sends at a time.
counting :: IORef Int -> Connection -> Connection
counting sends (Connection operations s) =
  Connection
    operations
      { opSend = \s' deadline region -> modifyIORef' sends (+ 1) >> opSend operations s' deadline region,
        opSendMany = \s' deadline strings -> modifyIORef' sends (+ 1) >> opSendMany operations s' deadline strings
      }
    s

untilTrue :: IO Bool -> IO ()
untilTrue holds = holds >>= \so -> unless so (threadDelay 10000 >> untilTrue holds)

-- | A client, a server, and whether sends of the connection below the server time out.
withRefusal :: Files -> IO (Connection, Connection, IORef Bool)
withRefusal files = do
  (a, b) <- inMemory
  refuse <- newIORef False
  let unless' act = readIORef refuse >>= \no -> if no then ioError late else act
      late = IOError Nothing TimeExpired "test" "refused" Nothing Nothing
      refusing = case b of
        Connection operations s ->
          Connection operations {opSend = \s' deadline region -> unless' (opSend operations s' deadline region), opSendMany = \s' deadline strings -> unless' (opSendMany operations s' deadline strings)} s
  server <- newTlsServer (settingsFor files ["one"])
  accepted <- newEmptyMVar
  _ <- forkIO (try (tlsAccept server refusing) >>= putMVar accepted)
  c <- tlsConnect (clientFor files) "one.test" a
  s <- takeMVar accepted >>= either (throwIO :: IOException -> IO a) pure
  -- The client has received the ticket.
  connSendBytes s noDeadline (B8.pack "begin") >> B8.pack "begin" `isReceivedBy` c
  pure (c, s, refuse)

-- | The connection, whose first send is one record. It is sent as several, with bodies of these sizes and the rest.
cuttingFirst :: [Int] -> Connection -> IO Connection
cuttingFirst pieces (Connection operations s0) = do
  first <- newIORef True
  let send s deadline (Region p n) = do
        before <- atomicModifyIORef' first (\f -> (False, f))
        bytes <- B.packCStringLen (castPtr p, n)
        if before
          then mapM_ (\piece -> opSendMany operations s deadline [piece]) (reframed bytes)
          else opSendMany operations s deadline [bytes]
      reframed record = map (framed (B.take 3 record)) (split pieces (B.drop 5 record))
      framed start body = start <> B.pack [fromIntegral (B.length body `div` 256), fromIntegral (B.length body `mod` 256)] <> body
      split (n : ns) body = B.take n body : split ns (B.drop n body)
      split [] body = [body]
  pure (Connection operations {opSend = send} s0)

-- | The client's and the server's end after the handshake, and the connections below them.
pairWithBelow :: Files -> IO (Connection, Connection, (Connection, Connection))
pairWithBelow files = do
  server <- newTlsServer (settingsFor files ["one"])
  (a, b) <- inMemory
  accepted <- newEmptyMVar
  _ <- forkIO (try (tlsAccept server b) >>= putMVar accepted)
  c <- tlsConnect (clientFor files) "one.test" a
  s <- takeMVar accepted >>= either (throwIO :: IOException -> IO a) pure
  pure (c, s, (a, b))
