-- | Limits on the costs of a request of the bare pong (bytes allocated, system calls, instructions), on the bytes that
-- requests of a WAI application and of @weft serve@, for a file and as a proxy, allocate, on the instructions and
-- system calls of a WAI application's connection, on the instructions of its requests over TLS with HTTP/1.1 and
-- HTTP/2, and on the live bytes of an idle connection. They are compared with @bench\/gate.txt@. No time is measured.
--
-- One client sends a request when the server sleeps, so that each request takes the longest path: an event, a
-- receive, a send, a receive that finds nothing, a wait. With a faster client the last receive would sometimes find
-- the next request, and the figures would depend on the number of idle cores.
--
-- A change that is meant to move a figure also puts the new figure, which the failing test prints, into that file.
module Gate (tests) where

import Control.Concurrent (threadDelay)
import Control.Exception (evaluate)
import Control.Monad
import qualified Data.ByteString.Char8 as B
import Data.Char (isDigit)
import Data.List (isPrefixOf, tails)
import Data.Maybe (listToMaybe)
import Data.Version (showVersion)
import Network.Socket (PortNumber, Socket)
import Network.Socket.ByteString (recv, sendAll)
import System.Directory (doesFileExist, findExecutable, getTemporaryDirectory, removePathForcibly)
import System.Exit (ExitCode (..))
import System.FilePath (takeDirectory, (</>))
import System.IO
import System.Info (compilerVersion)
import System.Posix.Signals (sigTERM, sigUSR1, signalProcess)
import System.Process
import Test.Tasty
import Test.Tasty.HUnit hiding (testCase)
import Text.Read (readMaybe)
import Weft.Bench.Asking
import Weft.Test.Program
import Weft.Test.Skip (needProgram, skip, testCase)

