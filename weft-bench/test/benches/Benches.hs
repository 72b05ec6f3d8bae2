-- | @weft-bench@: refused arguments, and pages and documents from kept results. Nothing is measured.
module Benches (tests) where

import Control.Monad
import qualified Data.ByteString.Char8 as B
import Data.List (isInfixOf, stripPrefix, tails)
import System.Directory (createDirectoryIfMissing)
import System.Exit (ExitCode (..))
import System.FilePath (takeFileName, (</>))
import System.IO (IOMode (ReadWriteMode), withBinaryFile)
import System.Posix.Files (createNamedPipe, getFileStatus, isNamedPipe)
import System.Process (readProcessWithExitCode)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Test.Program

-- | A kept result of a benchmark that the documents show. The peer go is missing.
savedPong :: String
savedPong =
  "{\"bench\": \"pong\", \"machine\": {\"cores\": 2}, \"runs\": [{\"subject\": \"weft\", \"params\": {\"connections\": 64, \"capabilities\": 1}, \"metrics\": {\"cpu_us_per_op\": 5.5}}, \
  \{\"subject\": \"c-epoll\", \"params\": {\"connections\": 64, \"capabilities\": 1}, \"metrics\": {\"cpu_us_per_op\": 5}}], \
  \\"bounds\": [{\"name\": \"a\", \"figure\": 1.1, \"limit\": 1, \"holds\": false}], \"missing\": [{\"subject\": \"go\", \"why\": \"there is no go-pong\"}]}"

