{-# LANGUAGE OverloadedStrings #-}

-- | @weft serve --proxy@: which requests go to which servers, and what is in front of them.
module Proxied (tests) where

import Answering (serving)
import Control.Concurrent (threadDelay)
import Control.Exception (bracket)
import Control.Monad
import qualified Data.ByteString.Char8 as B
import Data.IORef
import Data.List (nub, sort)
import Network.Socket (ShutdownCmd (ShutdownSend), shutdown)
import Network.Socket.ByteString (sendAll)
import Operating (config, inFolder, selfSigned)
import System.Exit (ExitCode (..))
import System.FilePath ((</>))
import System.IO (hClose, hGetLine)
import System.Posix.Signals (sigHUP, sigKILL)
import System.Process
import Test.Tasty
import Test.Tasty.HUnit hiding (testCase)
import Weft.Test.Peer (eventually, hearBytes, hearRequest, say, withPeer)
import Weft.Test.Program
import Weft.Test.Skip (skipUnless, testCase)

tests :: FilePath -> TestTree
tests program =
  testGroup
    "--proxy"
    [ testCase "paths below a prefix go to its servers, in turn, and others to the folder" . inFolder $ \folder ->
        naming "a" $ \a -> naming "b" $ \b -> naming "c" $ \c ->
          serving program folder ["--proxy", "/api/=" <> at a <> "," <> at b, "--proxy", "/api/own=" <> at c] $ \port -> do
            got <- replicateM 8 (body <$> get port "/api/x?y")
            nub (sort got) @?= ["a GET /api/x?y HTTP/1.1", "b GET /api/x?y HTTP/1.1"]
            get port "/api/own" >>= (@?= "c GET /api/own HTTP/1.1") . body
            get port "/api/own/x" >>= (@?= "c GET /api/own/x HTTP/1.1") . body
            own <- body <$> get port "/api/ownx"
            assertBool (show own) (B.take 1 own `elem` ["a", "b"])
            get port "/" >>= answered 200 "<p>home</p>"
            get port "/api" >>= (@?= 404) . status,
      testCase "a path that a server could understand otherwise is refused" . inFolder $ \folder ->
        naming "a" $ \a -> serving program folder ["--proxy", "/api/=" <> at a] $ \port -> do
          forM_ ["/api/../secret", "/api/%2e%2e/secret", "/api/x/%2E./y", "/api/..%2fsecret", "/api/..\\secret", "/api/.", "/api/./x", "/api/..;/x", "/api/..;a=b/x", "/api/%2e.%3bx/y", "/api/.;"] $ \path ->
            get port path >>= (@?= 400) . status
          get port "/api/..x/...%2f" >>= (@?= 200) . status,
      testCase "a tunnel is not implemented, wherever it is to lead, and is not passed on" . inFolder $ \folder ->
        naming "a" $ \a -> do
          let rule = ["--proxy", "/=" <> at a]
              refused port = forM_ ["example.com:443", B.pack (drop 7 (at a))] $ \target -> do
                answer <- exchange port ("CONNECT " <> target <> " HTTP/1.1\r\nHost: " <> target <> "\r\nConnection: close\r\n\r\n")
                status answer @?= 501
          serving program folder rule refused
          weft program [] (["serve", "--port", "0"] <> rule) (portOf >=> refused),
      testCase "nobody listens: 502; passwords and redirects come before, error pages do not replace the server's" . inFolder $ \folder -> do
        writeFile (folder </> ".users") "alice:$2y$05$q/CF38ZqM8E6v69QnSYuqe/rYpY7dj7v2fRI6mkfUOKLZO5CqhA4u\n"
        writeFile (folder </> "page") "the page"
        dead <- naming "dead" pure
        withPeer (\_ c -> forever (hearRequest c >> say c "HTTP/1.1 404 No\r\nContent-Length: 4\r\n\r\nmine")) $ \missing -> do
          serving program folder ["--proxy", "/dead/=" <> at dead, "--proxy", "/missing/=" <> at missing, "--error-page", "404=/page", "--redirect", "/missing/old=/new"] $ \port -> do
            get port "/dead/" >>= (@?= 502) . status
            get port "/missing/x" >>= answered 404 "mine"
            get port "/missing/old" >>= (@?= 302) . status
            get port "/nothing" >>= answered 404 "the page"
          serving program folder ["--proxy", "/missing/=" <> at missing, "--basic-auth", folder </> ".users"] $ \port ->
            get port "/missing/x" >>= (@?= 401) . status,
      testCase "without a folder, in the configuration file, for a host, and changed by a reload" . inFolder $ \folder ->
        naming "a" $ \a -> naming "b" $ \b -> do
          let file = folder </> "weft.yaml"
              ask port name = body <$> exchange port (B.pack ("GET / HTTP/1.1\r\nHost: " <> name <> "\r\nConnection: close\r\n\r\n"))
          config folder ["proxy: ['/=" <> at a <> "']", "hosts:", "  b.example: {proxy: ['/=" <> at b <> "']}"]
          weft program [] ["serve", "--config", file, "--port", "0"] $ \p -> do
            port <- portOf p
            ask port "x" >>= (@?= "a GET / HTTP/1.1")
            ask port "b.example" >>= (@?= "b GET / HTTP/1.1")
            config folder ["proxy: ['/=" <> at b <> "']"]
            send' sigHUP p
            eventually "the reload" ((== "b GET / HTTP/1.1") <$> ask port "x"),
      testCase "checks: a server that fails them is passed over, which is reported; a reload ends them" . inFolder $ \folder -> do
        asked <- newIORef (0 :: Int)
        let ill c = do
              h <- hearRequest c
              if "GET /health " `B.isPrefixOf` h
                then modifyIORef' asked (+ 1) >> say c "HTTP/1.1 503 Ill\r\nContent-Length: 0\r\n\r\n"
                else say c "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nill"
        withPeer (const (forever . ill)) $ \a -> naming "b" $ \b -> do
          let rules = "proxy: ['/=" <> at a <> "," <> at b <> "']"
          config folder [rules, "proxy-check: /health", "proxy-check-interval: 0.1", "proxy-check-failures: 2"]
          weft program [] ["serve", "--config", folder </> "weft.yaml", "--port", "0"] $ \p -> do
            port <- portOf p
            eventually "it is passed over" ((== ["b GET / HTTP/1.1"]) . nub <$> replicateM 6 (body <$> get port "/"))
            config folder [rules]
            send' sigHUP p
            eventually "it is asked again" ((/= ["b GET / HTTP/1.1"]) . nub <$> replicateM 6 (body <$> get port "/"))
            n <- readIORef asked
            assertBool (show n) (n >= 2),
      testCase "--proxy-send: servers hear the client's address; not with https" . inFolder $ \folder -> do
        let first c = hearBytes c 6 >>= \begin -> void (hearRequest c) >> say c ("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n" <> begin)
        withPeer (const first) $ \a -> serving program folder ["--proxy", "/api/=" <> at a, "--proxy-send", "v1"] $ \port ->
          replicateM_ 2 (get port "/api/" >>= answered 200 "PROXY ")
        (code, out) <- outcome program [] ["serve", folder, "--check", "--proxy", "/api/=https://a", "--proxy-send", "v2"]
        code @?= ExitFailure 2
        contains out "servers without TLS"
        (code2, out2) <- outcome program [] ["serve", folder, "--check", "--proxy", "/api/=http://a,h2c://b:1", "--proxy-send", "v2"]
        code2 @?= ExitFailure 2
        contains out2 "servers of HTTP/1.1"
        (code', out') <- outcome program [] ["serve", folder, "--check", "--proxy-check", "/health"]
        code' @?= ExitFailure 2
        contains out' "needs --proxy",
      testCase "--proxy-half-closed: a client that has ended its direction gets an answer that comes after the usual second" . inFolder $ \folder ->
        withPeer (\_ c -> hearRequest c >> threadDelay 1500000 >> say c "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nlate") $ \a -> do
          config folder ["proxy: ['/=" <> at a <> "']", "proxy-half-closed: 300"]
          weft program [] ["serve", "--config", folder </> "weft.yaml", "--port", "0"] $ \p -> do
            port <- portOf p
            connected port $ \s -> do
              sendAll s (request "GET" "/" "close")
              shutdown s ShutdownSend
              recvAll s >>= answered 200 "late",
      testCase "an upgrade is passed on" . inFolder $ \folder -> do
        let switching c = do
              void (hearRequest c)
              say c "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\nfrom the server"
        withPeer (const switching) $ \a -> serving program folder ["--proxy", "/ws=" <> at a] $ \port -> do
          answer <- exchange port "GET /ws HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
          status answer @?= 101
          assertBool (show answer) ("from the server" `B.isSuffixOf` answer),
      testCase "calls of gRPC, to a server that is killed under load and comes back" . inFolder $ \folder -> do
        (found, _, _) <- readProcessWithExitCode python ["-c", "import grpc"] ""
        skipUnless "python3-grpcio is not installed" (found == ExitSuccess)
        selfSigned folder "localhost" "key.pem" "chain.pem"
        behind <- unused
        let file = (folder </>)
            serverOf act = started [] (proc python [peer, "serve", show behind]) $ \p -> hGetLine (output p) >>= (@?= "listens") >> act p
            rule = ["--certificate", file "chain.pem", "--key", file "key.pem", "--proxy", "/weft.Test/=h2c://127.0.0.1:" <> show behind]
        serving program folder rule $ \port -> do
          serverOf $ \_ -> do
            (code, out, err) <- readProcessWithExitCode python ["../weft-http/test/http/grpc_client.py", show port, "calls", file "chain.pem"] ""
            (code, lines out, if code == ExitSuccess then "" else err) @?= (ExitSuccess, calls, "")
          bracket (createProcess (proc python [peer, "load", show port, file "chain.pem"]) {std_in = CreatePipe, std_out = CreatePipe}) cleanupProcess $ \running -> case running of
            (Just input, Just out, _, _) -> do
              serverOf $ \p -> do
                hGetLine out >>= (@?= "begun ['OK']")
                send' sigKILL p
              serverOf $ \_ -> do
                hClose input
                -- Calls under way break off; later ones find nobody.
                seen <- words <$> hGetLine out
                assertBool (show seen) ("OK" `elem` seen && all (`elem` ["statuses", "OK", "UNAVAILABLE", "INTERNAL", "UNKNOWN", "CANCELLED"]) seen)
                hGetLine out >>= (@?= "again ['OK', 'OK', 'OK', 'OK']")
            _ -> assertFailure "no pipes",
      testCase "--h2c: calls of gRPC without TLS, beside clients of HTTP/1.1" . inFolder $ \folder -> do
        (found, _, _) <- readProcessWithExitCode python ["-c", "import grpc"] ""
        skipUnless "python3-grpcio is not installed" (found == ExitSuccess)
        behind <- unused
        writeFile (folder </> "page.txt") "a page"
        started [] (proc python [peer, "serve", show behind]) $ \p -> do
          hGetLine (output p) >>= (@?= "listens")
          serving program folder ["--h2c", "--proxy", "/weft.Test/=h2c://127.0.0.1:" <> show behind] $ \port -> do
            (code, out, err) <- readProcessWithExitCode python ["../weft-http/test/http/grpc_client.py", show port, "calls"] ""
            (code, lines out, if code == ExitSuccess then "" else err) @?= (ExitSuccess, calls, "")
            get port "/page.txt" >>= answered 200 "a page"
        -- Without the option such a client gets a refusal that it can read.
        serving program folder [] $ \port -> do
          answer <- exchange port "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
          status answer @?= 400
        selfSigned folder "localhost" "key.pem" "chain.pem"
        forM_ [(["--certificate", folder </> "chain.pem", "--key", folder </> "key.pem"], "only HTTPS is spoken"), (["--no-http2"], "cannot both be given")] $ \(more, why) -> do
          (code, out) <- outcome program [] (["serve", folder, "--check", "--h2c"] <> more)
          code @?= ExitFailure 2
          contains out why,
      testCase "wrong rules" . inFolder $ \folder ->
        forM_ [("api=http://a:1", "a path that begins with /"), ("/api/", "/PATH/=URL"), ("/api/=ftp://a", "not a URL"), ("/api/=h2c://", "names no host"), ("/api/=h2://a/x", "the path of a request stays"), ("/api/=http://a:1/x", "the path of a request stays"), ("/%61=http://a:1", "as it is sent")] $ \(rule, why) -> do
          (code, out) <- outcome program [] ["serve", folder, "--check", "--proxy", rule]
          code @?= ExitFailure 2
          contains out why
    ]
  where
    at port = "http://127.0.0.1:" <> show (port :: Int)
    python = "/usr/bin/python3"
    peer = "test/tools/grpc_peer.py"
    calls = ["unary b'hello' b''", "server 1000 b'1' b'1000'", "client b'1000 499500'", "client, nothing b'0 0'", "both True"]
    -- A port that nobody listens on.
    unused = withPeer (\_ _ -> pure ()) pure

-- | A server that answers each request with its name and the request's first line.
naming :: B.ByteString -> (Int -> IO a) -> IO a
naming name = withPeer (const (forever . answer))
  where
    answer c = do
      h <- hearRequest c
      let line = name <> " " <> B.takeWhile (/= '\r') h
      say c ("HTTP/1.1 200 OK\r\nContent-Length: " <> B.pack (show (B.length line)) <> "\r\n\r\n" <> line)
