-- | @weft-bench url@ against servers that close connections, redirect, do not answer or do not speak HTTP\/1.1.
module Loads (tests) where

import Control.Concurrent (forkIO, killThread, newQSemN, signalQSemN, threadDelay, waitQSemN)
import Control.Exception (IOException, bracket, finally, try)
import Control.Monad (forM_, forever, void)
import qualified Data.ByteString.Char8 as B
import Data.Char (toLower)
import Data.IORef
import Data.List (isInfixOf)
import Network.Socket
import Network.Socket.ByteString (recv, sendAll)
import System.Exit (ExitCode (..))
import System.FilePath ((</>))
import System.Posix.Signals (sigINT)
import System.Process (waitForProcess)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Test.Program

tests :: FilePath -> FilePath -> TestTree
tests program folder =
  testGroup
    "bench url, servers"
    [ testCase "one that closes an idle connection: the request goes out again, and is no error" . forM_ [close, reset] $ \ends ->
        -- Each connection has one answer, which does not announce its end.
        answering (\s -> whole s >> ends s) $ \port -> do
          (code, out) <- load port []
          code @?= ExitSuccess
          answers out >>= (@?= 40)
          mapM_ (contains out) ["connections opened  40\n", "errors              none"],
      testCase "connections count that were opened in the measured time, and not in the warm-up" . answering (forever . whole) $ \port -> do
        (code, out) <- outcome program [] ["url", "http://127.0.0.1:" <> show port <> "/", "--warmup", "0.5", "--duration", "0.5", "--connections", "4"]
        code @?= ExitSuccess
        contains out "connections opened  0\n",
      testCase "one that does not speak TLS: the error is one line" . answering (\s -> asked s (sendAll s (B.pack "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"))) $ \port -> do
        (code, out) <- outcome program [] ["url", "https://127.0.0.1:" <> show port <> "/", "--insecure", "--warmup", "0", "--duration", "0.3", "--connections", "1"]
        code @?= ExitFailure 1
        contains out "errors              no TLS is spoken there: ",
      testCase "authorities that cannot be read are a wrong argument, and the error names the file, as that of weft top" . forM_ [(program, "weft-bench", "url"), (program `beside` "weft", "weft", "top")] $ \(run, name, command) -> do
        (code, out) <- outcome run [] [command, "https://127.0.0.1:1/", "--ca", "/none.pem"]
        code @?= ExitFailure 2
        contains out (unwords [name, command] <> ": /none.pem: "),
      testCase "one that closes each new connection is an error for each request" . answering (`asked` pure ()) $ \port -> do
        (code, out) <- load port []
        code @?= ExitFailure 1
        mapM_ (contains out) ["ended early: 40", "no request was answered", "connections opened  40\n"],
      testCase "one that is not there" $ do
        -- Bound and not listening: the port stays free of others.
        (code, out) <- bracket (socket AF_INET Stream defaultProtocol) close $ \s -> do
          bind s (SockAddrInet 0 (tupleToHostAddress (127, 0, 0, 1)))
          socketPort s >>= (`load` [])
        code @?= ExitFailure 1
        mapM_ (contains out) ["errors              refused: 40\n", "connections opened  0\n"],
      testCase "one that resets each connection" . answering reset $ \port -> do
        (code, out) <- load port []
        code @?= ExitFailure 1
        contains out "reset: 40",
      testCase "one that does not answer: requests that time out count with the time that they waited" . answering (const (threadDelay 20000000)) $ \port -> do
        (code, out) <- loadBy 40 port ["--timeout", "0.9"]
        code @?= ExitFailure 1
        contains out "timed out: 40"
        case [read (filter (/= ',') n) :: Double | ("p50", n) <- pairs (words out)] of
          [median] -> assertBool out (median >= 900000)
          _ -> assertFailure out,
      testCase "one that does not answer: requests of the warm-up that time out after it are said to have failed" . answering (const (threadDelay 20000000)) $ \port ->
        forM_ [[], ["--rate", "80"]] $ \rate -> do
          (code, out) <- outcome program [] (["url", "http://127.0.0.1:" <> show port <> "/", "--warmup", "1", "--duration", "1", "--timeout", "2.5", "--connections", "4"] <> rate)
          code @?= ExitFailure 1
          contains out "requests of the warm-up failed, and are not among the errors (timed out: 4)",
      testCase "--no-keep-alive and a field Connection: close open a connection for each request, whatever the server answers" $
        forM_ [["--no-keep-alive"], ["--header", "connection: Close"], ["--header", "Connection: close", "--no-keep-alive"]] $ \given -> do
          heard <- newIORef B.empty
          answering (\s -> forever (recv s 4096 >>= \bytes -> if B.null bytes then ioError (userError "ended") else writeIORef heard bytes >> sendAll s answer)) $ \port -> do
            let file = folder </> "fresh.json"
            (code, out) <- load port (given <> ["--json", file])
            code @?= ExitSuccess
            contains out "connections opened  40\n"
            kept <- readFile file
            contains kept "\"keep_alive\":\"no\""
          fields <- readIORef heard
          length (filter (B.isPrefixOf (B.pack "connection:") . B.map toLower) (B.lines fields)) @?= 1,
      testCase "bytes after an answer are an error, and no answer to the next request" . answering (\s -> forever (asked s (sendAll s (answer <> answer)))) $ \port -> do
        (code, out) <- load port []
        code @?= ExitFailure 1
        mapM_ (contains out) ["answered            0 ", "errors              surplus bytes: 40\n", "connections opened  40\n"],
      testCase "bytes that come while no request is under way are an error, and no answer to the next one" . answering (\s -> forever (asked s (sendAll s answer >> threadDelay 5000 >> sendAll s answer))) $ \port -> do
        (code, out) <- closedLoop port ["--rate", "4", "--duration", "1", "--connections", "1"]
        code @?= ExitSuccess
        mapM_ (contains out) ["surplus bytes: 2\n", "connections opened  2\n"],
      testCase "one that ends idle connections with status 408: the request goes out again, and is no error" $
        forM_ [whole, \s -> whole s >> threadDelay 5000] $ \first ->
          answering (\s -> first s >> sendAll s (B.pack "HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")) $ \port -> do
            (code, out) <- load port []
            code @?= ExitSuccess
            answers out >>= (@?= 40)
            mapM_ (contains out) ["connections opened  40\n", "errors              none"],
      testCase "status 408 to a request is an error, also on a connection that was kept" . answering (\s -> forever (whole s >> asked s (sendAll s (B.pack "HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n")))) $ \port -> do
        (code, out) <- closedLoop port ["--rate", "4", "--duration", "1", "--connections", "1"]
        code @?= ExitSuccess
        mapM_ (contains out) ["status 408: 2\n", "connections opened  1\n"],
      testCase "answers after the end are not among those answered: a connection has one in a second of 0.6 s each" . answering (\s -> forever (asked s (threadDelay 600000 >> sendAll s (B.pack "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")))) $ \port -> do
        (code, out) <- closedLoop port ["--connections", "4", "--duration", "1"]
        code @?= ExitSuccess
        mapM_ (contains out) [" answers came after the end: their latencies count"]
        inTime <- answeredOf out
        assertBool out (inTime <= 4),
      testCase "Ctrl-C: requests in flight count with the time that they waited, and the JSON says that it was cut short" $ do
        arrived <- newQSemN 0
        answering (\s -> asked s (signalQSemN arrived 1 >> threadDelay 60000000)) $ \port -> do
          let file = folder </> "interrupted.json"
          weft program [] (loadArguments port ["--connections", "8", "--rate", "50", "--duration", "60", "--json", file]) $ \p -> do
            waitQSemN arrived 8
            send' sigINT p
            out <- B.unpack <$> B.hGetContents (output p)
            waitForProcess (process p) >>= (@?= ExitFailure 130)
            mapM_ (contains out) ["answered            0 ", "8 requests were in flight when a signal ended it"]
            assertBool out (not ("p50 -" `isInfixOf` out))
            kept <- readFile file
            contains kept "A signal ended it after ",
      testCase "redirects are counted, and the output says that they are not followed" . answering (says "HTTP/1.1 302 Found\r\nLocation: /other\r\nContent-Length: 0\r\n\r\n") $ \port -> do
        (code, out) <- load port []
        code @?= ExitSuccess
        answers out >>= (@?= 40)
        mapM_ (contains out) ["40 answers were redirects, which are not followed"],
      testCase "chunks, HTTP/1.0 with and without keep-alive" $
        forM_
          [ ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n", \s text -> says text s),
            ("HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 5\r\n\r\nhello", \s text -> says text s),
            ("HTTP/1.0 200 OK\r\n\r\nhello", \s text -> asked s (sendAll s (B.pack text) >> close s))
          ]
          $ \(text, act) -> answering (`act` text) $ \port -> do
            (code, out) <- load port []
            code @?= ExitSuccess
            answers out >>= (@?= 40)
            mapM_ (contains out) ["0.0002 MB of bodies", "errors              none"],
      testCase "one that does not speak HTTP" . answering (says "220 smtp.example ESMTP\r\n\r\n") $ \port -> do
        (code, out) <- load port []
        code @?= ExitFailure 1
        contains out "not HTTP: 40",
      testCase "errors of the server: they are answers, but none below 400" . answering (says "HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n") $ \port -> do
        (code, out) <- load port []
        code @?= ExitFailure 1
        mapM_ (contains out) ["status 503: 40", "no request was answered with a status below 400"],
      testCase "a host without an address ends it at once, with a short reason" $ do
        (code, out) <- outcome program [] ["url", "http://no-such-host.invalid/", "--duration", "60"]
        code @?= ExitFailure 1
        contains out "weft-bench url: no address of no-such-host.invalid: "
        length (lines out) @?= 1,
      testCase "a port that does not exist is a wrong argument" $
        forM_ ["65536", "0", "99999999999999999999"] $ \port -> do
          (code, out) <- outcome program [] ["url", "http://127.0.0.1:" <> port <> "/"]
          code @?= ExitFailure 2
          contains out ("not a port from 1 to 65535: " <> port),
      testCase "rates and times that no clock can hold are wrong arguments" $
        forM_ [("rate", "1e300"), ("rate", "Infinity"), ("rate", "12000000"), ("duration", "1e10"), ("duration", "Infinity"), ("warmup", "Infinity"), ("timeout", "1e300")] $ \(name, text) -> do
          (code, out) <- outcome program [] ["url", "http://127.0.0.1:1/", "--" <> name, text, "--connections", "1"]
          code @?= ExitFailure 2
          contains out ("--" <> name),
      testCase "a Host field replaces that of the URL; what is no field is a wrong argument" $ do
        heard <- newIORef B.empty
        answering (\s -> recv s 4096 >>= writeIORef heard >> sendAll s (B.pack "HTTP/1.0 200 OK\r\n\r\n")) $ \port -> do
          (code, out) <- load port ["--header", "host: a.example"]
          assertEqual out ExitSuccess code
        fields <- readIORef heard
        filter (B.isPrefixOf (B.pack "host:")) (map (B.map toLower) (B.lines fields)) @?= [B.pack "host: a.example\r"]
        (code, out) <- outcome program [] ["url", "http://127.0.0.1:1/", "--header", "nonsense"]
        code @?= ExitFailure 2
        contains out "expected 'Name: value', not \"nonsense\"",
      testCase "a path that cannot be in a request is a wrong argument, also of a Unix socket" $
        forM_ [("unix:/no/such/socket:big", "begins with /"), ("unix:/no/such/socket:/a b", "printable ASCII"), ("unix:/no/such/socket:/\233", "printable ASCII"), ("http://127.0.0.1:1/a b", "printable ASCII")] $ \(url, why) -> do
          (code, out) <- outcome program [] ["url", url, "--duration", "0.2", "--warmup", "0", "--connections", "1"]
          code @?= ExitFailure 2
          contains out why,
      testCase "a Unix socket that does not exist" $ do
        (code, out) <- outcome program [] ["url", "unix:/no/such/socket", "--duration", "0.2", "--warmup", "0", "--connections", "1"]
        code @?= ExitFailure 1
        contains out "errors              No such file or directory: "
    ]
  where
    -- Forty requests. A connection pauses after an error, so that one alone could be late with the last of them.
    load = loadBy 10
    loadBy :: Int -> PortNumber -> [String] -> IO (ExitCode, String)
    loadBy clients port more = outcome program [] (loadArguments port ["--rate", "80", "--duration", "0.5", "--connections", show clients] <> more)
    closedLoop port = outcome program [] . loadArguments port
    loadArguments port more = ["url", "http://127.0.0.1:" <> show port <> "/", "--warmup", "0"] <> more
    pairs list = zip list (drop 1 list)
    says text s = asked s (sendAll s (B.pack text)) >> says text s
    whole s = asked s (sendAll s answer)
    answer = B.pack "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
    reset s = setSockOpt s Linger (StructLinger 1 0) >> close s

-- | The answers that arrived in the measured time, and all of them: a busy machine may answer the last requests late.
answeredOf, answers :: String -> IO Int
answeredOf out = case [n | "answered" : n : _ <- map words (lines out)] of
  [n] -> pure (read n)
  _ -> assertFailure out
answers out = (+ sum [read n | n : "answers" : "came" : _ <- map words (lines out)]) <$> answeredOf out

-- | Wait for a request, and answer it. Throws at the end of the stream.
asked :: Socket -> IO () -> IO ()
asked s answer = do
  bytes <- recv s 4096
  if B.null bytes then ioError (userError "the client has closed the connection") else answer

-- | A server that does this with each connection.
answering :: (Socket -> IO ()) -> (PortNumber -> IO a) -> IO a
answering act use = bracket (socket AF_INET Stream defaultProtocol) close $ \listening -> do
  bind listening (SockAddrInet 0 (tupleToHostAddress (127, 0, 0, 1)))
  listen listening 64
  bracket (forkIO (forever (accept listening >>= \(s, _) -> forkIO (served s `finally` close s)))) killThread . const $
    socketPort listening >>= use
  where
    served s = void (try (act s) :: IO (Either IOException ()))
