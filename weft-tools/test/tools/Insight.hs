-- | Commands that examine programs: @weft top@, @weft doctor@ and @weft trace@; with those of "Doctor", "Recordings"
-- and "Top".
module Insight (tests) where

import Control.Monad
import qualified Data.ByteString.Char8 as B
import Data.Char (isDigit)
import Data.List (isInfixOf, isPrefixOf, tails)
import qualified Doctor
import Network.Socket
import qualified Recordings
import qualified Surroundings
import System.Directory (doesFileExist, findExecutable)
import System.Exit (ExitCode (..))
import System.FilePath (takeDirectory, (</>))
import System.IO (hFlush)
import System.Process
import Test.Tasty
import Test.Tasty.HUnit hiding (testCase)
import qualified Top
import Weft.Test.Program
import Weft.Test.Skip (needProgram, skip, testCase)

tests :: FilePath -> FilePath -> TestTree
tests program folder = testGroup "insight" [topTests program folder, Top.tests program folder, doctorTests program folder, Doctor.tests program folder, Recordings.tests program folder, Surroundings.tests program folder, outputTests program]

serving :: FilePath -> FilePath -> (Running -> PortNumber -> IO a) -> IO a
serving program folder act = weft program [] ["serve", folder, "--port", "0", "--metrics", "loopback"] (\p -> portOf p >>= act p)

-- Top --------------------------------------------------------------------------------------

