-- |
-- Programs that know nothing of Weft, as they are and with @weft-relink@: they print
-- the same. Each runs on every back end that this machine has, and with @WEFT_DISABLE@.
module Main (main) where

import Control.Exception (bracket)
import Control.Monad
import Data.List (isInfixOf, isPrefixOf, isSuffixOf)
import Data.Maybe (fromMaybe)
import qualified Refusals
import qualified Runtime
import System.Directory (doesFileExist)
import System.Environment (getEnvironment, lookupEnv, setEnv)
import System.Exit (ExitCode (..))
import System.FilePath ((</>))
import System.IO
import System.Process
import System.Timeout (timeout)
import Test.Tasty hiding (defaultMain)
import Test.Tasty.HUnit hiding (testCase)
import Weft.Backend (backendNames, whyUnavailable)
import Weft.Test.Configurations (configurations)
import Weft.Test.Main (defaultMain)
import Weft.Test.Services
import Weft.Test.Skip (needProgram, skip, testCase)

main :: IO ()
main = do
  -- They share the machine's cores and are compared by what they do in time.
  setEnv "TASTY_NUM_THREADS" "1"
  folder <- fromMaybe "../bin/relink" <$> lookupEnv "WEFT_RELINK_PROGRAMS"
  there <- doesFileExist (folder </> "clock")
  unless there (ioError (userError ("no programs in " <> folder <> ": build them with `scripts/build all`")))
  variants <- configurations (const True) everyVariant
  -- A test runs several programs, each of which has a minute.
  defaultMain . localOption (mkTimeout 600000000) $
    testGroup
      "relink"
      [ testGroup
          "real servers, the same with and without"
          [ testCase "hedis and Redis" (withRedis (\port -> alike folder "redis" [show port])),
            testCase "postgresql-simple and PostgreSQL" (withPostgres (\address -> alike folder "postgres" [address])),
            testCase "http-client and nginx, 1,000 at a time" . withFolder "site" $ \site -> do
              writeFile (site </> "file") (concatMap show [1 .. 3000 :: Int])
              callProcess "chmod" ["-R", "a+rX", site]
              withNginx site (\address -> alike folder "fetch" [address]),
            testCase "curl and wrk, and Warp with wai-app-static and scotty" (webSites folder)
          ],
        testGroup "the same with and without" [same variants folder name | name <- ["clock", "exhausted", "storm", "handles", "waits", "sockets", "embedded"]],
        testGroup "forked children, after collections" $ do
          n <- [1, 2, 4 :: Int]
          [testCase (program <> " -N" <> show n) (forks folder program n) | program <- ["forks-relinked", "forks-relinked-debug"]],
        testCase "calls arrive at Weft" $ do
          (code, out, err) <- run (folder </> "proof-relinked") []
          (code, err) @?= (ExitSuccess, "")
          assertBool out (length (lines out) == 5 && all ("True" `isInfixOf`) (lines out)),
        testCase "calls do not arrive at Weft with WEFT_DISABLE" $ do
          (code, out, err) <- run (folder </> "proof-relinked") [("WEFT_DISABLE", "1")]
          (code, err) @?= (ExitSuccess, "")
          assertBool out (length (lines out) == 5 && all ("False" `isInfixOf`) (lines out)),
        testCase "WEFT_VERBOSE prints the redirected functions" $ do
          (code, _, err) <- run (folder </> "clock-relinked") [("WEFT_VERBOSE", "1"), ("WEFT_BACKEND", "poll")]
          code @?= ExitSuccess
          let said = lines err
          assertBool err (length said >= 8 && all (": Weft's" `isSuffixOf`) (init said))
          assertBool err ("back end poll" `isInfixOf` err),
        testCase "WEFT_VERBOSE with an unknown back end" $ do
          (_, _, err) <- run (folder </> "clock-relinked") [("WEFT_VERBOSE", "1"), ("WEFT_BACKEND", "none")]
          assertBool err (any ("weft: no back end is called \"none\"" `isPrefixOf`) (lines err)),
        testCase "WEFT_VERBOSE prints the back end once: forked children print nothing" $ do
          (code, _, err) <- run (folder </> "forks-relinked") [("WEFT_VERBOSE", "1")]
          code @?= ExitSuccess
          length (filter ("back end" `isInfixOf`) (lines err)) @?= 1,
        testCase "WEFT_VERBOSE with WEFT_DISABLE" $ do
          (code, _, err) <- run (folder </> "clock-relinked") [("WEFT_VERBOSE", "1"), ("WEFT_DISABLE", "1")]
          code @?= ExitSuccess
          lines err @?= ["weft: WEFT_DISABLE is set: GHC's own manager serves this program"],
        testCase "without -threaded GHC's manager serves the program" $ do
          wanted <- run (folder </> "handles") []
          run (folder </> "handles-relinked-nonthreaded") [] >>= (@?= wanted)
          (_, _, err) <- run (folder </> "handles-relinked-nonthreaded") [("WEFT_VERBOSE", "1")]
          lines err @?= ["weft: this program was linked without -threaded: GHC's own manager serves it"],
        Refusals.tests,
        Runtime.tests
      ]

