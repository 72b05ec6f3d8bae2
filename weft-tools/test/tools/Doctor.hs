-- | @weft doctor@ for processes in unusual states and environments, and for chains of certificates.
module Doctor (tests) where

import Control.Concurrent (threadDelay)
import Control.Exception (bracket)
import Control.Monad
import qualified Data.ByteString.Char8 as B
import Data.List (isInfixOf)
import System.Directory (createDirectory, doesFileExist, removePathForcibly)
import System.Exit (ExitCode (..))
import System.FilePath (takeDirectory, (</>))
import System.IO (hGetLine)
import System.Posix.Process (getProcessID)
import System.Posix.Types (ProcessID)
import System.Posix.User (getEffectiveUserID)
import System.Process
import Test.Tasty
import Test.Tasty.HUnit hiding (testCase)
import Weft.Test.Program
import Weft.Test.Skip (needProgram, skipUnless, testCase)

tests :: FilePath -> FilePath -> TestTree
tests program folder =
  testGroup
    "doctor, processes and certificates"
    [ testCase "WEFT_DISABLE counts unless it is empty or 0" . forM_ [("", served), ("0", served), ("1", "but WEFT_DISABLE is set")] $ \(value, part) -> do
        let waiting = takeDirectory program </> "relink" </> "handles-relinked"
        there <- doesFileExist waiting
        skipUnless "the relinked programs are not built" there
        out <- examined program [] [("WEFT_DISABLE", value)] (proc waiting []) (const (pure ()))
        contains out part,
      testCase "names and arguments in any locale, also a name that the kernel cuts inside a character" $ do
        let waiting = proc "sh" ["-c", "f=$0/$(printf 'fourteen-bytes\\303\\251') && cp /bin/cat \"$f\" && echo waits > \"$0/waits\" && exec \"$f\" \"$0/waits\" -", folder]
        forM_ ["C", "C.UTF-8"] $ \locale -> do
          out <- examined program [("LC_ALL", locale)] [] waiting (void . hGetLine . output)
          contains out "/fourteen-bytes\195\169",
      testGroup
        "WEFT_BACKEND that no back end has"
        [ testCase name $ do
            let file = takeDirectory program </> "relink" </> relinked
            there <- doesFileExist file
            skipUnless "the relinked programs are not built" there
            (_, out) <- outcome program [("WEFT_BACKEND", "nonsense")] ["doctor", file]
            ("[XX] chosen               weft: no back end is called \"nonsense\"" `isInfixOf` out) @?= complaint
          | (name, relinked, complaint) <- [("a program that reads it", "clock-relinked", True), ("one that does not", "clock", False)]
        ],
      testGroup
        "the reason for the back end is not invented"
        [ testCase name $ do
            out <- examined program [] variables (proc "cat" []) (const (pure ()))
            contains out said
            assertBool out (not ("as asked for" `isInfixOf` out))
          | (name, variables, said) <-
              [ ("no ring is open", [("WEFT_BACKEND", "io_uring")], "[!]  back end             WEFT_BACKEND=io_uring is set, but no ring is open"),
                ("an empty variable", [("WEFT_BACKEND", "")], "no WEFT_BACKEND, but the program may have chosen")
              ]
        ],
      testCase "options that a program was linked with are not claimed to be none" $ do
        -- This test's own program was linked with others than those that can be found, which have -A.
        pid <- getProcessID
        (_, out) <- outcome program [] ["doctor", show pid]
        contains out "those that the program was linked with (-with-rtsopts) are not known"
        assertBool out (not (any (`isInfixOf` out) ["GHC's defaults", "[!]  capabilities"])),
      testCase "GHCRTS of a process whose environment may not be read is not claimed to be empty" $ do
        user <- getEffectiveUserID
        skipUnless "only root can examine a process as another user" (user == 0)
        needProgram "setpriv"
        let asNobody arguments = outcome "setpriv" [] (["--reuid", "65534", "--regid", "65534", "--clear-groups", program] <> arguments)
        (may, _) <- asNobody ["--version"]
        skipUnless "another user cannot run bin/weft here" (may == ExitSuccess)
        started [] (proc program ["serve", folder, "--port", "0"]) $ \p -> do
          _ <- hGetLine (output p)
          pid <- getPid (process p) >>= maybe (assertFailure "no process") pure
          (_, out) <- asNobody ["doctor", show pid]
          contains out "GHCRTS is not known: run as its user, or as root",
      testCase "a zombie" . bracket (spawnProcess "true" []) waitForProcess $ \child -> do
        pid <- getPid child >>= maybe (assertFailure "it has no process ID") pure
        untilZombie pid 1000
        (code, out) <- outcome program [] ["doctor", show pid]
        code @?= ExitFailure 1
        mapM_ (contains out) ["[XX] state", "a zombie: it has ended"],
      testGroup
        "certificates"
        [ testCase name $ do
            file <- certificates folder periods
            (code, out) <- outcome program [] ["doctor", "--certificate", file]
            code @?= ExitFailure 1
            mapM_ (contains out) ["[XX] certificate", said]
          | (name, periods, said) <-
              [ ("one that is not valid yet", [("20900101000000Z", "20910101000000Z")], "not valid before 2090-01-01 00:00 UTC: clients refuse it"),
                ("a chain whose second has ended", [("20200101000000Z", "20900101000000Z"), ("20200101000000Z", "20210101000000Z")], "ended on 2021-01-01: clients refuse it (certificate 2 of 2 in the file)")
              ]
        ],
      testCase "a chain whose second is cut off, which weft serve refuses" $ do
        file <- certificates folder [("20200101000000Z", "20900101000000Z")]
        whole <- B.readFile file
        let cut = takeDirectory file </> "cut.pem"
        B.writeFile cut (whole <> B.take (B.length whole `div` 2) whole)
        (code, out) <- outcome program [] ["doctor", "--certificate", cut]
        code @?= ExitFailure 1
        mapM_ (contains out) ["[XX] certificate", "weft serve does not understand it (certificate 2 of 2 in the file)"]
        (checked, why) <- outcome program [] ["serve", folder, "--check", "--certificate", cut, "--key", takeDirectory file </> "key"]
        checked @?= ExitFailure 2
        contains why "certificate 2 in ",
      testCase "GHCRTS is for the program that is examined, and for the other commands themselves" $ do
        (_, out) <- outcome program [("GHCRTS", "--for-the-program")] ["doctor", program]
        contains out "of GHCRTS: --for-the-program"
        (refused, why) <- outcome program [("GHCRTS", "--for-the-program")] ["serve", "--help"]
        refused @?= ExitFailure 1
        contains why "unknown RTS option: --for-the-program",
      testCase "a file of certificates that does not exist" $ do
        (code, out) <- outcome program [] ["doctor", "--certificate", folder </> "none.pem"]
        code @?= ExitFailure 1
        contains out "there is no such file",
      testCase "a back end that a program chose by itself" $ do
        let pong = takeDirectory program </> "subjects" </> "pong-weft"
        there <- doesFileExist pong
        skipUnless "bin/subjects/pong-weft is not built" there
        out <- examined program [] [] (proc pong ["--port", "0", "--backend", "poll"]) (void . hGetLine . output)
        contains out "the program may have chosen"
    ]
  where
    served = "waits and delays are served by Weft"

