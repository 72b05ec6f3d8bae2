-- |
-- Tests that run the program @weft@: its start, requests over TCP, signals, and wrong arguments. The program is
-- @WEFT_PROGRAM@, or else @bin\/weft@ of the repository.
module Main (main) where

import qualified Answering
import qualified Behind
import Control.Concurrent
import Control.Concurrent.Async (forConcurrently_)
import Control.Exception
import Control.Monad
import qualified Controlled
import qualified Data.ByteString.Char8 as B
import Data.List (isInfixOf, isPrefixOf)
import Data.Maybe (fromMaybe)
import qualified Insight
import qualified Listening
import qualified ManualPage
import qualified Measuring
import qualified NamedFiles
import qualified Names
import Network.Socket (PortNumber)
import Network.Socket.ByteString (recv, sendAll)
import qualified NotReading
import qualified Operating
import qualified Passwords
import qualified Proxied
import qualified Ruled
import qualified Secured
import qualified Sites
import System.Directory
import System.Environment (lookupEnv)
import System.Exit (ExitCode (..))
import System.FilePath (takeDirectory, (</>))
import System.IO
import System.Posix.Signals (sigINT, sigTERM)
import System.Posix.Temp (mkdtemp)
import System.Process
import Test.Tasty hiding (defaultMain)
import Test.Tasty.HUnit hiding (testCase)
import qualified Userland
import Weft.Backend (whyUnavailable)
import Weft.Test.Main (defaultMain)
import Weft.Test.Program
import Weft.Test.Skip (skip, testCase)

main :: IO ()
main = do
  given <- lookupEnv "WEFT_PROGRAM"
  program <- makeAbsolute (fromMaybe "../bin/weft" given)
  there <- doesFileExist program
  unless there (ioError (userError ("no program at " <> program <> ": scripts/build weft makes it")))
  bracket site removePathForcibly $ \folder ->
    defaultMain (testGroup "weft" [serving program folder, Operating.tests program, ManualPage.tests program, Answering.tests program, Behind.tests program, Measuring.tests program, Passwords.tests program, Listening.tests program, NotReading.tests program, Secured.tests program, Names.tests program, NamedFiles.tests program, Sites.tests program, Proxied.tests program, Ruled.tests program, Insight.tests program folder, Controlled.tests program, Userland.tests program folder, refusing program folder, doctor program])

-- | A folder to serve.
site :: IO FilePath
site = do
  temporary <- getTemporaryDirectory
  folder <- mkdtemp (temporary </> "weft-tools-")
  createDirectory (folder </> "inner")
  B.writeFile (folder </> "index.html") (B.pack "<p>the first page</p>")
  B.writeFile (folder </> "inner" </> "index.html") (B.pack "<p>the inner page</p>")
  B.writeFile (folder </> "inner" </> "a.txt") (B.pack "a text")
  B.writeFile (folder </> "large") large
  pure folder

large :: B.ByteString
large = B.pack (take 6000000 (cycle (concatMap show [1 :: Int .. 5000])))

-- Serving --------------------------------------------------------------------------------

