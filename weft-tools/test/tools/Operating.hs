-- | @weft serve@ for its operator: configuration files, reloads, log rotation, metrics, and inherited sockets.
module Operating
  ( tests,

    -- * For other tests
    inFolder,
    config,
    has,
    warned,
    overUnix,
    until',
    selfSigned,
    homeOf,
    callSilently,
  )
where

import Control.Concurrent (threadDelay)
import Control.Concurrent.Async (withAsync)
import Control.Exception
import Control.Monad
import qualified Data.ByteString.Char8 as B
import Data.IORef
import Data.List (isInfixOf, isPrefixOf, isSuffixOf)
import Network.Socket
import Network.Socket.ByteString (recv, sendAll)
import System.Directory
import System.Exit (ExitCode (..))
import System.FilePath ((</>))
import System.IO
import System.Posix.Files (createNamedPipe, readSymbolicLink)
import System.Posix.IO (FdOption (CloseOnExec), setFdOption)
import System.Posix.Signals (sigHUP, sigTERM)
import System.Posix.Temp (mkdtemp)
import System.Posix.Types (Fd (..))
import System.Process
import System.Timeout (timeout)
import Test.Tasty
import Test.Tasty.HUnit hiding (testCase)
import Weft.Test.Program
import Weft.Test.Skip (needProgram, testCase)

