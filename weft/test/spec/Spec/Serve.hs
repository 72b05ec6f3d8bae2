-- |
-- Servers: that every client is served, where, and what becomes of a server that
-- cannot listen, runs out of descriptors, has a handler that throws, or ends.
module Spec.Serve
  ( tests,
    withNoneLeft,
  )
where

import Control.Concurrent hiding (threadDelay)
import Control.Exception
import Control.Monad
import qualified Data.ByteString.Char8 as C
import Data.IORef
import Data.List (nub, sort)
import Data.Maybe (isNothing)
import Foreign.C.Error (eADDRINUSE, eCONNREFUSED, eINVAL, eMFILE)
import Harness
import System.Directory (getTemporaryDirectory, removeFile)
import System.FilePath ((</>))
import System.Mem (performMajorGC)
import System.Mem.Weak (deRefWeak)
import System.Posix.IO (dup)
import System.Posix.Process (getProcessID)
import System.Posix.Resource
import System.Posix.Types (Fd (..))
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Duration
import Weft.Socket
import Weft.Socket.ByteString

tests :: TestTree
tests =
  testGroup
    "serve"
    [ test "many clients at once" . withServer settings echo $ \server ->
        parallel 40 $ \i -> client server $ \s -> forM_ [1 .. 5 :: Int] $ \n -> do
          let line = C.pack (show (i, n))
          sendAll s line
          recv s 100 >>= (@?= line),
      test "what runs as the server listens is not masked" $ do
        states <- newIORef []
        withServer settings {serverOnListen = \_ -> getMaskingState >>= \m -> modifyIORef states (m :)} echo (const (pure ()))
        readIORef states >>= (@?= [Unmasked]),
      test "a connection stays on the capability that accepted it" $ do
        caps <- getNumCapabilities
        withServer settings whereAmI $ \server -> do
          found <- forM [1 .. 16 * caps] (const (client server placesOf))
          forM_ found $ \places -> length (nub places) @?= 1
          -- The kernel leaves one out by chance in 1 of 10^7 cases.
          sort (nub (concat found)) @?= [show c | c <- [0 .. caps - 1]],
      test "one listener: connections go round the capabilities" $ do
        caps <- getNumCapabilities
        l <- socket AF_INET Stream defaultProtocol
        bind l (SockAddrInet 0 (tupleToHostAddress (127, 0, 0, 1)))
        listen l 64
        withServerOn settings [l] whereAmI $ \server -> do
          found <- forM [1 .. 2 * caps] (const (client server placesOf))
          nub (sort (concat found)) @?= [show c | c <- [0 .. caps - 1]],
      test "nothing is kept of connections that have ended" $ do
        threads <- newIORef []
        let noting s peer = do
              t <- mkWeakThreadId =<< myThreadId
              atomicModifyIORef' threads (\ts -> (t : ts, ()))
              echo s peer
        withServer settings {serverOnException = \_ _ -> pure ()} noting $ \server -> do
          forM_ [1 .. 100 :: Int] $ \i -> client server $ \s -> when (even i) (sendAll s (C.pack "x") >> void (recv s 1))
          eventually "they have ended" ((== 0) <$> serverConnections server)
          eventually "their threads are garbage" $ performMajorGC >> all isNothing <$> (mapM deRefWeak =<< readIORef threads),
      test "a Unix socket" $ do
        folder <- getTemporaryDirectory
        pid <- getProcessID
        let path = folder </> ("weft-spec-" <> show pid)
        (`finally` removeFile path) $ do
          l <- socket AF_UNIX Stream defaultProtocol
          bind l (SockAddrUnix path)
          listen l 16
          withServerOn settings [l] echo $ \server -> client server $ \s -> do
            sendAll s (C.pack "unix")
            recv s 10 >>= (@?= C.pack "unix"),
      test "a port in use" . leavingNoDescriptor . withServer settings echo $ \server -> do
        port <- portOf (serverAddress server)
        before <- openDescriptors
        failsWith "serve" eADDRINUSE (withServer settings {serverPort = port} echo (const (pure ())))
        now <- openDescriptors
        assertBool "descriptors left" (now <= before),
      test "two servers that start at the same moment at one port: at most one listens" . leavingNoDescriptor . forM_ [1 .. 200 :: Int] $ \_ -> do
        port <- withServer settings echo (portOf . serverAddress)
        begin <- newEmptyMVar
        finish <- newEmptyMVar
        servers <- replicateM 2 $ do
          (listens, ended) <- (,) <$> newEmptyMVar <*> newEmptyMVar
          let run = readMVar begin >> withServer settings {serverPort = port} echo (\_ -> putMVar listens True >> readMVar finish)
          _ <- forkIO ((try run >>= either (\e -> const (putMVar listens False) (e :: IOException)) pure) `finally` putMVar ended ())
          pure (listens, ended)
        putMVar begin ()
        found <- mapM (takeMVar . fst) servers
        putMVar finish ()
        mapM_ (takeMVar . snd) servers
        -- Each may see the other, and then both fail.
        assertBool "both listen" (length (filter id found) <= 1),
      test "an exception of serverOnListen ends the server" . leavingNoDescriptor $ do
        e <- failure "serve" (withServer settings {serverOnListen = \_ -> ioError (userError "no")} echo (const (pure ())))
        e @?= userError "no",
      test "a handler that throws ends its own connection only" $ do
        reports <- newIORef []
        let noting peer e = atomicModifyIORef' reports (\rs -> ((peer, show e) : rs, ()))
            handler s peer = recv s 10 >>= \bs -> if bs == C.pack "die" then ioError (userError "told to") else sendAll s bs >> handler s peer
        withServer settings {serverOnException = noting} handler $ \server -> client server $ \other -> do
          client server $ \s -> do
            sendAll s (C.pack "die")
            recv s 10 >>= (@?= C.empty)
          eventually "the exception is reported" (not . null <$> readIORef reports)
          sendAll other (C.pack "well")
          recv other 10 >>= (@?= C.pack "well")
          rs <- readIORef reports
          map snd rs @?= ["user error (told to)"],
      test "serverOnException that throws ends nothing" $ do
        reports <- newIORef (0 :: Int)
        let throwing _ _ = atomicModifyIORef' reports (\n -> (n + 1, ())) >> throwIO (userError "in the report (this line belongs to a test)")
            handler s _ = recv s 10 >>= \bs -> if bs == C.pack "die" then ioError (userError "told to") else sendAll s bs
        withServer settings {serverOnException = throwing} handler $ \server -> do
          replicateM_ 4 . client server $ \s -> do
            sendAll s (C.pack "die")
            recv s 10 >>= (@?= C.empty)
          eventually "all are reported" ((== 4) <$> readIORef reports)
          eventually "none is counted any more" ((== 0) <$> serverConnections server)
          client server $ \s -> do
            sendAll s (C.pack "well")
            recv s 10 >>= (@?= C.pack "well"),
      test "a report that throws as descriptors run out ends no acceptor" . outOfDescriptors $ \e ->
        throwIO (userError ("in the report of " <> show e <> " (this line belongs to a test)")),
      test "a socket that does not listen" . bracket (socket AF_INET Datagram defaultProtocol) close $ \s -> do
        e <- failure "withServerOn" (withServerOn settings [s] echo (const (pure ())))
        e @?= userError "Weft.Socket.serve: the socket does not listen",
      test "a port that does not exist" . forM_ ["65536", "99999", "100000000000"] $ \port -> do
        e <- failure port (withServer settings {serverPort = port} echo (const (pure ())))
        e @?= userError ("Weft.Socket.serve: no such port: " <> port),
      test "a listener that is closed by another: its acceptor ends, the others go on" $ do
        [one, other] <- replicateM 2 $ do
          l <- socket AF_INET Stream defaultProtocol
          bind l (SockAddrInet 0 (tupleToHostAddress (127, 0, 0, 1)))
          l <$ listen l 16
        address <- getSocketName other
        withServerOn settings [one, other] echo $ \server -> do
          close one
          eventually "its port is refused" (either (isErrno eCONNREFUSED) (const False) <$> try (client server (const (pure ()))))
          bracket (socket AF_INET Stream defaultProtocol) close $ \s -> do
            connect s address
            sendAll s (C.pack "x")
            recv s 10 >>= (@?= C.pack "x"),
      test "acceptors that fail: waitServer throws the error when none is left; one that is closed is no failure" $ do
        listeners <- replicateM 2 $ do
          l <- socket AF_INET Stream defaultProtocol
          bind l (SockAddrInet 0 (tupleToHostAddress (127, 0, 0, 1)))
          l <$ listen l 16
        withServerOn settings listeners echo $ \server -> do
          mapM_ close (take 1 listeners)
          waiting <- start (waitServer server)
          blocked waiting >>= assertBool "one of them accepts"
          mapM_ (`shutdown` ShutdownBoth) (drop 1 listeners)
          failsWith "waitServer" eINVAL (result "waitServer" waiting),
      test "with a limit on connections, others wait until one has ended" $ do
        go <- newEmptyMVar
        most <- newIORef 0
        let handler s _ = readMVar go >> sendAll s (C.pack "1")
        withServer settings {serverMostConnections = Just 4} handler $ \server -> do
          acceptors <- getNumCapabilities
          clients <- replicateM 30 (connected server)
          eventually "four are served" ((>= 4) <$> serverConnections server)
          replicateM_ 50 $ do
            n <- serverConnections server
            modifyIORef' most (max n)
            pause 1
          found <- readIORef most
          assertBool (show found) (found <= 3 + acceptors)
          putMVar go ()
          forM_ clients $ \s -> do
            recv s 10 >>= (@?= C.pack "1")
            close s,
      -- A connection's thread may run on another capability before its acceptor goes on.
      test "a connection that is served is counted" $ do
        found <- newEmptyMVar
        let handler s _ = do
              server <- readMVar found
              counted <- serverConnections server
              sendAll s (C.pack (show (signum counted)))
        withServer settings handler $ \server -> do
          putMVar found server
          replicateM_ 500 . client server $ \s -> recv s 10 >>= (@?= C.pack "1"),
      test "connections have TCP_NODELAY or not, as the settings say, also those of a listening socket that others have" $
        forM_ [False, True] $ \wanted -> do
          let told s _ = getSocketOption s NoDelay >>= sendAll s . C.pack . show . signum
              says server = client server $ \s -> recv s 10 >>= (@?= C.pack (if wanted then "1" else "0"))
              delays = settings {serverNoDelay = wanted}
          withServer delays told says
          s <- given AF_INET (SockAddrInet 0 (tupleToHostAddress (127, 0, 0, 1)))
          withServerOn delays [s] told $ \server -> do
            says server
            getSocketOption s NoDelay >>= (@?= 0),
      test "out of descriptors: does not spin, goes on afterwards" (outOfDescriptors (const (pure ()))),
      test "draining: waits for those being served, refuses others" . leavingNoDescriptor $
        withServer settings echo $ \server -> do
          client server $ \s -> do
            sendAll s (C.pack "1")
            recv s 10 >>= (@?= C.pack "1")
            drainServer server (milliseconds 20) >>= (@?= False)
            serverConnections server >>= (@?= 1)
            failsWith "connect" eCONNREFUSED (client server (const (pure ())))
            -- Still served.
            sendAll s (C.pack "2")
            recv s 10 >>= (@?= C.pack "2")
          drainServer server (seconds 10) >>= (@?= True)
          waitServer server,
      test "draining with no time to wait returns the current state" . leavingNoDescriptor $
        forM_ [milliseconds 0, milliseconds (-5)] $ \patience -> withServer settings echo $ \server -> do
          client server $ \s -> do
            sendAll s (C.pack "1")
            recv s 10 >>= (@?= C.pack "1")
            drainServer server patience >>= (@?= False)
          eventually "the connection ends" ((== 0) <$> serverConnections server)
          drainServer server patience >>= (@?= True),
      test "many may drain at once" . leavingNoDescriptor . withServer settings echo $ \server -> do
        drainers <- client server $ \s -> do
          sendAll s (C.pack "1")
          recv s 10 >>= (@?= C.pack "1")
          ts <- replicateM 5 (start (drainServer server (seconds 10)))
          ts <$ mapM_ (\t -> blocked t >>= assertBool "does not wait") ts
        forM_ drainers $ \t -> result "drainServer" t >>= (@?= True),
      test "draining: connections in the backlog are served, also above the limit on connections" . leavingNoDescriptor $ do
        (go, entered) <- (,) <$> newEmptyMVar <*> newEmptyMVar
        let handler s peer = void (tryPutMVar entered ()) >> readMVar go >> echo s peer
        withServer settings {serverMostConnections = Just 1} handler $ \server -> do
          clients <- replicateM 10 (connected server)
          takeMVar entered
          draining <- start (drainServer server (seconds 30))
          eventually "others are refused" (either (isErrno eCONNREFUSED) (const False) <$> try (client server (const (pure ()))))
          blocked draining >>= assertBool "it waits for them"
          putMVar go ()
          parallel 10 $ \i -> forM_ (take 1 (drop i clients)) $ \s -> do
            sendAll s (C.pack "x")
            recv s 10 >>= (@?= C.pack "x")
            close s
          result "drainServer" draining >>= (@?= True),
      test "draining: not all could be accepted within its limit" . leavingNoDescriptor $ do
        go <- newEmptyMVar
        withServer settings {serverMostConnections = Just 1} (\_ _ -> readMVar go) $ \server -> do
          clients <- replicateM 10 (connected server)
          eventually "one is served" ((> 0) <$> serverConnections server)
          drainServer server (milliseconds 300) >>= (@?= False)
          waitServer server
          putMVar go ()
          eventually "it ends" ((== 0) <$> serverConnections server)
          -- The last ones were refused, so they count.
          drainServer server (seconds 10) >>= (@?= False)
          mapM_ close clients,
      test "draining: no client that has connected is left without an answer" . leavingNoDescriptor . replicateM_ (times 4) $
        noneLost (withServer settings) AF_INET,
      test "draining: nor one of sockets that were given and that no other process has" . leavingNoDescriptor . replicateM_ (times 4) $
        noneLost (\handler act -> given AF_INET (SockAddrInet 0 (tupleToHostAddress (127, 0, 0, 1))) >>= \s -> withServerOn settings {serverSharedSockets = False} [s] handler act) AF_INET,
      test "draining: nor one of a Unix socket" . leavingNoDescriptor $ do
        folder <- getTemporaryDirectory
        pid <- getProcessID
        let path = folder </> ("weft-drained-" <> show pid)
        replicateM_ (times 4) $
          noneLost (\handler act -> given AF_UNIX (SockAddrUnix path) >>= \s -> withServerOn settings {serverSharedSockets = False} [s] handler act) AF_UNIX `finally` removeFile path,
      test "draining: a shared socket goes on for the others that have it" . leavingNoDescriptor $ do
        s <- given AF_INET (SockAddrInet 0 (tupleToHostAddress (127, 0, 0, 1)))
        other <- withFdSocket s (dup . Fd) >>= \(Fd fd) -> mkSocket fd
        withServerOn settings [s] echo $ \server -> do
          drainServer server (seconds 10) >>= (@?= True)
          withServerOn settings [other] echo $ \successor -> client successor $ \c -> do
            sendAll c (C.pack "x")
            recv c 10 >>= (@?= C.pack "x"),
      test "the end kills all handlers before it waits for any, and waits for all" . leavingNoDescriptor $ do
        -- One handler cannot be interrupted; the others take some time to clean up.
        [entered, gate] <- replicateM 2 newEmptyMVar
        [begun, ended] <- replicateM 2 (newIORef (0 :: Int))
        let more ref = atomicModifyIORef' ref (\n -> (n + 1, ()))
            handler s peer = do
              bs <- recv s 1
              if bs == C.pack "!"
                then uninterruptibleMask_ (putMVar entered () >> takeMVar gate)
                else (more begun >> sendAll s bs >> echo s peer) `finally` (pause 20 >> more ended)
        ending <- start . withServer settings handler $ \server -> do
          ss <- replicateM 20 (connected server)
          zipWithM_ (\s c -> sendAll s (C.pack [c])) ss ('!' : replicate 19 'x')
          takeMVar entered
          eventually "all handlers run" ((== 19) <$> readIORef begun)
          pure ss
        eventually "the others end" ((== 19) <$> readIORef ended)
        blocked ending >>= assertBool "the end waits for the first one"
        putMVar gate ()
        result "the end" ending >>= mapM_ close,
      test "handlers that do not end are named, and left if the program says so" . leavingNoDescriptor $ do
        [entered, gate] <- replicateM 2 newEmptyMVar
        told <- newIORef []
        let handler _ _ = uninterruptibleMask_ (putMVar entered () >> readMVar gate)
            overdue left = Leave <$ writeIORef told left
        s <- withServer settings {serverPatience = milliseconds 50, serverOnOverdue = overdue} handler $ \server ->
          connected server <* takeMVar entered
        left <- readIORef told
        map (takeWhile (/= '(')) left @?= ["weft connection "]
        putMVar gate ()
        (recv s 10 >>= (@?= C.empty)) `finally` close s,
      test "an exception that comes while the server ends is thrown after its end" . leavingNoDescriptor $ do
        [entered, gate, leaving] <- replicateM 3 newEmptyMVar
        done <- newIORef False
        let handler _ _ = uninterruptibleMask_ (putMVar entered () >> takeMVar gate >> writeIORef done True)
            inside server = mask_ (connected server <* takeMVar entered <* putMVar leaving ())
        ending <- start (withServer settings handler inside >>= close)
        takeMVar leaving
        blocked ending >>= assertBool "the end waits"
        killing <- start (stop ending)
        putMVar gate ()
        result "killing" killing
        readIORef done >>= (@?= True),
      test "the end of a server is the end of its connections" . leavingNoDescriptor $ do
        s <- withServer settings echo $ \server -> do
          s <- connected server
          sendAll s (C.pack "x")
          s <$ recv s 10
        (recv s 10 >>= (@?= C.empty)) `finally` close s
    ]

