{-# LANGUAGE OverloadedStrings #-}

-- |
-- "Weft.Process": how programs are started, what passes through their pipes, how they end, and that nothing is left of
-- them.
module Spec.Process
  ( tests,
  )
where

import Control.Concurrent (threadDelay, yield)
import Control.Concurrent.MVar
import Control.Exception
import Control.Monad
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as B8
import Data.List (sort)
import Foreign.C.Error
import Foreign.C.Types (CInt)
import Foreign.Ptr (Ptr)
import Foreign.Storable (peek, poke)
import GHC.IO.Exception (IOException (ioe_filename))
import Harness hiding (within)
import System.Directory (createDirectory, getTemporaryDirectory, listDirectory, removeDirectoryRecursive)
import System.Exit (ExitCode (..))
import System.FilePath ((</>))
import System.IO.Error (isDoesNotExistError)
import System.Posix.Files (readSymbolicLink, setFileMode)
import System.Posix.IO (closeFd, createPipe)
import System.Posix.Process (exitImmediately, forkProcess, getAnyProcessStatus, getProcessID, getProcessStatus)
import System.Posix.Resource
import System.Posix.Signals (sigHUP, sigKILL, sigSTOP, sigTERM)
import qualified System.Posix.Signals as Posix
import System.Posix.Types (CPid)
import qualified System.Process as Other
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Duration
import Weft.Process
import Weft.Reader
import Weft.Scope (forConcurrently_)
import Weft.Test.Forked (inChild)
import Weft.Transport

foreign import ccall "&weft_process_pidfds" pidfds :: Ptr CInt

foreign import ccall "&weft_process_ranges" ranges :: Ptr CInt

tests :: TestTree
tests =
  testGroup
    "Process"
    [ testGroup "with a pidfd" (ends <> starts <> descriptors <> pipes <> crowds),
      testGroup "without a pidfd" (map (without pidfds) (ends <> crowds)),
      testGroup "without close_range" (map (without ranges) descriptors)
    ]

-- | Without something that the kernel is asked for.
without :: Ptr CInt -> TestTree -> TestTree
without flag = withResource (peek flag <* poke flag 0) (poke flag) . const

-- | A test after which there is no child, no zombie, and no descriptor more than before.
test :: String -> IO () -> TestTree
test name act = testCase name $ do
  before <- openDescriptors
  leavesNothing (finishes name act)
  childless
  noneLeftOpen before

childless :: Assertion
childless = do
  found <- try (getAnyProcessStatus False False)
  case found of
    Left e | isDoesNotExistError e -> pure ()
    Left e -> throwIO e
    Right Nothing -> assertFailure "a child still runs"
    Right (Just child) -> assertFailure ("a zombie is left: " <> show child)

shell :: String -> Program
shell script = program "sh" ["-c", script]

-- | With pipes for input and output.
piped :: Program -> Program
piped p = p {programInput = Pipe, programOutput = Pipe}

-- | A limit for what takes no time on a machine that is not busy.
generous :: IO Instant
generous = deadlineIn (seconds 20)

running :: Program -> IO (ExitStatus, B.ByteString, B.ByteString)
running p = generous >>= \deadline -> readProcess p deadline 1000000 ""

line :: Process -> IO B.ByteString
line p = do
  reader <- newReader (processConnection p)
  deadline <- generous
  readLine reader deadline >>= maybe (assertFailure "no line") pure

timesOut :: String -> IO a -> Assertion
timesOut what act = do
  e <- failure what act
  assertBool (what <> ": threw " <> show e) (isTimeout e)

-- Ends -------------------------------------------------------------------------------

ends :: [TestTree]
ends =
  [ test "the exit code, and the signal that killed it" $ do
      codes <- forM [0, 1, 7, 255 :: Int] $ \n -> withProcess (shell ("exit " <> show n)) (\p -> generous >>= waitProcess p)
      codes @?= map Exited [0, 1, 7, 255]
      map succeeded codes @?= [True, False, False, False]
      killed <- withProcess (shell "kill -9 $$") (\p -> generous >>= waitProcess p)
      killed @?= Killed sigKILL,
    test "a deadline leaves it alone, and any number of threads wait for its end, or for that of the block" $ do
      p <- withProcess (piped (shell "read x; exit 3")) $ \p -> do
        short <- deadlineIn (milliseconds 5)
        timesOut "a program that goes on" (waitProcess p short)
        waiting <- replicateM 3 (start (waitProcess p noDeadline))
        mapM_ (blocked >=> assertBool "waits") waiting
        connSendBytes (processConnection p) noDeadline "x\n"
        mapM (result "waiting") waiting >>= (@?= replicate 3 (Exited 3))
        pure p
      again <- waitProcess p noDeadline
      again @?= Exited 3
      signalProcess p sigKILL
      late <- withProcess (program "sleep" ["60"]) $ \q -> do
        late <- start (waitProcess q noDeadline)
        blocked late >>= assertBool "waits"
        pure late
      result "waiting" late >>= (@?= Killed sigTERM),
    test "one that ignores SIGTERM is killed after its grace" $ do
      let deaf = (piped (shell "trap '' TERM; echo ready; exec sleep 60")) {programGrace = milliseconds 30}
      p <- withProcess deaf $ \p -> p <$ (line p >>= (@?= "ready"))
      waitProcess p noDeadline >>= (@?= Killed sigKILL),
    test "one that is stopped is killed after its grace" $ do
      p <- withProcess (program "sleep" ["60"]) {programGrace = milliseconds 30} $ \p -> do
        signalProcess p sigSTOP
        eventually "it is stopped" (stateOf (processId p) (== Just 'T'))
        pure p
      waitProcess p noDeadline >>= (@?= Killed sigKILL),
    test "one that handles SIGTERM ends as it chooses" $ do
      p <- withProcess (piped (shell "trap 'exit 5' TERM; echo ready; while :; do sleep 0.01; done")) {programGrace = seconds 15} $ \p ->
        p <$ line p
      waitProcess p noDeadline >>= (@?= Exited 5),
    test "signals reach it" . withProcess (piped (shell "trap 'echo hup; exit 4' HUP; echo ready; while :; do sleep 0.01; done")) $ \p -> do
      line p >>= (@?= "ready")
      signalProcess p sigHUP
      line p >>= (@?= "hup")
      status <- generous >>= waitProcess p
      status @?= Exited 4
      signalProcess p sigHUP
      failsWith "no such signal" eINVAL (withProcess (program "sleep" ["60"]) (`signalProcess` 1000)),
    test "an exception ends it in every step" . forM_ [0 .. times 40] $ \n -> do
      entered <- newEmptyMVar
      thread <- start $ do
        putMVar entered ()
        withProcess (piped (shell "read x; echo $x; exec sleep 60")) $ \p -> do
          connSendBytes (processConnection p) noDeadline "x\n"
          _ <- connReceive (processConnection p) noDeadline 100
          waitProcess p noDeadline
      takeMVar entered
      if even n then replicateM_ (n * 20) yield else threadDelay (n * 200)
      stop thread
      childless,
    test "what the action throws ends it" $ do
      r <- try (withProcess (program "sleep" ["60"]) (\_ -> throwIO (userError "mine")))
      either (show :: IOException -> String) (\() -> "nothing") r @?= "user error (mine)",
    test "a child of the child keeps the pipe, and the end of the child is seen" $ do
      withProcess (piped (shell "sleep 60 & echo $!")) $ \p -> do
        status <- generous >>= waitProcess p
        status @?= Exited 0
        other <- read . B8.unpack <$> line p
        short <- deadlineIn (milliseconds 20)
        timesOut "the pipe of a child of the child" (connReceive (processConnection p) short 10)
        signalIt other
      short <- deadlineIn (milliseconds 300)
      timesOut "readProcess" (readProcess (shell "sleep 1 & exit 0") short 1000 ""),
    test "a group is ended with its leader, and after it" $
      forM_ ["sleep 60 & echo $!; wait", "sleep 60 & echo $!"] $ \script -> do
        other <- withProcess (piped (shell script)) {programGroup = True} (fmap (read . B8.unpack) . line)
        eventually "the child of the child has ended" (gone other)
  ]
  where
    signalIt :: CPid -> IO ()
    signalIt = Posix.signalProcess sigKILL

-- | It does not exist, or it is a zombie that nobody waits for.
gone :: CPid -> IO Bool
gone pid = stateOf pid (`elem` [Nothing, Just 'Z'])

-- | Its state, as proc(5) has it.
stateOf :: CPid -> (Maybe Char -> Bool) -> IO Bool
stateOf pid is = do
  found <- try (B8.readFile ("/proc" </> show pid </> "stat"))
  pure . is $ case found of
    Left e -> const Nothing (e :: IOException)
    Right stat -> fst <$> B8.uncons (B.drop 1 (snd (B8.breakEnd (== ')') stat)))

-- Starts -----------------------------------------------------------------------------

starts :: [TestTree]
starts =
  [ test "what cannot be run is an error with its name" . inFolder $ \folder -> do
      let refused what errno name p = do
            e <- failure what (withProcess p (\_ -> pure ()))
            assertBool (what <> ": " <> show e) (isErrno errno e)
            ioe_filename e @?= name
          file name contents mode = do
            B.writeFile (folder </> name) contents
            setFileMode (folder </> name) mode
            pure (folder </> name)
      refused "no such program" eNOENT (Just "weft-no-such-program") (program "weft-no-such-program" [])
      refused "no such path" eNOENT (Just "/no/such") (program "/no/such" [])
      refused "no name" eNOENT (Just "") (program "" [])
      refused "a folder" eACCES (Just folder) (program folder [])
      denied <- file "denied" "#!/bin/sh\n" 0o644
      refused "not executable" eACCES (Just denied) (program denied [])
      unknown <- file "unknown" "nothing that a kernel knows\n" 0o755
      refused "no format" eNOEXEC (Just unknown) (program unknown [])
      headless <- file "headless" "#!/no/such/interpreter\n" 0o755
      refused "no interpreter" eNOENT (Just headless) (program headless [])
      refused "too long" e2BIG (Just "true") (program "true" (replicate 100 (replicate 100000 'x')))
      refused "no such folder" eNOENT (Just "/no/such") (program "true" []) {programFolder = Just "/no/such"}
      refused "not open" eBADF (Just "true") (program "true" []) {programInput = Copy 1000000}
      forM_ [-1, -2, -3, minBound] $ \n -> refused "no descriptor" eBADF (Just "true") (program "true" []) {programErrors = Copy n}
      forM_ ["", "A=B", "="] $ \name -> refused "no variable" eINVAL (Just "true") (program "true" []) {programEnvironment = Just [("A", ""), (name, "x")]}
      failsWith "a zero" eINVAL (withProcess (program "true" ["a\0b"]) (\_ -> pure ())),
    test "it has the arguments, the environment and the folder that it was given" . inFolder $ \folder -> do
      running (program "printf" ["%s|", "a b", "", "\228", "*"]) >>= (@?= (Exited 0, "a b||\195\164|*|", ""))
      (_, environment, _) <- running (program "env" []) {programEnvironment = Just [("A", "1"), ("B", "two words")]}
      sort (B8.lines environment) @?= ["A=1", "B=two words"]
      running (program "pwd" ["-P"]) {programFolder = Just "/"} >>= (@?= (Exited 0, "/\n", ""))
      B.writeFile (folder </> "here") "#!/bin/sh\necho here\n"
      setFileMode (folder </> "here") 0o755
      running (program "./here" []) {programFolder = Just folder} >>= (@?= (Exited 0, "here\n", ""))
  ]

-- Descriptors ------------------------------------------------------------------------

descriptors :: [TestTree]
descriptors =
  [ test "it has three descriptors, and no signal is blocked" $ do
      -- More than a kernel lists by one call, and gaps.
      opened <- concat <$> replicateM 200 (createPipe >>= \(a, b) -> pure [a, b])
      mapM_ closeFd [fd | (i, fd) <- zip [0 :: Int ..] opened, i `mod` 3 == 0]
      (_, listed, _) <- running (program "ls" ["/proc/self/fd"])
      mapM_ closeFd [fd | (i, fd) <- zip [0 :: Int ..] opened, i `mod` 3 /= 0]
      -- The fourth one is that of the folder.
      B8.lines listed @?= ["0", "1", "2", "3"]
      (_, blocked', _) <- running (program "grep" ["SigBlk", "/proc/self/status"])
      B8.words blocked' @?= ["SigBlk:", "0000000000000000"],
    test "streams are copies of descriptors in any order, or nothing" $ do
      (a, b) <- createPipe
      links <- mapM (\n -> readSymbolicLink ("/proc/self/fd" </> show n)) [2, 1 :: Int]
      let swapped = (shell "a=$(readlink /proc/$$/fd/1); b=$(readlink /proc/$$/fd/2); echo $a >&0; echo $b >&0") {programInput = Copy b, programOutput = Copy 2, programErrors = Copy 1}
      status <- withProcess swapped (\p -> generous >>= waitProcess p)
      status @?= Exited 0
      closeFd b
      got <- withProcess (program "cat" []) {programInput = Copy a, programOutput = Pipe} $ \p -> do
        deadline <- generous
        newReader (processConnection p) >>= \r -> readToEnd r deadline 10000
      closeFd a
      map B8.unpack (B8.lines got) @?= links
      nothing <- withProcess (piped (program "cat" [])) {programInput = Null} $ \p -> do
        failsWith "no pipe" eBADF (connSendBytes (processConnection p) noDeadline "x")
        failsWith "no pipe" eBADF (connReceive (processErrors p) noDeadline 1)
        connReceive (processConnection p) noDeadline 10
      nothing @?= "",
    test "no descriptor is free" $ do
      _ <- running (program "true" [])
      limits <- getResourceLimit ResourceOpenFiles
      highest <- maximum . map read <$> listDirectory "/proc/self/fd"
      -- Not fewer: poll(2) refuses more descriptors than the limit, and GHC's own manager, which polls some, would end.
      outcomes <- (`finally` setResourceLimit ResourceOpenFiles limits) . forM [8 .. highest + 10] $ \limit -> do
        setResourceLimit ResourceOpenFiles limits {softLimit = ResourceLimit limit}
        try (withProcess (piped (program "true" [])) (void . (`waitProcess` noDeadline)))
      let refused = takeWhile (either (isErrno eMFILE) (const False)) outcomes
      assertBool "none was refused" (length refused > 3)
      drop (length refused) outcomes @?= replicate (length outcomes - length refused) (Right ())
      assertBool "all were refused" (length refused < length outcomes)
  ]

inFolder :: (FilePath -> IO a) -> IO a
inFolder act = do
  temporary <- getTemporaryDirectory
  me <- getProcessID
  let folder = temporary </> ("weft-process-" <> show me)
  bracket_ (createDirectory folder) (removeDirectoryRecursive folder) (act folder)

-- Pipes ------------------------------------------------------------------------------

pipes :: [TestTree]
pipes =
  [ test "a million bytes both ways at once" $ do
      let bytes = B.take 1000000 (B.concat (replicate 4000 (B.pack [0 .. 255])))
      deadline <- generous
      (status, output, errors) <- readProcess (program "cat" []) deadline 1000000 bytes
      (status, output == bytes, errors) @?= (Exited 0, True, "")
      (status', output', errors') <- readProcess (shell "tee /dev/stderr") deadline 1000000 bytes
      (status', output' == bytes, errors' == bytes) @?= (Exited 0, True, True),
    test "strings and parts of files arrive in order" . withProcess (piped (program "cat" [])) $ \p -> do
      deadline <- generous
      let c = processConnection p
      reader <- newReader c
      connSendMany c deadline (replicate 3000 "ab")
      readExactly reader deadline 6000 >>= (@?= B.concat (replicate 3000 "ab"))
      connSendMany c deadline []
      connShutdownSend c deadline
      connShutdownSend c deadline
      failsWith "after the end" eBADF (connSendBytes c deadline "x")
      readSome reader deadline >>= (@?= "")
      readSome reader deadline >>= (@?= ""),
    test "one that closes its output goes on" . withProcess (piped (shell "exec >&-; read x; exit 3")) $ \p -> do
      deadline <- generous
      connReceive (processConnection p) deadline 10 >>= (@?= "")
      short <- deadlineIn (milliseconds 20)
      timesOut "it goes on" (waitProcess p short)
      connSendBytes (processConnection p) deadline "x\n"
      waitProcess p deadline >>= (@?= Exited 3),
    test "one that reads only a part of its input, or none" $ do
      deadline <- generous
      let much = B.concat (replicate 100000 "a line\n")
      readProcess (program "head" ["-n1"]) deadline 100 much >>= (@?= (Exited 0, "a line\n", ""))
      readProcess (program "true" []) deadline 100 much >>= (@?= (Exited 0, "", ""))
      -- Its input is left to a child of its own, which does not read it.
      let leaving = (shell "exec 3<&0; sleep 3600 <&3 >/dev/null 2>&1 3<&- & exit 0") {programGroup = True}
      readProcess leaving deadline 100 much >>= (@?= (Exited 0, "", ""))
      withProcess (piped (program "true" [])) $ \p -> do
        _ <- waitProcess p deadline
        failsWith "nobody reads" ePIPE (forever (connSendBytes (processConnection p) deadline much)),
    test "more output than the limit ends it" $
      forM_ ["yes", "yes >&2"] $ \script -> do
        deadline <- generous
        r <- try (readProcess (shell ("exec " <> script)) deadline 100000 "")
        r @?= Left (LimitExceeded 100000),
    -- The input is more than a pipe holds: 16 pages, of up to 64 KB (pipe(7)).
    test "a deadline ends it, whether it passes while it is written to, read from or waited for" $
      forM_ ["exec sleep 60", "exec >&- 2>&-; exec sleep 60", "exec <&- >&- 2>&-; exec sleep 60"] $ \script -> do
        short <- deadlineIn (milliseconds 50)
        timesOut script (readProcess (shell script) short 1000 (B.replicate 3000000 1)),
    test "a sender waits for one that does not read, and is interrupted" . withProcess (piped (program "sleep" ["60"])) $ \p -> do
      sending <- start (connSendBytes (processConnection p) noDeadline (B.replicate 3000000 1))
      blocked sending >>= assertBool "it waits"
      stop sending
      short <- deadlineIn (milliseconds 5)
      timesOut "sending" (connSendBytes (processConnection p) short (B.replicate 3000000 1))
  ]

-- Crowds -----------------------------------------------------------------------------

crowds :: [TestTree]
crowds =
  [ test "1,000 children, at most 50 at once" $ do
      deadline <- deadlineIn (seconds 50)
      forConcurrently_ 50 [1 .. max 50 (times 1000)] $ \n -> do
        status <- withProcess (program "/bin/true" []) (`waitProcess` deadline)
        unless (succeeded status) (assertFailure (show (n, status))),
    test "children end while the program is being forked, and others are run by the package process" $ do
      forking <- start . replicateM_ (times 10) $ do
        child <- forkProcess (exitImmediately ExitSuccess)
        getProcessStatus True False child
      others <- start (replicateM (times 5) (Other.readProcess "cat" [] "other"))
      forM_ [1 .. times 30] $ \n -> do
        deadline <- generous
        r <- readProcess (program "cat" []) deadline 1000 (B8.pack (show n))
        r @?= (Exited 0, B8.pack (show n), "")
      result "forking" forking
      result "others" others >>= mapM_ (@?= "other"),
    test "a child of forkProcess neither waits for its parent's processes nor signals them" $ do
      process <- withProcess (program "sleep" ["60"]) $ \p -> do
        waiting <- start (waitProcess p noDeadline)
        _ <- blocked waiting
        inChild $ do
          signalProcess p sigKILL
          failsWith "waiting" eCHILD (waitProcess p noDeadline)
        short <- deadlineIn (milliseconds 20)
        timesOut "the process" (waitProcess p short)
        signalProcess p sigTERM
        p <$ (result "waiting" waiting >>= (@?= Killed sigTERM))
      inChild (waitProcess process noDeadline >>= (@?= Killed sigTERM))
  ]