topTests :: FilePath -> FilePath -> TestTree
topTests program folder =
  testGroup
    "top"
    [ testCase "without a terminal, readings are printed as text" . serving program folder $ \_ port -> do
        (code, out) <- outcome program [] ["top", "http://127.0.0.1:" <> show port, "--interval", "0.3", "--count", "2"]
        code @?= ExitSuccess
        mapM_ (contains out) ["requests 0/s", "connections ", "capability", "resident"],
      testCase "on a terminal, q quits and the screen is restored" . serving program folder $ \_ port -> do
        (code, out) <- onTerminal "" ("http://127.0.0.1:" <> show port <> " --interval 0.2") (Just "q")
        code @?= ExitSuccess
        mapM_ (contains out) ["\ESC[?1049h", "Press q to quit.", "\ESC[?1049l"],
      testCase "on a terminal, an arrow key does not quit" . serving program folder $ \_ port -> do
        (code, out) <- onTerminal "" ("http://127.0.0.1:" <> show port <> " --interval 0.2 --count 20") (Just "\ESC[A\ESCOB")
        code @?= ExitSuccess
        -- A line for each reading: it ended by itself.
        length (filter ("Press q to quit." `isPrefixOf`) (tails out)) @?= 20,
      testCase "on a terminal, an error is printed after the screen is restored" $ do
        (code, out) <- onTerminal "" "http://127.0.0.1:1" Nothing
        code @?= ExitFailure 1
        contains (B.unpack (snd (B.breakSubstring (B.pack "\ESC[?1049l") (B.pack out)))) "no server listens there",
      testCase "a page without metrics is refused" . serving program folder $ \_ port -> do
        (code, out) <- outcome program [] ["top", "http://127.0.0.1:" <> show port <> "/inner/a.txt", "--count", "1"]
        code @?= ExitFailure 1
        contains out "no metrics",
      testCase "a port without a server" $ do
        (code, out) <- outcome program [] ["top", "http://127.0.0.1:1", "--count", "1"]
        code @?= ExitFailure 1
        mapM_ (contains out) ["127.0.0.1:1 /metrics", "no server listens there (connection refused)"],
      testCase "a process number is refused, and the error names weft doctor" $ do
        (code, out) <- outcome program [] ["top", "4711"]
        code @?= ExitFailure 2
        contains out "weft doctor 4711",
      testCase "a missing Unix socket" $ do
        (code, out) <- outcome program [] ["top", "unix:" <> (folder </> "no.socket"), "--count", "1"]
        code @?= ExitFailure 1
        contains out "there is no socket",
      testCase "a small window shows the rows that fit, and a mark that there are more" . serving program folder $ \_ port -> do
        (code, out) <- onTerminal "stty rows 8 cols 30; " ("http://127.0.0.1:" <> show port <> " --interval 0.2 --count 2") Nothing
        code @?= ExitSuccess
        contains out "more lines in a higher"
        assertBool out (all ((<= 30) . length) (lines (printed out)))
    ]
  where
    -- Run weft top with these arguments on a terminal, after a command of the shell, and press keys once it says that
    -- it reads them.
    onTerminal before arguments keys = do
      needProgram "script"
      let line = before <> "TERM=xterm " <> program <> " top " <> arguments
      limited . withCreateProcess (proc "script" ["-qec", line, "/dev/null"]) {std_in = CreatePipe, std_out = CreatePipe} $ \input output' _ child -> do
        begun <- case keys of
          Nothing -> pure B.empty
          Just pressed -> do
            begun <- maybe (pure B.empty) (until' "Press q to quit.") output'
            begun <$ forM_ input (\i -> B.hPutStr i (B.pack pressed) >> hFlush i)
        said <- (begun <>) <$> maybe (pure B.empty) B.hGetContents output'
        (,) <$> waitForProcess child <*> pure (B.unpack said)
    -- Read until a text comes: the program reads keys then.
    until' text from = go B.empty
      where
        go seen
          | B.pack text `B.isInfixOf` seen = pure seen
          | otherwise = B.hGetSome from 4096 >>= \more -> if B.null more then pure seen else go (seen <> more)
    -- The output without escape sequences; a sequence that moves the cursor begins a new line.
    printed text = case text of
      '\ESC' : '[' : rest | (_, end : more) <- break (`elem` "HJKhl") rest -> ['\n' | end `elem` "HJ"] <> printed more
      '\r' : rest -> printed rest
      c : rest -> c : printed rest
      [] -> []

-- Doctor -----------------------------------------------------------------------------------

doctorTests :: FilePath -> FilePath -> TestTree
doctorTests program folder =
  testGroup
    "doctor"
    [ testCase "a process: its back end, limits and binary" . serving program folder $ \p _ -> do
        pid <- getPid (process p) >>= maybe (assertFailure "no process") pure
        (code, out) <- outcome program [] ["doctor", show pid]
        code @?= ExitSuccess
        mapM_ (contains out) ["[ok] binary", "built with weft", "epoll", "open files", "seccomp", "allocation area"],
      testGroup
        "the allocation area of a process"
        [ testCase name . weft program environment (["serve", folder, "--port", "0"] <> more) $ \p -> do
            _ <- portOf p
            pid <- getPid (process p) >>= maybe (assertFailure "no process") pure
            (_, out) <- outcome program [] ["doctor", show pid]
            contains out said
          | (name, environment, more, said) <-
              [ ("by an argument", [], ["+RTS", "-A16m", "-RTS"], "16384 KiB a capability"),
                ("by GHCRTS", [("GHCRTS", "-A8m")], [], "8192 KiB a capability"),
                ("not given: that of the program itself", [], [], "2048 KiB a capability")
              ]
        ],
      testCase "a number that no process can have" . forM_ ["0", "4194305", "18446744073709551617"] $ \number -> do
        (code, out) <- outcome program [] ["doctor", number]
        code @?= ExitFailure 2
        contains out ("there is no process " <> number),
      testCase "a process with WEFT_BACKEND=poll" . weft program [("WEFT_BACKEND", "poll")] ["serve", folder, "--port", "0"] $ \p -> do
        _ <- portOf p
        pid <- getPid (process p) >>= maybe (assertFailure "no process") pure
        (_, out) <- outcome program [] ["doctor", show pid]
        contains out "as asked for by WEFT_BACKEND=poll",
      testCase "its own affinity" $ do
        online <- readFile "/sys/devices/system/cpu/online"
        taskset <- findExecutable "taskset"
        when (taskset == Nothing || all isDigit (filter (/= '\n') online)) (skip "there is no taskset, or one processor")
        allowed <- readProcess "sh" ["-c", "taskset -cp $$"] ""
        -- The first of those that this test may use.
        let first = takeWhile isDigit (concat (take 1 (reverse (words allowed))))
        (_, out) <- outcome "taskset" [] ["-c", first, program, "doctor"]
        contains out "[!]  affinity"
        contains out "may run on 1 of ",
      testCase "a program that is not a Haskell program" $ do
        (code, out) <- outcome program [] ["doctor", "/bin/sh"]
        code @?= ExitFailure 1
        contains out "[XX] binary",
      testCase "programs with and without weft-relink" $ do
        let relinked name = takeDirectory program </> "relink" </> name
        there <- doesFileExist (relinked "clock")
        unless there (skip "the relinked programs are not built")
        (_, one) <- outcome program [] ["doctor", relinked "clock-relinked"]
        contains one "linked with weft-relink"
        (_, two) <- outcome program [] ["doctor", relinked "clock"]
        contains two "[!]  binary",
      testCase "a program without -threaded" $ do
        let plain = takeDirectory program </> "relink" </> "handles-relinked-nonthreaded"
        there <- doesFileExist plain
        unless there (skip "the relinked programs are not built")
        (code, out) <- outcome program [] ["doctor", plain]
        code @?= ExitFailure 1
        mapM_ (contains out) ["[XX] run-time system", "linked without -threaded", "but without -threaded: GHC's own manager serves it"]
        assertBool out (not ("served by Weft" `isInfixOf` out))
        (_, threaded) <- outcome program [] ["doctor", program]
        assertBool threaded (not ("linked without" `isInfixOf` threaded)),
      testCase "a program's run-time options" $ do
        (_, out) <- outcome program [] ["doctor", program]
        mapM_ (contains out) ["run-time options     linked in: -A2m ", "2048 KiB a capability"]
        -- The options are found as a string in a program with GHC's run-time system.
        let file = folder </> "with-options"
        B.writeFile file (B.pack "\DEL\&ELF GHCRTS\0-N512\0")
        (_, unknown) <- outcome program [] ["doctor", file]
        mapM_ (contains unknown) ["run-time options     those that the program was linked with (-with-rtsopts) are not known", "allocation area      no -A is among the options"]
        B.writeFile file (B.pack "\DEL\&ELF GHCRTS\0-A64m -N512\0")
        (_, linked) <- outcome program [] ["doctor", file]
        -- It is presumably started in this environment.
        (_, given) <- outcome "env" [] ["GHCRTS=-A64m -N500", program, "doctor", file]
        mapM_ (contains given) ["; of GHCRTS: -A64m -N500", "[!]  capabilities         -N500 on "]
        mapM_ (contains linked) ["linked in: -A64m -N512", "65536 KiB a capability", "[!]  capabilities         -N512 on "],
      testCase "a folder is no program" $ do
        (code, out) <- outcome program [] ["doctor", folder]
        code @?= ExitFailure 2
        contains out "is a folder",
      testCase "a process or a program that does not exist" $
        forM_ [("4194305", "no process"), ("/none", "no such program: \"/none\""), ("", "no such program: \"\"")] $ \(subject, part) -> do
          (code, out) <- outcome program [] ["doctor", subject]
          code @?= ExitFailure 2
          contains out part,
      testCase "expiry of certificates" $ do
        openssl <- findExecutable "openssl"
        when (openssl == Nothing) (skip "there is no openssl")
        let file = folder </> "soon.pem"
        _ <- readProcess "openssl" (words "req -x509 -newkey rsa:2048 -nodes -days 5 -subj /CN=localhost -keyout" <> [folder </> "soon.key", "-out", file]) ""
        (code, out) <- outcome program [] ["doctor", "--certificate", file, "--certificate", folder </> "index.html"]
        code @?= ExitFailure 1
        mapM_ (contains out) ["[!]  certificate", "in 4 days", "[XX] certificate", "not a certificate"]
    ]

-- Load -------------------------------------------------------------------------------------

-- Output -----------------------------------------------------------------------------------

-- | Two commands stand for all of them, since the program flushes its output in one place.
outputTests :: FilePath -> TestTree
outputTests program =
  testGroup
    "output"
    [ testCase ("on a full disk, " <> name <> " fails") $ do
        (code, _, complaint) <- limited (readProcessWithExitCode "sh" ["-c", "exec \"$0\" \"$1\" > /dev/full", program, name] "")
        code @?= ExitFailure 1
        contains complaint "No space left on device"
      | name <- ["doctor", "man"]
    ]
