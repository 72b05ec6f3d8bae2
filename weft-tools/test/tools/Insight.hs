-- |
-- What looks into programs: @weft top@, @weft doctor@ of a process and of a program, @weft bench url@ and @weft bench run@.
module Insight (tests) where

import Control.Concurrent
import Control.Exception
import Control.Monad
import qualified Data.ByteString.Char8 as B
import Data.IORef
import Data.List (isInfixOf)
import Network.Socket
import Network.Socket.ByteString (recv, sendAll)
import Program
import System.Directory (doesFileExist, findExecutable)
import System.Exit (ExitCode (..))
import System.FilePath (takeDirectory, (</>))
import System.IO (hFlush)
import System.Process
import Test.Tasty
import Test.Tasty.HUnit hiding (testCase)
import Weft.Test.Skip (skip, testCase)

tests :: FilePath -> FilePath -> TestTree
tests program folder = testGroup "insight" [topTests program folder, doctorTests program folder, urlTests program, runTests program]

serving :: FilePath -> FilePath -> (Running -> PortNumber -> IO a) -> IO a
serving program folder act = weft program [] ["serve", folder, "--port", "0"] (\p -> portOf p >>= act p)

contains :: String -> String -> Assertion
contains out part = assertBool (part <> " in:\n" <> out) (part `isInfixOf` out)

-- Top --------------------------------------------------------------------------------------

topTests :: FilePath -> FilePath -> TestTree
topTests program folder =
  testGroup
    "top"
    [ testCase "prints rates where there is no terminal" . serving program folder $ \_ port -> do
        (code, out) <- outcome program [] ["top", "http://127.0.0.1:" <> show port, "--interval", "0.3", "--count", "2"]
        code @?= ExitSuccess
        mapM_ (contains out) ["requests 0/s", "connections ", "capability", "resident"],
      testCase "on a terminal, q ends it and the screen is put back" . serving program folder $ \_ port -> do
        script <- findExecutable "script"
        case script of
          Nothing -> skip "there is no script(1)"
          Just terminal -> do
            let line = program <> " top http://127.0.0.1:" <> show port <> " --interval 0.2"
            (code, out) <- limited . withCreateProcess (proc terminal ["-qec", line, "/dev/null"]) {std_in = CreatePipe, std_out = CreatePipe} $ \input output' _ child -> do
              forM_ input $ \i -> threadDelay 1500000 >> B.hPutStr i (B.pack "q") >> hFlush i
              said <- maybe (pure B.empty) B.hGetContents output'
              (,) <$> waitForProcess child <*> pure (B.unpack said)
            code @?= ExitSuccess
            mapM_ (contains out) ["\ESC[?1049h", "Press q to quit.", "\ESC[?1049l"],
      testCase "what has no metrics is refused" . serving program folder $ \_ port -> do
        (code, out) <- outcome program [] ["top", "http://127.0.0.1:" <> show port <> "/inner/a.txt", "--count", "1"]
        code @?= ExitFailure 1
        contains out "no metrics",
      testCase "nobody listens" $ do
        (code, out) <- outcome program [] ["top", "http://127.0.0.1:1", "--count", "1"]
        code @?= ExitFailure 1
        contains out "refused"
    ]

-- Doctor -----------------------------------------------------------------------------------

