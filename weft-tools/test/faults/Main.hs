-- | Faults of the system under a workload of everything at once ("Workload"): system calls that fail (by strace) or
-- transfer a part of what they were asked for, limits, signals, forks, and a changing number of capabilities. A fault
-- may make operations fail, but the others must give the right result, none may last for ever, and nothing may be left
-- behind. Faults that a program has to tolerate (@EINTR@, signals, short counts, large pages) may make none fail. The
-- workload runs on as many capabilities as the suite does: two, unless @+RTS -N@ says otherwise.
module Main (main) where

import Control.Concurrent (forkIO, getNumCapabilities, killThread, newEmptyMVar, putMVar, takeMVar)
import Control.Concurrent.Async (mapConcurrently_)
import Control.Exception (IOException, bracket, finally, try)
import Control.Monad
import qualified Data.ByteString as B
import Data.Int (Int64)
import Data.List (intercalate, isInfixOf, stripPrefix)
import Data.Maybe (fromMaybe)
import Foreign.C.Types (CInt (..), CSize (..), CUInt (..))
import System.Directory (findExecutable, getTemporaryDirectory, removePathForcibly)
import System.Environment
import System.Exit (ExitCode (..))
import System.FilePath ((</>))
import System.IO
import System.Posix.IO (closeFd, dup, handleToFd, stdInput)
import System.Posix.Process (getProcessID)
import System.Posix.Resource
import System.Posix.Signals (Signal, sigALRM, sigCONT, sigSTOP, signalProcess)
import System.Posix.Types (CSsize (..), Fd (..))
import qualified System.Process as P
import Test.Tasty hiding (defaultMain)
import Test.Tasty.HUnit (Assertion, assertBool, assertFailure)
import Weft.Backend (whyUnavailable)
import qualified Weft.File as Weft
import Weft.Socket (Family (AF_UNIX), SocketType (Stream), close, defaultProtocol, socketPair, withFdSocket)
import Weft.Test.Main (defaultMain)
import Weft.Test.Skip
import Weft.Thread (threadDelay)
import Workload

main :: IO ()
main = do
  args <- getArgs
  case asProgram args of
    _
      | args == [spareArgument] -> spareThreads
      | args == [directArgument] -> directReads
      | args == [aloneArgument] -> alone
    Just program -> program
    Nothing -> do
      traced <- whyNotTraced
      capabilities <- getNumCapabilities
      defaultMain . testGroup "faults" $
        [ testGroup "system calls that fail" (map (run traced) (injections capabilities)),
          testCase "io_submit is avoided for a second if it blocks" (mapM_ skip traced >> submitsSlowly),
          testGroup "system calls that transfer a part" (map (run Nothing) shortened),
          testGroup "pages of 64 KB" (testCase "each back end is there, and what the page cache has of a file is sent at once" asUsual : map (run Nothing) paged),
          testGroup "limits" (testCase "OS threads can end when no descriptor is left" endsWithout : testCase "io_submit without a descriptor for a manager" readsWithout : map (run Nothing) (limits capabilities)),
          testGroup "signals" (map (run Nothing) signals),
          testGroup "processes" (map (run Nothing) processes)
        ]

-- | A fault, and the process that it happens to.
data Case = Case
  { caseName :: String,
    caseBackend :: String,
    -- | Variables of the environment.
    caseSet :: [(String, String)],
    caseFlags :: [String],
    -- | What strace injects.
    caseInject :: [String],
    -- | With a library between the program and the C library.
    caseLibrary :: Maybe Library,
    -- | A shell command before the program.
    caseShell :: String,
    -- | Signals that are sent to the process in turn, with a pause in microseconds after each.
    caseMeanwhile :: Maybe (Int, [Signal]),
    -- | Why nothing may have been injected, if that is possible.
    caseMisses :: Maybe String
  }

plain :: String -> String -> Case
plain name backend = Case name backend [] [] [] Nothing "" Nothing Nothing

-- | A library that changes calls: its source beside this one, and how many of them it has to have changed.
data Library = Library FilePath Int

shortCounts, largePages :: Library
shortCounts = Library "short_counts.c" 100
largePages = Library "large_pages.c" 10