tests :: FilePath -> FilePath -> TestTree
tests program folder =
  testGroup
    "benchmarks"
    [ testCase "an unknown case is refused, and the error lists the known ones" $ do
        (code, out) <- outcome program [] ["pong", "--case", "connections=65"]
        code @?= ExitFailure 2
        mapM_ (contains out) ["no case with connections=65", "connections=64|400", "placement=shared"],
      testCase "on a full disk, an earlier report stays, and the error names the report and the command" $ do
        let (result, report) = (folder </> "full.json", folder </> "full.html")
        writeFile result "{\"bench\": \"echo\", \"runs\": []}"
        writeFile report "earlier"
        -- No file may be larger than one unit of ulimit: 512 or 1024 bytes.
        (_, said, complaint) <- limited (readProcessWithExitCode "sh" ["-c", "trap '' XFSZ; ulimit -f 1; exec \"$0\" \"$@\"", program, "report", result, "-o", report] "")
        let out = said <> complaint
        contains out ("weft-bench: " <> report <> ": File too large")
        readFile report >>= (@?= "earlier"),
      testCase "list takes no options" $ do
        (code, out) <- outcome program [] ["list", "--json", "/dev/null"]
        code @?= ExitFailure 2
        contains out "list takes no options",
      testCase "options that a benchmark does not use are refused" $
        forM_ [("delay", "--duration", "1"), ("paper 2010-6", "--duration", "1"), ("static", "--rts", "-A4m"), ("tcp", "--backend", "poll")] $ \(name, flag, argument) -> do
          (code, out) <- outcome program [] (words name <> [flag <> "=" <> argument])
          code @?= ExitFailure 2
          contains out (last (words name) <> " does not take " <> flag),
      testCase "a back end that does not exist is refused before anything is measured, and the error names those that do" $
        forM_ [["pong"], ["all"], ["paper", "mio-5"]] $ \name -> do
          (code, out) <- outcome program [("WEFT_BENCH_DIR", folder </> "no-such-place")] (name <> ["--quick", "--backend", "zz"])
          code @?= ExitFailure 2
          mapM_ (contains out) ["no back end is called zz; there are ", "poll"],
      testCase "two results cannot be in one file, whatever it is called" $ do
        createDirectoryIfMissing True (folder </> "sub")
        let file = folder </> "both"
            other = folder </> "sub" </> ".." </> "both"
            echo = outcome program [("WEFT_BENCH_DIR", folder </> "no-such-place")] . (["echo", "--quick"] <>)
        writeFile file "kept"
        forM_ [["--json", file, "--report", other], ["--json", file, "--plot", file], ["--plot", file, "--report", file]] $ \outputs -> do
          (code, out) <- echo outputs
          code @?= ExitFailure 2
          contains out ("weft-bench: two results cannot both be in " <> last outputs)
        readFile file >>= (@?= "kept"),
      testCase "a result, and what weft get fetches, goes into a pipe, which no file replaces" . serving $ \port -> do
        let pipe = folder </> "pipe"
        createNamedPipe pipe 0o600
        withBinaryFile pipe ReadWriteMode $ \reader -> do
          let writes run arguments ends text = do
                (code, out) <- outcome run [("WEFT_BENCH_DIR", folder </> "no-such-place")] (arguments <> [pipe])
                assertEqual out ends code
                getFileStatus pipe >>= assertBool "a file has replaced the pipe" . isNamedPipe
                written <- B.hGetSome reader 65536
                contains (B.unpack written) text
          writes (program `beside` "weft") ["get", "http://127.0.0.1:" <> show port <> "/healthz", "-o"] ExitSuccess "ok"
          -- Nothing can be measured, and the result says so.
          writes program ["echo", "--quick", "--json"] (ExitFailure 1) "\"bench\": \"echo\"",
      testCase "a report does not overwrite a result" $ do
        (figures, _) <- place "report-over"
        let file = figures </> "pong.json"
        writeFile file savedPong
        (code, out) <- outcome program [] ["report", file, "-o", figures </> ".." </> takeFileName figures </> "pong.json"]
        code @?= ExitFailure 2
        contains out ("weft-bench: " <> file <> " would be overwritten")
        readFile file >>= (@?= savedPong),
      testCase "a document takes its figures from kept results, and names the peer that is missing" $ do
        (figures, document) <- place "readme"
        writeFile (figures </> "pong.json") savedPong
        let readme more = outcome program [] (["readme", "--figures", figures] <> more <> [document])
        (before, _) <- readme ["--check"]
        before @?= ExitFailure 3
        (code, _) <- readme []
        code @?= ExitSuccess
        text <- readFile document
        mapM_ (contains text) ["first\n<!-- figures: begin -->", "| 5.50 ", "go (pong): there is no go-pong", "pong: CPU -N1, 64 connections: weft / c-epoll: 1.10, limit 1.15", "<!-- figures: end -->\nlast"]
        assertBool "old figures and bounds are gone" (not (any (`isInfixOf` text) ["of yesterday", "a: 1.10, limit 1.00"]))
        (later, _) <- readme ["--check"]
        later @?= ExitSuccess
        (again, said) <- readme []
        (again, said) @?= (ExitSuccess, ""),
      testCase "results of another compiler, in a folder of their own, make a table of compilers" $ do
        (figures, document) <- place "compilers"
        let builtBy ghc = B.unpack (B.concat [start, B.pack ("\"ghc\": \"" <> ghc <> "\", "), end])
            (start, end) = B.breakSubstring (B.pack "\"cores\"") (B.pack savedPong)
        createDirectoryIfMissing True (figures </> "ghc-9.10")
        writeFile (figures </> "pong.json") (builtBy "9.0.2")
        writeFile (figures </> "ghc-9.10" </> "pong.json") (builtBy "9.10.3")
        (code, _) <- outcome program [] ["readme", "--figures", figures, document]
        code @?= ExitSuccess
        text <- readFile document
        mapM_ (contains text) ["| what | Weft, GHC 9.0.2 | Weft, GHC 9.10.3 |", "With GHC 9.10.3: of 1 bounds of these benchmarks 1 too close to call"],
      testCase "a result names the commit in WEFT_BENCH_COMMIT" $ do
        let file = folder </> "commit.json"
        (code, _) <- outcome program [("WEFT_BENCH_DIR", folder </> "no-such-place"), ("WEFT_BENCH_COMMIT", "0123abcdef")] ["echo", "--quick", "--json", file]
        code @?= ExitFailure 1
        text <- B.unpack <$> B.readFile file
        contains text "\"commit\":\"0123abcdef\"",
      testCase "files that cannot be written are refused before the first measurement" $
        forM_ [(["url", "http://127.0.0.1:1/", "--duration", "1"], "--json"), (["echo", "--quick"], "--json"), (["echo", "--quick"], "--report"), (["echo", "--quick"], "--plot")] $ \(command, flag) ->
          forM_ [("/nonexistent/a.json", "No such file or directory"), (folder, "it is a folder")] $ \(file, why) -> do
            (code, out) <- outcome program [("WEFT_BENCH_DIR", folder </> "no-such-place")] (command <> [flag, file])
            code @?= ExitFailure 2
            contains out "cannot write "
            contains out why,
      testCase "two results of one benchmark are refused, and the document stays" $ do
        (figures, document) <- place "twice"
        mapM_ (\name -> writeFile (figures </> name) savedPong) ["all.json", "pong.json"]
        (code, out) <- outcome program [] ["readme", "--figures", figures, document]
        code @?= ExitFailure 2
        mapM_ (contains out) ["pong is in several files", "all.json, pong.json"]
        text <- readFile document
        contains text "of yesterday",
      testCase "a benchmark that cannot be measured leaves the kept result as it was" $ do
        (figures, _) <- place "unmeasured"
        writeFile (figures </> "echo.json") "kept"
        (code, out) <- outcome program [("WEFT_BENCH_DIR", folder </> "no-such-place")] ["figures", "echo", "--quick", "--directory", figures]
        code @?= ExitFailure 1
        contains out "stays as it was"
        text <- readFile (figures </> "echo.json")
        text @?= "kept",
      testCase "--report writes the page of what was measured, and of what was missing" $ do
        let page = folder </> "measured.html"
        (code, _) <- outcome program [("WEFT_BENCH_DIR", folder </> "no-such-place")] ["echo", "--quick", "--report", page]
        code @?= ExitFailure 1
        text <- B.unpack <$> B.readFile page
        mapM_ (contains text) ["round trips of one client", "? not measured", "missing: ghc: there is no program echo-ghc"],
      testCase "bench compare --check fails for results without a run in common" $ do
        writeFile (folder </> "kept.json") savedPong
        writeFile (folder </> "other.json") "[]"
        (same, _) <- outcome program [] ["compare", "--check", folder </> "kept.json", folder </> "kept.json"]
        same @?= ExitSuccess
        (code, out) <- outcome program [] ["compare", "--check", folder </> "kept.json", folder </> "other.json"]
        code @?= ExitFailure 2
        contains out "nothing could be compared",
      testCase "results of bench url say what was measured, and those of two paths are not compared" $ do
        let file name = folder </> ("url-" <> name <> ".json")
        forM_ ["a", "b"] $ \name ->
          -- Nobody listens: the result is written all the same.
          outcome program [] ["url", "http://127.0.0.1:1/" <> name, "--rate", "0.4", "--duration", "2", "--warmup", "0", "--connections", "1", "--header", "Accept: */*", "--header", "Cookie: secret", "--json", file name]
        kept <- readFile (file "a")
        mapM_ (contains kept) ["\"url\":\"http://127.0.0.1:1/a\"", "\"threads\":1", "\"timeout_s\":10", "\"headers\":\"Accept: */*; Cookie: (not kept)\"", "\"rate\":\"0.4\"", "\"path\":\"/a\"", "\"errors_refused\":1"]
        (code, out) <- outcome program [] ["compare", file "a", file "b"]
        code @?= ExitFailure 2
        contains out "nothing could be compared",
      testCase "a report of bench url names the addresses, and charts latencies and the rate" . serving $ \port -> do
        let file = folder </> "reported.json"
            url = "http://127.0.0.1:" <> show port <> "/"
        (measured, _) <- outcome program [] ["url", url, "--rate", "40", "--duration", "0.5", "--warmup", "0", "--connections", "2", "--json", file]
        measured @?= ExitSuccess
        (code, page) <- outcome program [] ["report", file, "-o", "-"]
        code @?= ExitSuccess
        contains page ("<h2>url: " <> url <> "</h2>")
        [takeWhile (`notElem` "<(") rest | Just rest <- map (stripPrefix "<figcaption>") (tails page)]
          @?= ["median latency ", "latency, 99th percentile ", "latency, 99.9th percentile ", "operations a second "],
      testCase "figures of a benchmark that no document shows are refused" $ do
        (code, out) <- outcome program [] ["figures", "pnog"]
        code @?= ExitFailure 2
        contains out "no document shows a figure of pnog"
    ]
  where
    serving act = weft (program `beside` "weft") [] ["serve", folder, "--port", "0"] (portOf >=> act)
    place name = do
      let figures = folder </> name
          document = figures </> "DOCUMENT.md"
      createDirectoryIfMissing True figures
      writeFile document "first\n<!-- figures: begin -->\nof yesterday\n<!-- figures: end -->\nlast\n"
      pure (figures, document)
