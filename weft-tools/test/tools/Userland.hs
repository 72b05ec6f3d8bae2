-- | Commands on Weft's own TCP/IP stack: @weft serve --stack@ with curl and a browser as clients, @weft get@, @weft tcp
-- connections@ and @weft tcp replay@. Each test makes its own network namespace. Needs root and @\/dev\/net\/tun@.
module Userland (tests) where

import Control.Concurrent (forkIO, killThread, threadDelay)
import Control.Exception (IOException, bracket, catch, finally)
import Control.Monad
import qualified Data.ByteString.Char8 as B
import Data.List (isInfixOf, isPrefixOf, sort)
import Network.Socket (Family (AF_INET), PortNumber, SockAddr (SockAddrInet), Socket, SocketType (Stream), accept, bind, close, defaultProtocol, listen, socket, socketPort, tupleToHostAddress)
import Network.Socket.ByteString (recv, sendAll)
import Operating (callSilently)
import System.Directory
import System.Environment (getEnvironment)
import System.Exit (ExitCode (..))
import System.FilePath ((</>))
import System.Posix.Signals (sigINT, sigTERM)
import System.Posix.User (getEffectiveUserID)
import System.Process
import Test.Tasty
import Test.Tasty.HUnit hiding (testCase)
import Weft.Test.Program
import Weft.Test.Skip (needProgram, skipUnless, testCase)