-- | System calls by name, with the error. With @when=a+b@ the call number a fails, and then every one b later;
-- otherwise every call fails. The argument is the number of capabilities.
injections :: Int -> [Case]
injections capabilities =
  [ interrupted "epoll" "epoll_wait,epoll_pwait2,epoll_pwait,recvfrom,sendto,accept4,recvmsg,sendmsg",
    interrupted "poll" "poll,ppoll,recvfrom,sendto,accept4,recvmsg,sendmsg",
    interrupted "io_uring" "io_uring_enter,recvfrom,sendto,accept4",
    failing "epoll_ctl: ENOMEM" "epoll" "epoll_ctl:error=ENOMEM:when=30+40",
    failing "epoll_ctl: ENOSPC" "epoll" "epoll_ctl:error=ENOSPC:when=30+40",
    failing "no descriptors: EMFILE" "epoll" "accept4,socket,eventfd2,epoll_create1,pipe2:error=EMFILE:when=9+9",
    failing "no descriptors: ENFILE" "poll" "accept4,socket,eventfd2,pipe2:error=ENFILE:when=9+9",
    failing "no memory: ENOBUFS" "epoll" "sendto,recvfrom,connect:error=ENOBUFS:when=20+20",
    failing "connections reset: ECONNRESET" "epoll" "sendto,recvfrom,sendmsg:error=ECONNRESET:when=20+20",
    failing "connections aborted: ECONNABORTED" "io_uring" "accept4:error=ECONNABORTED:when=3+3",
    failing "disk: EIO" "epoll" "preadv2,pwritev2,pread64,pwrite64:error=EIO:when=20+30",
    failing "disk: ENOSPC" "epoll" "pwritev2,pwrite64:error=ENOSPC:when=20+30",
    failing "io_uring_enter: EAGAIN" "io_uring" "io_uring_enter:error=EAGAIN:when=10+10",
    failing "io_uring_enter: EBUSY" "io_uring" "io_uring_enter:error=EBUSY:when=10+10"
  ]
    <> [failing ("io_uring_setup: " <> e) "io_uring" ("io_uring_setup:error=" <> e) | e <- ["EPERM", "ENOSYS", "EINVAL", "ENOMEM", "EMFILE"]]
    -- The dispatchers have theirs, or one of them; at the latest the ring for files is refused. Strace counts the calls
    -- of each OS thread by itself, and which one makes them is not known.
    <> [ (failing ("io_uring_setup, from the second or third on: " <> e) "io_uring" ("io_uring_setup:error=" <> e <> ":when=" <> show (min 3 (capabilities + 1)) <> "+")) {caseSet = [("WEFT_FILES", "io_uring")], caseMisses = Just "no OS thread has called io_uring_setup that often"}
         | e <- ["ENOMEM", "EMFILE"]
       ]
    <> [ (plain ("openat2: " <> e) "epoll") {caseInject = ["openat2:error=" <> e], caseSet = [("WEFT_FILES", "threads")], caseFlags = ["noforks"]}
         | e <- ["ENOSYS", "EPERM"]
       ]
    <> [(plain ("io_submit: " <> e) "epoll") {caseInject = ["io_submit:error=" <> e <> ":when=2+2"], caseFlags = ["noforks"]} | e <- ["EAGAIN", "EINVAL"]]
    <> [(plain ("io_setup: " <> e) "epoll") {caseInject = ["io_setup:error=" <> e], caseFlags = ["noforks"]} | e <- ["ENOSYS", "EAGAIN"]]
    <> [(interrupted "epoll" "io_getevents") {caseName = "EINTR, io_getevents"}]
    <> [failing ("io_uring_register: " <> e) "io_uring" ("io_uring_register:error=" <> e) | e <- ["EPERM", "EINVAL"]]
  where
    interrupted backend calls = (plain ("EINTR, " <> backend) backend) {caseInject = [calls <> ":error=EINTR:when=5+7"], caseFlags = ["noforks"]}
    failing name backend what = (plain name backend) {caseInject = [what], caseFlags = ["errors", "noforks"]}

-- | Files are accessed by threads, since the kernel itself makes the system calls of a ring. Only poll is
-- level-triggered.
shortened :: [Case]
shortened =
  [ (plain "short counts of files, sockets and pipes, poll" "poll") {caseLibrary = Just shortCounts, caseSet = [("WEFT_FILES", "threads"), ("SHORT_SOCKETS", "yes")]},
    (plain "short counts of files, epoll" "epoll") {caseLibrary = Just shortCounts, caseSet = [("WEFT_FILES", "threads")]}
  ]

