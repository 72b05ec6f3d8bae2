-- | Recordings of event logs: @weft trace@.
module Recordings (tests) where

import Control.Exception
import Control.Monad
import qualified Data.ByteString.Char8 as B
import Data.List (isInfixOf, isPrefixOf, nub)
import System.Directory (doesFileExist, removeFile)
import System.Exit (ExitCode (..))
import System.FilePath (takeDirectory, (</>))
import System.IO (IOMode (WriteMode), hGetContents, hGetLine, hSetFileSize, withFile)
import System.Posix.Files (createNamedPipe, createSymbolicLink, getFileStatus, getSymbolicLinkStatus, isNamedPipe, isSymbolicLink)
import System.Posix.Signals (sigINT, sigTERM, signalProcess, signalProcessGroup)
import System.Process
import Test.Tasty
import Test.Tasty.HUnit hiding (testCase)
import Weft.Test.Program
import Weft.Test.Skip (needProgram, skip, testCase)

tests :: FilePath -> FilePath -> TestTree
tests program folder =
  testGroup
    "trace"
    [ testCase "a file that is not a recording is refused, with the reason" $ do
        let view file = outcome program [] ["trace", "view", folder </> file, "-o", folder </> "page.html"]
        writeFile (folder </> "empty.eventlog") ""
        forM_ [("missing.eventlog", "there is no such file"), ("empty.eventlog", "it is empty: "), ("index.html", "not an event log of GHC")] $ \(file, why) -> do
          (code, out) <- view file
          code @?= ExitFailure 1
          contains out why
        -- Sparse: nothing of it is on the disk.
        withFile (folder </> "large.eventlog") WriteMode (`hSetFileSize` 1000000000000)
        (code, out) <- view "large.eventlog"
        code @?= ExitFailure 1
        mapM_ (contains out) ["it has 1000 GB", "of memory", "record for a shorter time"]
        made <- doesFileExist (folder </> "page.html")
        made @?= False,
      testCase "what cannot be recorded is refused, and an earlier recording stays" $ do
        let file = folder </> "earlier.eventlog"
        writeFile file "earlier"
        forM_ [(file, "/bin/ls", "is not a Haskell program"), (folder </> "nowhere" </> "x.eventlog", "/bin/ls", "there is no folder")] $ \(target, what, why) -> do
          (code, out) <- outcome program [] ["trace", "-o", target, "--", what]
          code @?= ExitFailure 2
          contains out why
        readFile file >>= (@?= "earlier"),
      testCase "arguments that send the log to another file are refused" $ do
        let script = folder </> "elsewhere.sh"
        writeFile script ("#!/bin/sh\ntouch " <> folder <> "/was-run\n")
        callProcess "chmod" ["+x", script]
        forM_ [(["+RTS", "-N2", "-olelse.eventlog"], True), (["-olives", "+RTS", "-N1", "-RTS", "-olives"], False)] $ \(arguments, refused) -> do
          (code, out) <- outcome program [] (["trace", "-o", folder </> "elsewhere.eventlog", "--", script] <> arguments)
          code @?= ExitFailure 2
          contains out (if refused then "-olelse.eventlog among the program's arguments would send the log to another file" else "wrote no event log")
          doesFileExist (folder </> "was-run") >>= (@?= not refused),
      testCase "what follows PROGRAM is for the program, options of the run-time system too, with and without --" $ do
        let script = folder </> "arguments.sh"
            file = folder </> "arguments.eventlog"
            given = ["-o", "x", "+RTS", "-N4", "--no-such-option", "-RTS", "--help", "--", "--RTS"]
        writeFile script ("#!/bin/sh\nprintf '%s\\n' \"$@\" > " <> folder <> "/arguments\n")
        callProcess "chmod" ["+x", script]
        forM_ [[], ["--"]] $ \separator -> do
          (code, out) <- outcome program [] (["trace", "-o", file] <> separator <> [script] <> given)
          code @?= ExitFailure 2
          contains out "wrote no event log"
          received <- lines <$> readFile (folder </> "arguments")
          take 2 received <> drop 3 received @?= ["+RTS", "-l-asgu", "-RTS"] <> given
          removeFile (folder </> "arguments")
        -- Before the program, nothing is for the run-time system, and view has no program.
        (code, out) <- outcome program [] ["trace", "-o", file, script, "+RTS", "-olelse.eventlog"]
        code @?= ExitFailure 2
        contains out "-olelse.eventlog among the program's arguments"
        (viewed, why) <- outcome program [] ["trace", "view", file, "+RTS", "-N1", "-RTS"]
        viewed @?= ExitFailure 1
        contains why "there is no such file",
      testCase "SIGTERM ends the program, which writes its log; the page does not overwrite the recording" $ do
        let file = folder </> "terminated.html"
        (code, said) <- recordingPong file $ \p -> getPid (process p) >>= mapM_ (signalProcess sigTERM)
        code @?= ExitFailure (-2)
        contains said "shows it as a page"
        (viewed, out) <- outcome program [] ["trace", "view", file]
        viewed @?= ExitFailure 2
        contains out "would be overwritten",
      testCase "a recording never replaces what is not a file, and a symbolic link stays one" $ do
        let pipe = folder </> "pipe.eventlog"
            link = folder </> "link.eventlog"
        createNamedPipe pipe 0o600
        (code, out) <- outcome program [] ["trace", "-o", pipe, "--", "true"]
        code @?= ExitFailure 2
        contains out "is not a file"
        getFileStatus pipe >>= assertBool "a pipe" . isNamedPipe
        writeFile (folder </> "linked.eventlog") "earlier"
        createSymbolicLink "linked.eventlog" link
        (ended, said) <- recordingPong link $ \p -> getPid (process p) >>= mapM_ (signalProcess sigTERM)
        ended @?= ExitFailure (-2)
        contains said (link <> " (weft trace view")
        getSymbolicLinkStatus link >>= assertBool "a link" . isSymbolicLink
        recorded <- B.readFile (folder </> "linked.eventlog")
        assertBool "a recording" (B.pack "hdrb" `B.isPrefixOf` recorded),
      testCase "a recording that cannot be read is no success, and an earlier one stays" $ do
        let file = folder </> "kept.eventlog"
        writeFile file "earlier"
        writeFile (folder </> "writes.sh") "#!/bin/sh\nfor a; do case $a in -ol*) echo nonsense > \"${a#-ol}\";; esac; done\n"
        callProcess "chmod" ["+x", folder </> "writes.sh"]
        (code, out) <- outcome program [] ["trace", "-o", file, "--", folder </> "writes.sh"]
        code @?= ExitFailure 1
        contains out "is not an event log of GHC"
        readFile file >>= (@?= "earlier"),
      testCase "a damaged recording is said to be so" $ do
        let file = folder </> "damaged.eventlog"
        _ <- recordingPong file $ \p -> getPid (process p) >>= mapM_ (signalProcess sigTERM)
        content <- B.readFile file
        let (before, events) = B.breakSubstring (B.pack "datb") content
            -- The type of an event: behind the mark of the data and the head of the first block.
            place = B.length before + 4 + 24
        B.writeFile file (B.concat [B.take place content, B.pack "\255", B.drop (place + 1) content])
        assertBool "data" (not (B.null events))
        (code, out) <- outcome program [] ["trace", "view", file]
        code @?= ExitFailure 1
        contains out ("is damaged: of what is in the file from byte " <> show (B.length before + 4) <> " on")
        assertBool out (not ("index" `isInfixOf` out)),
      testCase "a recording that is cut off: status 1, wherever that is, and a page of what is there" $ do
        let file = folder </> "whole.eventlog"
            cut = folder </> "cut.eventlog"
        _ <- recordingPong file $ \p -> getPid (process p) >>= mapM_ (signalProcess sigTERM)
        content <- B.readFile file
        let events = B.length (fst (B.breakSubstring (B.pack "datb") content)) + 4
            left = B.length content - events
        forM_ ([1, 2, 3, 4] <> [left * n `div` 8 | n <- [1 .. 8]] <> [left + 1, left + events `div` 2, B.length content - 1]) $ \missing -> do
          let there = B.take (B.length content - missing) content
              reasons =
                ["is not complete, as if its program had been killed or the file cut off", "it has no events", "no complete log: it ends before its first event", "not an event log of GHC"]
                  -- What happens to end like a whole log looks like one of which the size of the last block was changed.
                  <> ["is damaged" | B.pack "\255\255" `B.isSuffixOf` there]
          B.writeFile cut there
          (code, out) <- outcome program [] ["trace", "view", cut]
          (missing, code) @?= (missing, ExitFailure 1)
          assertBool out (any (`isInfixOf` out) reasons),
      testCase "GHCRTS is for the program, and each recording has a file of its own until it is complete" $ do
        let script = folder </> "own.sh"
            file = folder </> "own.eventlog"
        writeFile script ("#!/bin/sh\necho \"$GHCRTS $3\" >> " <> folder <> "/own\n")
        callProcess "chmod" ["+x", script]
        forM_ [1, 2 :: Int] . const $ do
          (code, out) <- outcome program [("GHCRTS", "-l --for-the-program")] ["trace", "-o", file, script]
          code @?= ExitFailure 2
          contains out "wrote no event log"
        written <- lines <$> readFile (folder </> "own")
        length (nub written) @?= 2
        forM_ written $ \line -> assertBool line (("-l --for-the-program -ol" <> file <> ".") `isPrefixOf` line),
      testCase "outputs that cannot be written, or are the same, are refused before anything is written" $ do
        let file = folder </> "shown.eventlog"
            page = folder </> "shown.html"
        _ <- recordingPong file $ \p -> getPid (process p) >>= mapM_ (signalProcess sigTERM)
        forM_ [(["--json", folder </> "nowhere" </> "x.json"], "cannot write "), (["--json", page], "cannot both be in"), (["-o", page, "--json", folder <> "/./shown.html"], "cannot both be in")] $ \(more, why) -> do
          (code, out) <- outcome program [] (["trace", "view", file] <> more)
          code @?= ExitFailure 2
          contains out why
          made <- doesFileExist page
          made @?= False,
      testCase "what is not a file is not shown" $ do
        let pipe = folder </> "shown.pipe"
        createNamedPipe pipe 0o600
        forM_ [(folder, "it is a folder"), (pipe, "it is not a file")] $ \(what, why) -> do
          (code, out) <- outcome program [] ["trace", "view", what, "-o", folder </> "pipe.html"]
          code @?= ExitFailure 1
          contains out (what <> ": " <> why),
      testCase "a program without an event log is not started" $ do
        let clock = takeDirectory program </> "relink" </> "clock-relinked"
        there <- doesFileExist clock
        unless there (skip "the relinked programs are not built")
        content <- B.readFile clock
        unless (B.pack "requires the program to be built with -eventlog" `B.isInfixOf` content) (skip "programs of this compiler can always write one")
        (code, out) <- outcome program [] ["trace", "-o", folder </> "clock.eventlog", "--", clock]
        code @?= ExitFailure 2
        contains out "cannot write an event log: link it with -rtsopts -eventlog"
        assertBool out (length (lines out) == 1),
      testCase "a program that fails without a log: the error says how it ended" . forM_ [("kill -KILL $$", "was ended by signal 9 and"), ("exit 5", "ended with status 5 and")] $ \(does, how) -> do
        let script = folder </> "fails.sh"
        writeFile script ("#!/bin/sh\n" <> does <> "\n")
        callProcess "chmod" ["+x", script]
        (code, out) <- outcome program [] ["trace", "-o", folder </> "fails.eventlog", "--", script]
        code @?= ExitFailure 2
        contains out (how <> " wrote no event log"),
      testCase "Ctrl-C ends the program, which writes its log: the recording is complete" $ do
        let file = folder </> "interrupted.eventlog"
        (code, said) <- recordingPong file $ \p -> getPid (process p) >>= mapM_ (signalProcessGroup sigINT)
        code @?= ExitFailure (-2)
        contains said "shows it as a page"
        assertBool said (not ("incomplete" `isInfixOf` said))
        (viewed, out) <- outcome program [] ["trace", "view", file]
        viewed @?= ExitSuccess
        -- No request was served, so the log may have no markers.
        contains out (folder </> "interrupted.html\n")
        -- Nothing but the page goes to standard output.
        (printed, page, _) <- limited (readProcessWithExitCode program ["trace", "view", file, "-o", "-", "--json", folder </> "interrupted.json"] "")
        printed @?= ExitSuccess
        saved <- readFile (folder </> "interrupted.html")
        page @?= saved,
      testCase "a program that is killed before it has written an event: the recording is said to have none" $ do
        needProgram "pkill"
        let file = folder </> "killed.eventlog"
        (code, said) <- recordingPong file $ \p -> getPid (process p) >>= mapM_ (\pid -> callProcess "pkill" ["-KILL", "-P", show pid])
        code @?= ExitFailure (-9)
        contains said "was ended by signal 9 and did not write the end of its log: the recording is incomplete"
        (viewed, out) <- outcome program [] ["trace", "view", file]
        viewed @?= ExitFailure 1
        contains out (file <> ": it has no events: its program was killed before it wrote any")
        doesFileExist (folder </> "killed.html") >>= (@?= False)
    ]
  where
    -- The exit status and the standard error of weft trace, after an action that ends the pong which it records.
    recordingPong file end = do
      let pong = takeDirectory program </> "subjects" </> "pong-weft-eventlog"
      there <- doesFileExist pong
      unless there (skip "bin/subjects/pong-weft-eventlog is not built")
      started [] (proc program ["trace", "-o", file, "--", pong, "--port", "0"]) {create_group = True} $ \p -> do
        line <- hGetLine (output p)
        contains line "listening on"
        _ <- end p
        code <- waitForProcess (process p)
        said <- hGetContents (errors p)
        (code, said) <$ evaluate (length said)