-- | Every child of the program ends well, on every back end and on GHC's own manager.
forks :: FilePath -> String -> Int -> IO ()
forks folder program n = do
  wanted <- runWith options (folder </> "forks") []
  (\(code, out, err) -> (code, length (filter ("Exited ExitSuccess" `isInfixOf`) (lines out)), err) @?= (ExitSuccess, 10, "")) wanted
  ways <- everyWay
  forM_ ways $ \variables -> do
    found <- runWith options (folder </> program) variables
    assertEqual (show variables) wanted found
  where
    options = ["+RTS", "-N" <> show n, "-RTS"]

-- | A client program prints the same, as it is, relinked on every back end, and relinked but disabled.
alike :: FilePath -> String -> [String] -> IO ()
alike folder name arguments = do
  wanted <- runWith arguments (folder </> name) []
  (\(code, _, err) -> (code, err) @?= (ExitSuccess, "")) wanted
  ways <- everyWay
  forM_ ways $ \variables -> do
    found <- runWith arguments (folder </> (name <> "-relinked")) variables
    assertEqual (show variables) wanted found

-- | A server gives curl the same pages, with wrk at it or not.
webSites :: FilePath -> IO ()
webSites folder = withFolder "site" $ \site -> do
  mapM_ needProgram ["curl", "wrk"]
  writeFile (site </> "page.html") (concatMap show [1 .. 30000 :: Int])
  wanted <- pages site "site" []
  length (filter null wanted) @?= 0
  ways <- everyWay
  forM_ ways $ \variables -> do
    found <- pages site "site-relinked" variables
    assertEqual (show variables) wanted found
  where
    pages site name variables = do
      inherited <- filter ((`notElem` map fst variables) . fst) <$> getEnvironment
      let process = (proc (folder </> name) [site]) {std_in = CreatePipe, std_out = CreatePipe, env = Just (variables <> inherited)}
      bracket (createProcess process) cleanupProcess visited
    visited (_, Just out, _, _) = do
      base <- ("http://127.0.0.1:" <>) <$> hGetLine out
      let get options path = readProcess "curl" (["-sS", "--noproxy", "*", "--max-time", "30"] <> options <> [base <> path]) ""
      first <- mapM (get []) paths
      loads <- readProcess "wrk" ["-t2", "-c100", "-d1s", "--timeout", "30s", base <> "/page.html"] ""
      assertBool loads (not ("Socket errors" `isInfixOf` loads || "Non-2xx" `isInfixOf` loads))
      again <- mapM (get []) paths
      again @?= first
      range <- get ["-r", "100-199"] "/page.html"
      missing <- get ["-o", "/dev/null", "-w", "%{http_code}"] "/missing"
      pure (range : missing : first)
    visited _ = assertFailure "no output"
    paths = ["/page.html", "/app/hello", "/app/slow", "/app/large"]

-- | Variables for a relinked program: disabled, and each back end that this machine has.
everyWay :: IO [[(String, String)]]
everyWay = do
  there <- filterM (fmap (== Nothing) . whyUnavailable) backendNames
  pure ([("WEFT_DISABLE", "1")] : [[("WEFT_BACKEND", b)] | b <- there])

-- | Name, variables and run-time options. The preferred one, where there is time for one, is the first.
everyVariant :: [(String, [(String, String)], [String])]
everyVariant =
  [("-N" <> show n, [], ["-N" <> show n]) | n <- [2, 1, 4 :: Int]]
    <> [(b, [("WEFT_BACKEND", b)], []) | b <- backendNames]
    <> [("WEFT_DISABLE", [("WEFT_DISABLE", "1")], [])]

-- | One program, by its name.
same :: [(String, [(String, String)], [String])] -> FilePath -> String -> TestTree
same variants folder name = testGroup name (map variant variants)
  where
    variant (what, variables, rts) = testCase what $ do
      forM_ (lookup "WEFT_BACKEND" variables) (whyUnavailable >=> mapM_ skip)
      let options = ["+RTS"] <> rts <> ["-RTS"]
      wanted <- runWith options (folder </> name) []
      (\(code, _, err) -> (code, err) @?= (ExitSuccess, "")) wanted
      runWith options (folder </> (name <> "-relinked")) variables >>= (@?= wanted)

run :: FilePath -> [(String, String)] -> IO (ExitCode, String, String)
run = runWith []

-- | Run a program with some variables; its standard input has two lines and stays open.
runWith :: [String] -> FilePath -> [(String, String)] -> IO (ExitCode, String, String)
runWith options program variables = do
  inherited <- filter ((`notElem` "WEFT_BACKEND" : map fst variables) . fst) <$> getEnvironment
  let process =
        (proc program options)
          { std_in = CreatePipe,
            std_out = CreatePipe,
            std_err = CreatePipe,
            env = Just (variables <> inherited)
          }
  r <- timeout 60000000 (bracket (createProcess process) cleanupProcess communicate)
  maybe (assertFailure (program <> " is still running after a minute")) pure r
  where
    communicate (Just i, Just o, Just e, p) = do
      hPutStr i "one\ntwo\n" >> hFlush i
      out <- hGetContents o
      err <- hGetContents e
      code <- length out `seq` length err `seq` waitForProcess p
      pure (code, out, err)
    communicate _ = assertFailure "no pipes"