serving :: FilePath -> FilePath -> TestTree
serving program folder =
  testGroup
    "serve"
    [ testCase "pages, folders, and paths that do not exist" . running [] $ \port -> do
        get port "/" >>= answered 200 "<p>the first page</p>"
        get port "/inner/a.txt" >>= answered 200 "a text"
        get port "/inner/" >>= answered 200 "<p>the inner page</p>"
        get port "/nothing" >>= (@?= 404) . status
        outside <- status <$> get port "/../../etc/passwd"
        assertBool (show outside) (outside `elem` [403, 404])
        moved <- get port "/inner"
        (status moved, B.isInfixOf (B.pack "\r\nLocation: ./inner/\r\n") moved) @?= (301, True)
        headOnly <- exchange port (request "HEAD" "/inner/a.txt" "close")
        (status headOnly, body headOnly) @?= (200, B.empty),
      testCase "a large file, byte for byte" . running [] $ \port ->
        get port "/large" >>= assertBool "other bytes" . (== large) . body,
      testCase "several requests on a connection" . running [] $ \port -> connected port $ \s -> do
        replicateM_ 3 $ do
          sendAll s (request "GET" "/inner/a.txt" "keep-alive")
          answer <- recvUntil s (B.isSuffixOf (B.pack "a text"))
          status answer @?= 200
        sendAll s (B.concat (replicate 5 (request "GET" "/inner/a.txt" "keep-alive")))
        answers <- recvUntil s ((== 5) . count "a text")
        count "HTTP/1.1 200" answers @?= 5,
      testCase "a hundred clients at once" . running ["--cores", "2"] $ \port ->
        forConcurrently_ [1 .. 100 :: Int] $ \_ -> get port "/inner/a.txt" >>= answered 200 "a text",
      testCase "clients that are slow or never read do not disturb others" . running ["--cores", "1"] $ \port ->
        connected port $ \slow -> connected port $ \deaf -> do
          sendAll slow (B.pack "GET / HT")
          sendAll deaf (request "GET" "/large" "keep-alive")
          replicateM_ 20 (get port "/inner/a.txt" >>= answered 200 "a text")
          sendAll slow (B.pack "TP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
          recvAll slow >>= answered 200 "<p>the first page</p>",
      testGroup
        "back ends"
        [ testCase name $ do
            whyUnavailable name >>= mapM_ skip
            runningIn [("WEFT_BACKEND", name)] [] $ \port -> get port "/inner/a.txt" >>= answered 200 "a text"
          | name <- ["epoll", "poll", "io_uring"]
        ],
      testCase "--backend, and the line that is printed at the start" . weft program [] (serve ["--backend", "poll", "--cores", "1"]) $ \p -> do
        line <- hGetLine (output p)
        assertBool line ("weft: serving" `isPrefixOf` line && "(1 core, poll)" `isInfixOf` line),
      testGroup "shutdown" [ending "SIGTERM" sigTERM, ending "SIGINT" sigINT]
    ]
  where
    serve options = ["serve", folder, "--port", "0"] <> options
    running = runningIn []
    runningIn variables options act = weft program variables (serve options) (\p -> portOf p >>= act)
    ending name signal = testCase (name <> ": finishes requests in progress, refuses new connections, exits with 0")
      . weft program [] (serve [])
      $ \p -> do
        port <- portOf p
        connected port $ \s -> do
          sendAll s (request "GET" "/large" "close")
          start <- recv s 1000
          send' signal p
          line <- hGetLine (output p)
          assertBool line ("shutting down" `isInfixOf` line)
          untilRefused port
          rest <- recvAll s
          assertBool "the answer is cut short" (body (start <> rest) == large)
        waitForProcess (process p) >>= (@?= ExitSuccess)

-- | Wait until connections are refused, which begins a moment after the server has printed that it shuts down.
untilRefused :: PortNumber -> IO ()
untilRefused port = do
  tried <- try (connected port (const (pure ()))) :: IO (Either IOException ())
  either (const (pure ())) (const (threadDelay 1000 >> untilRefused port)) tried

-- Refusing -------------------------------------------------------------------------------

refusing :: FilePath -> FilePath -> TestTree
refusing program folder =
  testGroup
    "arguments"
    [ says "a missing folder" 1 "does not exist" ["serve", folder </> "none"],
      says "a file instead of a folder" 1 "is not a folder" ["serve", folder </> "large"],
      says "a port out of range" 2 "from 0 to 65535" ["serve", folder, "--port", "65536"],
      says "a port that is not a number" 2 "from 0 to 65535" ["serve", folder, "--port", "http"],
      says "an unknown flag" 2 "--prot" ["serve", folder, "--prot", "1"],
      says "an unknown back end" 2 "epoll" ["serve", folder, "--backend", "select"],
      says "an address that this machine does not have" 1 "cannot listen" ["serve", folder, "--host", "192.0.2.1", "--port", "0"],
      says "help" 0 "--port" ["serve", "--help"],
      testGroup
        "a missing file is named without the function that opened it"
        [says (unwords command) 2 ": /nonexistent: No such file or directory\n" (command <> ["/nonexistent"]) | command <- [["doctor", "--binary"], ["serve", "--config"]]],
      testGroup "the help of weft tcp lists its commands" [says name 0 ("  " <> name <> " ") ["tcp", "--help"] | name <- ["connections", "doctor", "replay"]],
      testGroup
        "a wrong flag is reported with the usage of its command"
        [says command 2 ("Usage: weft " <> command <> " ") [command, "--none"] | command <- ["serve", "doctor", "controller", "get"]],
      testGroup
        "weft controller"
        [ says "etcd without a scheme" 2 "expected URLs such as http://127.0.0.1:2379" ["controller", "--etcd", "127.0.0.1:2379"],
          says "an authority for etcd without TLS" 2 "--etcd-ca goes with an https URL" ["controller", "--etcd", "http://127.0.0.1:2379", "--etcd-ca", "/nonexistent"],
          says "an authority for etcd that is not there" 2 "/nonexistent: " ["controller", "--etcd", "https://127.0.0.1:2379", "--etcd-ca", "/nonexistent"],
          says "a certificate for etcd that is not there" 2 "/nonexistent: " ["controller", "--etcd", "https://127.0.0.1:2379", "--etcd-certificate", "/nonexistent", "--etcd-key", "/nonexistent"],
          says "a certificate for etcd without a key" 2 "--etcd-key" ["controller", "--etcd", "https://127.0.0.1:2379", "--etcd-certificate", "/nonexistent"],
          says "a user of etcd without a password" 2 "--etcd-password-file" ["controller", "--etcd", "http://127.0.0.1:2379", "--etcd-user", "weft"],
          says "a password for etcd that is not there" 2 "/nonexistent: " ["controller", "--etcd", "http://127.0.0.1:2379", "--etcd-user", "weft", "--etcd-password-file", "/nonexistent"],
          says "a password for etcd that is empty" 2 "/dev/null: its first line" ["controller", "--etcd", "http://127.0.0.1:2379", "--etcd-user", "weft", "--etcd-password-file", "/dev/null"],
          says "a user of etcd without etcd" 2 "--etcd URL" ["controller", "--etcd-user", "weft", "--etcd-password-file", "/dev/null"],
          says "etcd below a path" 2 "without a path" ["controller", "--etcd", "http://127.0.0.1:2379/v3"],
          testCase "a password for etcd is refused, and not repeated" $ do
            (code, out) <- outcome program [] ["controller", "--etcd", "http://user:SECRET@127.0.0.1:2379"]
            code @?= ExitFailure 2
            contains out "user name"
            assertBool out (not ("SECRET" `isInfixOf` out)),
          says "a name without etcd" 2 "goes with --etcd" ["controller", "--name", "one"],
          says "a name that is no part of a key" 2 "without '/'" ["controller", "--etcd", "http://127.0.0.1:2379", "--name", "one/two"],
          says "echo requests without a pause" 2 "from 0.001" ["controller", "--echo", "0.0001"],
          says "a host that is not known" 1 "cannot listen on weft.invalid port 0: " ["controller", "--listen", "weft.invalid:0"]
        ],
      testCase "an unknown back end in WEFT_BACKEND" $ do
        (code, out) <- outcome program [("WEFT_BACKEND", "select")] ["serve", folder, "--port", "0"]
        assertBool out (code /= ExitSuccess && "select" `isInfixOf` out && "epoll" `isInfixOf` out),
      testCase "a port in use" . weft program [] ["serve", folder, "--port", "0"] $ \p -> do
        port <- portOf p
        (code, out) <- outcome program [] ["serve", folder, "--port", show port]
        code @?= ExitFailure 1
        assertBool out ("in use" `isInfixOf` out)
    ]
  where
    says name code part arguments = testCase name $ do
      (found, out) <- outcome program [] arguments
      found @?= (if code == 0 then ExitSuccess else ExitFailure code)
      assertBool out (part `isInfixOf` out)

doctor :: FilePath -> TestTree
doctor program =
  testGroup
    "doctor"
    [ testCase "lists every back end" $ do
        (code, out) <- outcome program [] ["doctor"]
        code @?= ExitSuccess
        forM_ ["back end epoll", "back end io_uring", "back end poll"] $ \part -> assertBool out (part `isInfixOf` out),
      testCase "without an argument, the options in GHCRTS are not judged" $ do
        (code, out) <- outcome program [("GHCRTS", "-A128k -N1")] ["doctor"]
        code @?= ExitSuccess
        forM_ ["128 KiB a capability", "[!]  capabilities", "[!]  allocation area"] $ \part -> assertBool out (not (part `isInfixOf` out)),
      testCase "an unknown back end" $ do
        (code, out) <- outcome program [("WEFT_BACKEND", "nonsense")] ["doctor"]
        code @?= ExitFailure 1
        contains out "[XX] chosen               weft: no back end is called",
      testCase "--json prints JSON, with WEFT_BACKEND=poll" $ do
        (code, out) <- outcome program [("WEFT_BACKEND", "poll")] ["doctor", "--json"]
        code @?= ExitSuccess
        assertBool out ("poll" `isInfixOf` out && "{" `isPrefixOf` out),
      testCase "--binary: a program that is relinked" $ do
        (code, out) <- outcome program [] ["doctor", "--binary", relinked "clock-relinked"]
        code @?= ExitSuccess
        forM_ ["GHC 9.", "  threadDelay\n", "  threadWaitRead, threadWaitWrite\n"] $ \part -> assertBool out (part `isInfixOf` out),
      testGroup
        "--binary: programs that weft-relink does not put on Weft"
        [ testCase name $ do
            (code, out) <- outcome program [] ["doctor", "--binary", file]
            code @?= ExitFailure 1
            out @?= file <> ": " <> said <> "\n"
          | (name, file, said) <-
              [ ("not relinked", relinked "clock", "not linked with weft-relink: GHC's own I/O manager serves it"),
                ("built with weft", program, "not linked with weft-relink: Weft serves it where it calls the library weft, and GHC's own I/O manager elsewhere"),
                ("not a Haskell program", "/bin/sh", "not a Haskell program: it has no run-time system of GHC")
              ]
        ],
      testCase "--binary: a program that is relinked without -threaded" $ do
        (code, out) <- outcome program [] ["doctor", "--binary", relinked "handles-relinked-nonthreaded"]
        code @?= ExitFailure 1
        contains out ", but without -threaded: GHC's own I/O manager serves it; add ghc-options: -threaded\n",
      testCase "--binary: no such file" $ do
        (code, out) <- outcome program [] ["doctor", "--binary", "/nonexistent"]
        code @?= ExitFailure 2
        assertBool out ("/nonexistent" `isInfixOf` out)
    ]
  where
    relinked name = takeDirectory program </> "relink" </> name
