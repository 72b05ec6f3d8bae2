-- | Commands that examine programs: @weft top@, @weft doctor@, @weft bench url@, @weft bench run@ and @weft trace@; with
-- those of "Benches", "Doctor", "Loads", "Recordings", "Runs" and "Top".
module Insight (tests) where

import qualified Benches
import Control.Concurrent
import Control.Exception
import Control.Monad
import qualified Data.ByteString.Char8 as B
import Data.Char (isDigit)
import Data.IORef
import Data.List (isInfixOf, isPrefixOf, tails)
import qualified Doctor
import qualified Loads
import Network.Socket
import Network.Socket.ByteString (recv, sendAll)
import Program
import qualified Recordings
import qualified Runs
import qualified Surroundings
import System.Directory (doesFileExist, findExecutable)
import System.Exit (ExitCode (..))
import System.FilePath (takeDirectory, (</>))
import System.IO (hFlush, hGetContents)
import System.Posix.Signals (sigHUP, sigINT, sigTERM)
import System.Process
import Test.Tasty
import Test.Tasty.HUnit hiding (testCase)
import qualified Top
import Weft.Test.Skip (skip, testCase)

tests :: FilePath -> FilePath -> TestTree
tests program folder = testGroup "insight" [topTests program folder, Top.tests program folder, doctorTests program folder, Doctor.tests program folder, urlTests program folder, Loads.tests program folder, Runs.tests program folder, Benches.tests program folder, Recordings.tests program folder, Surroundings.tests program folder, outputTests program]

serving :: FilePath -> FilePath -> (Running -> PortNumber -> IO a) -> IO a
serving program folder act = weft program [] ["serve", folder, "--port", "0", "--metrics", "loopback"] (\p -> portOf p >>= act p)

-- Top --------------------------------------------------------------------------------------

