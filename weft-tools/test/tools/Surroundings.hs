-- | The program in unusual surroundings: closed descriptors, the locale C, a full disk, terminals without escape
-- sequences, no search path; a process that is stopped and continued.
module Surroundings (tests) where

import Control.Concurrent (threadDelay)
import Control.Monad (forM_, unless)
import qualified Data.ByteString.Char8 as B
import Data.List (isInfixOf)
import Network.Socket.ByteString (recv, sendAll)
import Operating (callSilently, inFolder)
import System.Directory (createDirectory, createFileLink)
import System.Exit (ExitCode (..))
import System.FilePath ((</>))
import System.IO (hGetLine)
import System.Posix.Files (setFileMode)
import System.Posix.Signals (sigCONT, sigSTOP, sigTERM)
import System.Process (getPid, proc, readProcessWithExitCode, waitForProcess)
import Test.Tasty
import Test.Tasty.HUnit hiding (testCase)
import Weft.Test.Program
import Weft.Test.Skip (needProgram, skip, testCase)

tests :: FilePath -> FilePath -> TestTree
tests program folder =
  testGroup
    "surroundings"
    [ -- Descriptor 1 was one of the run-time system's, and about one run in three did not end.
      testCase "with closed standard descriptors it ends" $ do
        (code, out) <- shell "for closed in '>&-' '>&- 2>&-' '<&- >&- 2>&-'; do i=0; while [ $i -lt 10 ]; do i=$((i+1)); eval \"timeout -s KILL 60 \\\"$0\\\" man $closed\" || exit; done; done" []
        (code, out) @?= (ExitSuccess, ""),
      testCase "in the locale C, names that are no ASCII stay as they are" $
        -- The bytes of an e with an accent, and a byte that is no UTF-8.
        forM_ [(["trace", "-o", folder </> "x.eventlog", "\xDCC3\xDCA9"], "\xC3\xA9: no such program"), (["doctor", "\xDCC3\xDCA9"], "no such program: \"\xC3\xA9\""), (["doctor", "\xDCE9"], "no such program: \"\xE9\"")] $ \(arguments, message) ->
          weft program [("LC_ALL", "C")] arguments $ \p -> do
            said <- B.hGetContents (errors p)
            waitForProcess (process p) >>= (@?= ExitFailure 2)
            assertBool (show said) (B.pack message `B.isInfixOf` said),
      testCase "in the locale C, a server names its folder and a missing one by their bytes" . inFolder $ \site -> do
        let named = site </> "\xDCFF\xDCE4"
        createDirectory named
        weft program [("LC_ALL", "C")] ["serve", named, "--port", "0"] $ \p -> do
          said <- B.hGetLine (output p)
          assertBool (show said) (B.pack "/\xff\xe4 at http://" `B.isInfixOf` said)
        weft program [("LC_ALL", "C")] ["serve", named </> "none", "--port", "0"] $ \p -> do
          said <- B.hGetContents (errors p)
          waitForProcess (process p) >>= (@?= ExitFailure 1)
          assertBool (show said) (B.pack "/\xff\xe4/none does not exist\n" `B.isSuffixOf` said),
      testCase "without /proc, a listing has the folder's entries" . inFolder $ \site -> do
        needProgram "unshare"
        -- An empty /proc, for this process only.
        let without = ["-m", "sh", "-c", "mount -t tmpfs none /proc && exec \"$0\" \"$@\""]
        (code, _, why) <- readProcessWithExitCode "unshare" (without <> ["true"]) ""
        unless (code == ExitSuccess) (skip ("/proc cannot be replaced here: " <> takeWhile (/= '\n') why))
        writeFile (site </> "sub" </> "page.html") "page"
        createFileLink "page.html" (site </> "sub" </> "link")
        started [] (proc "unshare" (without <> [program, "serve", site, "--port", "0", "--listing"])) $ \p -> do
          port <- portOf p
          page <- get port "/sub/"
          forM_ ["./page.html", "./link"] $ \name -> assertBool (show page) (B.pack name `B.isInfixOf` page),
      testCase "a recording that is cut off is no success, and the error says why" $
        -- In its head, as where the disk is full from the beginning, and behind it.
        forM_ [("hdrb", "is no complete log: it ends before its first event, as if its program had been killed, had replaced itself by another (execve), or the disk were full"), ("hdrbhetbhetehdredatb", "ended by itself. It has replaced itself by another program (execve), it has processes that write to the same file (fork), or the disk is full\n")] $ \(begins, why) -> do
          let file = folder </> "cut-off.eventlog"
              script = folder </> "cut-off.sh"
          writeFile script ("#!/bin/sh\nfor a; do case $a in -ol*) printf " <> begins <> " > \"${a#-ol}\";; esac; done\n")
          setFileMode script 0o700
          (code, out) <- outcome program [] ["trace", "-o", file, "--", script]
          assertEqual out (ExitFailure 1) code
          contains out why,
      testCase "a server that is stopped and continued reads first what its clients have sent meanwhile" . inFolder $ \site ->
        weft program [] ["serve", site, "--port", "0", "--head-timeout", "2", "--keep-alive", "2"] $ \p -> do
          port <- portOf p
          connected port $ \half -> connected port $ \idle -> do
            sendAll half (B.pack "GET / HTTP/1.1\r\n")
            sendAll idle (request "GET" "/" "keep-alive")
            first <- recv idle 65536
            status first @?= 200
            send' sigSTOP p
            sendAll half (B.pack "Host: localhost\r\nConnection: close\r\n\r\n")
            sendAll idle (request "GET" "/" "close")
            threadDelay 4500000
            send' sigCONT p
            recvAll half >>= answered 200 "<p>home</p>"
            recvAll idle >>= answered 200 "<p>home</p>",
      testCase "a process with too few descriptors says so, and serves nothing" . inFolder $ \site -> do
        (code, _, errs) <- readProcessWithExitCode "bash" ["-c", "ulimit -n 24; exec timeout 60 \"$@\"", "bash", program, "serve", site, "--port", "0"] ""
        code @?= ExitFailure 1
        assertBool errs ("this process may have 24 descriptors (ulimit -n)" `isInfixOf` errs),
      testCase "a log whose disk was full: the line that was cut is ended, and the next ones are whole" . inFolder $ \site -> do
        needProgram "prlimit"
        let file = site </> "log.json"
            asks port = mapM_ (\i -> get port ("/?" <> i) >>= answered 200 "<p>home</p>")
        started [] (proc "bash" ["-c", "trap '' XFSZ; ulimit -S -f 1; exec \"$@\"", "bash", program, "serve", site, "--port", "0", "--metrics", "loopback", "--log", file, "--log-format", "json"]) $ \p -> do
          port <- portOf p
          asks port (map show [1 .. 40 :: Int])
          hGetLine (errors p) >>= \line -> assertBool line ("lost: " `isInfixOf` line)
          -- The lines that were written are counted, also those before the one that was cut.
          counted <- body <$> get port "/metrics"
          complete <- B.count '\n' <$> B.readFile file
          contains (B.unpack counted) ("access_log_lines_total " <> show complete <> "\n")
          pid <- getPid (process p)
          forM_ pid $ \n -> callSilently "prlimit" ["--pid", show n, "--fsize=unlimited"]
          asks port ["again1", "again2", "again3"]
          send' sigTERM p
          waitForProcess (process p) >>= (@?= ExitSuccess)
          logged <- B.lines <$> B.readFile file
          let whole line = B.isPrefixOf (B.pack "{\"time\"") line && B.isSuffixOf (B.pack "}") line && B.count '{' line == 1
              again = filter (B.isInfixOf (B.pack "?again")) logged
          length (filter (not . whole) logged) @?= 1
          (length again, all whole again) @?= (3, True),
      testCase "a terminal that is dumb, or not known, gets no escape sequences" $ do
        needProgram "script"
        weft program [] ["serve", folder, "--port", "0", "--metrics", "loopback"] $ \p -> do
          port <- portOf p
          forM_ ["TERM=dumb", "-u TERM"] $ \kind -> do
            let line = "env " <> kind <> " " <> program <> " top http://127.0.0.1:" <> show port <> " --interval 0.1 --count 2"
            started [] (proc "script" ["-qec", line, "/dev/null"]) $ \terminal -> do
              out <- B.hGetContents (output terminal)
              waitForProcess (process terminal) >>= (@?= ExitSuccess)
              contains (B.unpack out) "requests"
              assertBool (show out) (B.notElem '\ESC' out),
      testCase "a narrow window cuts the last line, too" $ do
        needProgram "script"
        weft program [] ["serve", folder, "--port", "0", "--metrics", "loopback"] $ \p -> do
          port <- portOf p
          let line = "stty rows 8 cols 10; TERM=xterm " <> program <> " top http://127.0.0.1:" <> show port <> " --interval 0.1 --count 1"
          started [] (proc "script" ["-qec", line, "/dev/null"]) $ \terminal -> do
            out <- B.hGetContents (output terminal)
            waitForProcess (process terminal) >>= (@?= ExitSuccess)
            contains (B.unpack out) "\ESC[KPress q to\ESC[J",
      testCase "without PATH" $
        forM_ [["doctor", "nothing"], ["trace", "-o", folder </> "x.eventlog", "nothing"]] $ \arguments -> do
          (ended, said) <- withoutPath arguments
          ended @?= ExitFailure 2
          contains said "no such program"
    ]
  where
    shell script arguments = do
      (code, out, err) <- limited (readProcessWithExitCode "sh" (["-c", script, program] <> arguments) "")
      pure (code, out <> err)
    withoutPath arguments = do
      (code, out, err) <- limited (readProcessWithExitCode "env" (["-u", "PATH", program] <> arguments) "")
      pure (code, out <> err)
