-- | @weft-bench run@: programs that are relinked, that fail, and that are interrupted.
module Runs (tests) where

import Control.Concurrent (threadDelay)
import Control.Exception (bracket)
import Control.Monad (forM_, unless, when)
import qualified Data.ByteString.Char8 as B
import Network.Socket
import System.Directory (createDirectoryIfMissing, doesFileExist, doesPathExist, listDirectory)
import System.Exit (ExitCode (..))
import System.FilePath (takeDirectory, (</>))
import System.Posix.Signals (sigHUP, sigINT, sigQUIT, sigTERM)
import System.Process (getPid, proc, readProcessWithExitCode, waitForProcess)
import System.Timeout (timeout)
import Test.Tasty
import Test.Tasty.HUnit hiding (testCase)
import Weft.Test.Program
import Weft.Test.Skip (needProgram, skip, testCase)

tests :: FilePath -> FilePath -> TestTree
tests program folder =
  testGroup
    "run"
    [ testCase "a program that is not relinked is refused, and the error says how to relink it" $ do
        (code, out) <- outcome program [] ["run", "--", program, "doctor"]
        code @?= ExitFailure 2
        mapM_ (contains out) ["not linked with weft-relink", "build-depends"],
      testCase "a program that is relinked without -threaded is refused" . built "handles-relinked-nonthreaded" $ \handles -> do
        (code, out) <- outcome program [] ["run", "--rounds", "1", "--", handles]
        code @?= ExitFailure 2
        contains out "was linked without -threaded, so GHC's own I/O manager serves it in any case",
      testCase "a relinked program: a table and a verdict" . relinked "clock" $ \clock -> do
        (code, out) <- outcome program [] ["run", "--rounds", "1", "--", clock]
        code @?= ExitSuccess
        mapM_ (contains out) ["weft-relink", "ghc", "wall_s", "max_rss_mb", "verdict: "],
      testCase "a result names its program and the arguments: in the heading of a report, and in a comparison if they differ" . relinked "clock" $ \clock -> do
        let file name = folder </> name <> ".json"
            page = folder </> "runs.html"
        forM_ ["-N1", "-N2"] $ \option -> do
          (code, _) <- outcome program [] ["run", "--rounds", "1", "--json", file option, "--", clock, "+RTS", option]
          code @?= ExitSuccess
        (reported, _) <- outcome program [] ["report", file "-N1", file "-N2", "-o", page]
        reported @?= ExitSuccess
        shown <- readFile page
        forM_ ["<h2>run: clock-relinked +RTS -N1<", "<h2>run: clock-relinked +RTS -N2<"] (contains shown)
        (_, out) <- outcome program [] ["compare", file "-N1", file "-N2"]
        contains out "not the same settings of run: program clock-relinked +RTS -N1 and clock-relinked +RTS -N2",
      testCase "a program that fails" . relinked "clock" $ \clock -> do
        (code, out) <- outcome program [] ["run", "--rounds", "1", "--", clock, "+RTS", "--no-such-option"]
        code @?= ExitFailure 1
        -- The run-time system says so in its first line, and has many others.
        mapM_ (contains out) ["ended with status", "unknown RTS option: --no-such-option"],
      testCase "without --, what follows PROGRAM is for the program, options of the run-time system too" . relinked "clock" $ \clock -> do
        (code, out) <- outcome program [] ["run", "--rounds", "1", clock, "+RTS", "--no-such-option"]
        code @?= ExitFailure 1
        mapM_ (contains out) ["+RTS --no-such-option, on Weft and with WEFT_DISABLE", "ended with status"],
      testCase "an argument that is no ASCII, in the locale C" . relinked "redis" $ \redis ->
        -- The bytes of an e with an accent. It is no port, so that the program fails at once.
        weft program [("LC_ALL", "C")] ["run", "--rounds", "1", "--", redis, "\xDCC3\xDCA9"] $ \p -> do
          out <- B.unpack <$> B.hGetContents (output p)
          waitForProcess (process p) >>= (@?= ExitFailure 1)
          mapM_ (contains out) ["on Weft and with WEFT_DISABLE", "failed: weft-relink: ended with status 1"],
      testCase "a file that cannot be written is refused before the first round" . relinked "clock" $ \clock -> do
        (code, out) <- outcome program [] ["run", "--json", "/nonexistent/a.json", "--", clock]
        code @?= ExitFailure 2
        out @?= "weft-bench run: cannot write /nonexistent/a.json: No such file or directory\n",
      testCase "a terminal that is dumb gets no escape sequences from the progress" . relinked "clock" $ \clock -> do
        needProgram "script"
        let line = "env TERM=dumb " <> program <> " run --rounds 1 -- " <> clock
        started [] (proc "script" ["-qec", line, "/dev/null"]) $ \terminal -> do
          out <- B.hGetContents (output terminal)
          waitForProcess (process terminal) >>= (@?= ExitSuccess)
          contains (B.unpack out) "round 1/1"
          assertBool (show out) (B.notElem '\ESC' out),
      testCase "a folder for temporary files that does not exist is named, and so is TMPDIR" . relinked "clock" $ \clock -> do
        (code, out) <- outcome program [("TMPDIR", "/nonexistent")] ["run", "--rounds", "1", "--", clock]
        code @?= ExitFailure 1
        contains out "weft-bench run: /nonexistent: no temporary folder can be made in it (TMPDIR names another): No such file or directory",
      testCase "without PATH" . relinked "clock" $ \clock -> do
        (code, out, err) <- limited (readProcessWithExitCode "env" ["-u", "PATH", program, "run", "--rounds", "1", "--", clock] "")
        assertEqual (out <> err) ExitSuccess code
        contains out "verdict: ",
      testCase "Ctrl-C, SIGTERM, SIGHUP or SIGQUIT, and a second one: the program is killed, and the scratch folder removed" . relinked "redis" $ \redis -> forM_ ((,) <$> [sigINT, sigTERM, sigHUP, sigQUIT] <*> (20000 : replicate 5 0)) $ \(signal, pause) -> do
        let scratch = folder </> "run-scratch"
        createDirectoryIfMissing True scratch
        -- A server that never answers: the program waits for it.
        listening $ \server port ->
          weft program [("TMPDIR", scratch)] ["run", "--rounds", "1", "--", redis, show port] $ \p -> do
            _ <- timeout 30000000 (accept server) >>= maybe (assertFailure "the program does not connect") pure
            pid <- getPid (process p) >>= maybe (assertFailure "it has ended") pure
            children <- words <$> readFile ("/proc/" <> show pid <> "/task/" <> show pid <> "/children")
            assertBool "the program is no child" (not (null children))
            send' signal p
            -- Also at once, as timeout(1) sends it to the command and to its group.
            when (pause > 0) (threadDelay pause)
            send' signal p
            ended <- timeout 30000000 (waitForProcess (process p))
            assertBool "it still runs" (ended /= Nothing)
            forM_ children $ \child -> doesPathExist ("/proc/" <> child) >>= assertBool "the program still runs" . not
            listDirectory scratch >>= (@?= [])
    ]
  where
    relinked name = built (name <> "-relinked")
    built name act = do
      let file = takeDirectory program </> "relink" </> name
      there <- doesFileExist file
      unless there (skip "the relinked programs are not built")
      act file

-- | A listening socket and its port.
listening :: (Socket -> PortNumber -> IO a) -> IO a
listening act = bracket (socket AF_INET Stream defaultProtocol) close $ \s -> do
  bind s (SockAddrInet 0 (tupleToHostAddress (127, 0, 0, 1)))
  listen s 16
  socketPort s >>= act s
