-- | @weft top@ while a program restarts, and its terminal.
module Top (tests) where

import Control.Concurrent (forkIO, killThread, threadDelay)
import Control.Exception (IOException, bracket, try)
import Control.Monad
import qualified Data.ByteString.Char8 as B
import Data.Char (isDigit)
import Data.IORef
import Data.List (isInfixOf, isPrefixOf)
import Data.Time (ZonedTime (zonedTimeToLocalTime), addLocalTime, defaultTimeLocale, formatTime, getZonedTime)
import Network.Socket
import Network.Socket.ByteString (recv, sendAll)
import System.Exit (ExitCode (..))
import System.IO (Handle, hGetLine)
import System.Posix.Files (readSymbolicLink)
import System.Posix.Signals (sigKILL)
import System.Process
import System.Timeout (timeout)
import Test.Tasty
import Test.Tasty.HUnit hiding (testCase)
import Weft.Test.Program
import Weft.Test.Skip (needProgram, testCase)

tests :: FilePath -> FilePath -> TestTree
tests program folder =
  testGroup
    "top, restarts and terminals"
    [ testCase "it goes on when the program restarts, and says since when it does not answer" . serving 0 $ \old port ->
        weft program [] ["top", url port, "--interval", "0.1"] $ \top -> do
          readUntil "requests" (output top)
          send' sigKILL old
          _ <- waitForProcess (process old)
          readUntil "no answer since " (output top)
          readUntil "connection refused" (output top)
          serving port $ \_ _ -> readUntil "requests" (output top),
      testCase "with --count, a reading that fails ends it" . serving 0 $ \old port ->
        weft program [] ["top", url port, "--interval", "0.1", "--count", "1000000"] $ \top -> do
          readUntil "requests" (output top)
          send' sigKILL old
          code <- waitForProcess (process top)
          code @?= ExitFailure 1,
      testCase "intervals that are too short or too long are refused" . forM_ ["1e-9", "1e20", "Infinity", "0"] $ \interval -> do
        (code, out) <- outcome program [] ["top", "http://127.0.0.1:1", "--interval", interval]
        code @?= ExitFailure 2
        contains out ("not a number of seconds from 0.05 to 86400: " <> interval),
      testCase "SIGTERM and SIGHUP restore the terminal" . forM_ [("TERM", "status 143"), ("HUP", "status 129")] $ \(signal, ended) -> do
        forM_ ["script", "pkill"] needProgram
        serving 0 $ \_ port -> do
          let commands = "echo shell $$; TERM=xterm " <> program <> " top " <> url port <> "; echo status $?; stty -a"
          started [] (proc "script" ["-qec", commands, "/dev/null"]) {std_in = CreatePipe} $ \terminal -> do
            line <- hGetLine (output terminal)
            readUntil "Press q to quit." (output terminal)
            callProcess "pkill" ["-" <> signal, "-P", filter isDigit line]
            rest <- B.unpack <$> B.hGetContents (output terminal)
            mapM_ (contains rest) ["\ESC[?25h\ESC[?1049l", ended]
            assertBool rest (all (`elem` words rest) ["icanon", "echo"]),
      testCase "SIGTSTP restores the terminal before top stops; continued, it shows its screen again, in the window's new size" $ do
        forM_ ["script", "pkill", "pgrep", "stty"] needProgram
        serving 0 $ \_ port -> do
          let commands = "echo shell $$; TERM=xterm " <> program <> " top " <> url port <> " --interval 0.2; echo status $?; stty -a"
          started [] (proc "script" ["-qec", commands, "/dev/null"]) {std_in = CreatePipe} $ \terminal -> do
            parent <- filter isDigit <$> hGetLine (output terminal)
            readUntil "Press q to quit." (output terminal)
            top <- filter isDigit <$> readProcess "pgrep" ["-P", parent] ""
            device <- readSymbolicLink ("/proc/" <> top <> "/fd/0")
            let modes = words <$> readProcess "stty" ["-a", "-F", device] ""
                raw = all (`elem` ["-icanon", "-echo"])
            -- Twice: the handlers stay.
            forM_ [7 :: Int, 9] $ \rows -> do
              callProcess "pkill" ["-TSTP", "-P", parent]
              readUntil "\ESC[?25h\ESC[?1049l" (output terminal)
              eventually "it does not stop" $ ("T" `elem`) . words <$> readFile ("/proc/" <> top <> "/stat")
              stopped <- modes
              assertBool (unwords stopped) (all (`elem` stopped) ["icanon", "echo"])
              callProcess "stty" ["-F", device, "rows", show rows, "cols", "40"]
              callProcess "pkill" ["-CONT", "-P", parent]
              readUntil "\ESC[?1049h\ESC[?25l" (output terminal)
              readUntil "more lines in a higher window" (output terminal)
              continued <- modes
              assertBool (unwords continued) (raw (filter (`elem` ["icanon", "-icanon", "echo", "-echo"]) continued))
            callProcess "pkill" ["-TERM", "-P", parent]
            rest <- B.unpack <$> B.hGetContents (output terminal)
            mapM_ (contains rest) ["\ESC[?25h\ESC[?1049l", "status 143"]
            assertBool rest (all (`elem` words rest) ["icanon", "echo"]),
      testCase "a server that hangs: the time is that at which it was asked" $ do
        pages <- newIORef (0 :: Int)
        let hanging = do
              n <- atomicModifyIORef' pages (\n -> (n + 1, n))
              if n == 0 then pure (page n) else threadDelay 60000000 >> pure ""
        answering hanging $ \port -> weft program [] ["top", url port, "--interval", "0.05"] $ \top -> do
          begun <- getZonedTime
          line <- hGetLine (output top)
          -- One of these seconds: it gives up after five.
          let begins = [formatTime defaultTimeLocale "no answer since %T:" begun {zonedTimeToLocalTime = addLocalTime (fromInteger s) (zonedTimeToLocalTime begun)} | s <- [0 .. 3]]
          assertBool line (any (`isPrefixOf` line) begins),
      testCase "a page that is too large, or does not end, is an error" $
        forM_ ["HTTP/1.1 200 OK\r\nContent-Length: 100000000000\r\n\r\n", "HTTP/1.1 200 OK\r\n\r\n", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffff\r\n"] $ \begins ->
          serve (\s -> recv s 4096 >> sendAll s (B.pack begins) >> void (timeout 20000000 (forever (sendAll s (B.replicate 65536 'x'))))) $ \port -> do
            (code, out) <- outcome program [] ["top", url port, "--count", "1"]
            code @?= ExitFailure 1
            contains out "/metrics: the page is larger than 16 MiB",
      testCase "a host without an address" $ do
        (code, out) <- outcome program [] ["top", "http://no..host", "--count", "1"]
        code @?= ExitFailure 1
        contains out "weft top: no..host:80 /metrics: no address: "
        assertBool out (not ("getAddrInfo" `isInfixOf` out)),
      testCase "a server that does not speak TLS" . answering (pure "") $ \port -> do
        (code, out) <- outcome program [] ["top", "https://127.0.0.1:" <> show port, "--count", "1"]
        code @?= ExitFailure 1
        contains out "/metrics: no TLS is spoken there",
      testCase "a page without a metric of Weft" . answering (pure "other_thing 1\n") $ \port -> do
        (code, out) <- outcome program [] ["top", url port, "--interval", "0.05", "--count", "1"]
        code @?= ExitSuccess
        contains out "no metrics of Weft on that page",
      testCase "a page with metrics of any process, and none of Weft" . answering (pure "process_cpu_seconds_total 1\n") $ \port -> do
        (code, out) <- outcome program [] ["top", url port, "--interval", "0.05", "--count", "1"]
        code @?= ExitSuccess
        mapM_ (contains out) ["CPU 0 %", "no metrics of Weft on that page"],
      testCase "the path of a socket that no address can have is a wrong argument" $ do
        (code, out) <- outcome program [] ["top", "unix:/" <> replicate 107 'x']
        code @?= ExitFailure 2
        contains out "the path of a socket has at most 107 bytes",
      testCase "what a page has is not printed as control characters, and a quantile above the last bound is said to be so" $ do
        pages <- newIORef (0 :: Int)
        answering (atomicModifyIORef' pages (\n -> (n + 1, page n))) $ \port -> do
          (code, out) <- outcome program [] ["top", url port, "--interval", "0.05", "--count", "1"]
          code @?= ExitSuccess
          assertBool (show out) ('\ESC' `notElem` out)
          mapM_ (contains out) ["p50 > 500 ms", "harmless_total"]
    ]
  where
    serving port act = weft program [] ["serve", folder, "--port", show (port :: PortNumber), "--metrics", "loopback"] (\p -> portOf p >>= act p)
    page n =
      unlines
        [ "evil\ESC[31m_total " <> show n,
          "harmless_total " <> show n,
          "http_requests_total{status=\"2\ESC[31mxx\"} " <> show n,
          "http_request_duration_seconds_bucket{le=\"0.5\"} 0",
          "http_request_duration_seconds_bucket{le=\"+Inf\"} " <> show n
        ]
    url port = "http://127.0.0.1:" <> show port

-- | A server whose every page is made by an action.
answering :: IO String -> (PortNumber -> IO a) -> IO a
answering make = serve $ \s -> do
  _ <- recv s 4096
  content <- B.pack <$> make
  sendAll s (B.pack ("HTTP/1.1 200 OK\r\nContent-Length: " <> show (B.length content) <> "\r\nConnection: close\r\n\r\n") <> content)

-- | A server that does this with each connection, one after another.
serve :: (Socket -> IO ()) -> (PortNumber -> IO a) -> IO a
serve answer act = bracket (socket AF_INET Stream defaultProtocol) close $ \listening -> do
  bind listening (SockAddrInet 0 (tupleToHostAddress (127, 0, 0, 1)))
  listen listening 64
  bracket (forkIO (forever (accept listening >>= \(s, _) -> (try (answer s) :: IO (Either IOException ())) >> close s))) killThread . const $
    socketPort listening >>= act

-- | Wait until the condition holds, for a minute at most.
eventually :: String -> IO Bool -> Assertion
eventually why condition = timeout 60000000 wait >>= maybe (assertFailure why) pure
  where
    wait = condition >>= \holds -> unless holds (threadDelay 20000 >> wait)

-- | Read until a text comes.
readUntil :: String -> Handle -> Assertion
readUntil text from = go B.empty
  where
    go seen = unless (B.pack text `B.isInfixOf` seen) $ do
      more <- B.hGetSome from 4096
      when (B.null more) (assertFailure (text <> " does not come after:\n" <> B.unpack seen))
      go (seen <> more)