tests :: FilePath -> FilePath -> TestTree
tests program folder =
  testGroup
    "userland TCP"
    [ testGroup "get" (fetching program folder),
      testCase "serve --stack: curl gets several files at once, byte for byte" $ do
        out <- inNamespace program folder [] "serve; for i in 1 2 3 4; do curl -s -m 100 http://10.9.0.2/large -o $T/$i & J=\"$J $!\"; done; wait $J; for i in 1 2 3 4; do cmp $T/$i $SITE/large && echo same; done"
        length (filter (== "same") (lines out)) @?= 4,
      testCase "serve --stack: a browser shows a page with its resources" $ do
        needProgram "chromium"
        createDirectoryIfMissing True (folder </> "browsed")
        B.writeFile (folder </> "browsed" </> "index.html") (B.pack "<html><link rel=stylesheet href=a.css><body><p id=p>not yet</p><script src=a.js></script></body></html>")
        B.writeFile (folder </> "browsed" </> "a.css") (B.pack "p { color: rgb(1, 2, 3) }")
        B.writeFile (folder </> "browsed" </> "a.js") (B.pack "p.textContent = 'styled ' + getComputedStyle(p).color")
        out <- inNamespace program folder [] "serve; timeout 150 chromium --headless --no-sandbox --disable-gpu --user-data-dir=$T/profile --dump-dom http://10.9.0.2/browsed/ 2>/dev/null"
        contains out "styled rgb(1, 2, 3)",
      testCase "tcp connections prints a table, and /metrics has metrics of the stack" $ do
        out <- inNamespace program folder [] "serve --metrics everybody; curl -s --limit-rate 50K -o $T/slow http://10.9.0.2/large & until_size 60000 $T/slow; $W tcp connections http://10.9.0.2 --rows 5; curl -s http://10.9.0.2/metrics | grep ^weft_tcp; kill %curl 2>/dev/null || true"
        contains out "ESTABLISHED"
        mapM_ (contains out) ["state", "rtt ms", "cwnd", "10.9.0.2:80", "10.9.0.1:", "weft_tcp_accepted_total 4"]
        -- The download and the request for the metrics. The command's own connection is in TIME-WAIT if the server
        -- closed it first, and gone otherwise.
        assertBool out (any (`elem` lines out) ["weft_tcp_connections 2", "weft_tcp_connections 3"])
        -- The first row is the connection with most bytes, which is the download.
        case [words l | l <- lines out, "ESTABLISHED" `isPrefixOf` l] of
          row : _ | [(sent, "")] <- reads (last (init row)) -> assertBool out (sent > (50000 :: Int))
          _ -> assertFailure out,
      testCase "the page of connections is for clients that may read /metrics, and does not exist without a stack" $ do
        out <- inNamespace program folder [] "serve; $W tcp connections http://10.9.0.2 || echo status $?"
        mapM_ (contains out) ["status 404", "status 1"]
        kernels <- weft program [] ["serve", folder, "--port", "0", "--metrics", "loopback"] (portOf >=> \port -> outcome program [] ["tcp", "connections", "http://127.0.0.1:" <> show port])
        fst kernels @?= ExitFailure 1,
      testGroup "replay" (replaying program folder),
      testCase "doctor" $ do
        out <- inNamespace program folder [] "$W tcp doctor"
        lines out
          @?= concat [["a TUN device " <> how <> ": works", "1 MB through it, from the kernel to us and back, " <> how <> ": works"] | how <- ["without offload", "with segmentation offload"]]
            <> ["everything works"],
      testCase "serve --stack: 400 connections with 256 descriptors" $ do
        out <- inNamespace program folder ["python3"] ("PROGRAM=$W; limited() { ulimit -n 256; exec $PROGRAM \"$@\"; }; W=limited; serve --connections 1000; python3 -c '" <> many)
        lines out @?= ["400 answers"],
      testCase "serve --stack --send-buffer bounds what a client that does not read holds" $ do
        out <- inNamespace program folder [] "serve --send-buffer 50000 --metrics everybody --drain 0; exec 3<>/dev/tcp/10.9.0.2/80; printf 'GET /large HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n' >&3; until $W tcp connections http://10.9.0.2 --rows 1 | tee $T/table | awk '/^ESTABLISHED/ && $6 + $7 >= 50000 {full = 1} END {exit !full}'; do sleep 0.1; done; cat $T/table"
        -- What is in flight, and what is not sent yet.
        [sum (map read (take 2 (drop 5 (words l)))) | l <- lines out, "ESTABLISHED" `isPrefixOf` l] @?= [50000 :: Int],
      testCase "serve --stack ends with the error when its device is deleted" $ do
        out <- inNamespace program folder [] "serve; P=$!; ip link del weft0; timeout 30 tail --pid=$P -f /dev/null || kill -9 $P; wait $P || echo status $?"
        mapM_ (contains out) ["status 1", "weft: the listening socket failed: Network is down"],
      testCase "serve --stack warns if no packet can reach the stack" $ do
        out <- inNamespace program folder [] "for s in weft1,10.9.0.2 weft0,10.9.0.1 weft0,10.9.0.2; do echo $s; timeout 2 $W serve $SITE --stack tun:$s --port 80 2>&1 | grep warning || true; done"
        lines out
          @?= [ "weft1,10.9.0.2",
                "weft: warning: the interface weft1 is down, so no packet reaches the stack: ip link set weft1 up",
                "weft0,10.9.0.1",
                "weft: warning: the kernel has the address 10.9.0.1 itself, so no packet for it reaches the stack; choose another one of the interface's network",
                "weft0,10.9.0.2"
              ],
      testGroup
        "serve --stack: wrong arguments"
        [ testCase name $ do
            (code, out) <- outcome program [] (["serve", folder, "--port", "0", "--stack"] <> arguments)
            code @?= ExitFailure 2
            contains out part
          | (name, arguments, part) <-
              [("the address " <> a, ["tun:weft0," <> a], "expected the address of a host, not " <> a) | a <- ["0.0.0.0", "127.0.0.1", "224.0.0.1", "255.255.255.255", "::", "::1", "ff02::1"]]
                <> [ ("an address that is none", ["tun:weft0,10.9.0.256"], "expected tun:NAME,ADDRESS"),
                     ("a TAP device", ["tap:weft0,10.9.0.2"], "expected tun:NAME,ADDRESS"),
                     ("a name of 16 characters", ["tun:abcdefghijklmnop,10.9.0.2"], "at most 15 characters"),
                     ("--listen", ["tun:weft0,10.9.0.2", "--listen", ":80"], "--listen cannot be given as well"),
                     ("--host", ["tun:weft0,10.9.0.2", "--host", "10.9.0.1"], "--host cannot be given as well"),
                     ("--https-redirect", ["tun:weft0,10.9.0.2", "--https-redirect", ":80", "--certificate", "c", "--key", "k"], "--https-redirect listens on the kernel's network")
                   ]
        ]
    ]
  where
    many = "import socket; s = [socket.create_connection((\"10.9.0.2\", 80)) for _ in range(400)]; [c.sendall(b\"GET /inner/a.txt HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n\") for c in s]; print(sum(b\"a text\" in c.recv(4096) for c in s), \"answers\")'"