doctorTests :: FilePath -> FilePath -> TestTree
doctorTests program folder =
  testGroup
    "doctor"
    [ testCase "of a process: its back end, limits and binary" . serving program folder $ \p _ -> do
        pid <- getPid (process p) >>= maybe (assertFailure "no process") pure
        (code, out) <- outcome program [] ["doctor", show pid]
        code @?= ExitSuccess
        mapM_ (contains out) ["[ok] binary", "built with weft", "epoll", "open files", "seccomp", "allocation area"],
      testCase "of a process that was told to use poll" . weft program [("WEFT_BACKEND", "poll")] ["serve", folder, "--port", "0"] $ \p -> do
        _ <- portOf p
        pid <- getPid (process p) >>= maybe (assertFailure "no process") pure
        (_, out) <- outcome program [] ["doctor", show pid]
        contains out "as asked for by WEFT_BACKEND=poll",
      testCase "of a program that is no Haskell program" $ do
        (code, out) <- outcome program [] ["doctor", "/bin/sh"]
        code @?= ExitFailure 1
        contains out "[XX] binary",
      testCase "of programs, relinked and not" $ do
        let relinked name = takeDirectory program </> "relink" </> name
        there <- doesFileExist (relinked "clock")
        unless there (skip "the relinked programs are not built")
        (_, one) <- outcome program [] ["doctor", relinked "clock-relinked"]
        contains one "linked with weft-relink"
        (_, two) <- outcome program [] ["doctor", relinked "clock"]
        contains two "[!]  binary",
      testCase "of a process that there is not" $ do
        (code, out) <- outcome program [] ["doctor", "4194305"]
        code @?= ExitFailure 2
        contains out "no process",
      testCase "of certificates" $ do
        openssl <- findExecutable "openssl"
        when (openssl == Nothing) (skip "there is no openssl")
        let file = folder </> "soon.pem"
        _ <- readProcess "openssl" (words "req -x509 -newkey rsa:2048 -nodes -days 5 -subj /CN=localhost -keyout" <> [folder </> "soon.key", "-out", file]) ""
        (code, out) <- outcome program [] ["doctor", "--certificate", file, "--certificate", folder </> "index.html"]
        code @?= ExitFailure 1
        mapM_ (contains out) ["[!]  certificate", "in 4 days", "[XX] certificate", "not a certificate"]
    ]

-- Load -------------------------------------------------------------------------------------

-- | A server that answers every request with five bytes, and once, half a second after its first request, with nobody being served for a second.
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

urlTests :: FilePath -> TestTree
urlTests program =
  testGroup
    "bench url"
    [ testCase "a stall of a second counts against every request that was due in it" . withStall $ \port -> do
        (code, out) <- outcome program [] (url port ["--rate", "100", "--connections", "2"])
        code @?= ExitSuccess
        -- A third of three seconds: of all requests a third are late, by half a second on average.
        assertBool out (percentile "p90" out > 300000 && percentile "max" out > 900000),
      testCase "in a closed loop it counts once for each connection, and the output says so" . withStall $ \port -> do
        (code, out) <- outcome program [] (url port ["--connections", "2"])
        code @?= ExitSuccess
        contains out "closed loop"
        assertBool out (percentile "p90" out < 300000 && percentile "max" out > 900000)
        contains out "--rate R counts it",
      testCase "errors by kind" $ do
        (code, out) <- outcome program [] ["bench", "url", "http://127.0.0.1:1/", "--duration", "0.5", "--warmup", "0", "--connections", "1"]
        code @?= ExitFailure 1
        contains out "refused: ",
      testCase "what is no URL" $ do
        (code, out) <- outcome program [] ["bench", "url", "https://localhost/"]
        code @?= ExitFailure 2
        contains out "https"
    ]
  where
    url port more = ["bench", "url", "http://127.0.0.1:" <> show port <> "/", "--duration", "3", "--warmup", "0"] <> more

-- | A percentile in microseconds, from the output.
percentile :: String -> String -> Double
percentile name out = case [n | (key, n) <- zip ws (drop 1 ws), key == name] of
  n : _ -> read (filter (/= ',') n)
  [] -> -1
  where
    ws = words out

runTests :: FilePath -> TestTree
runTests program =
  testGroup
    "bench run"
    [ testCase "a program that is not relinked is refused, and it says how" $ do
        (code, out) <- outcome program [] ["bench", "run", "--", program, "doctor"]
        code @?= ExitFailure 2
        mapM_ (contains out) ["not linked with weft-relink", "build-depends"],
      testCase "a relinked program: a table and a verdict" $ do
        let relinked = takeDirectory program </> "relink" </> "clock-relinked"
        there <- doesFileExist relinked
        unless there (skip "the relinked programs are not built")
        (code, out) <- outcome program [] ["bench", "run", "--rounds", "1", "--", relinked]
        code @?= ExitSuccess
        mapM_ (contains out) ["weft-relink", "ghc", "wall_s", "max_rss_mb", "verdict: "],
      testCase "a program that fails" $ do
        let relinked = takeDirectory program </> "relink" </> "clock-relinked"
        there <- doesFileExist relinked
        unless there (skip "the relinked programs are not built")
        (code, out) <- outcome program [] ["bench", "run", "--rounds", "1", "--", relinked, "+RTS", "--no-such-option"]
        code @?= ExitFailure 1
        contains out "ended with status"
    ]