tests :: FilePath -> TestTree
tests program =
  testGroup
    "operating"
    [ testCase "settings of a configuration file apply beside flags of the command line" . inFolder $ \folder -> do
        config folder ["port: 0", "listing: true", "cores: 1", "backend: poll", "header:", "  - 'X-One: 1'", "  - 'X-Two: b: c'"]
        run folder ["--backend", "epoll"] $ \p -> do
          line <- hGetLine (output p)
          assertBool line ("(1 core, epoll)" `isInfixOf` line)
          port <- portIn line
          page <- get port "/"
          status page @?= 200
          has "X-One: 1" page
          has "X-Two: b: c" page
          get port "/sub/" >>= (@?= 200) . status,
      testGroup
        "wrong configuration files"
        [ wrong "an unknown key" "prot" ["prot: 1"],
          wrong "an underscore in a key" "max-head?" ["max_head: 1000"],
          wrong "a value out of range" "port: expected a number from 0 to 65535" ["port: 99999"],
          wrong "a value of another type" "listing: expected one of true, false" ["listing: 3"],
          wrong "a key without a value" "port: it has no value" ["port:"],
          wrong "a list for a key with one value" "port: expected one value" ["port: [1, 2]"],
          wrong "a key twice" "port is given twice" ["port: 1", "port: 2"],
          wrong "a field without quotes" "quoted" ["header:", "  - X-One: 1"],
          wrong "a value that is not a header field" "header: expected 'Name: value'" ["header: nothing"],
          wrong "a header field that the server sets itself" "is set by the server" ["header: 'content-length: 3'"],
          wrong "not a mapping" "mapping" ["- port"],
          wrong "not YAML" "YAML" ["port: [1"],
          wrong "a certificate without a key" "--key" ["certificate: /etc/hostname"]
        ],
      testCase "a missing configuration file" $ do
        (code, out) <- outcome program [] ["serve", "--config", "/nonexistent.yaml"]
        code @?= ExitFailure 2
        assertBool out ("/nonexistent.yaml" `isInfixOf` out),
      testCase "no folder is given" $ do
        (code, out) <- outcome program [] ["serve"]
        code @?= ExitFailure 2
        assertBool out ("folder" `isInfixOf` out),
      testCase "every flag is in the help" $ do
        (_, out) <- outcome program [] ["serve", "--help"]
        forM_ flags $ \flag -> assertBool flag (("--" <> flag) `isInfixOf` out)
        assertBool "too wide" (all ((<= 80) . length) (lines out)),
      testCase "every flag is in the manual page, and groff reports no warning" $ do
        (code, page) <- outcome program [] ["man"]
        code @?= ExitSuccess
        forM_ flags $ \flag -> assertBool flag (("\\-\\-" <> concatMap (\c -> if c == '-' then "\\-" else [c]) flag) `isInfixOf` page)
        needProgram "groff"
        (shown, _, faults) <- readProcessWithExitCode "groff" ["-man", "-Tutf8", "-ww", "-z"] page
        (shown, faults) @?= (ExitSuccess, ""),
      testCase "completion offers every flag, the values of some flags, and files" $ do
        let offered ws = lines . snd <$> outcome program [] (["--bash-completion-index", show (length ws)] <> concatMap (\w -> ["--bash-completion-word", w]) ("weft" : ws))
        found <- offered ["serve", "--"]
        forM_ flags $ \flag -> assertBool flag (("--" <> flag) `elem` found)
        offered ["serve", "--metrics", ""] >>= (@?= ["nobody", "loopback", "proxied", "everybody"])
        offered ["serve", "--certificate", "../doc/weft.ya"] >>= (@?= ["../doc/weft.yaml"]),
      testCase "SIGHUP reads the configuration file again; a wrong file changes nothing" . inFolder $ \folder -> do
        config folder ["port: 0", "header: 'X-One: 1'"]
        run folder [] $ \p -> do
          port <- portOf p
          get port "/" >>= has "X-One: 1"
          get port "/sub/" >>= (@?= 404) . status
          config folder ["port: 1", "header: 'X-One: 2'", "listing: true"]
          send' sigHUP p
          hGetLine (output p) >>= (@?= "weft: reloaded")
          get port "/" >>= has "X-One: 2"
          get port "/sub/" >>= (@?= 200) . status
          config folder ["header: wrong"]
          send' sigHUP p
          warned p "restart is needed to change port"
          warned p "; the settings stay as they were"
          replicateM_ 3 (get port "/" >>= has "X-One: 2"),
      testCase "SIGHUP follows a symbolic link to a new version of the site, even if the old one was removed before" . inFolder $ \folder -> do
        forM_ ["one", "two"] $ \name -> createDirectory (folder </> name) >> B.writeFile (folder </> name </> "index.html") (B.pack name)
        createDirectoryLink "one" (folder </> "current")
        weft program [] ["serve", folder </> "current", "--port", "0", "--trust", "60"] $ \p -> do
          port <- portOf p
          get port "/" >>= answered 200 "one"
          createDirectoryLink "two" (folder </> "next") >> renameFile (folder </> "next") (folder </> "current")
          get port "/" >>= answered 200 "one"
          removeDirectoryRecursive (folder </> "one")
          send' sigHUP p
          hGetLine (output p) >>= (@?= "weft: reloaded")
          get port "/" >>= answered 200 "two",
      testCase "a folder that was replaced is noticed within --trust, by a symbolic link or by renaming, and one that is absent is waited for" . inFolder $ \folder -> do
        let version name = createDirectory (folder </> name) >> B.writeFile (folder </> name </> "index.html") (B.pack name)
            current = folder </> "current"
            becomes port text = until' ((== B.pack text) . body <$> get port "/")
        mapM_ version ["one", "two"]
        createDirectoryLink "one" current
        weft program [] ["serve", current, "--port", "0", "--trust", "0.05"] $ \p -> do
          port <- portOf p
          get port "/" >>= answered 200 "one"
          createDirectoryLink "two" (folder </> "next") >> renameFile (folder </> "next") current
          becomes port "two"
          hGetLine (output p) >>= (@?= "weft: " <> current <> " was replaced: serving the new folder")
          until' (not . any ("/one" `isSuffixOf`) <$> openPaths p)
          removeFile current
          replicateM_ 20 (threadDelay 10000 >> get port "/" >>= answered 200 "two")
          version "three" >> renameDirectory (folder </> "three") current
          becomes port "three"
          renameDirectory current (folder </> "old") >> version "current"
          becomes port "current"
          get port "/" >>= answered 200 "current",
      testCase "a folder that was replaced while nobody asked is noticed by the first request" . inFolder $ \folder -> do
        forM_ ["one", "two"] $ \name -> createDirectory (folder </> name) >> B.writeFile (folder </> name </> "index.html") (B.pack name)
        createDirectoryLink "one" (folder </> "current")
        config folder ["folder: /", "port: 0", "trust: 0.05", "hosts:", "  localhost: {folder: " <> show (folder </> "current") <> "}"]
        run folder [] $ \p -> do
          port <- portOf p
          get port "/" >>= answered 200 "one"
          createDirectoryLink "two" (folder </> "next") >> renameFile (folder </> "next") (folder </> "current")
          threadDelay 1000000
          get port "/" >>= answered 200 "two",
      testCase "SIGHUP: a folder that was replaced stays open while a client downloads from it, and is closed afterwards" . inFolder $ \folder -> do
        forM_ ["one", "two"] $ \name -> createDirectory (folder </> name) >> B.writeFile (folder </> name </> "index.html") (B.pack name)
        withFile (folder </> "one" </> "large") WriteMode (`hSetFileSize` 50000000)
        createDirectoryLink "one" (folder </> "current")
        weft program [] ["serve", folder </> "current", "--port", "0", "--trust", "60"] $ \p -> do
          port <- portOf p
          let holds name = any (("/" <> name) `isSuffixOf`) <$> openPaths p
          connected port $ \s -> do
            sendAll s (request "GET" "/large" "close")
            begun <- recv s 1000
            status begun @?= 200
            createDirectoryLink "two" (folder </> "next") >> renameFile (folder </> "next") (folder </> "current")
            send' sigHUP p
            hGetLine (output p) >>= (@?= "weft: reloaded")
            get port "/" >>= answered 200 "two"
            holds "one" >>= assertBool "it was closed"
            rest <- recvAll s
            B.length (body (begun <> rest)) @?= 50000000
          until' (not <$> holds "one")
          holds "two" >>= assertBool "the new one was closed",
      testGroup
        "a site is served where openat2(2)"
        [withoutOpenat2 "is not known to the kernel" "ENOSYS", withoutOpenat2 "is refused by a sandbox" "EPERM"],
      testCase "the log is rotated while requests run" . inFolder $ \folder -> do
        config folder ["port: 0", "log: " <> folder </> "access.log", "log-format: json"]
        asked <- newIORef (0 :: Int)
        run folder [] $ \p -> do
          port <- portOf p
          let ask = get port "/" >>= (@?= 200) . status >> modifyIORef' asked (+ 1)
          withAsync (forever ask) $ \_ -> forM_ [1 .. 5 :: Int] $ \i -> do
            before <- readIORef asked
            until' ((> before + 5) <$> readIORef asked)
            renameFile (folder </> "access.log") (folder </> ("access.log." <> show i))
            send' sigHUP p
            hGetLine (output p) >>= (@?= "weft: reloaded")
          send' sigTERM p
          waitForProcess (process p) >>= (@?= ExitSuccess)
        files <- filter ("access.log" `isPrefixOf`) <$> listDirectory folder
        entries <- concat <$> mapM (fmap B.lines . B.readFile . (folder </>)) files
        length files @?= 6
        forM_ entries $ \l -> assertBool (show l) (B.isPrefixOf (B.pack "{\"time\":\"") l && B.isSuffixOf (B.pack "}") l)
        n <- readIORef asked
        -- The last request may have been answered without the client receiving the response.
        assertBool (show (n, length entries)) (length entries `elem` [n, n + 1]),
      testCase "refused requests are logged and counted" . inFolder $ \folder -> do
        run folder ["--port", "0", "--metrics", "loopback", "--log", folder </> "log"] $ \p -> do
          port <- portOf p
          answer <- exchange port (B.pack "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n")
          status answer @?= 400
          page <- body <$> get port "/metrics"
          assertBool (B.unpack page) (B.isInfixOf (B.pack "http_refused_total{reason=\"bad_request\"} 1\n") page)
          send' sigTERM p
          waitForProcess (process p) >>= (@?= ExitSuccess)
        contents <- B.readFile (folder </> "log")
        assertBool (show contents) (B.isInfixOf (B.pack "\"bad_request\" 400 0") contents),
      testCase "HTTPS, and SIGHUP after the certificate was replaced" . inFolder $ \folder -> do
        let file name = folder </> name
            ask = homeOf folder "chain.pem" "localhost"
            make = selfSigned folder "localhost" "key.pem" "chain.pem"
        make
        config folder ["port: 0", "host: localhost", "certificate: " <> file "chain.pem", "key: " <> file "key.pem"]
        run folder [] $ \p -> do
          port <- portOf p
          ask port >>= (@?= "<p>home</p>")
          make
          send' sigHUP p
          hGetLine (output p) >>= (@?= "weft: reloaded")
          ask port >>= (@?= "<p>home</p>")
          writeFile (file "spoiled") "" >> renameFile (file "spoiled") (file "key.pem")
          send' sigHUP p
          warned p ("a certificate stays as it was: " <> file "key.pem")
          hGetLine (output p) >>= (@?= "weft: reloaded")
          ask port >>= (@?= "<p>home</p>"),
      testCase "SIGHUP: a certificate that cannot be read is named, and the others are replaced" . inFolder $ \folder -> do
        let make name = selfSigned folder (name <> ".test") (name <> ".key") (name <> ".pem")
            names = ["a", "b", "c"]
            files name = "{certificate: " <> folder </> name <> ".pem, key: " <> folder </> name <> ".key}"
        mapM_ make names
        config folder (["port: 0", "hosts:"] <> ["  " <> name <> ".test: " <> files name | name <- names])
        run folder [] $ \p -> do
          port <- portOf p
          mapM_ make names
          copyFile (folder </> "b.pem") (folder </> "b.new")
          writeFile (folder </> "b.pem") "junk"
          send' sigHUP p
          warned p ("a certificate stays as it was: " <> folder </> "b.pem holds no certificate in PEM")
          hGetLine (output p) >>= (@?= "weft: reloaded")
          forM_ ["a", "c"] $ \name -> homeOf folder (name <> ".pem") (name <> ".test") port >>= (@?= "<p>home</p>")
          renameFile (folder </> "b.new") (folder </> "b.pem")
          send' sigHUP p
          hGetLine (output p) >>= (@?= "weft: reloaded")
          homeOf folder "b.pem" "b.test" port >>= (@?= "<p>home</p>"),
      testCase "an error page that does not exist: a warning at the start and at a reload" . inFolder $ \folder -> do
        config folder ["port: 0", "error-page: [404=/none.html]"]
        run folder [] $ \p -> do
          warned p "error-page: the site has no file /none.html"
          _ <- portOf p
          config folder ["port: 0", "error-page: [404=/missing.html]"]
          send' sigHUP p
          warned p "error-page: the site has no file /missing.html"
          hGetLine (output p) >>= (@?= "weft: reloaded"),
      testCase "SIGHUP: a host comes with its certificate, and another one goes with its own" . inFolder $ \folder -> do
        let names = ["a", "b", "c"]
            hosts chosen = config folder (["port: 0", "hosts:"] <> ["  " <> name <> ".test: {certificate: " <> folder </> name <> ".pem, key: " <> folder </> name <> ".key}" | name <- chosen])
            served port name = homeOf folder (name <> ".pem") (name <> ".test") port
        forM_ names $ \name -> selfSigned folder (name <> ".test") (name <> ".key") (name <> ".pem")
        hosts ["a", "b"]
        run folder [] $ \p -> do
          port <- portOf p
          forM_ ["a", "b"] $ \name -> served port name >>= (@?= "<p>home</p>")
          hosts ["a", "c"]
          send' sigHUP p
          hGetLine (output p) >>= (@?= "weft: reloaded")
          forM_ ["a", "c"] $ \name -> served port name >>= (@?= "<p>home</p>")
          gone <- try (served port "b") :: IO (Either SomeException String)
          either (const (pure ())) (\page -> assertFailure ("served for b: " <> page)) gone
          -- HTTPS itself stays on.
          config folder ["port: 0"]
          send' sigHUP p
          warned p "a restart is needed to change certificate"
          hGetLine (output p) >>= (@?= "weft: reloaded")
          served port "a" >>= (@?= "<p>home</p>"),
      testCase "SIGHUP reports the settings that need a restart, until they are as they were, and no others" . inFolder $ \folder -> do
        selfSigned folder "*.test" "key.pem" "chain.pem"
        let certificate = "certificate: " <> folder </> "chain.pem, key: " <> folder </> "key.pem"
            whole = ["port: 0", "listing: true", "certificate: " <> folder </> "chain.pem", "key: " <> folder </> "key.pem", "hosts:"]
            before = whole <> ["  a.test: {" <> certificate <> "}"]
        config folder before
        run folder [] $ \p -> do
          _ <- portOf p
          let reloads content expected = do
                config folder content
                send' sigHUP p
                forM_ expected $ \names -> hGetLine (errors p) >>= (@?= "weft serve: a restart is needed to change " <> names)
                hGetLine (output p) >>= (@?= "weft: reloaded")
          -- A host that has its certificate from the whole file needs no restart. The next warning shows that there was
          -- none.
          reloads (before <> ["  b.test: {listing: false}"]) []
          reloads (whole <> ["  b.test: {" <> certificate <> "}"]) []
          reloads ("timeout: 5" : before) (Just "timeout")
          reloads ("timeout: 5" : before) (Just "timeout")
          reloads before []
          reloads ("cores: 1" : before) (Just "cores"),
      testCase "a log that cannot be written blocks neither a reload nor the shutdown" . inFolder $ \folder -> do
        createNamedPipe (folder </> "pipe") 0o600
        withFile (folder </> "pipe") ReadWriteMode $ \_ -> run folder ["--port", "0", "--log", folder </> "pipe"] $ \p -> do
          port <- portOf p
          connected port $ \s -> replicateM_ 20 $ do
            replicateM_ 25 (sendAll s (request "GET" ("/index.html?" <> replicate 200 'x') "keep-alive"))
            recvUntil s ((== 25) . count "<p>home</p>") >>= (@?= 25) . count "HTTP/1.1 200"
          send' sigHUP p
          hGetLine (output p) >>= (@?= "weft: reloaded")
          send' sigTERM p
          waitForProcess (process p) >>= (@?= ExitSuccess)
          -- In either order.
          said <- hGetContents (errors p)
          assertBool said (all (`isInfixOf` said) ["the log stays as it was", "lines lost: "]),
      testCase "a log that is a pipe without a reader is an error, at the start and of a reload" . inFolder $ \folder -> do
        let pipe = folder </> "pipe"
        createNamedPipe pipe 0o600
        run folder ["--port", "0", "--log", pipe] $ \p -> do
          code <- timeout 20000000 (waitForProcess (process p))
          code @?= Just (ExitFailure 1)
          warned p (pipe <> ": it is a named pipe that no program reads")
        run folder ["--port", "0", "--metrics", "loopback", "--log", folder </> "log"] $ \p -> do
          _ <- portOf p
          renameFile pipe (folder </> "log")
          send' sigHUP p
          warned p "the log stays as it was: "
          hGetLine (output p) >>= (@?= "weft: reloaded"),
      testCase "sockets from LISTEN_FDS are used" . inFolder $ \folder -> bracket listening close $ \listener -> do
        given <- socketPort listener
        handed listener "$$" [folder] $ \p -> do
          port <- portOf p
          port @?= given
          get port "/" >>= answered 200 "<p>home</p>",
      testCase "a listening socket that fails ends the server with status 1" . inFolder $ \folder -> bracket listening close $ \listener ->
        handed listener "$$" [folder] $ \p -> do
          _ <- portOf p
          -- Another process that has the socket.
          shutdown listener ShutdownBoth
          code <- timeout 20000000 (waitForProcess (process p))
          code @?= Just (ExitFailure 1),
      testCase "LISTEN_FDS is ignored if LISTEN_PID is another process" . inFolder $ \folder -> bracket listening close $ \listener -> do
        given <- socketPort listener
        handed listener "1" [folder, "--port", "0"] $ \p -> do
          port <- portOf p
          assertBool "the same port" (port /= given),
      testCase "a descriptor of LISTEN_FDS that does not listen is an error" . inFolder $ \folder -> do
        (code, _, err) <- limited (readCreateProcessWithExitCode (shell' "exec 3</dev/null; LISTEN_PID=$$ LISTEN_FDS=1 exec \"$@\"" [program, "serve", folder]) "")
        code @?= ExitFailure 1
        assertBool err ("descriptor 3 of LISTEN_FDS" `isInfixOf` err),
      testCase "NOTIFY_SOCKET gets READY, RELOADING and STOPPING" . inFolder $ \folder -> do
        let place = folder </> "notify"
        bracket (socket AF_UNIX Datagram defaultProtocol) close $ \s -> do
          bind s (SockAddrUnix place)
          weft program [("NOTIFY_SOCKET", place)] ["serve", folder, "--port", "0"] $ \p -> do
            recv s 4096 >>= (@?= B.pack "READY=1\n")
            send' sigHUP p
            reloading <- recv s 4096
            assertBool (show reloading) (B.isPrefixOf (B.pack "RELOADING=1\nMONOTONIC_USEC=") reloading)
            recv s 4096 >>= (@?= B.pack "READY=1\n")
            send' sigTERM p
            recv s 4096 >>= (@?= B.pack "STOPPING=1\n"),
      testGroup
        "the server shuts down although nobody reads its output"
        [ unread "its standard output" ["--log", "-"],
          -- Errors of the log and of requests are printed on standard error.
          unread "its standard output and standard error" ["--log", "/dev/full"]
        ],
      testCase "the example configuration in doc/ has no errors" $ do
        (code, out) <- outcome program [] ["serve", "/nonexistent", "--config", "../doc/weft.yaml"]
        code @?= ExitFailure 1
        assertBool out ("/nonexistent does not exist" `isInfixOf` out)
    ]
  where
    flags = words "config check version host port listen https-redirect proxy-protocol trusted-proxy no-http2 h2c certificate key client-ca client-ca-optional tls-min cores backend index listing clean-urls header type error-page fallback redirect proxy-half-closed compress compress-type cors-origin allow deny methods rate max-body basic-auth cache kept-files trust head-timeout timeout keep-alive keep-alive-requests connections connections-per-address max-target max-head max-fields send-buffer drain log log-format metrics metrics-listen watchdog no-healthz"
    run folder options = weft program [] (["serve", folder, "--config", folder </> "weft.yaml"] <> options)
    -- strace is the grandchild (-D), so that the program is the process that is killed. With threads for files, openat2
    -- is a system call that strace sees.
    withoutOpenat2 name code = testCase name . inFolder $ \folder -> do
      needTracing
      let site = folder </> "site"
      createDirectoryIfMissing True (site </> "sub")
      B.writeFile (site </> "index.html") (B.pack "home")
      B.writeFile (site </> "sub" </> "page.html") (B.pack "page")
      B.writeFile (folder </> "secret") (B.pack "secret")
      createFileLink "index.html" (site </> "inside.html")
      createFileLink "../secret" (site </> "outside.html")
      createDirectoryLink ".." (site </> "up")
      let tracing = ["-D", "-f", "-qq", "-o", folder </> "strace", "-e", "trace=openat2", "-e", "inject=openat2:error=" <> code]
      started [("WEFT_FILES", "threads")] (proc "strace" (tracing <> [program, "serve", site, "--port", "0"])) $ \p -> do
        port <- portOf p
        replicateM_ 2 $ do
          get port "/" >>= answered 200 "home"
          get port "/sub/page.html" >>= answered 200 "page"
        forM_ ["/nothing.html", "/inside.html", "/outside.html", "/up/secret", "/up/site/index.html", "/sub/../../secret", "/%2e%2e/secret"] $ \path -> do
          answer <- get port path
          assertBool (path <> ": " <> B.unpack answer) (status answer `elem` [400, 403, 404])
      traced <- B.readFile (folder </> "strace")
      assertBool "nothing was injected" (B.pack "INJECTED" `B.isInfixOf` traced)
    wrong name part content = testCase name . inFolder $ \folder -> do
      config folder content
      (code, out) <- outcome program [] ["serve", folder, "--config", folder </> "weft.yaml"]
      code @?= ExitFailure 2
      assertBool out ((folder </> "weft.yaml") `isInfixOf` out || "--key" `isInfixOf` out)
      assertBool out (part `isInfixOf` out)
    -- Both pipes are full when the server gets the signal: a pipe takes 64 KiB (pipe(7)), and the log of 1,500 requests
    -- is longer.
    unread name options = testCase name . inFolder $ \folder ->
      run folder (["--port", "0"] <> options) $ \p -> do
        port <- portOf p
        connected port $ \s -> replicateM_ 60 $ do
          replicateM_ 25 (sendAll s (request "GET" ("/index.html?" <> replicate 100 'x') "keep-alive"))
          answers <- recvUntil s ((== 25) . count "<p>home</p>")
          count "HTTP/1.1 200" answers @?= 25
        forM_ [1, 2 :: Int] (fill p)
        send' sigHUP p
        threadDelay 100000
        send' sigTERM p
        code <- timeout 60000000 (waitForProcess (process p))
        code @?= Just ExitSuccess
    -- Fill a pipe from the program's own end.
    fill p number = do
      pid <- getPid (process p)
      forM_ pid $ \n -> readProcessWithExitCode "dd" ["if=/dev/zero", "of=/proc/" <> show n <> "/fd/" <> show number, "bs=1", "oflag=nonblock"] ""
    -- The shell replaces itself by the program, which keeps the process number.
    handed listener pid options act = do
      fd <- withFdSocket listener pure
      setFdOption (Fd fd) CloseOnExec False
      let line = "exec 3<&" <> show fd <> "; LISTEN_PID=" <> pid <> " LISTEN_FDS=1 exec \"$@\""
      started [] (shell' line (program : "serve" : options)) act
    shell' line arguments = proc "bash" (["-c", line, "bash"] <> arguments)

-- | Send bytes to a Unix socket, and receive until the end.
overUnix :: FilePath -> B.ByteString -> IO B.ByteString
overUnix path bytes = bracket (socket AF_UNIX Stream defaultProtocol) close $ \s -> do
  connect s (SockAddrUnix path)
  sendAll s bytes
  shutdown s ShutdownSend
  recvAll s

has :: String -> B.ByteString -> Assertion
has field answer = assertBool (field <> " in " <> show (B.take 400 answer)) (B.isInfixOf (B.pack ("\r\n" <> field <> "\r\n")) answer)

-- | The paths of the open files of the program.
openPaths :: Running -> IO [FilePath]
openPaths p = do
  child <- getPid (process p)
  let fds = "/proc/" <> maybe "self" show child <> "/fd"
      path fd = readSymbolicLink (fds </> fd) `catch` \e -> const (pure "") (e :: IOException)
  listDirectory fds >>= mapM path

until' :: IO Bool -> IO ()
until' condition = condition >>= \holds -> unless holds (threadDelay 2000 >> until' condition)

listening :: IO Socket
listening = do
  s <- socket AF_INET Stream defaultProtocol
  bind s (SockAddrInet 0 (tupleToHostAddress (127, 0, 0, 1)))
  listen s 64
  pure s

-- | Make a certificate for a name, by itself, and its key: files in the folder.
selfSigned :: FilePath -> String -> FilePath -> FilePath -> IO ()
selfSigned folder name key chain =
  void $ callSilently "openssl" ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=test", "-addext", "subjectAltName=DNS:" <> name, "-keyout", folder </> key, "-out", folder </> chain]

-- | The home page of a host, by HTTPS, from a server that has the certificate in this file.
homeOf :: FilePath -> FilePath -> String -> PortNumber -> IO String
homeOf folder chain name port =
  callSilently "curl" ["-sS", "--noproxy", "*", "--max-time", "20", "--cacert", folder </> chain, "--resolve", name <> ":" <> show port <> ":127.0.0.1", "https://" <> name <> ":" <> show port <> "/"]

callSilently :: FilePath -> [String] -> IO String
callSilently command arguments = do
  needProgram command
  (code, out, err) <- readProcessWithExitCode command arguments ""
  assertEqual (unwords (command : arguments) <> err) ExitSuccess code
  pure out

-- | A folder with a page, an empty configuration file, and a folder without a page.
inFolder :: (FilePath -> IO a) -> IO a
inFolder = bracket make removePathForcibly
  where
    make = do
      temporary <- getTemporaryDirectory
      folder <- mkdtemp (temporary </> "weft-operating-")
      B.writeFile (folder </> "index.html") (B.pack "<p>home</p>")
      createDirectory (folder </> "sub")
      config folder []
      pure folder

-- | The next line on its standard error.
warned :: Running -> String -> Assertion
warned p part = hGetLine (errors p) >>= \l -> assertBool l (part `isInfixOf` l)

config :: FilePath -> [String] -> IO ()
config folder content = writeFile (folder </> "weft.yaml") (unlines content)
