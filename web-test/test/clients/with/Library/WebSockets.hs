{-# LANGUAGE OverloadedStrings #-}

-- | The packages @websockets@ and @wai-websockets@ over 'Network.Wai.responseRaw' on "Weft.Http", and a browser's
-- WebSockets.
module Library.WebSockets
  ( tests,
  )
where

import Control.Concurrent (threadDelay)
import Control.Concurrent.Async (mapConcurrently_, race_)
import Control.Exception (SomeException, bracket, finally, try)
import Control.Monad (forM_, forever, unless, void, when)
import qualified Data.ByteString.Char8 as C
import qualified Data.ByteString.Lazy as L
import qualified Data.ByteString.Lazy.Char8 as LC
import Data.IORef
import Data.List (nub)
import Network.HTTP.Types
import Network.Wai
import Network.Wai.Handler.WebSockets (isWebSocketsReq, websocketsOr)
import qualified Network.WebSockets as W
import Process (alone, certificate, eventually, needModule, portIn, python, withFolder)
import System.FilePath ((</>))
import System.IO (IOMode (WriteMode), withFile)
import System.Process
import System.Timeout (timeout)
import Test.Tasty.HUnit
import Weft.Http hiding (run)
import Weft.Http.Client (Url (..))
import Weft.Http.Proxy (defaultProxySettings, withProxy)
import Weft.Test.Skip (needProgram)

-- | The tests by the names that "Libraries" lists.
tests :: [(String, IO ())]
tests =
  [ ("echoes of any kind and size", echoes),
    ("many at once", many),
    ("messages and silence for longer than the time of clients", quiet),
    ("closed by either side, and gone", closed),
    ("through the reverse proxy: messages of any kind, refusals and ends", proxied),
    ("gone while a program runs that was started meanwhile", gone),
    ("over HTTP/2, by python3-h2", tunnelled),
    ("a browser: fetch, connections kept, WebSockets", withFolder (browsed False Nothing)),
    ("a browser over TLS", withFolder $ \folder -> certificate folder >>= \pair -> browsed False (Just pair) folder),
    ("a browser, through the reverse proxy", withFolder (browsed True Nothing)),
    ("a browser over TLS, through the reverse proxy", withFolder $ \folder -> certificate folder >>= \pair -> browsed True (Just pair) folder)
  ]

-- | A server with that time for its clients: its port, and how many connections it has.
serving :: Int -> (Int -> IO Int -> IO a) -> IO a
serving time act =
  withServer settings (websocketsOr W.defaultConnectionOptions talk plain) $ \server ->
    act (portIn (serverAddress server)) (serverConnections server)
  where
    settings = setHTTP2Cleartext True . setOnException (\_ _ -> pure ()) . setTimeout time . setHost "127.0.0.1" $ setPort 0 defaultSettings
    plain _ respond = respond (responseLBS ok200 [] "plain")

-- | Messages are echoed. Below @/beat@ the server also sends pings; below @/close@ it closes the connection.
talk :: W.ServerApp
talk pending = case W.requestPath (W.pendingRequest pending) of
  "/refuse" -> W.rejectRequest pending "no"
  "/close" -> do
    connection <- W.acceptRequest pending
    W.sendCloseCode connection 4000 ("bye" :: C.ByteString)
    forever (W.receiveDataMessage connection)
  "/beat" -> do
    connection <- W.acceptRequest pending
    race_ (echo connection) (forever (threadDelay 300000 >> W.sendPing connection ("beat" :: C.ByteString)))
  _ -> W.acceptRequest pending >>= echo
  where
    echo connection = forever (W.receiveDataMessage connection >>= W.sendDataMessage connection)

client :: Int -> String -> W.ClientApp a -> IO a
client port path act = timeout 30000000 (W.runClient "127.0.0.1" port path act) >>= maybe (assertFailure "a client was not done after 30 s") pure

echoes :: Assertion
echoes = serving 10 $ \port connections -> do
  talking port
  eventually "no connection is left" ((== 0) <$> connections)

talking :: Int -> Assertion
talking port = do
  client port "/" $ \connection -> do
    forM_ [0, 1, 125, 126, 65535, 65536, 1048576] $ \n -> do
      let bytes = LC.take n (LC.cycle "some bytes, \0 and \255 among them; ")
      W.sendBinaryData connection bytes
      got <- W.receiveDataMessage connection
      assertBool ("binary, " <> show n) (got == W.Binary bytes)
      W.sendTextData connection (LC.replicate n 'x')
      text <- W.receiveData connection
      assertBool ("text, " <> show n) (text == LC.replicate n 'x')
    W.sendPing connection ("ping" :: C.ByteString)
    forM_ [1 .. 1000 :: Int] $ \i -> W.sendTextData connection (C.pack (show i))
    forM_ [1 .. 1000 :: Int] $ \i -> W.receiveData connection >>= (@?= C.pack (show i))
  refused <- try (client port "/refuse" (const (pure ()))) :: IO (Either W.HandshakeException ())
  either (const (pure ())) (const (assertFailure "it was let in")) refused

many :: Assertion
many = serving 10 $ \port connections -> do
  flip mapConcurrently_ [1 .. 100 :: Int] $ \k -> client port "/" $ \connection -> forM_ [1 .. 50 :: Int] $ \i -> do
    W.sendTextData connection (C.pack (show (k, i)))
    W.receiveData connection >>= (@?= C.pack (show (k, i)))
  eventually "no connection is left" ((== 0) <$> connections)

-- | The time is a second. Pings keep a connection, and a silent one is ended.
quiet :: Assertion
quiet = serving 1 $ \port connections -> do
  client port "/beat" $ \connection ->
    race_ (threadDelay 3000000) $ do
      void (try (forever (W.receiveDataMessage connection)) :: IO (Either W.ConnectionException ()))
      assertFailure "it was ended"
  silent <- timeout 30000000 (try (W.runClient "127.0.0.1" port "/" (void . W.receiveDataMessage))) :: IO (Maybe (Either SomeException ()))
  case silent of
    Just (Left _) -> pure ()
    Just (Right ()) -> assertFailure "something came"
    Nothing -> assertFailure "it was not ended within 30 s"
  eventually "no connection is left" ((== 0) <$> connections)

closed :: Assertion
closed = serving 10 $ \port connections -> do
  end <- try (client port "/close" (forever . W.receiveDataMessage)) :: IO (Either W.ConnectionException ())
  end @?= Left (W.CloseRequest 4000 "bye")
  end' <- try (client port "/" (\connection -> W.sendClose connection ("done" :: C.ByteString) >> forever (W.receiveDataMessage connection))) :: IO (Either W.ConnectionException ())
  either (const (pure ())) (const (assertFailure "it went on")) end'
  -- Gone without a word.
  forM_ [1 .. 50 :: Int] $ \_ -> client port "/" (\connection -> W.sendTextData connection ("one" :: C.ByteString))
  eventually "no connection is left" ((== 0) <$> connections)

-- | What is said through the proxy is what is said without: the server's refusal, its close and its code too.
proxied :: Assertion
proxied = serving 10 $ \behind connections ->
  withProxy defaultProxySettings [Url "127.0.0.1" (show behind) Nothing "/" False] $ \application ->
    withServer (setTimeout 10 (setHost "127.0.0.1" (setPort 0 defaultSettings))) application $ \server -> do
      let port = portIn (serverAddress server)
      talking port
      end <- try (client port "/close" (forever . W.receiveDataMessage)) :: IO (Either W.ConnectionException ())
      end @?= Left (W.CloseRequest 4000 "bye")
      flip mapConcurrently_ [1 .. 50 :: Int] $ \k -> client port "/" $ \connection -> forM_ [1 .. 20 :: Int] $ \i -> do
        W.sendTextData connection (C.pack (show (k, i)))
        W.receiveData connection >>= (@?= C.pack (show (k, i)))
      eventually "no connection to the proxy is left" ((== 0) <$> serverConnections server)
      eventually "no connection is left" ((== 0) <$> connections)

-- | A client's descriptor is in a program of another test, which does not keep its connection.
gone :: Assertion
gone = serving 60 $ \port connections -> do
  needProgram "sleep"
  let start = client port "/" (const (createProcess (alone (proc "sleep" ["60"]))))
  bracket start cleanupProcess (const (eventually "no connection is left" ((== 0) <$> connections)))

-- | The application that serves HTTP\/1.1 serves RFC 8441.
tunnelled :: Assertion
tunnelled = serving 20 $ \port connections -> do
  needModule "h2"
  out <- python "websocket_client.py" [show port]
  lines out
    @?= ["setting 1", "head 200 []"]
      <> [show n <> " True" | n <- [0, 1, 125, 126, 65535, 65536, 3000000 :: Int]]
      <> ["(1, b'text') (10, b'ping')", "closed True", "(8, b'\\x0f\\xa0bye')", "refused 400", "many True", "(1, b'still')"]
  eventually "no connection is left" ((== 0) <$> connections)

-- Browsers -------------------------------------------------------------------------------

-- | A page that fetches, posts, and talks by WebSockets, and says what came of it by asking for a path. With or without
-- the reverse proxy before the application.
browsed :: Bool -> Maybe (FilePath, FilePath) -> FilePath -> Assertion
browsed behindProxy pair folder = do
  needProgram "chromium"
  tls <- mapM (uncurry loadTls) pair
  seen <- newIORef []
  opened <- newIORef (0 :: Int)
  upgraded <- newIORef []
  let settings = setOnOpen (\_ -> True <$ atomicModifyIORef' opened (\n -> (n + 1, ()))) (setOnException (\_ _ -> pure ()) (setTimeout 10 (setHost "127.0.0.1" (setPort 0 defaultSettings))))
      app = noting upgraded . websocketsOr W.defaultConnectionOptions talk $ \request respond -> do
        atomicModifyIORef' seen (\s -> (rawPathInfo request : s, ()))
        case pathInfo request of
          [] -> respond (responseLBS ok200 [(hContentType, "text/html")] page)
          ["echo"] -> strictRequestBody request >>= respond . responseLBS ok200 [(hContentType, "application/octet-stream")]
          ["number", n] -> respond (responseLBS ok200 [] (LC.pack (show n)))
          _ -> respond (responseLBS ok200 [] "")
      fronting act
        | behindProxy = withServer (setOnException (\_ _ -> pure ()) (setHost "127.0.0.1" (setPort 0 defaultSettings))) app $ \behind ->
          withProxy defaultProxySettings [Url "127.0.0.1" (show (portIn (serverAddress behind))) Nothing "/" False] act
        | otherwise = act app
  fronting $ \front -> withServerWith defaultOptions {optionTls = tls} settings front $ \server -> do
    let address = maybe "http" (const "https") pair <> "://localhost:" <> show (portIn (serverAddress server)) <> "/"
        reported = filter ("/done/" `C.isPrefixOf`) . nub <$> readIORef seen
        go = reported >>= \found -> if null found then threadDelay 50000 >> go else pure found
    found <- withFile (folder </> "log") WriteMode $ \out ->
      withCreateProcess (alone (proc "chromium" (arguments <> [address]))) {std_out = UseHandle out, std_err = UseHandle out, create_group = True} $ \_ _ _ process ->
        (timeout 90000000 go >>= maybe (assertFailure "the page reported nothing in 90 s") pure)
          `finally` (interruptProcessGroupOf process >> waitForProcess process)
    found @?= ["/done/100/1000000/" <> maybe "http%2F1.1" (const "h2") pair <> "/text/65536/1001/closed4000"]
    -- Over a connection of HTTP/2 that is there, Chromium's WebSockets are of RFC 8441. The proxy's are of HTTP/1.1.
    readIORef upgraded >>= (@?= [if behindProxy then http11 else maybe http11 (const http20) pair]) . nub
    -- 100 fetches one after the other need no connection each.
    connections <- readIORef opened
    unless (connections < 20) (assertFailure (show connections <> " connections"))
  where
    noting upgraded act request respond = do
      when (isWebSocketsReq request) (atomicModifyIORef' upgraded (\vs -> (httpVersion request : vs, ())))
      act request respond
    arguments =
      ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0", "--ignore-certificate-errors", "--no-proxy-server"]
        <> ["--user-data-dir=" <> folder </> "profile"]

page :: L.ByteString
page =
  "<!DOCTYPE html><title>weft</title><script>\n\
  \const socket = (path, act) => new Promise(resolve => {\n\
  \  const s = new WebSocket(location.origin.replace('http', 'ws') + path);\n\
  \  s.binaryType = 'arraybuffer'; s.onerror = () => resolve('error'); act(s, resolve) });\n\
  \(async () => {\n\
  \  let fetched = 0;\n\
  \  for (let i = 0; i < 100; i++) fetched += (await (await fetch('/number/' + i)).text()) === JSON.stringify(String(i));\n\
  \  const body = new Uint8Array(1000000).map((_, i) => i * 7);\n\
  \  const back = new Uint8Array(await (await fetch('/echo', {method: 'POST', body})).arrayBuffer());\n\
  \  const same = back.every((b, i) => b === body[i]) ? back.length : 'other';\n\
  \  const protocol = performance.getEntriesByType('navigation')[0].nextHopProtocol;\n\
  \  const text = await socket('/', (s, resolve) => { s.onopen = () => s.send('text'); s.onmessage = e => { resolve(e.data); s.close() } });\n\
  \  const binary = await socket('/', (s, resolve) => { s.onopen = () => s.send(new Uint8Array(65536)); s.onmessage = e => { resolve(e.data.byteLength); s.close() } });\n\
  \  const many = await socket('/', (s, resolve) => { let n = 0; s.onopen = () => { for (let i = 0; i <= 1000; i++) s.send(String(i)) };\n\
  \    s.onmessage = e => { if (e.data === String(n)) n++; if (n > 1000) { resolve(n); s.close() } } });\n\
  \  const closed = await socket('/close', (s, resolve) => { s.onclose = e => resolve('closed' + e.code) });\n\
  \  fetch('/done/' + [fetched, same, protocol, text, binary, many, closed].map(encodeURIComponent).join('/'));\n\
  \})();\n\
  \</script>\n"