-- | As on machines that have them. With io_uring, the rings for files too are as large as that.
paged :: [Case]
paged =
  [ (plain ("all pages are large, " <> backend) backend) {caseLibrary = Just largePages, caseSet = set}
    | (backend, set) <- [("epoll", []), ("io_uring", [("WEFT_FILES", "io_uring")]), ("poll", [("WEFT_FILES", "threads")])]
  ]

-- | Each manager holds some descriptors of the limit. With no room for both ends of the connections under way, clients
-- would wait for a server that cannot accept them: with 48 descriptors and four capabilities 5 of 9 runs stood still
-- for half a minute or a whole one, with two capabilities none of 9.
limits :: Int -> [Case]
limits capabilities =
  [ (plain ("few descriptors, " <> backend) backend) {caseShell = "ulimit -n " <> show (max 48 (24 + 12 * capabilities)) <> ";", caseFlags = ["errors", "noforks"]}
    | backend <- ["epoll", "io_uring", "poll"]
  ]
    <> [(plain "no locked memory" "io_uring") {caseShell = "ulimit -l 0;", caseFlags = []}]

signals :: [Case]
signals =
  [ -- Without forks: a child that is forked while a signal is handled hangs in base. The table of handlers is locked by
    -- a thread that the child does not have.
    (plain ("SIGALRM a thousand times a second, " <> backend) backend) {caseMeanwhile = Just (1000, [sigALRM]), caseFlags = ["noforks"]}
    | backend <- ["epoll", "io_uring", "poll"]
  ]
    <> [ (plain ("stopped and continued, " <> backend) backend) {caseMeanwhile = Just (200000, [sigSTOP, sigCONT])}
         | backend <- ["epoll", "io_uring", "poll"]
       ]

-- | Other tests fork too; these do nothing else to the process.
processes :: [Case]
processes =
  [plain ("forks, " <> backend) backend | backend <- ["epoll", "io_uring", "poll"]]
    <> [(plain ("the number of capabilities changes, " <> backend) backend) {caseFlags = ["cycle", "noforks"]} | backend <- ["epoll", "io_uring", "poll"]]

-- | Why programs cannot be traced here.
whyNotTraced :: IO (Maybe String)
whyNotTraced = do
  strace <- findExecutable "strace"
  case strace of
    Nothing -> pure (Just "strace is not installed")
    Just _ -> do
      r <- try (P.readProcessWithExitCode "strace" ["-f", "-qq", "-e", "trace=none", "-e", "inject=uname:error=EPERM", "true"] "") :: IO (Either IOException (ExitCode, String, String))
      pure $ case r of
        Right (ExitSuccess, _, _) -> Nothing
        _ -> Just "strace cannot trace here, or is too old"

