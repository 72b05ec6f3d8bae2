-- | @weft-bench url@ against @weft serve@, with and without TLS, against nginx and against a server that stalls.
module Urls (tests) where

import Control.Concurrent
import Control.Exception
import Control.Monad
import qualified Data.ByteString.Char8 as B
import Data.IORef
import Data.List (isPrefixOf)
import Network.Socket
import Network.Socket.ByteString (recv, sendAll)
import System.Directory (doesFileExist, findExecutable)
import System.Exit (ExitCode (..))
import System.FilePath ((</>))
import System.IO (hGetContents)
import System.Posix.Signals (sigHUP, sigINT, sigTERM)
import System.Process
import Test.Tasty
import Test.Tasty.HUnit hiding (testCase)
import Weft.Test.Program
import Weft.Test.Skip (skip, testCase)

tests :: FilePath -> FilePath -> TestTree
tests program folder =
  testGroup
    "url"
    [ testCase "with --rate, a stall of a second counts for every request that was due in it" . withStall $ \port -> do
        (code, out) <- outcome program [] (url port ["--rate", "100", "--connections", "2"])
        code @?= ExitSuccess
        -- The stall is a third of the time: a third of all requests are late, by half a second on average.
        assertBool out (percentile "p90" out > 300000 && percentile "max" out > 900000),
      testCase "in a closed loop, a stall counts once for each connection, and the output says so" . withStall $ \port -> do
        (code, out) <- outcome program [] (url port ["--connections", "2"])
        code @?= ExitSuccess
        contains out "closed loop"
        assertBool out (percentile "p90" out < 300000 && percentile "max" out > 900000)
        contains out "--rate R counts it",
      testCase "errors are counted by kind" $ do
        (code, out) <- outcome program [] ["url", "http://127.0.0.1:1/", "--duration", "0.5", "--warmup", "0", "--connections", "1"]
        code @?= ExitFailure 1
        contains out "refused: ",
      testCase "Ctrl-C, SIGTERM or SIGHUP ends it, and the results until then are printed" . forM_ [sigINT, sigTERM, sigHUP] $ \signal -> serving program folder $ \port ->
        weft program [] ["url", "http://127.0.0.1:" <> show port <> "/", "--duration", "50", "--warmup", "0"] $ \p -> do
          -- It has had answers.
          untilAsked port
          send' signal p
          code <- waitForProcess (process p)
          out <- hGetContents (output p)
          code @?= ExitFailure 130
          mapM_ (contains out) ["answered", "latency, us"],
      testCase "a negative warm-up is a wrong argument" $ do
        (code, out) <- outcome program [] ["url", "http://127.0.0.1:1/", "--warmup=-1"]
        code @?= ExitFailure 2
        contains out "not a number from zero on: -1",
      testCase "an argument that is not a URL" $ do
        (code, out) <- outcome program [] ["url", "ftp://localhost/"]
        code @?= ExitFailure 2
        contains out "not a URL",
      testGroup
        "https, weft serve"
        [ testCase "--ca: the authority is trusted, connections are kept open, and every request that was due is counted" . withTlsServer program folder $ \port certificate -> do
            out <- steady port ["--ca", certificate]
            (figureOf "answered" out + unsentOf out, figureOf "opened" out) @?= (300, 4),
          testCase "--insecure accepts any certificate" . withTlsServer program folder $ \port _ ->
            steady port ["--insecure"] >>= (`contains` "none"),
          testCase "--no-keep-alive: a handshake for each request" . withTlsServer program folder $ \port certificate -> do
            out <- steady port ["--ca", certificate, "--no-keep-alive"]
            assertBool out (figureOf "opened" out >= figureOf "answered" out),
          testCase "a certificate of an untrusted authority is an error" . withTlsServer program folder $ \port _ -> do
            (code, out) <- outcome program [] (secure port ["--duration", "0.5", "--connections", "1"])
            code @?= ExitFailure 1
            mapM_ (contains out) ["no request was answered", "errors              certificate rejected: self-signed certificate: "],
          testCase "weft top says so in the same words" . withTlsServer program folder $ \port _ -> do
            (code, out) <- outcome (program `beside` "weft") [] ["top", "https://localhost:" <> show port, "--count", "1"]
            code @?= ExitFailure 1
            contains out "/metrics: certificate rejected: self-signed certificate (--ca FILE",
          testCase "--ca with a file without a certificate is a wrong argument" $ do
            (code, out) <- outcome program [] (secure 1 ["--ca", folder </> "index.html"])
            code @?= ExitFailure 2
            contains out "holds no certificate"
        ],
      testCase "https, nginx: connections are kept open" . withNginx folder $ \port certificate -> do
        out <- steady port ["--ca", certificate]
        (figureOf "answered" out + unsentOf out, figureOf "opened" out) @?= (300, 4)
    ]
  where
    secure port more = ["url", "https://localhost:" <> show (port :: PortNumber) <> "/", "--warmup", "0"] <> more
    -- A low rate, so that any server answers all requests.
    steady port more = do
      (code, out) <- outcome program [] (secure port (["--rate", "200", "--duration", "1.5", "--connections", "4"] <> more))
      code @?= ExitSuccess
      out <$ contains out "none"
    url port more = ["url", "http://127.0.0.1:" <> show port <> "/", "--duration", "3", "--warmup", "0"] <> more