fetching :: FilePath -> FilePath -> [TestTree]
fetching program folder =
  [ testCase "a file from a server on the kernel's stack, byte for byte" $ do
      out <- inNamespace program folder ["python3"] "pages; $W get --stack tun:weft0,10.9.0.2 http://10.9.0.1:8000/large -o $T/got; cmp $T/got $SITE/large && echo same; $W get --stack tun:weft0,10.9.0.2 http://10.9.0.1:8000/inner/a.txt; ls $T"
      mapM_ (contains out) ["same", "a text"]
      assertBool out (not (".part" `isInfixOf` out)),
    testCase "no reset is sent or received" $ do
      out <-
        inNamespace program folder ["python3"] . concat $
          [ "resets() { awk '/^Tcp: [0-9]/ {print $9 + $15 + $16}' /proc/net/snmp; }; pages; B=$(resets);",
            "for i in 1 2 3 4 5 6 7 8; do $W get --stack tun:weft0,10.9.0.2 --capture $T/$i.pcap http://10.9.0.1:8000/inner/a.txt; echo; done;",
            "echo after: $(($(resets) - B)); for i in 1 2 3 4 5 6 7 8; do $W tcp replay --side 10.9.0.2 $T/$i.pcap; done"
          ]
      length (filter (== "a text") (lines out)) @?= 8
      contains out "after: 0"
      -- Flags are the third word of a packet's line.
      [l | l <- lines out, [_, way, found] <- [take 3 (words l)], way `elem` ["<", ">"], 'R' `elem` found] @?= [],
    testCase "get over IPv6" $ do
      doesPathExist "/proc/net/if_inet6" >>= skipUnless "no IPv6"
      out <- inNamespace program folder ["python3"] "ip -6 addr add fd09::1/64 dev weft0 nodad; pages6; $W get --stack tun:weft0,fd09::2 'http://[fd09::1]:8000/inner/a.txt'"
      contains out "a text",
    testCase "get without --stack" . weft program [] ["serve", folder, "--port", "0"] $ \p -> do
      port <- portOf p
      result <- outcome program [] ["get", "http://localhost:" <> show port <> "/inner/a.txt"]
      result @?= (ExitSuccess, "a text"),
    testCase "status 404 gives exit status 3, and the body is written" . weft program [] ["serve", folder, "--port", "0"] $ \p -> do
      port <- portOf p
      (code, out) <- outcome program [] ["get", "http://127.0.0.1:" <> show port <> "/nothing"]
      assertEqual out (ExitFailure 3) code
      contains out "status is 404",
    testCase "blanks after a length are ignored" . withAnswer "HTTP/1.1 200 OK\r\nContent-Length: 5 \t\r\n\r\nhello" $ \port ->
      outcome program [] ["get", "http://127.0.0.1:" <> show port <> "/"] >>= (@?= (ExitSuccess, "hello")),
    testCase "a chunk's size of 2^64 bytes is not taken for zero" . withAnswer "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n10000000000000000\r\n\r\n" $ \port -> do
      (code, out) <- outcome program [] ["get", "http://127.0.0.1:" <> show port <> "/"]
      assertEqual out (ExitFailure 1) code,
    testCase "--output leaves other files alone, whatever their names are" . withAnswer "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello" $ \port -> do
      let own = folder </> "got"
      createDirectoryIfMissing True own
      B.writeFile (own </> "page.part") (B.pack "mine")
      outcome program [] ["get", "http://127.0.0.1:" <> show port <> "/", "-o", own </> "page"] >>= (@?= (ExitSuccess, ""))
      mapM (B.readFile . (own </>)) ["page", "page.part"] >>= (@?= map B.pack ["hello", "mine"])
      listDirectory own >>= (@?= ["page", "page.part"]) . sort,
    testCase "--output: SIGTERM and SIGINT leave no temporary file" . forM_ [sigTERM, sigINT] $ \signal -> withStalled $ \port -> do
      let own = folder </> "ended"
      createDirectoryIfMissing True own
      weft program [] ["get", "http://127.0.0.1:" <> show port <> "/", "-o", own </> "page"] $ \p -> do
        let begun = listDirectory own >>= \names -> when (null names) (threadDelay 10000 >> begun)
        begun
        send' signal p
        code <- waitForProcess (process p)
        code @?= ExitFailure (negate (fromIntegral signal))
      listDirectory own >>= (@?= []),
    testCase "--timeout limits the TLS handshake with a server that never answers" . withListener $ \listening -> do
      port <- socketPort listening
      (code, out) <- outcome program [] ["get", "--timeout", "1", "https://127.0.0.1:" <> show port <> "/"]
      (code, out) @?= (ExitFailure 1, "weft get: no complete response within 1.0 s\n"),
    testCase "--insecure is named if a certificate is not accepted, and not if the server does not speak TLS" $ do
      let file name = folder </> name
      _ <- callSilently "openssl" ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", "/CN=localhost", "-keyout", file "get-key.pem", "-out", file "get.pem"]
      weft program [] ["serve", folder, "--port", "0", "--metrics", "loopback", "--certificate", file "get.pem", "--key", file "get-key.pem"] $ \p -> do
        port <- portOf p
        (code, out) <- outcome program [] ["get", "https://localhost:" <> show port <> "/"]
        code @?= ExitFailure 1
        mapM_ (contains out) ["no TLS with localhost", "--insecure"]
        outcome program [] ["get", "--insecure", "https://localhost:" <> show port <> "/inner/a.txt"] >>= (@?= (ExitSuccess, "a text"))
      withAnswer "HTTP/1.1 400 Bad Request\r\n\r\n" $ \port -> do
        (code, out) <- outcome program [] ["get", "https://localhost:" <> show port <> "/"]
        code @?= ExitFailure 1
        contains out "no TLS with localhost"
        assertBool out (not ("--insecure" `isInfixOf` out)),
    testCase "--ca trusts the authorities of a file, for a name and an address; of weft top too" $ do
      let file name = folder </> name
          names = "subjectAltName=DNS:localhost,IP:127.0.0.1"
      _ <- callSilently "openssl" ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext", names, "-keyout", file "ca-key.pem", "-out", file "ca.pem"]
      weft program [] ["serve", folder, "--port", "0", "--metrics", "loopback", "--certificate", file "ca.pem", "--key", file "ca-key.pem"] $ \p -> do
        port <- portOf p
        forM_ ["localhost", "127.0.0.1"] $ \host -> do
          let url = "https://" <> host <> ":" <> show port
              top options = outcome program [] (["top", url, "--interval", "0.1", "--count", "1"] <> options)
          outcome program [] ["get", "--ca", file "ca.pem", url <> "/inner/a.txt"] >>= (@?= (ExitSuccess, "a text"))
          forM_ [["--ca", file "ca.pem"], ["--insecure"]] $ \options -> do
            (code, out) <- top options
            code @?= ExitSuccess
            contains out "resident"
          forM_ [["get", url], ["top", url, "--count", "1"]] $ \arguments -> do
            (code, out) <- outcome program [] arguments
            code @?= ExitFailure 1
            contains out "--ca FILE"
        forM_ [("get", 1), ("top", 2)] $ \(command, status') -> do
          (code, out) <- outcome program [] [command, "https://localhost:" <> show port, "--ca", file "none.pem"]
          code @?= ExitFailure status'
          contains out "none.pem: No such file or directory",
    testCase "the device is deleted during a download" $ do
      out <-
        inNamespace program folder ["python3"] . concat $
          [ "python3 -c 'import socket, time; l = socket.create_server((\"10.9.0.1\", 8001)); c = l.accept()[0]; c.recv(4096); c.sendall(b\"HTTP/1.1 200 OK\\r\\nContent-Length: 100\\r\\n\\r\\nhello\"); time.sleep(100)' &",
            "until grep -q :1F41 /proc/net/tcp; do sleep 0.1; done; (until ls $T/got*.part >/dev/null 2>&1; do sleep 0.1; done; ip link del weft0) &",
            "$W get --stack tun:weft0,10.9.0.2 http://10.9.0.1:8001/ -o $T/got || echo status $?"
          ]
      mapM_ (contains out) ["status 1", "weft get: Network is down"],
    testCase "error messages" $ do
      out <-
        inNamespace program folder [] . concat $
          [ "S='--stack tun:weft0,10.9.0.2'; $W get $S http://10.9.0.1:8001/ || echo status $?;",
            "$W get $S --timeout 1 http://10.9.0.77/ || echo status $?;",
            "$W get $S 'http://[::1]/' || echo status $?;",
            "$W get --stack tun:lo,10.9.0.2 http://10.9.0.1/ || echo status $?;",
            "$W get http://127.0.0.1:1/ -o $T/none || echo status $?; ls $T;"
          ]
      mapM_ (contains out) ["cannot connect to 10.9.0.1 port 8001: 10.9.0.1:8001 Connection refused", "within 1.0 s", "no address of the IP version that the stack has", "the TUN device lo cannot be used", "cannot connect to 127.0.0.1 port 1"]
      length (filter (== "status 1") (lines out)) @?= 5
      assertBool out (not ("none" `isInfixOf` out)),
    testGroup
      "arguments"
      [ testCase name $ do
          (code, out) <- outcome program [] ("get" : arguments)
          code @?= ExitFailure 2
          contains out part
        | (name, arguments, part) <-
            [ ("a URL that is not HTTP", ["ftp://localhost/"], "not a URL"),
              ("a space in a URL", ["http://localhost/a b"], "printable ASCII"),
              ("a device that cannot be read", ["--stack", "eth0", "http://localhost/"], "tun:NAME,ADDRESS"),
              ("--capture without --stack", ["--capture", "x.pcap", "http://127.0.0.1:1/"], "--capture needs --stack")
            ]
      ]
  ]

-- | A server that sends the same bytes to its first client, whatever that sends.
withAnswer :: String -> (PortNumber -> IO a) -> IO a
withAnswer answer act = withListener $ \listening -> do
  let serve = accept listening >>= \(s, _) -> (recv s 4096 >> sendAll s (B.pack answer)) `finally` close s
  bracket (forkIO serve) killThread (const (socketPort listening >>= act))

-- | A server that sends the beginning of a body to its first client, and nothing more.
withStalled :: (PortNumber -> IO a) -> IO a
withStalled act = withListener $ \listening -> do
  let serve = accept listening >>= \(s, _) -> (recv s 4096 >> sendAll s (B.pack "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhello") >> hearEnd s) `finally` close s
      -- The client is killed before it has read everything.
      hearEnd s = void (recv s 4096) `catch` \e -> const (pure ()) (e :: IOException)
  bracket (forkIO serve) killThread (const (socketPort listening >>= act))

-- | A socket that listens, and of which nobody accepts connections unless the action does.
withListener :: (Socket -> IO a) -> IO a
withListener act = bracket (socket AF_INET Stream defaultProtocol) close $ \listening -> do
  bind listening (SockAddrInet 0 (tupleToHostAddress (127, 0, 0, 1)))
  listen listening 8
  act listening

replaying :: FilePath -> FilePath -> [TestTree]
replaying program folder =
  [ testCase "replay of a log that weft get --capture wrote" $ do
      out <- inNamespace program folder ["python3"] "pages; $W get --stack tun:weft0,10.9.0.2 --capture $T/a.pcap http://10.9.0.1:8000/large -o $T/got; $W tcp replay $T/a.pcap --side 10.9.0.2; $W tcp replay $T/a.pcap --side 10.9.0.1 --summary"
      mapM_ (contains out) ["SYN-SENT", "ESTABLISHED", "core: S", "received=" <> show (6000000 + headSize out), "sent before the core would have: 0"]
      assertBool out (not ("BROKEN" `isInfixOf` out)),
    testCase "replay of a log that is cut off, and of sides and connections that are not in it" $ do
      out <-
        inNamespace program folder ["python3"] . concat $
          [ "pages; $W get --stack tun:weft0,10.9.0.2 --capture $T/a.pcap http://10.9.0.1:8000/inner/a.txt; echo;",
            "head -c -5 $T/a.pcap > $T/cut.pcap; $W tcp replay $T/cut.pcap --summary >/dev/null;",
            "$W tcp replay $T/a.pcap --side 10.9.0.3 || echo status $?; $W tcp replay $T/a.pcap --connection 2 || echo status $?"
          ]
      mapM_ (contains out) ["cut.pcap ends within a packet", "10.9.0.3 is not in", "a.pcap has 1 connection"]
      length (filter (== "status 1") (lines out)) @?= 2,
    testCase "replay of a log of the kernel's TCP, written by tshark" $ do
      needProgram "tshark"
      out <-
        inNamespace program folder ["python3"] . concat $
          [ -- A datagram that is in the file shows that what comes next will be, and that what came before is.
            "pages; timeout 150 tshark -B 64 -i lo -F pcap -w $T/k.pcap >/dev/null 2>$T/said & S=$!; logged() { until grep -aqs $1 $T/k.pcap; do echo $1 >/dev/udp/10.9.0.1/9 || true; sleep 0.2; done; };",
            "logged weft-before; curl -s http://10.9.0.1:8000/large -o $T/got; cmp $T/got $SITE/large; logged weft-after; kill -INT $S; wait $S || true;",
            "$W tcp replay $T/k.pcap --summary; $W tcp replay $T/k.pcap | tail -40; head -c 40 $T/k.pcap > $T/short; $W tcp replay $T/short || echo status $?; $W tcp replay $SITE/large || echo status $?"
          ]
      contains out ("sent=" <> show (6000000 + headSize out))
      assertBool out (not ("BROKEN" `isInfixOf` out))
      mapM_ (contains out) ["has no TCP segments", "is no pcap file"]
      length (filter (== "status 1") (lines out)) @?= 2
  ]
  where
    -- The size of the response's head: a count of bytes in the output that is a little more than the file's, less the
    -- file's.
    headSize out = case [n - 6000000 | w <- words out, Just rest <- [afterEqual w], [(n, "")] <- [reads rest], n >= 6000000, n < (6001000 :: Int)] of
      n : _ -> n
      [] -> -1
    afterEqual w = case break (== '=') w of
      (_, '=' : rest) -> Just rest
      _ -> Nothing

-- | Run a script in a network namespace with a TUN device, @weft0@, whose address on the kernel's side is 10.9.0.1. The
-- script has the variables @W@ (the program), @SITE@ (the folder) and @T@ (an empty folder), and the functions @serve@,
-- which starts @weft serve@ on a stack at 10.9.0.2, and @pages@, which starts python's server at 10.9.0.1. Returns the
-- output on both streams. Fails if the script fails.
inNamespace :: FilePath -> FilePath -> [String] -> String -> IO String
inNamespace program folder needs script = do
  uid <- getEffectiveUserID
  tun <- doesPathExist "/dev/net/tun"
  skipUnless "not root" (uid == 0)
  skipUnless "no /dev/net/tun" tun
  mapM_ needProgram (["unshare", "ip", "curl", "timeout", "bash"] <> needs)
  -- In a container, root may lack the right to one of them.
  (allowed, _, why) <- readProcessWithExitCode "unshare" ["-n", "--", "ip", "tuntap", "add", "dev", "weft0", "mode", "tun"] ""
  skipUnless ("no network namespace with a TUN device: " <> takeWhile (/= '\n') why) (allowed == ExitSuccess)
  inherited <- getEnvironment
  (code, out, err) <- readCreateProcessWithExitCode (proc "timeout" ["200", "unshare", "-n", "--", "bash", "-e", "-c", prelude <> script]) {env = Just ([("W", program), ("SITE", folder)] <> inherited)} ""
  when (code /= ExitSuccess) $ assertFailure (show code <> ":\n" <> out <> err)
  pure (out <> err)
  where
    prelude =
      unlines
        [ "T=$(mktemp -d)",
          "trap 'kill $(jobs -p) 2>/dev/null || true; wait; rm -rf $T' EXIT",
          "ip link set lo up; ip tuntap add dev weft0 mode tun; ip addr add 10.9.0.1/24 dev weft0; ip link set weft0 up",
          "until_open() { for i in $(seq 600); do curl -s -o /dev/null $1 && return 0; sleep 0.1; done; echo \"nobody serves $1\" >&2; return 1; }",
          "until_size() { for i in $(seq 600); do if [ \"$(stat -c %s $2 2>/dev/null || echo 0)\" -ge $1 ]; then return 0; fi; sleep 0.1; done; echo \"$2 does not get $1 bytes\" >&2; return 1; }",
          "serve() { $W serve $SITE --stack tun:weft0,10.9.0.2 --port 80 \"$@\" >/dev/null & until_open http://10.9.0.2/inner/a.txt; }",
          "pages() { (cd $SITE && exec python3 -m http.server 8000 --bind 10.9.0.1 >/dev/null 2>&1) & until_open http://10.9.0.1:8000/; }",
          "pages6() { (cd $SITE && exec python3 -m http.server 8000 --bind fd09::1 >/dev/null 2>&1) & until_open 'http://[fd09::1]:8000/'; }"
        ]