test :: String -> IO () -> TestTree
test name act = testCase name (finishes name act)

-- | A socket that listens.
given :: Family -> SockAddr -> IO Socket
given family address = do
  s <- socket family Stream defaultProtocol
  s <$ (bind s address >> listen s 4096) `onException` close s

-- | Clients connect in loops while a server drains: each is refused, or has its answer.
noneLost :: ((Socket -> SockAddr -> IO ()) -> (Server -> IO ()) -> IO ()) -> Family -> IO ()
noneLost serving family = do
  lost <- newIORef (0 :: Int)
  serving (\s _ -> recv s 100 >>= sendAll s) $ \server -> do
    let exchange s = sendAll s (C.pack "hello") >> recv s 100
        again = do
          s <- socket family Stream defaultProtocol
          accepted <- try (connect s (serverAddress server))
          case accepted of
            Left e -> close s >> (isErrno eCONNREFUSED e @? show e)
            Right () -> do
              answer <- try (exchange s) `finally` close s
              when (either (const True) (/= C.pack "hello") (answer :: Either IOException C.ByteString)) $
                atomicModifyIORef' lost (\n -> (n + 1, ()))
              again
    clients <- replicateM 8 (start again)
    pause 10
    drainServer server (seconds 10) >>= (@?= True)
    mapM_ (result "a client") clients
  readIORef lost >>= (@?= 0)