serving :: FilePath -> FilePath -> (PortNumber -> IO a) -> IO a
serving program folder act = weft (program `beside` "weft") [] ["serve", folder, "--port", "0", "--metrics", "loopback"] (portOf >=> act)

-- | A server that answers every request with five bytes. Once, half a second after the first request, it stalls for a
-- second.
withStall :: (PortNumber -> IO a) -> IO a
withStall act = bracket (socket AF_INET Stream defaultProtocol) close $ \listening -> do
  bind listening (SockAddrInet 0 (tupleToHostAddress (127, 0, 0, 1)))
  listen listening 64
  gate <- newMVar ()
  stalled <- newIORef False
  bracket (forkIO (forever (accept listening >>= \(s, _) -> forkIO (answer gate stalled s `finally` close s)))) killThread . const $
    socketPort listening >>= act
  where
    answer gate stalled s = do
      bytes <- recv s 4096
      unless (B.null bytes) $ do
        first <- not <$> atomicModifyIORef' stalled (\was -> (True, was))
        when first . void . forkIO $ threadDelay 500000 >> withMVar gate (const (threadDelay 1000000))
        withMVar gate (\() -> pure ())
        sendAll s (B.pack "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
        answer gate stalled s

-- | Wait until the server has answered a request. Those for its metrics do not count.
untilAsked :: PortNumber -> IO ()
untilAsked port = do
  page <- get port "/metrics"
  let counts = [n | line <- B.lines page, B.pack "http_requests_total{" `B.isPrefixOf` line, n <- take 1 (reverse (B.words line))]
  when (all (== B.pack "0") counts) (threadDelay 20000 >> untilAsked port)

-- | Make a self-signed certificate for localhost, and its key.
withCertificate :: FilePath -> (FilePath -> FilePath -> IO a) -> IO a
withCertificate folder act = do
  openssl <- findExecutable "openssl"
  when (openssl == Nothing) (skip "there is no openssl")
  let (chain, key) = (folder </> "url-chain.pem", folder </> "url-key.pem")
  _ <- readProcessWithExitCode "openssl" (words "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost -keyout" <> [key, "-out", chain]) ""
  act chain key

withTlsServer :: FilePath -> FilePath -> (PortNumber -> FilePath -> IO a) -> IO a
withTlsServer program folder act = withCertificate folder $ \chain key ->
  weft (program `beside` "weft") [] ["serve", folder, "--port", "0", "--metrics", "loopback", "--host", "localhost", "--certificate", chain, "--key", key] (\p -> portOf p >>= (`act` chain))

-- | nginx with one worker and its default of keep-alive. It serves no file, since its worker may not read our folder.
withNginx :: FilePath -> (PortNumber -> FilePath -> IO a) -> IO a
withNginx folder act = do
  found <- filterM doesFileExist ["/usr/sbin/nginx", "/usr/local/sbin/nginx"]
  case found of
    [] -> skip "there is no nginx"
    nginx : _ -> withCertificate folder $ \chain key -> do
      port <- freePort
      let file = folder </> "nginx.conf"
      writeFile file . unlines $
        [ -- One process, since the test kills it: a worker would live on.
          "master_process off; daemon off; error_log stderr; pid " <> folder </> "nginx.pid;",
          "events { worker_connections 64; }",
          "http { access_log off; server { listen 127.0.0.1:" <> show port <> " ssl; location / { return 200 hello; }",
          "ssl_certificate " <> chain <> "; ssl_certificate_key " <> key <> "; } }"
        ]
      started [] (proc nginx ["-p", folder, "-e", "stderr", "-c", file]) $ \_ -> untilListening port 1200 >> act port chain

-- | Wait until the port accepts connections, at most for the given number of twentieths of a second.
untilListening :: PortNumber -> Int -> IO ()
untilListening port tries = do
  there <- try (connected port (const (pure ())))
  case there of
    Right () -> pure ()
    Left e
      | tries <= 0 -> assertFailure ("nobody listens: " <> show (e :: IOException))
      | otherwise -> threadDelay 50000 >> untilListening port (tries - 1)

freePort :: IO PortNumber
freePort = bracket (socket AF_INET Stream defaultProtocol) close $ \s -> do
  bind s (SockAddrInet 0 (tupleToHostAddress (127, 0, 0, 1)))
  socketPort s

-- | The number that follows a word, or the line's name, in the output.
figureOf :: String -> String -> Int
figureOf name out = case [n | (key, n) <- zip ws (drop 1 ws), key == name] of
  n : _ -> round (read (filter (/= ',') n) :: Double)
  [] -> -1
  where
    ws = words out

-- | How many requests were due and could not be sent before the end.
unsentOf :: String -> Int
unsentOf out = sum [read n | line <- lines out, n : rest <- [words line], any (`isPrefixOf` rest) [words "requests were due", words "answers came after"]]

-- | A percentile in microseconds, from the output.
percentile :: String -> String -> Double
percentile name out = case [n | (key, n) <- zip ws (drop 1 ws), key == name] of
  n : _ -> read (filter (/= ',') n)
  [] -> -1
  where
    ws = words out
