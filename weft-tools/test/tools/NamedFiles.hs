-- |
-- Description : Files that a user names and that are none, are endless, or are larger than memory
--
-- Each command that reads a file says what is wrong with it, names it, and ends.
module NamedFiles (tests) where

import Control.Monad
import Data.List (isInfixOf)
import Operating (inFolder, selfSigned)
import System.Directory (createDirectory)
import System.Exit (ExitCode (..))
import System.FilePath ((</>))
import System.IO (IOMode (WriteMode), hSetFileSize, withFile)
import System.Posix.Files (createNamedPipe)
import Test.Tasty
import Test.Tasty.HUnit hiding (testCase)
import Weft.Test.Program
import Weft.Test.Skip (testCase)

tests :: FilePath -> TestTree
tests program =
  testGroup
    "files that are named"
    [ testCase name . inFolder $ \folder -> do
        selfSigned folder "localhost" "key" "chain"
        createDirectory (folder </> "folder")
        writeFile (folder </> "empty") ""
        createNamedPipe (folder </> "pipe") 0o600
        -- Sparse: nothing of it is on the disk.
        withFile (folder </> "large") WriteMode (`hSetFileSize` 1000000000000)
        let bad = [folder </> "folder", "/dev/zero", folder </> "large"] <> [folder </> file | emptyIsBad, file <- ["empty", "pipe"]]
        forM_ bad $ \file -> do
          (code, out) <- outcome program [] (arguments folder file)
          assertBool (file <> ": " <> show code <> ": " <> out) (code `elem` [ExitFailure 1, ExitFailure 2] && file `isInfixOf` out)
      | (name, emptyIsBad, arguments) <- readers
    ]

-- | What reads a file; whether an empty one is an error, and so a pipe to which nobody writes; the arguments.
readers :: [(String, Bool, FilePath -> FilePath -> [String])]
readers =
  [ ("serve --config", False, \folder file -> ["serve", folder, "--check", "--config", file]),
    ("serve --certificate", True, \folder file -> ["serve", folder, "--check", "--certificate", file, "--key", folder </> "key"]),
    ("serve --key", True, \folder file -> ["serve", folder, "--check", "--certificate", folder </> "chain", "--key", file]),
    ("serve --client-ca", True, \folder file -> ["serve", folder, "--check", "--certificate", folder </> "chain", "--key", folder </> "key", "--client-ca", file]),
    ("serve --basic-auth", False, \folder file -> ["serve", folder, "--check", "--basic-auth", file]),
    ("controller --northbound-token-file", True, \_ file -> ["controller", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--northbound-token-file", file]),
    ("controller --switch-certificates", True, \folder file -> secured folder <> ["--switch-authorities", folder </> "chain", "--switch-certificates", file]),
    ("controller --switch-authorities", True, \folder file -> secured folder <> ["--switch-authorities", file]),
    ("controller --etcd-password-file", True, \_ file -> ["controller", "--listen", "127.0.0.1:0", "--etcd", "http://127.0.0.1:1", "--etcd-user", "a", "--etcd-password-file", file]),
    ("get --ca", True, \_ file -> ["get", "--ca", file, "https://127.0.0.1:1/"]),
    ("doctor --certificate", True, \_ file -> ["doctor", "--certificate", file]),
    ("doctor --binary", True, \_ file -> ["doctor", "--binary", file]),
    ("trace", True, \folder file -> ["trace", "-o", folder </> "new.eventlog", "--", file]),
    ("trace view", True, \folder file -> ["trace", "view", file, "-o", folder </> "page.html"]),
    ("tcp replay", True, \_ file -> ["tcp", "replay", file])
  ]
  where
    secured folder = ["controller", "--listen", "127.0.0.1:0", "--certificate", folder </> "chain", "--key", folder </> "key"]
