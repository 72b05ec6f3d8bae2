-- | @weft serve@: its pages of metrics and health, and who may read them.
module Measuring (tests) where

import Answering (getWith, serving)
import Control.Monad
import qualified Data.ByteString.Char8 as B
import Data.List (isPrefixOf, stripPrefix)
import Network.Socket (PortNumber)
import Operating (inFolder, overUnix, until')
import System.Directory (doesPathExist)
import System.Exit (ExitCode (..))
import System.FilePath ((</>))
import System.IO (hGetLine)
import System.Posix.Signals (sigTERM)
import System.Process (waitForProcess)
import Test.Tasty
import Test.Tasty.HUnit hiding (testCase)
import Weft.Test.Program
import Weft.Test.Skip (testCase)

tests :: FilePath -> TestTree
tests program =
  testGroup
    "measuring"
    [ testCase "/metrics and /healthz" . inFolder $ \folder -> run folder ["--port", "0", "--metrics", "loopback"] $ \p -> do
        port <- portOf p
        replicateM_ 3 (get port "/")
        -- A connection counts until the server has closed it.
        until' (B.isInfixOf (B.pack "http_connections 1\n") . body <$> get port "/metrics")
        page <- body <$> get port "/metrics"
        forM_ ["http_requests_total{method=\"GET\",status=\"2xx\"} 3\n", "# TYPE http_request_duration_seconds histogram\n", "static_cache_misses_total 1\n", "process_open_fds "] $ \part ->
          assertBool (part <> " in " <> B.unpack page) (B.isInfixOf (B.pack part) page)
        get port "/healthz" >>= answered 200 "ok\n",
      testCase "nobody reads /metrics unless it is asked for; --no-healthz" . inFolder $ \folder -> do
        let path = folder </> "socket"
        run folder ["--listen", "unix:" <> path, "--listen", "127.0.0.1:0", "--no-healthz"] $ \p -> do
          port <- portOf p
          forM_ ["/metrics", "/healthz"] $ \page -> do
            get port page >>= (@?= 404) . status
            overUnix path (request "GET" page "close") >>= (@?= 404) . status,
      testCase "--metrics loopback: not over a Unix socket, as proxies connect to one" . inFolder $ \folder -> do
        let path = folder </> "socket"
        forM_ [("loopback", 404), ("proxied", 200)] $ \(who, code) -> run folder ["--listen", "unix:" <> path, "--metrics", who] $ \p -> do
          _ <- hGetLine (output p)
          overUnix path (request "GET" "/metrics" "close") >>= (@?= code) . status,
      testCase "--metrics-listen: the pages of metrics and health only, and there alone" . inFolder $ \folder -> do
        let path = folder </> "socket"
        run folder ["--port", "0", "--no-healthz", "--metrics-listen", "127.0.0.1:0", "--metrics-listen", "unix:" <> path] $ \p -> do
          port <- portOf p
          line <- hGetLine (output p)
          contains line ("/metrics, unix:" <> path)
          own <- maybe (assertFailure line) pure (portBefore "/metrics" line)
          replicateM_ 3 (get port "/" >>= answered 200 "<p>home</p>")
          forM_ [get own, \page -> overUnix path (request "GET" page "close")] $ \ask -> do
            page <- body <$> ask "/metrics"
            assertBool (B.unpack page) (B.isInfixOf (B.pack "http_requests_total{method=\"GET\",status=\"2xx\"} 3\n") page)
            ask "/healthz" >>= answered 200 "ok\n"
            forM_ ["/", "/index.html", "/metrics/"] $ \other -> ask other >>= (@?= 404) . status
          get port "/metrics" >>= (@?= 404) . status
          (_, out) <- outcome program [] ["top", "unix:" <> path, "--count", "1"]
          contains out "requests "
          send' sigTERM p
          waitForProcess (process p) >>= (@?= ExitSuccess)
        doesPathExist path >>= (@?= False),
      testCase "--metrics-listen: 200 clients that say nothing hold few descriptors, and the page is served" . inFolder $ \folder ->
        run folder ["--port", "0", "--metrics-listen", "127.0.0.1:0"] $ \p -> do
          port <- portOf p
          line <- hGetLine (output p)
          own <- maybe (assertFailure line) pure (portBefore "/metrics" line)
          let descriptors = figure "process_open_fds " . body <$> get own "/metrics"
              silent n act = if n <= (0 :: Int) then act else connected own (const (silent (n - 1) act))
          before <- descriptors
          silent 200 $ do
            -- Those that make room end first.
            until' ((< before + 100) <$> descriptors)
            replicateM_ 20 (get own "/metrics" >>= (@?= 200) . status)
            get port "/" >>= answered 200 "<p>home</p>",
      testCase "--metrics-listen with an address of the site is refused" . inFolder $ \folder -> do
        (code, out) <- outcome program [] ["serve", folder, "--listen", ":81", "--metrics-listen", "127.0.0.1:81", "--check"]
        code @?= ExitFailure 2
        contains out "--metrics-listen has an address of --listen",
      testCase "/metrics is not served through a proxy, unless permitted" . inFolder $ \folder -> do
        let asked options fields = serving program folder options $ \port -> status <$> getWith fields port "/metrics"
            loopback = asked . (["--metrics", "loopback"] <>)
        loopback [] [] >>= (@?= 200)
        forM_ ["X-Forwarded-For: 127.0.0.1", "Forwarded: for=127.0.0.1", "Via: 1.1 x"] $ \field -> loopback [] [field] >>= (@?= 404)
        loopback ["--trusted-proxy", "127.0.0.1"] [] >>= (@?= 404)
        asked ["--metrics", "proxied", "--trusted-proxy", "127.0.0.1"] ["Via: 1.1 x"] >>= (@?= 200)
    ]
  where
    run folder options = weft program [] (["serve", folder] <> options)

-- | A metric of the page. Large if it is not there, as in an answer that was cut off.
figure :: String -> B.ByteString -> Double
figure name page = case [n | line <- lines (B.unpack page), Just rest <- [stripPrefix name line], (n, "") <- reads rest] of
  n : _ -> n
  [] -> 1e9

-- | The port in a URL that ends with this path.
portBefore :: String -> String -> Maybe PortNumber
portBefore path line = case [n | word <- words line, Just rest <- [stripPrefix "http://127.0.0.1:" word], (n, end) <- reads rest, path `isPrefixOf` end] of
  n : _ -> Just (fromInteger n)
  [] -> Nothing