-- | Make a file of self-signed certificates that are valid between these instants.
certificates :: FilePath -> [(String, String)] -> IO FilePath
certificates folder periods = do
  needProgram "openssl"
  removePathForcibly place
  createDirectory place
  writeFile (place </> "ca.cnf") (unlines ["[ca]", "default_ca=d", "[d]", "database=index", "new_certs_dir=.", "rand_serial=yes", "unique_subject=no", "policy=p", "[p]", "commonName=supplied"])
  writeFile (place </> "index") ""
  openssl (words "req -new -newkey rsa:2048 -nodes -subj /CN=localhost -keyout key -out request")
  forM_ (zip [1 :: Int ..] periods) $ \(i, (begin, end)) ->
    openssl (words "ca -batch -notext -config ca.cnf -selfsign -md sha256 -keyfile key -in request -out" <> [show i, "-startdate", begin, "-enddate", end])
  chain <- mapM (B.readFile . (place </>) . show) (zipWith const [1 :: Int ..] periods)
  (place </> "chain.pem") <$ B.writeFile (place </> "chain.pem") (B.concat chain)
  where
    place = folder </> "periods"
    openssl arguments = do
      (code, _, err) <- readCreateProcessWithExitCode (proc "openssl" arguments) {cwd = Just place} ""
      assertBool err (code == ExitSuccess)

-- | Wait until a process has ended, at most for the given number of hundredths of a second.
untilZombie :: ProcessID -> Int -> Assertion
untilZombie pid tries = do
  text <- B.readFile ("/proc/" <> show pid <> "/status")
  unless (B.pack "State:\tZ" `B.isInfixOf` text) $ do
    when (tries == 0) (assertFailure "the process has not ended")
    threadDelay 10000 >> untilZombie pid (tries - 1)

-- | What the command says, with these variables of its own, about a process that waits for its standard input, once the
-- last argument has returned. The characters of the result are bytes.
examined :: FilePath -> [(String, String)] -> [(String, String)] -> CreateProcess -> (Running -> IO ()) -> IO String
examined program own variables how ready = started variables how {std_in = CreatePipe} $ \p -> do
  ready p
  pid <- getPid (process p) >>= maybe (assertFailure "no process") pure
  started own (proc program ["doctor", show pid]) $ \doctor ->
    B.unpack <$> (B.append <$> B.hGetContents (output doctor) <*> B.hGetContents (errors doctor))