-- | With a disk whose queue is full, a few requests find out. Each capability may look again after a second.
submitsSlowly :: Assertion
submitsSlowly = bracket ((</> "weft-faults-slow") <$> getTemporaryDirectory) removePathForcibly $ \log' -> do
  self <- getExecutablePath
  (code, said, complained) <-
    P.readProcessWithExitCode
      "strace"
      (["-f", "-qq", "-o", log', "-e", "trace=io_submit", "-e", "inject=io_submit:delay_enter=3000", self] <> arguments 2 3 2 1 0 ["noforks"])
      ""
  unless (code == ExitSuccess && "clean" `isInfixOf` said) $ assertFailure (unlines ["it ended with " <> show code, said, complained])
  calls <- length . filter ("DELAYED" `isInfixOf`) . lines <$> readFile log'
  assertBool (show calls <> " slow calls") (calls > 0 && calls <= 60)

-- | Run the workload under a fault. Its own verdict has to be that there was no failure.
run :: Maybe String -> Case -> TestTree
run traced c = testCase (caseName c) $ do
  forM_ (if null (caseInject c) then Nothing else traced) skip
  why <- whyUnavailable (caseBackend c)
  forM_ why skip
  self <- getExecutablePath
  environment <- getEnvironment
  capabilities <- getNumCapabilities
  let set = ("WEFT_BACKEND", caseBackend c) : caseSet c
      words' = arguments capabilities 3 2 1 0 (caseFlags c)
      tracing log' = ["strace", "-f", "-qq", "-o", log', "-e", "trace=" <> intercalate "," (map (takeWhile (/= ':')) (caseInject c)), "-e", "status=failed"] <> concat [["-e", "inject=" <> i] | i <- caseInject c]
      command log' preloading = (if null (caseInject c) then [] else tracing log') <> preloading <> (self : words')
      process log' preloading =
        (P.proc "sh" (["-c", caseShell c <> " exec \"$@\"", "sh"] <> command log' preloading))
          { P.std_out = P.CreatePipe,
            P.std_err = P.CreatePipe,
            P.env = Just (set <> filter ((`notElem` map fst set) . fst) environment)
          }
  withLog (caseName c) $ \log' -> do
    preloading <- maybe (pure []) (preloaded log') (caseLibrary c)
    P.withCreateProcess (process log' preloading) $ \_ out err child -> do
      pid <- P.getPid child
      bracket (forkIO (forM_ ((,) <$> pid <*> caseMeanwhile c) disturb)) killThread . const $ do
        -- At the same time: a program whose standard error nobody reads stands still once the pipe is full.
        errors <- newEmptyMVar
        _ <- forkIO (maybe (pure "") readAll err >>= putMVar errors)
        said <- maybe (pure "") readAll out
        complained <- takeMVar errors
        code <- P.waitForProcess child
        unless (code == ExitSuccess && "clean" `isInfixOf` said) $
          assertFailure (unlines ["it ended with " <> show code, said, complained])
        unless (null (caseInject c)) $ do
          injected <- length . filter ("(INJECTED)" `isInfixOf`) . lines <$> readFile log'
          when (injected == 0) (maybe (assertFailure "nothing was injected") skip (caseMisses c))
        forM_ (caseLibrary c) $ \(Library _ least) -> do
          counts <- map read . lines <$> readFile log' :: IO [Int]
          assertBool (show counts <> " calls were changed") (maximum (0 : counts) > least)
  where
    readAll h = hGetContents h >>= \s -> length s `seq` pure s
    -- Send the signals in turn, with pauses of the given microseconds, once the process can handle them.
    disturb (pid, (pause, which)) = do
      threadDelay 500000
      -- Until it is gone.
      let go [] = pure ()
          go (s : ss) = do
            sent <- try (signalProcess s pid) :: IO (Either IOException ())
            threadDelay pause
            either (const (pure ())) (const (go ss)) sent
      go (cycle which)

-- | What has to stand before a program so that it runs with the library, which is compiled for this. Counts go to the
-- file of that name.
preloaded :: FilePath -> Library -> IO [String]
preloaded counts (Library source _) = do
  needProgram "cc"
  P.callProcess "cc" ["-shared", "-fPIC", "-O1", "-o", compiled, "test/faults" </> source, "-ldl"]
  pure ["env", "LD_PRELOAD=" <> compiled, "FAULT_COUNTS=" <> counts]
  where
    compiled = counts <> ".so"

-- | A file of that name, without blanks and the like, for this process only: tests may run at the same time. It is
-- removed at the end.
withLog :: String -> (FilePath -> IO a) -> IO a
withLog name act = do
  tmp <- getTemporaryDirectory
  n <- getProcessID
  let log' = tmp </> ("weft-faults-" <> show n <> "-" <> filter (`notElem` " :,") name)
  act log' `finally` mapM_ removePathForcibly [log', log' <> ".so"]

-- | Rings are mapped in pages, and whether the cache has all of a file is counted in them.
asUsual :: Assertion
asUsual = withLog "usual" $ \log' -> do
  self <- getExecutablePath
  (_, usual, _) <- P.readProcessWithExitCode self [aloneArgument] ""
  preloading <- preloaded log' largePages
  (code, large, complained) <- P.readProcessWithExitCode "env" (drop 1 preloading <> [self, aloneArgument]) ""
  unless (code == ExitSuccess && large == usual) $ assertFailure (unlines [usual, "and with large pages:", large, complained])
  when ("refused" `elem` lines usual) (skip "the kernel does not tell what the page cache has: it takes Linux 6.5")

aloneArgument :: String
aloneArgument = "alone"

-- | Say which back ends there are, and send a part of a file that was just written, which begins and ends within a
-- page.
alone :: IO ()
alone = withLog "file" $ \path -> do
  forM_ ["epoll", "io_uring", "poll"] (\backend -> whyUnavailable backend >>= putStrLn . fromMaybe backend)
  B.writeFile path (B.replicate 300000 7)
  bracket (socketPair AF_UNIX Stream defaultProtocol) (\(a, b) -> close a >> close b) $ \(a, _) ->
    bracket (openBinaryFile path ReadMode >>= handleToFd) closeFd $ \(Fd file) -> do
      sent <- withFdSocket a $ \s -> c_sendfile_cached s file 70001 50000
      putStrLn (if sent < 0 then "refused" else "sent")

foreign import ccall unsafe "weft_sendfile_cached" c_sendfile_cached :: CInt -> CInt -> Int64 -> CSize -> IO CSsize

-- | OS threads end in a process that has no descriptor left.
endsWithout :: Assertion
endsWithout = do
  self <- getExecutablePath
  (code, said, complained) <- P.readProcessWithExitCode self [spareArgument] ""
  unless (code == ExitSuccess && said == "ended\n") $
    assertFailure (unlines ["it ended with " <> show code, said, complained])

spareArgument :: String
spareArgument = "spare-threads"

-- | The run-time system keeps a few spare OS threads. Forty calls that return together leave more than that, so some
-- end.
spareThreads :: IO ()
spareThreads = do
  setResourceLimit ResourceOpenFiles (ResourceLimits (ResourceLimit 40) (ResourceLimit 40))
  threadDelay 1000
  let fill = (try (dup stdInput) :: IO (Either IOException Fd)) >>= either (const (pure ())) (const fill)
  fill
  ended <- replicateM 40 newEmptyMVar
  forM_ ended (\done -> forkIO (c_usleep 100000 >>= putMVar done))
  mapM_ takeMVar ended
  -- They end a little later.
  _ <- c_usleep 300000
  putStrLn "ended"

foreign import ccall safe "usleep" c_usleep :: CUInt -> IO CInt

-- | Reads by io_submit, whose completions no manager can report: there is no descriptor for one.
readsWithout :: Assertion
readsWithout = do
  self <- getExecutablePath
  (code, said, complained) <- P.readProcessWithExitCode self [directArgument] ""
  unless (code == ExitSuccess) $ assertFailure (unlines ["it ended with " <> show code, said, complained])
  case lines said of
    [only] | Just why <- stripPrefix "refused: " only -> skip why
    ["1600 reads", "3200 reads", "clean"] -> pure ()
    _ -> assertFailure said

directArgument :: String
directArgument = "direct-reads"

-- | Read blocks past the page cache on eight threads when one descriptor is left, which is the one that signals the
-- completions; then again when there are descriptors for managers.
directReads :: IO ()
directReads = withBlocks $ \path -> do
  opened <- try (Weft.openFile Weft.reading {Weft.openDirect = True} path)
  case opened of
    Left e -> putStrLn ("refused: O_DIRECT: " <> takeWhile (/= '\n') (show (e :: IOException)))
    Right file -> do
      setResourceLimit ResourceOpenFiles (ResourceLimits (ResourceLimit 40) (ResourceLimit 40))
      taken <- fill
      mapM_ closeFd (take 1 taken)
      readAll file
      counted 1600 $ do
        mapM_ closeFd (drop 1 taken)
        readAll file
        counted 3200 (Weft.stopRings >> putStrLn "clean")
  where
    fill = try (dup stdInput) >>= either (\e -> const (pure []) (e :: IOException)) (\fd -> (fd :) <$> fill)
    readAll file = mapConcurrently_ (\t -> mapM_ (\i -> readOne file ((t * 7 + i) `mod` 16)) [1 .. 200 :: Int]) [1 .. 8]
    readOne file block = do
      bytes <- Weft.readAt file (fromIntegral (4096 * block)) 4096
      unless (bytes == B.replicate 4096 (fromIntegral block)) (ioError (userError ("wrong bytes in block " <> show block)))
    -- All, or none if the kernel refuses io_submit; a read that is alone goes another way.
    counted most next = do
      n <- sum . map Weft.directRequests <$> Weft.readDirectMetrics
      if n == 0 then putStrLn "refused: nothing was read by io_submit" else putStrLn (show (most :: Int) <> " reads") >> next
    withBlocks act = do
      n <- getProcessID
      let path = "direct-reads-" <> show n
      (B.writeFile path (B.concat [B.replicate 4096 b | b <- [0 .. 15]]) >> act path) `finally` removePathForcibly path
