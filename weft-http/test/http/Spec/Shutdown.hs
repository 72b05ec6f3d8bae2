{-# LANGUAGE OverloadedStrings #-}

-- |
-- The shutdown of a server: requests in progress finish, waiting connections are closed, and
-- everything ends within time limits.
module Spec.Shutdown (tests) where

import Application
import Client
import Configurations
import Control.Concurrent (threadDelay, yield)
import Control.Concurrent.Async
import Control.Concurrent.MVar
import Control.Exception (ErrorCall (..), IOException, SomeException, catch, fromException, onException, throwIO, toException, try)
import Control.Monad (forM_, forever, replicateM, void, when)
import qualified Data.ByteString as B
import Data.IORef
import Data.String (fromString)
import Foreign.C.Error (Errno, eCONNABORTED, eINVAL, eMFILE, eNETDOWN, errnoToIOError)
import GHC.Clock (getMonotonicTime)
import GHC.IO.Exception (IOException (ioe_description))
import Network.Wai (Application, rawPathInfo)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Duration
import Weft.Http
import qualified Weft.Socket as W
import Weft.Transport

tests :: Configuration -> TestTree
tests on =
  testGroup
    "shutdown"
    [ testOn on "a drain closes idle connections before their timeout" . withTestServer $ \server port ->
        withClient port $ \client -> do
          void (get client "/hello")
          -- The connection's own timeout is 30 seconds, so it was not what ended it.
          drainServer server (seconds 20) >>= (@?= True)
          hearEnd client >>= (@?= ""),
      testOn on "a listener that fails ends the server, with its error, which is reported" . forM_ [eINVAL, eNETDOWN] $ \errno -> do
        (said, ended) <- failing (replicate 1000 errno)
        fmap ioe_description ended @?= Just (ioe_description (errnoToIOError "" errno Nothing Nothing))
        length said @?= 1,
      testOn on "so does one that throws another exception" $ do
        (said, ended) <- failingWith [toException (ErrorCall "no accept")]
        (said, fmap show ended) @?= (["no accept"], Just "no accept"),
      testOn on "errors of one connection, and of descriptors that are used up, do not end it" $ do
        (_, ended) <- failing (concat (replicate 3 [eCONNABORTED, eMFILE, eNETDOWN]))
        ended @?= Nothing,
      testOn on "a slow request is answered, and new connections are refused" . reporting $ \begun server port ->
        withClient port $ \client -> do
          ask client "/slow?n=700" []
          begun
          withAsync (drainServer server (seconds 20)) $ \draining -> do
            refused port
            answer <- hearAnswer client
            answerBody answer @?= "slowly"
            hearEnd client >>= (@?= "")
            hangUp client
            wait draining >>= (@?= True),
      testOn on "a response that is sent in small parts is sent completely" . reporting $ \begun server port ->
        withClient port $ \client -> do
          ask client "/drip?n=20" []
          begun
          withAsync (drainServer server (seconds 20)) $ \draining -> do
            answer <- hearAnswer client
            B.length (answerBody answer) @?= 20000
            hangUp client
            wait draining >>= (@?= True),
      testOn on "an upload continues" . withTestServer $ \server port ->
        withClient port $ \client -> do
          say client "POST /count HTTP/1.1\r\nHost: test\r\nContent-Length: 10\r\nExpect: 100-continue\r\n\r\n"
          interim <- hearAnswer client
          answerStatus interim @?= 100
          withAsync (drainServer server (seconds 20)) $ \draining -> do
            threadDelay 300000
            say client "hello"
            threadDelay 300000
            say client "world"
            answer <- hearAnswer client
            answerBody answer @?= "10"
            hangUp client
            wait draining >>= (@?= True),
      testOn on "an upload continues after its response has begun" . withTestServer $ \server port ->
        withClient port $ \client -> do
          say client "POST /both HTTP/1.1\r\nHost: test\r\nContent-Length: 10\r\n\r\nhello"
          begun <- hear client
          withAsync (drainServer server (seconds 20)) $ \draining -> do
            threadDelay 300000
            say client "world"
            rest <- hearEnd client
            assertBool (show rest) ("2\r\n10\r\n" `B.isInfixOf` (begun <> rest))
            hangUp client
            wait draining >>= (@?= True),
      testOn on "a drain that reaches its limit during a request returns False" . reporting $ \begun server port ->
        withClient port $ \client -> do
          ask client "/slow?n=60000" []
          begun
          within 30 "the drain" (drainServer server (milliseconds 500)) >>= (@?= False),
      patientOn on "handlers of applications that are killed have run when the server has ended, unless they take too long" $ do
        begun <- newIORef (0 :: Int)
        handled <- newIORef (0 :: Int)
        never <- newEmptyMVar
        let more ref = atomicModifyIORef' ref (\n -> (n + 1, ()))
            app request _ = (more begun >> readMVar never) `onException` (if rawPathInfo request == "/long" then void (readMVar never) else threadDelay 20000 >> more handled)
            ends path count = do
              writeIORef begun 0
              clients <- within 60 "the server's end" . withQuietServer defaultSettings app $ \_ port -> do
                clients <- replicateM count (connectTo port)
                forM_ clients $ \client -> ask client path []
                clients <$ eventually "they have begun" ((== count) <$> readIORef begun)
              mapM_ hangUp clients
        ends "/" 5
        readIORef handled >>= (@?= 5)
        ends "/long" 1,
      testOn on "the shutdown handler ends runWith" $ do
        stop <- newEmptyMVar
        ready <- newEmptyMVar
        begun <- newEmptyMVar
        (port, sock) <- openFreePort
        let settings =
              setInstallShutdownHandler (putMVar stop)
                . setBeforeMainLoop (putMVar ready ())
                . setGracefulShutdownTimeout (Just 10)
                $ quiet defaultSettings
        -- Also with options.
        withAsync (runWith defaultOptions {optionListeners = [sock]} settings (reported begun)) $ \running -> do
          within 20 "starting" (takeMVar ready)
          withClient port $ \client -> do
            ask client "/slow?n=400" []
            within 20 "a request" (takeMVar begun)
            within 20 "the handler" (takeMVar stop) >>= id
            answer <- hearAnswer client
            answerBody answer @?= "slowly"
            hangUp client
            within 25 "ending" (wait running)
          refused port,
      testOn on "a listening socket that fails ends runSettingsSocket with its error, after the requests in progress" $ do
        begun <- newEmptyMVar
        (port, sock) <- openFreePort
        withAsync (runSettingsSocket (quiet defaultSettings) sock (reported begun)) $ \running -> do
          withClient port $ \client -> do
            ask client "/slow?n=400" []
            within 20 "a request" (takeMVar begun)
            W.shutdown sock W.ShutdownBoth
            answer <- hearAnswer client
            answerBody answer @?= "slowly"
            hangUp client
          within 25 "ending" (waitCatch running) >>= either (const (pure ())) (const (assertFailure "it ended without an error")),
      testOn on "closing the listening socket ends runSettingsSocket" $ do
        (port, sock) <- openFreePort
        withAsync (runSettingsSocket (quiet defaultSettings) sock application) $ \running -> do
          withClient port $ \client -> do
            answer <- get client "/hello"
            answerBody answer @?= "hello"
            W.close sock
            within 25 "ending" (wait running)
            hearEnd client >>= (@?= ""),
      testOn on "cancelling the action beside the server closes all connections" $ do
        address <- newEmptyMVar
        let server = setHost (fromString "127.0.0.1") (setPort 0 (quiet defaultSettings))
        running <- async (withServer server application (\s -> putMVar address (serverAddress s) >> waitServer s))
        port <- portOf <$> within 20 "starting" (takeMVar address)
        withClient port $ \client -> do
          ask client "/slow?n=60000" []
          threadDelay 100000
          within 20 "cancelling" (cancel running)
          end <- try (hearEnd client)
          either (\e -> const (pure ()) (e :: IOException)) (@?= "") end
        refused port,
      testOn on "a drain waits for a connection that was accepted as it began" . within 200 "all of them" $
        forM_ [1 .. 40 :: Int] acceptedAtTheEnd,
      testOn on "a request is answered if its connection is told to end after the request was received" . within 60 "all of them" $
        forM_ [byDrain, byEviction] (readAtTheEnd (\_ _ -> pure ())),
      testOn on "an evicted connection that was answered, and whose client does not close it, makes room for another" . within 60 "it" $
        readAtTheEnd anotherAnswered byEviction,
      testOn on "a drain does not interrupt onClose" $ do
        (closing, go) <- (,) <$> newEmptyMVar <*> newEmptyMVar
        interrupted <- newEmptyMVar
        reported' <- newIORef []
        let onClose _ = putMVar closing () >> try (takeMVar go) >>= putMVar interrupted . either (\e -> Just (show (e :: SomeException))) (const Nothing)
            settings = setOnException (\_ e -> modifyIORef reported' (show e :)) (setOnClose onClose defaultSettings)
        withServerWith defaultOptions (setHost (fromString "127.0.0.1") (setPort 0 settings)) application $ \server -> do
          -- Idle, and closed by its client.
          withClient (portOf (serverAddress server)) (void . (`get` "/hello"))
          within 20 "onClose" (takeMVar closing)
          withAsync (drainServer server (seconds 20)) $ \draining -> do
            threadDelay 400000
            putMVar go ()
            within 20 "the end of onClose" (takeMVar interrupted) >>= (@?= Nothing)
            wait draining >>= (@?= True)
        readIORef reported' >>= (@?= []),
      patientOn on "a drain does not interrupt onOpen" $ do
        opening <- newEmptyMVar
        interrupted <- newIORef Nothing
        let onOpen _ = do
              putMVar opening ()
              r <- try (threadDelay 2500000)
              True <$ either (\e -> writeIORef interrupted (Just (show (e :: SomeException)))) pure r
        withQuietServer (setOnOpen onOpen defaultSettings) application $ \server port ->
          withClient port $ \client -> do
            ask client "/hello" []
            within 20 "onOpen" (takeMVar opening)
            withAsync (drainServer server (seconds 20)) $ \draining -> do
              answer <- hearAnswer client
              answerBody answer @?= "hello"
              readIORef interrupted >>= (@?= Nothing)
              hangUp client
              wait draining >>= (@?= True),
      testOn on "a callback for refusals that handles the exception of a drain does not keep its connection" $ do
        refusing <- newEmptyMVar
        let callback _ _ = putMVar refusing () >> try (threadDelay 2500000) >>= either (\e -> const (pure ()) (e :: SomeException)) pure
            settings = setProxyProtocolRequired (setHost (fromString "127.0.0.1") (setPort 0 (quiet defaultSettings)))
        withServerWith defaultOptions {optionOnRefused = callback} settings application $ \server ->
          withClient (portOf (serverAddress server)) $ \client -> do
            say client "GET /hello HTTP/1.1\r\n\r\n"
            within 20 "the refusal" (takeMVar refusing)
            drainServer server (seconds 20) >>= (@?= True),
      testOn on "a hundred servers, one after the other" . within 200 "a hundred" $
        mapM_ (\_ -> withTestServer (\_ port -> withClient port (`get` "/hello"))) [1 .. 100 :: Int]
    ]

-- | A server whose application reports each request before it answers it. The action waits for a request by its first
-- argument.
reporting :: (IO () -> Server -> Int -> IO a) -> IO a
reporting act = do
  begun <- newEmptyMVar
  withQuietServer defaultSettings (reported begun) (act (within 20 "a request" (takeMVar begun)))

reported :: MVar () -> Application
reported begun request respond = putMVar begun () >> application request respond

-- | What the listener's accepts throw, one after the other; then they succeed. Returns what the server reports, and the
-- error of 'waitServer', unless a client was served before.
failing :: [Errno] -> IO ([String], Maybe IOException)
failing errors = fmap (>>= fromException) <$> failingWith (map (\e -> toException (errnoToIOError "accept" e Nothing Nothing)) errors)

failingWith :: [SomeException] -> IO ([String], Maybe SomeException)
failingWith errors = do
  net <- memoryTransport 65536
  l <- transportListen net (W.SockAddrUnix "")
  left <- newIORef errors
  told <- newIORef []
  let next es = case es of
        [] -> ([], Nothing)
        e : rest -> (rest, Just e)
      broken = l {listenerAccept = atomicModifyIORef' left next >>= maybe (listenerAccept l) throwIO}
      settings = setOnException (\_ e -> atomicModifyIORef' told (\es -> (show e : es, ()))) defaultSettings
  ended <- withServerWith defaultOptions {optionTransports = [broken]} settings application $ \server ->
    within 20 "the end or a response" (race (try (waitServer server)) (served net server))
  said <- readIORef told
  pure (said, either (either Just (const Nothing)) (const Nothing) ended)
  where
    served net server = (`catch` refusedAtTheEnd) $ do
      client <- transportConnect net noDeadline (serverAddress server)
      connSendBytes client noDeadline "GET /hello HTTP/1.1\r\nHost: test\r\n\r\n"
      connReceive client noDeadline 65536 <* connClose client
    -- The client of a listener that has failed may find it closed, before or after it has connected.
    refusedAtTheEnd :: IOException -> IO B.ByteString
    refusedAtTheEnd _ = forever (threadDelay 1000000)

-- | A client connects, and a drain begins a moment later. When the drain reports that no connection is left, none is.
acceptedAtTheEnd :: Int -> Assertion
acceptedAtTheEnd turn = do
  net <- memoryTransport 65536
  l <- transportListen net (W.SockAddrUnix "")
  -- Connections between onOpen and onClose.
  served <- newIORef (0 :: Int)
  let count n = atomicModifyIORef' served (\k -> (k + n, ()))
      settings = setOnOpen (const (True <$ count 1)) (setOnClose (const (count (-1))) (quiet defaultSettings))
  withServerWith defaultOptions {optionTransports = [l]} settings application $ \server -> do
    client <- transportConnect net noDeadline (serverAddress server)
    connSendBytes client noDeadline "GET /slow?n=20 HTTP/1.1\r\nHost: test\r\n\r\n"
    mapM_ (const yield) [1 .. turn `mod` 20]
    withAsync (try (connReceive client noDeadline 65536) <* connClose client) $ \asking -> do
      none <- drainServer server (seconds 10)
      none @?= True
      threadDelay (if turn `mod` 10 == 0 then 2000 else 0)
      readIORef served >>= assertEqual "connections that are served when none is left" 0
      -- Depending on the moment, the connection is answered, or closed without a response.
      answer <- wait asking
      either (\e -> const (pure ()) (e :: IOException)) (\bytes -> assertBool (show bytes) (B.null bytes || "HTTP/1.1 200" `B.isPrefixOf` bytes)) answer

-- | The server receives a request, and its connection is told to end before the server has parsed the request. The
-- first argument runs after the response, before the client closes the connection.
readAtTheEnd :: (Server -> Transport -> IO ()) -> ((Server -> Transport -> IO ()) -> Options -> (Options, Server -> Transport -> IO ())) -> Assertion
readAtTheEnd afterwards how = do
  net <- memoryTransport 65536
  l <- transportListen net (W.SockAddrUnix "")
  received <- newEmptyMVar
  first <- newIORef True
  let slowly = Connection operations {opReceive = receive}
      receive inner deadline n = do
        bytes <- connReceive inner deadline n
        again <- not <$> readIORef first
        when (not (B.null bytes)) (writeIORef first False)
        -- Spin for 0.3 s: in a wait the thread could be interrupted.
        when (again && not (B.null bytes)) (putMVar received () >> spin)
        pure bytes
      spin = getMonotonicTime >>= \begin -> let go = getMonotonicTime >>= \t -> if t > begin + 0.3 then pure () else yield >> go in go
      only = l {listenerAccept = slowly <$> listenerAccept l}
      (options, end) = how (\server _ -> void (drainServer server (seconds 10))) defaultOptions {optionTransports = [only]}
  withServerWith options (quiet defaultSettings) application $ \server -> do
    client <- transportConnect net noDeadline (serverAddress server)
    let request' = connSendBytes client noDeadline "GET /hello HTTP/1.1\r\nHost: test\r\n\r\n"
        answered = connReceive client noDeadline 65536
    request' >> answered >>= \bytes -> assertBool (show bytes) ("HTTP/1.1 200" `B.isPrefixOf` bytes)
    request'
    takeMVar received
    withAsync (end server net) $ \_ -> do
      bytes <- answered
      assertBool ("not answered: " <> show bytes) ("HTTP/1.1 200" `B.isPrefixOf` bytes)
      assertBool "not the last one" ("onnection: close" `B.isInfixOf` bytes)
      afterwards server net
    connClose client

-- | Another client asks, and is answered.
anotherAnswered :: Server -> Transport -> IO ()
anotherAnswered server net = do
  client <- transportConnect net noDeadline (serverAddress server)
  connSendBytes client noDeadline "GET /hello HTTP/1.1\r\nHost: test\r\n\r\n"
  bytes <- try (connReceive client noDeadline 65536)
  connClose client
  either (\e -> assertFailure ("refused: " <> show (e :: IOException))) (\b -> assertBool ("refused: " <> show b) ("HTTP/1.1 200" `B.isPrefixOf` b)) bytes

-- | The connection is told to end by a drain of the server.
byDrain, byEviction :: (Server -> Transport -> IO ()) -> Options -> (Options, Server -> Transport -> IO ())
byDrain drain options = (options, drain)

-- | The connection is evicted, since another one comes and there is room for one only.
byEviction _ options =
  ( options {optionLimits = Just defaultLimits {limitConnections = 1}},
    \server net -> transportConnect net noDeadline (serverAddress server) >>= \c -> threadDelay 2000000 >> connClose c
  )

-- | The operations of a connection that passes everything to another connection.
operations :: Operations Connection
operations =
  Operations
    { opReceive = connReceive,
      opSend = \c deadline (Region p n) -> connSend c deadline p n,
      opSendMany = connSendMany,
      opSendFile = connSendFile,
      opShutdownSend = connShutdownSend,
      opClose = connClose,
      opAbort = connAbort,
      opPeer = connPeer,
      opLocal = connLocal,
      opSendProgress = connSendProgress,
      opAwaitPeer = Just connAwaitPeer,
      opIsQuiet = connIsQuiet,
      opSecurity = connSecurity,
      opKeepsStrings = connKeepsStrings
    }

-- | New connections are refused after a moment: while a poll(2) of the poll back end has the closed socket in its list,
-- the socket still listens.
refused :: Int -> Assertion
refused port = eventually "new connections are refused" $ do
  r <- try (withClient port (const (pure ())))
  pure (either (\e -> const True (e :: IOException)) (const False) r)