settings :: ServerSettings
settings = defaultServerSettings {serverHost = Just "127.0.0.1"}

echo :: Socket -> SockAddr -> IO ()
echo s peer = do
  bs <- recv s 4096
  unless (C.null bs) (sendAll s bs >> echo s peer)

-- | Answers each byte with the number of the capability that runs the handler.
whereAmI :: Socket -> SockAddr -> IO ()
whereAmI s peer = do
  bs <- recv s 1
  unless (C.null bs) $ do
    yield
    (cap, _) <- threadCapability =<< myThreadId
    sendAll s (C.pack (show cap <> ";"))
    whereAmI s peer

-- | Its answers to three requests.
placesOf :: Socket -> IO [String]
placesOf s = replicateM 3 (sendAll s (C.pack "?") >> takeWhile (/= ';') . C.unpack <$> recv s 10)

connected :: Server -> IO Socket
connected server = do
  s <- socket (family (serverAddress server)) Stream defaultProtocol
  (connect s (serverAddress server) >> pure s) `onException` close s
  where
    family (SockAddrUnix _) = AF_UNIX
    family (SockAddrInet6 {}) = AF_INET6
    family _ = AF_INET

client :: Server -> (Socket -> IO a) -> IO a
client server = bracket (connected server) close

portOf :: SockAddr -> IO String
portOf (SockAddrInet p _) = pure (show p)
portOf other = assertFailure ("not an address of IPv4: " <> show other)