topTests :: FilePath -> FilePath -> TestTree
topTests program folder =
  testGroup
    "top"
    [ testCase "without a terminal, readings are printed as text" . serving program folder $ \_ port -> do
        (code, out) <- outcome program [] ["top", "http://127.0.0.1:" <> show port, "--interval", "0.3", "--count", "2"]
        code @?= ExitSuccess
        mapM_ (contains out) ["requests 0/s", "connections ", "capability", "resident"],
      testCase "on a terminal, q quits and the screen is restored" . serving program folder $ \_ port -> do
        script <- findExecutable "script"
        case script of
          Nothing -> skip "there is no script(1)"
          Just terminal -> do
            let line = "TERM=xterm " <> program <> " top http://127.0.0.1:" <> show port <> " --interval 0.2"
            (code, out) <- limited . withCreateProcess (proc terminal ["-qec", line, "/dev/null"]) {std_in = CreatePipe, std_out = CreatePipe} $ \input output' _ child -> do
              begun <- maybe (pure B.empty) (until' "Press q to quit.") output'
              forM_ input $ \i -> B.hPutStr i (B.pack "q") >> hFlush i
              said <- (begun <>) <$> maybe (pure B.empty) B.hGetContents output'
              (,) <$> waitForProcess child <*> pure (B.unpack said)
            code @?= ExitSuccess
            mapM_ (contains out) ["\ESC[?1049h", "Press q to quit.", "\ESC[?1049l"],
      testCase "on a terminal, an arrow key does not quit" . serving program folder $ \_ port -> do
        script <- findExecutable "script"
        case script of
          Nothing -> skip "there is no script(1)"
          Just terminal -> do
            let line = "TERM=xterm " <> program <> " top http://127.0.0.1:" <> show port <> " --interval 0.2 --count 20"
            (code, out) <- limited . withCreateProcess (proc terminal ["-qec", line, "/dev/null"]) {std_in = CreatePipe, std_out = CreatePipe} $ \input output' _ child -> do
              begun <- maybe (pure B.empty) (until' "Press q to quit.") output'
              forM_ input $ \i -> B.hPutStr i (B.pack "\ESC[A\ESCOB") >> hFlush i
              said <- (begun <>) <$> maybe (pure B.empty) B.hGetContents output'
              (,) <$> waitForProcess child <*> pure (B.unpack said)
            code @?= ExitSuccess
            -- A line for each reading: it ended by itself.
            length (filter ("Press q to quit." `isPrefixOf`) (tails out)) @?= 20,
      testCase "on a terminal, an error is printed after the screen is restored" $ do
        script <- findExecutable "script"
        case script of
          Nothing -> skip "there is no script(1)"
          Just terminal -> do
            (code, out) <- limited . withCreateProcess (proc terminal ["-qec", "TERM=xterm " <> program <> " top http://127.0.0.1:1", "/dev/null"]) {std_in = CreatePipe, std_out = CreatePipe} $ \_ output' _ child -> do
              said <- maybe (pure B.empty) B.hGetContents output'
              (,) <$> waitForProcess child <*> pure said
            code @?= ExitFailure 1
            contains (B.unpack (snd (B.breakSubstring (B.pack "\ESC[?1049l") out))) "no server listens there",
      testCase "a page without metrics is refused" . serving program folder $ \_ port -> do
        (code, out) <- outcome program [] ["top", "http://127.0.0.1:" <> show port <> "/inner/a.txt", "--count", "1"]
        code @?= ExitFailure 1
        contains out "no metrics",
      testCase "a port without a server" $ do
        (code, out) <- outcome program [] ["top", "http://127.0.0.1:1", "--count", "1"]
        code @?= ExitFailure 1
        mapM_ (contains out) ["127.0.0.1:1 /metrics", "no server listens there (connection refused)"],
      testCase "a process number is refused, and the error names weft doctor" $ do
        (code, out) <- outcome program [] ["top", "4711"]
        code @?= ExitFailure 2
        contains out "weft doctor 4711",
      testCase "a missing Unix socket" $ do
        (code, out) <- outcome program [] ["top", "unix:" <> (folder </> "no.socket"), "--count", "1"]
        code @?= ExitFailure 1
        contains out "there is no socket",
      testCase "a small window shows the rows that fit, and a mark that there are more" . serving program folder $ \_ port -> do
        script <- findExecutable "script"
        case script of
          Nothing -> skip "there is no script(1)"
          Just terminal -> do
            let line = "stty rows 8 cols 30; TERM=xterm " <> program <> " top http://127.0.0.1:" <> show port <> " --interval 0.2 --count 2"
            (code, out) <- limited . withCreateProcess (proc terminal ["-qec", line, "/dev/null"]) {std_in = CreatePipe, std_out = CreatePipe} $ \_ output' _ child -> do
              said <- maybe (pure B.empty) B.hGetContents output'
              (,) <$> waitForProcess child <*> pure (B.unpack said)
            code @?= ExitSuccess
            contains out "more lines in a higher"
            assertBool out (all ((<= 30) . length) (lines (printed out)))
    ]
  where
    -- Read until a text comes: the program reads keys then.
    until' text from = go B.empty
      where
        go seen
          | B.pack text `B.isInfixOf` seen = pure seen
          | otherwise = B.hGetSome from 4096 >>= \more -> if B.null more then pure seen else go (seen <> more)
    -- The output without escape sequences; a sequence that moves the cursor begins a new line.
    printed text = case text of
      '\ESC' : '[' : rest | (_, end : more) <- break (`elem` "HJKhl") rest -> ['\n' | end `elem` "HJ"] <> printed more
      '\r' : rest -> printed rest
      c : rest -> c : printed rest
      [] -> []

-- Doctor -----------------------------------------------------------------------------------

doctorTests :: FilePath -> FilePath -> TestTree
doctorTests program folder =
  testGroup
    "doctor"
    [ testCase "a process: its back end, limits and binary" . serving program folder $ \p _ -> do
        pid <- getPid (process p) >>= maybe (assertFailure "no process") pure
        (code, out) <- outcome program [] ["doctor", show pid]
        code @?= ExitSuccess
        mapM_ (contains out) ["[ok] binary", "built with weft", "epoll", "open files", "seccomp", "allocation area"],
      testGroup
        "the allocation area of a process"
        [ testCase name . weft program environment (["serve", folder, "--port", "0"] <> more) $ \p -> do
            _ <- portOf p
            pid <- getPid (process p) >>= maybe (assertFailure "no process") pure
            (_, out) <- outcome program [] ["doctor", show pid]
            contains out said
          | (name, environment, more, said) <-
              [ ("by an argument", [], ["+RTS", "-A16m", "-RTS"], "16384 KiB a capability"),
                ("by GHCRTS", [("GHCRTS", "-A8m")], [], "8192 KiB a capability"),
                ("not given", [], [], "no -A is among the options")
              ]
        ],
      testCase "a number that no process can have" . forM_ ["0", "4194305", "18446744073709551617"] $ \number -> do
        (code, out) <- outcome program [] ["doctor", number]
        code @?= ExitFailure 2
        contains out ("there is no process " <> number),
      testCase "a process with WEFT_BACKEND=poll" . weft program [("WEFT_BACKEND", "poll")] ["serve", folder, "--port", "0"] $ \p -> do
        _ <- portOf p
        pid <- getPid (process p) >>= maybe (assertFailure "no process") pure
        (_, out) <- outcome program [] ["doctor", show pid]
        contains out "as asked for by WEFT_BACKEND=poll",
      testCase "its own affinity" $ do
        online <- readFile "/sys/devices/system/cpu/online"
        taskset <- findExecutable "taskset"
        when (taskset == Nothing || all isDigit (filter (/= '\n') online)) (skip "there is no taskset, or one processor")
        allowed <- readProcess "sh" ["-c", "taskset -cp $$"] ""
        -- The first of those that this test may use.
        let first = takeWhile isDigit (concat (take 1 (reverse (words allowed))))
        (_, out) <- outcome "taskset" [] ["-c", first, program, "doctor"]
        contains out "[!]  affinity"
        contains out "may run on 1 of ",
      testCase "a program that is not a Haskell program" $ do
        (code, out) <- outcome program [] ["doctor", "/bin/sh"]
        code @?= ExitFailure 1
        contains out "[XX] binary",
      testCase "programs with and without weft-relink" $ do
        let relinked name = takeDirectory program </> "relink" </> name
        there <- doesFileExist (relinked "clock")
        unless there (skip "the relinked programs are not built")
        (_, one) <- outcome program [] ["doctor", relinked "clock-relinked"]
        contains one "linked with weft-relink"
        (_, two) <- outcome program [] ["doctor", relinked "clock"]
        contains two "[!]  binary",
      testCase "a program without -threaded" $ do
        let plain = takeDirectory program </> "relink" </> "handles-relinked-nonthreaded"
        there <- doesFileExist plain
        unless there (skip "the relinked programs are not built")
        (code, out) <- outcome program [] ["doctor", plain]
        code @?= ExitFailure 1
        mapM_ (contains out) ["[XX] run-time system", "linked without -threaded", "but without -threaded: GHC's own manager serves it"]
        assertBool out (not ("served by Weft" `isInfixOf` out))
        (_, threaded) <- outcome program [] ["doctor", program]
        assertBool threaded (not ("linked without" `isInfixOf` threaded)),
      testCase "a program's run-time options" $ do
        (_, out) <- outcome program [] ["doctor", program]
        mapM_ (contains out) ["run-time options     those that the program was linked with (-with-rtsopts) are not known", "allocation area      no -A is among the options"]
        -- The options are found as a string in a program with GHC's run-time system.
        let file = folder </> "with-options"
        B.writeFile file (B.pack "\DEL\&ELF GHCRTS\0-A64m -N512\0")
        (_, linked) <- outcome program [] ["doctor", file]
        -- It is presumably started in this environment.
        (_, given) <- outcome "env" [] ["GHCRTS=-A64m -N500", program, "doctor", file]
        mapM_ (contains given) ["; of GHCRTS: -A64m -N500", "[!]  capabilities         -N500 on "]
        mapM_ (contains linked) ["linked in: -A64m -N512", "65536 KiB a capability", "[!]  capabilities         -N512 on "],
      testCase "a folder is no program" $ do
        (code, out) <- outcome program [] ["doctor", folder]
        code @?= ExitFailure 2
        contains out "is a folder",
      testCase "a process or a program that does not exist" $
        forM_ [("4194305", "no process"), ("/none", "no such program: \"/none\""), ("", "no such program: \"\"")] $ \(subject, part) -> do
          (code, out) <- outcome program [] ["doctor", subject]
          code @?= ExitFailure 2
          contains out part,
      testCase "expiry of certificates" $ do
        openssl <- findExecutable "openssl"
        when (openssl == Nothing) (skip "there is no openssl")
        let file = folder </> "soon.pem"
        _ <- readProcess "openssl" (words "req -x509 -newkey rsa:2048 -nodes -days 5 -subj /CN=localhost -keyout" <> [folder </> "soon.key", "-out", file]) ""
        (code, out) <- outcome program [] ["doctor", "--certificate", file, "--certificate", folder </> "index.html"]
        code @?= ExitFailure 1
        mapM_ (contains out) ["[!]  certificate", "in 4 days", "[XX] certificate", "not a certificate"]
    ]

-- Load -------------------------------------------------------------------------------------

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

-- | Two commands stand for all of them, since the program flushes its output in one place.
outputTests :: FilePath -> TestTree
outputTests program =
  testGroup
    "output"
    [ testCase ("on a full disk, " <> name <> " fails") $ do
        (code, _, complaint) <- limited (readProcessWithExitCode "sh" ["-c", "exec \"$0\" \"$1\" > /dev/full", program, name] "")
        code @?= ExitFailure 1
        contains complaint "No space left on device"
      | name <- ["doctor", "man"]
    ]

urlTests :: FilePath -> FilePath -> TestTree
urlTests program folder =
  testGroup
    "bench url"
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
        (code, out) <- outcome program [] ["bench", "url", "http://127.0.0.1:1/", "--duration", "0.5", "--warmup", "0", "--connections", "1"]
        code @?= ExitFailure 1
        contains out "refused: ",
      testCase "Ctrl-C, SIGTERM or SIGHUP ends it, and the results until then are printed" . forM_ [sigINT, sigTERM, sigHUP] $ \signal -> serving program folder $ \_ port ->
        weft program [] ["bench", "url", "http://127.0.0.1:" <> show port <> "/", "--duration", "50", "--warmup", "0"] $ \p -> do
          -- It has had answers.
          untilAsked port
          send' signal p
          code <- waitForProcess (process p)
          out <- hGetContents (output p)
          code @?= ExitFailure 130
          mapM_ (contains out) ["answered", "latency, us"],
      testCase "a negative warm-up is a wrong argument" $ do
        (code, out) <- outcome program [] ["bench", "url", "http://127.0.0.1:1/", "--warmup=-1"]
        code @?= ExitFailure 2
        contains out "not a number from zero on: -1",
      testCase "an argument that is not a URL" $ do
        (code, out) <- outcome program [] ["bench", "url", "ftp://localhost/"]
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
            (code, out) <- outcome program [] ["top", "https://localhost:" <> show port, "--count", "1"]
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
    secure port more = ["bench", "url", "https://localhost:" <> show (port :: PortNumber) <> "/", "--warmup", "0"] <> more
    -- A low rate, so that any server answers all requests.
    steady port more = do
      (code, out) <- outcome program [] (secure port (["--rate", "200", "--duration", "1.5", "--connections", "4"] <> more))
      code @?= ExitSuccess
      out <$ contains out "none"
    url port more = ["bench", "url", "http://127.0.0.1:" <> show port <> "/", "--duration", "3", "--warmup", "0"] <> more

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
  weft program [] ["serve", folder, "--port", "0", "--metrics", "loopback", "--host", "localhost", "--certificate", chain, "--key", key] (\p -> portOf p >>= (`act` chain))

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
