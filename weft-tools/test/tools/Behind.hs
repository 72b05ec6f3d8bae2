-- | @weft serve@ behind proxies: whom it takes for the client, by X-Forwarded-For and the PROXY protocol, and for whom
-- requests count.
module Behind (tests) where

import Answering (getWith, serving)
import Control.Exception
import Control.Monad
import qualified Data.ByteString.Char8 as B
import Network.Socket
import Network.Socket.ByteString (recv, sendAll)
import Operating (config, inFolder, overUnix)
import System.Directory
import System.Exit (ExitCode (..))
import System.FilePath ((</>))
import System.IO (hGetLine)
import System.Posix.Signals (sigTERM)
import System.Process
import Test.Tasty
import Test.Tasty.HUnit hiding (testCase)
import Weft.Test.Program
import Weft.Test.Skip (testCase)

tests :: FilePath -> TestTree
tests program =
  testGroup
    "proxies"
    [ testCase "the log has the client from X-Forwarded-For of trusted proxies only, without addresses that the client added" . inFolder $ \folder -> do
        let chain = ["X-Forwarded-For: 198.51.100.1, 203.0.113.7", "X-Forwarded-For: 127.0.0.9"]
            rows =
              [ ("127.0.0.0/8", chain, "203.0.113.7 "),
                ("10.0.0.0/8", chain, "127.0.0.1 "),
                -- Tabs and empty members are parts of a list (RFC 9110, 5.6.1.2).
                ("127.0.0.0/8", ["X-Forwarded-For: 198.51.100.1,\t203.0.113.7\t"], "203.0.113.7 "),
                ("127.0.0.0/8", ["X-Forwarded-For: ,198.51.100.1, 203.0.113.7,\t, "], "203.0.113.7 "),
                ("127.0.0.0/8", ["X-Forwarded-For: 203.0.113.7,, 127.0.0.9", "X-Forwarded-For:"], "203.0.113.7 ")
              ]
        forM_ rows $ \(network, fields, expected) -> do
          let file = folder </> "log"
          weft program [] ["serve", folder, "--port", "0", "--trusted-proxy", network, "--log", file] $ \p -> do
            port <- portOf p
            _ <- getWith fields port "/"
            send' sigTERM p
            waitForProcess (process p) >>= (@?= ExitSuccess)
          contents <- B.readFile file
          assertBool (show contents) (B.isPrefixOf (B.pack expected) contents)
          removeFile file,
      testCase "--connections-per-address counts the clients behind a trusted proxy" . inFolder $ \folder -> do
        B.writeFile (folder </> "large") (B.replicate 20000000 'x')
        serving program folder ["--trusted-proxy", "127.0.0.1", "--connections-per-address", "2"] $ \port ->
          let asking rows = case rows of
                [] -> pure ()
                (address, expected) : others -> connected port $ \s -> do
                  sendAll s (B.pack ("GET /large HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: " <> address <> "\r\n\r\n"))
                  recv s 100 >>= (@?= expected) . status
                  asking others
           in do
                asking [("192.0.2.1", 200), ("192.0.2.1", 200), ("192.0.2.1", 429), ("192.0.2.2", 200)]
                -- A client of IPv6 is a network of 64 bits.
                asking [("2001:db8::1", 200), ("2001:db8::2", 200), ("2001:db8::3", 429), ("2001:db8:0:1::1", 200)],
      testGroup
        "--connections-per-address: requests whose client the proxy does not name count as the proxy's own"
        [ testCase name . inFolder $ \folder -> do
            B.writeFile (folder </> "large") (B.replicate 20000000 'x')
            serving program folder ["--trusted-proxy", "127.0.0.0/8", "--connections-per-address", "2"] $ \port ->
              holding port (map (("X-Forwarded-For: " <>) <$>) fields) >>= (@?= [200, 200, 429])
          | (name, fields) <-
              [ ("unknown", replicate 3 ["unknown"]),
                ("obfuscated identifiers (RFC 7239, 6.3)", [["_hidden"], ["_SEVKISEK"], ["_a:_b"]]),
                ("an address, and then unknown", replicate 3 ["192.0.2.9, unknown"]),
                ("an address in a field of its own, and then unknown", replicate 3 ["192.0.2.9", "unknown"]),
                ("other garbage each time", [["a"], ["192.0.2.9, ((192.0.2.1))"], ["[2001:db8::1]x"]]),
                ("numbers that are no port", [["192.0.2.1:x"], ["192.0.2.2:-1"], ["[2001:db8::1]:x"]]),
                ("an interface", [["fe80::1%eth0"], ["fe80::1%eth1"], ["fe80::1%eth2"]]),
                ("nothing", [[""], [","], []]),
                ("garbage before the proxy itself", [["a, 127.0.0.1"], ["b, 127.0.0.1"], ["c, 127.0.0.1"]])
              ]
        ],
      testCase "--connections-per-address: a client is known by its address in any spelling, with and without a port" . inFolder $ \folder -> do
        B.writeFile (folder </> "large") (B.replicate 20000000 'x')
        serving program folder ["--trusted-proxy", "127.0.0.0/8", "--connections-per-address", "2"] $ \port -> do
          holding port [["X-Forwarded-For: " <> a] | a <- ["192.0.2.1:4000", "::ffff:192.0.2.1", "192.0.2.1, 127.0.0.1", "192.0.2.2"]] >>= (@?= [200, 200, 429, 200])
          holding port [["X-Forwarded-For: " <> a] | a <- ["[2001:db8::1]:4000", "2001:DB8:0::2", "[2001:db8::3]", "[2001:db8:0:1::1]:80"]] >>= (@?= [200, 200, 429, 200]),
      testCase "--connections-per-address: what a proxy announces without a client (UNKNOWN, LOCAL) counts as its own" . inFolder $ \folder -> do
        B.writeFile (folder </> "large") (B.replicate 20000000 'x')
        let unknown = B.pack "PROXY UNKNOWN\r\n"
            local = B.pack "\r\n\r\n\0\r\nQUIT\n\x20\0\0\0"
        serving program folder ["--proxy-protocol", "required", "--trusted-proxy", "127.0.0.1", "--connections-per-address", "2"] $ \port ->
          holdingAfter port [(unknown, []), (local, []), (unknown, [])] >>= (@?= [200, 200, 429]),
      testCase "--connections-per-address: over a Unix socket too" . inFolder $ \folder -> do
        B.writeFile (folder </> "large") (B.replicate 20000000 'x')
        let path = folder </> "socket"
        weft program [] ["serve", folder, "--listen", "unix:" <> path, "--trusted-proxy", "unix", "--connections-per-address", "1"] $ \p -> do
          _ <- hGetLine (output p)
          bracket (socket AF_UNIX Stream defaultProtocol) close $ \s -> do
            connect s (SockAddrUnix path)
            sendAll s (B.pack "GET /large HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: unknown\r\n\r\n")
            recv s 100 >>= (@?= 200) . status
            overUnix path (request "GET" "/" "close") >>= (@?= 429) . status
            overUnix path (B.pack "GET / HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: 192.0.2.1\r\nConnection: close\r\n\r\n") >>= (@?= 200) . status,
      testCase "--proxy-protocol without --trusted-proxy is refused, also by --check" . inFolder $ \folder ->
        forM_ ["optional", "required"] $ \mode -> do
          let refused (code, out) = do
                code @?= ExitFailure 2
                contains out "--proxy-protocol needs --trusted-proxy"
          outcome program [] ["serve", folder, "--port", "0", "--proxy-protocol", mode] >>= refused
          config folder ["proxy-protocol: " <> mode]
          outcome program [] ["serve", folder, "--config", folder </> "weft.yaml", "--check"] >>= refused
          config folder ["proxy-protocol: " <> mode, "trusted-proxy: unix"]
          outcome program [] ["serve", folder, "--config", folder </> "weft.yaml", "--check"] >>= (@?= ExitSuccess) . fst,
      testCase "--proxy-protocol required: the client is logged; without the header, or from an untrusted sender, the request is refused" . inFolder $ \folder -> do
        let file = folder </> "log"
            page = "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
            version2 = "\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xcb\0\x71\x08\x7f\0\0\x01\x10\0\0\x50"
        weft program [] ["serve", folder, "--port", "0", "--proxy-protocol", "required", "--trusted-proxy", "127.0.0.1", "--log", file] $ \p -> do
          port <- portOf p
          exchange port (B.pack ("PROXY TCP4 203.0.113.7 127.0.0.1 4000 80\r\n" <> page)) >>= answered 200 "<p>home</p>"
          exchange port (B.pack (version2 <> page)) >>= answered 200 "<p>home</p>"
          exchange port (B.pack "PROXY TCP4 127.0.0.1 127.0.0.1 4000 80\r\nGET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n") >>= (@?= 404) . status
          dropped port (B.pack page)
          send' sigTERM p
          waitForProcess (process p) >>= (@?= ExitSuccess)
        contents <- B.readFile file
        forM_ ["203.0.113.7 ", "203.0.113.8 "] $ \client -> assertBool (show contents) (B.isInfixOf (B.pack client) contents)
        serving program folder ["--proxy-protocol", "optional", "--trusted-proxy", "10.0.0.1"] $ \port ->
          exchange port (B.pack ("PROXY TCP4 203.0.113.7 127.0.0.1 4000 80\r\n" <> page)) >>= (@?= 400) . status
        serving program folder ["--proxy-protocol", "required", "--trusted-proxy", "10.0.0.1"] $ \port ->
          dropped port (B.pack ("PROXY TCP4 203.0.113.7 127.0.0.1 4000 80\r\n" <> page))
    ]
  where
    -- The connection is closed without a response, or with a reset if bytes were unread.
    dropped port bytes = do
      answer <- try (exchange port bytes) :: IO (Either IOException B.ByteString)
      either (const (pure ())) (@?= B.empty) answer
    -- The statuses of requests that are in progress at the same time, each with these fields.
    holding port = holdingAfter port . map ((,) B.empty)
    holdingAfter port rows = case rows of
      [] -> pure []
      (before, fields) : others -> connected port $ \s -> do
        sendAll s (before <> B.pack ("GET /large HTTP/1.1\r\nHost: x\r\n" <> concatMap (<> "\r\n") fields <> "\r\n"))
        code <- status <$> recv s 100
        (code :) <$> holdingAfter port others