leavingNoDescriptor :: IO a -> IO a
leavingNoDescriptor act = do
  before <- openDescriptors
  a <- act
  now <- settled before openDescriptors
  a <$ assertBool (show (now - before) <> " descriptors left") (now <= before)

-- | The limit is lowered so that the client's connection can be made but not be
-- accepted.
--
-- The function is run after an exception was counted.
outOfDescriptors :: (IOException -> IO ()) -> IO ()
outOfDescriptors also = do
  reports <- newIORef (0 :: Int)
  let noting _ e = do
        isErrno eMFILE e @? show e
        atomicModifyIORef' reports (\n -> (n + 1, ()))
        also e
      handling peer = either (noting peer) pure . maybe (Left (userError "another exception")) Left . fromException
  withServer settings {serverOnException = handling} echo $ \server -> do
    -- A connection that is being served, and one more socket, not connected yet.
    client server $ \first -> do
      sendAll first (C.pack "a")
      recv first 10 >>= (@?= C.pack "a")
      bracket (socket AF_INET Stream defaultProtocol) close $ \second -> do
        withNoneLeft $ do
          connect second (serverAddress server)
          eventually "it is reported" ((> 0) <$> readIORef reports)
          before <- readIORef reports
          (_, took) <- timed (pause 300)
          n <- subtract before <$> readIORef reports
          -- Each acceptor tries once in 100 ms, even without a client, as accept looks for a free descriptor first.
          acceptors <- getNumCapabilities
          assertBool (show n <> " reports in " <> show took <> " s: it spins") (fromIntegral n <= fromIntegral acceptors * (2 + 10 * took))
          sendAll first (C.pack "b")
          recv first 10 >>= (@?= C.pack "b")
        sendAll second (C.pack "c")
        recv second 10 >>= (@?= C.pack "c")

-- | Run an action while no descriptor can be opened: under a low limit, with all
-- numbers below it taken.
withNoneLeft :: IO a -> IO a
withNoneLeft act = bracket lower (setResourceLimit ResourceOpenFiles) . const $ bracket (occupy []) (mapM_ close) (const act)
  where
    lower = do
      old <- getResourceLimit ResourceOpenFiles
      setResourceLimit ResourceOpenFiles old {softLimit = ResourceLimit 100}
      pure old
    occupy held = do
      r <- try (socket AF_INET Stream defaultProtocol)
      case r of
        Right s -> occupy (s : held)
        Left e
          | isErrno eMFILE e -> pure held
          | otherwise -> mapM_ close held >> throwIO (e :: IOException)