tests :: FilePath -> TestTree
tests program =
  testGroup
    "gate"
    [ testCase "bytes allocated a request" (allocation plain program >>= atMost "alloc_bytes_per_op"),
      -- A stack that has to grow for each request shows here: a piece of it has 3 KiB.
      testCase "bytes allocated a request of a WAI application" (allocation waiPong program >>= atMost "wai_alloc_bytes_per_op"),
      testCase "bytes allocated a request of a file" (allocationOfFile program >>= atMost "file_alloc_bytes_per_op"),
      testCase "bytes allocated a request that is passed on to a server" (allocationOfProxy program >>= atMost "proxy_alloc_bytes_per_op"),
      testCase "live bytes of an idle connection" $ do
        -- On a busy machine some connections are not idle yet, so the smallest of three counts is taken.
        counts <- replicateM 3 . subject program [] $ \p port -> do
          let many = 300 :: Int
              besides :: Int -> IO a -> IO a
              besides 0 act = act
              besides n act = connected port $ \s -> do
                sendAll s (B.pack "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
                answer <- recv s 4096
                when (B.null answer) (assertFailure "the pong closed the connection")
                besides (n - 1) act
          alone <- reported "live_bytes" p
          crowded <- besides many (threadDelay 300000 >> reported "live_bytes" p)
          pure ((crowded - alone) / fromIntegral many)
        atMost "live_bytes_per_idle" (minimum counts),
      testCase "system calls a request" $ do
        needTracing
        counts <- replicateM 2 $ do
          few <- traced [] plain program (`asking` replicateM_ 200)
          many <- traced [] plain program (`asking` replicateM_ 1200)
          pure ((many - few) / 1000)
        atMost "syscalls_per_op" (minimum counts),
      testCase "system calls a connection of a WAI application, with its request, besides waits" $ do
        needTracing
        -- How often the dispatcher looks for events before it sleeps depends on how long others run.
        let waits = ["epoll_wait", "epoll_pwait2"]
        counts <- replicateM 2 $ do
          few <- traced waits waiPong program (oneEach 50)
          many <- traced waits waiPong program (oneEach 250)
          pure ((many - few) / 200)
        atMost "wai_syscalls_per_connection" (minimum counts),
      testCase "instructions a request" $ do
        valgrind <- findExecutable "valgrind"
        when (valgrind == Nothing) (skip "there is no valgrind")
        eventually "user_instructions_per_op" $ do
          few <- counted plain program 200
          many <- counted plain program 1200
          pure ((many - few) / 1000),
      testCase "instructions a connection of a WAI application, with its request" $ do
        needProgram "valgrind"
        eventually "wai_user_instructions_per_connection" $ do
          few <- countedWith waiPong program (oneEach 50)
          many <- countedWith waiPong program (oneEach 250)
          pure ((many - few) / 200),
      testCase "instructions a request, with the event log" $ do
        valgrind <- findExecutable "valgrind"
        when (valgrind == Nothing) (skip "there is no valgrind")
        eventually "user_instructions_logged_per_op" . scratch "eventlog" $ \file -> do
          let logging = Pong "pong-weft-eventlog" [] ["-l-asgu", "-ol" <> file]
          few <- counted logging program 200
          many <- counted logging program 1200
          pure ((many - few) / 1000),
      testCase "instructions a request of a WAI application over TLS" (overTls "tls_user_instructions_per_op" "http/1.1" askingHttp1 program),
      testCase "instructions a request of a WAI application over HTTP/2" (overTls "http2_user_instructions_per_op" "h2" askingHttp2 program)
    ]

-- | The instructions of a request over TLS with this protocol. The handshake is in both counts, and not in their
-- difference.
overTls :: String -> String -> Asking -> FilePath -> Assertion
overTls metric protocol start program = do
  needProgram "valgrind"
  needProgram "openssl"
  scratchFolder "tls" $ \folder -> do
    let chain = folder </> "chain.pem"
        key = folder </> "key.pem"
    (code, _, err) <- readProcessWithExitCode "openssl" (["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"] <> ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", chain]) ""
    assertEqual err ExitSuccess code
    let secure = waiPong {pongArguments = ["--certificate", chain, "--key", key]}
        asked port requests = connecting (fromIntegral port) (trusting chain protocol) $ \connection -> do
          ask <- start "/" connection
          replicateM_ requests (threadDelay 1500 >> ask)
        measure requests = countedWith secure program (`asked` requests)
    eventually metric $ do
      few <- measure 200
      many <- measure 1200
      pure ((many - few) / 1000)

-- | The bytes that a request of the pong allocates.
allocation :: Pong -> FilePath -> IO Double
allocation pong program = subjectOf pong program [] $ \p port -> asking port $ \ask -> do
  replicateM_ 200 ask
  early <- reported "allocated_bytes" p
  replicateM_ 1000 ask
  late <- reported "allocated_bytes" p
  pure ((late - early) / 1000)

-- | The bytes that a request for a file of 1 KiB allocates in @weft serve@, with its limits and counters. The page of
-- metrics, on which they are read, takes some itself. It tells what was allocated until the last collection, so that
-- collections have to come often: with nurseries of a megabyte the figure is one of a few, a thousand bytes apart.
allocationOfFile :: FilePath -> IO Double
allocationOfFile program = scratchFolder "file" $ \folder -> do
  B.writeFile (folder </> "index.html") (B.replicate 1024 'x')
  allocationOfServe program ["--trust", "60", folder]

-- | The bytes that a request allocates in @weft serve@ as a proxy before the pong, over kept connections.
allocationOfProxy :: FilePath -> IO Double
allocationOfProxy program = subjectOf waiPong program [] $ \_ port ->
  allocationOfServe program ["--proxy", "/=http://127.0.0.1:" <> show port]

-- | The bytes that a request allocates in @weft serve@ with these arguments.
allocationOfServe :: FilePath -> [String] -> IO Double
allocationOfServe program arguments =
  weft (program `beside` "weft") [] (["serve", "--port", "0", "--metrics", "loopback", "--cores", "1"] <> arguments <> ["+RTS", "-T", "-A32k", "-RTS"]) $ \p -> do
    port <- portOf p
    asking port $ \ask -> do
      replicateM_ 200 ask
      replicateM_ 2 (allocated port)
      early <- allocated port
      middle <- allocated port
      replicateM_ 1000 ask
      late <- allocated port
      pure ((late - middle - (middle - early)) / 1000)
  where
    allocated :: PortNumber -> IO Double
    allocated port = do
      page <- body <$> get port "/metrics"
      case [n | line <- B.lines page, [name, digits] <- [B.words line], name == B.pack "ghc_allocated_bytes_total", Just n <- [readMaybe (B.unpack digits)]] of
        n : _ -> pure n
        [] -> assertFailure ("no allocation in:\n" <> B.unpack page)

-- | A program of @bin\/subjects@.
data Pong = Pong
  { pongName :: FilePath,
    -- | Besides the port.
    pongArguments :: [String],
    -- | Options of the run-time system, besides those of all.
    pongOptions :: [String]
  }

plain, waiPong :: Pong
plain = Pong "pong-weft" [] []
waiPong = Pong "wai-weft" [] []

-- | Run the pong, possibly under another program, while an action runs.
subject :: FilePath -> [String] -> (Running -> PortNumber -> IO a) -> IO a
subject = subjectOf plain

subjectOf :: Pong -> FilePath -> [String] -> (Running -> PortNumber -> IO a) -> IO a
subjectOf pong program wrapper act = do
  there <- doesFileExist path
  unless there (skip ("bin/subjects/" <> pongName pong <> " is not built"))
  let command = wrapper <> [path, "--port", "0"] <> pongArguments pong <> ["+RTS", "-T", "-N1"] <> pongOptions pong <> ["-RTS"]
  case command of
    first : rest -> started [] (proc first rest) $ \p -> do
      line <- hGetLine (output p)
      case readMaybe (filter isDigit line) of
        Just port -> act p (fromInteger port)
        Nothing -> assertFailure ("no port in: " <> line)
    [] -> assertFailure "nothing to run"
  where
    path = takeDirectory program </> "subjects" </> pongName pong

-- | A connection, with an action that sends a request and receives its response.
asking :: PortNumber -> (IO () -> IO a) -> IO a
asking port act = connected port $ \s -> do
  size <- B.length <$> (send s >> recv s 4096)
  act (threadDelay 1500 >> send s >> receive s size)
  where
    send :: Socket -> IO ()
    send s = sendAll s (B.pack "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    receive s left = when (left > 0) $ do
      bytes <- recv s left
      when (B.null bytes) (assertFailure "the pong closed the connection")
      receive s (left - B.length bytes)

-- | Connections one after the other, each for one request. The client closes them. The server sleeps before each step.
oneEach :: Int -> PortNumber -> IO ()
oneEach connections port = replicateM_ connections $ do
  connected port $ \s -> do
    threadDelay 1500
    sendAll s (B.pack "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    answer <- recv s 4096
    when (B.null answer) (assertFailure "the pong closed the connection")
    threadDelay 1500
  threadDelay 1500

-- | A figure in the pong's report, such as the bytes allocated since its start.
reported :: String -> Running -> IO Double
reported figure p = do
  send' sigUSR1 p
  line <- hGetLine (output p)
  case [rest | rest <- tails line, ("\"" <> figure <> "\":") `isPrefixOf` rest] of
    rest : _ | Just n <- readMaybe (takeWhile isDigit (dropWhile (not . isDigit) rest)) -> pure n
    _ -> assertFailure ("no report: " <> line)

-- | The system calls of a run of the pong in which this action is a client of the port. @read@ is not counted, since
-- the run-time system's clock waits for its ticks by it, and @futex@ is not, since threads pass a capability on by it:
-- their numbers depend on the time that a request takes, which differs between runs on a loaded machine. Nor are those
-- of the list.
traced :: [String] -> Pong -> FilePath -> (PortNumber -> IO ()) -> IO Double
traced uncounted pong program client = scratch "strace" $ \file -> do
  _ <- subjectOf pong program ["strace", "-c", "-f", "-o", file] $ \p port -> do
    client port
    ended p
  text <- readFile file
  _ <- evaluate (length text)
  let calls = [(last ws, read n) | line <- lines text, ws@(_ : _ : _ : n : _ : _) <- [words line], all isDigit n]
  when (lookup "total" calls == Nothing) (assertFailure ("no total in:\n" <> text))
  pure (sum [n | (name, n) <- calls, name `notElem` (["total", "read", "futex"] <> uncounted)])

-- | The instructions of a run of the pong with the given number of requests.
counted :: Pong -> FilePath -> Int -> IO Double
counted pong program requests = countedWith pong program (`asking` replicateM_ requests)

-- | The instructions of a run of the pong in which this action is a client of the port.
countedWith :: Pong -> FilePath -> (PortNumber -> IO ()) -> IO Double
countedWith pong program client = scratch "callgrind" $ \file -> do
  _ <- subjectOf pong program ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", "--log-file=" <> file] $ \p port -> do
    client port
    ended p
  text <- readFile file
  _ <- evaluate (length text)
  case [read n | line <- lines text, (_, "Collected" : ":" : n : _) <- [break (== "Collected") (words line)]] of
    n : _ -> pure n
    [] -> assertFailure ("nothing collected in:\n" <> text)

-- | End the process, or the program that it runs and traces, and wait until the summary is written.
ended :: Running -> IO ()
ended p = do
  pid <- getPid (process p) >>= maybe (assertFailure "it has ended") pure
  children <- words <$> readFile ("/proc/" <> show pid <> "/task/" <> show pid <> "/children")
  forM_ (if null children then [pid] else map read children) (signalProcess sigTERM)
  code <- waitForProcess (process p)
  when (code == ExitFailure 127) (assertFailure "it could not be run")

scratch :: String -> (FilePath -> IO a) -> IO a
scratch name act = do
  temporary <- getTemporaryDirectory
  (file, handle) <- openTempFile temporary ("weft-gate-" <> name)
  hClose handle
  result <- act file
  result <$ removePathForcibly file

-- | Count up to ten times, until a count is low enough. Under valgrind the dispatcher takes a yield that was
-- interrupted for one that let a thread run ("Weft.Core.Yield"), and then yields more than it has to: a count is up to
-- twelve percent above the recorded one, which is that of a run in which this happens seldom. More work in each request
-- is in every count.
eventually :: String -> IO Double -> Assertion
eventually metric measure = go (10 :: Int) (1 / 0)
  where
    go left least = do
      found <- min least <$> measure
      enough <- maybe True (`within` found) <$> recorded metric
      if enough || left == 1 then atMost metric found else go (left - 1) found

-- | Fail if a figure exceeds the recorded one for this compiler and metric by more than the recorded percentage.
atMost :: String -> Double -> Assertion
atMost metric found = do
  limit <- recorded metric
  case limit of
    Just (figure, percent) ->
      assertBool (metric <> ": " <> show found <> ", recorded are " <> show figure <> " + " <> show percent <> " %") (within (figure, percent) found)
    Nothing -> skip ("no " <> metric <> " is recorded for GHC " <> compiler <> "; found: " <> show found)

within :: (Double, Double) -> Double -> Bool
within (figure, percent) found = found - figure <= figure * percent / 100

-- | The figure that is recorded for this compiler and metric, and by how many percent it may be exceeded.
recorded :: String -> IO (Maybe (Double, Double))
recorded metric = do
  file <- lines <$> readFile "../bench/gate.txt"
  pure (listToMaybe [(read figure, read percent) | [ghc, name, figure, percent] <- map words file, ghc == compiler, name == metric])

compiler :: String
compiler = showVersion compilerVersion
