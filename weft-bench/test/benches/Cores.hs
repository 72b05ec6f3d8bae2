-- | Cache lines that Weft moves between capabilities.
--
-- Requests of different connections need no line in common (@doc\/rationale\/cores.md@). QEMU's user mode runs a server
-- with eight capabilities, one request is in flight at a time, and @weft-bench transfers@ counts the lines that move
-- from one capability to another with Weft's code on a side. No time is measured.
--
-- A word that each request writes moves with seven of eight requests. Lines also move that belong to no request: of the
-- second's date, of threads that change their capability. So the smallest of several counts is taken, and a machine
-- that is too slow is excused.
module Cores (tests) where

import Control.Monad (unless)
import Data.List (isInfixOf, tails)
import Data.Maybe (listToMaybe)
import System.Directory (createDirectory, createDirectoryLink, doesFileExist, makeAbsolute)
import System.Exit (ExitCode (..))
import System.FilePath (takeDirectory, (</>))
import System.Info (arch, os)
import System.Process (readProcessWithExitCode)
import Test.Tasty
import Test.Tasty.HUnit hiding (testCase)
import Text.Read (readMaybe)
import Weft.Test.Program
import Weft.Test.Skip (needProgram, skip, skipUnless, testCase)

tests :: FilePath -> TestTree
tests program =
  testGroup
    "cores"
    [ testCase "a shared word is found, and one that only lies beside another" . counting program $ \transfers -> do
        (code, out) <- transfers "shared-word" ["--seconds", "2"]
        assertEqual out ExitSuccess code
        mapM_ (contains out) ["variable planted", "variable beside"]
        -- Where counting begins and ends, a round trip is counted in part.
        assertBool out (maybe False (\found -> abs (found - 6) < 0.1) (figureAfter "transfers a request: " out)),
      testGroup
        "a request moves no line of Weft's"
        ( [ testCase name $ do
              subjectBuilt program name
              unshared limit name
            | name <- ["pong-weft", "wai-weft", "timers-weft"]
          ]
            <> [testCase "weft serve, a file" (unshared ofServe "file")]
            <> [testCase "weft serve, as a proxy" (subjectBuilt program "wai-weft" >> unshared ofServe "proxy")]
            <> [testCase "a controller" (subjectBuilt program "sdn-weft" >> unshared ofServe "sdn-weft")]
            <> [testCase ("weft serve, " <> name) (needProgram "openssl" >> unshared ofServe name) | name <- ["https", "http2"]]
        )
    ]
  where
    unshared most name = counting program $ \transfers -> smallest most (3 :: Int) (transfers name ["--requests", "400"])

-- | Skip if a program that is measured is not built.
subjectBuilt :: FilePath -> String -> IO ()
subjectBuilt program name = doesFileExist (takeDirectory program </> "subjects" </> name) >>= skipUnless ("bin/subjects/" <> name <> " is not built")

-- | The most that may move with a request; and with one of @weft serve@ or a controller, whose many values of the whole
-- program have more neighbours. A thread that leaves its connection's capability moves dozens.
limit, ofServe :: Double
limit = 0.25
ofServe = 2

-- | Count up to so many times, until a count is low enough. Nothing is known if the kernel gave a capability no
-- connection; if the machine was too slow, it will be again.
smallest :: Double -> Int -> IO (ExitCode, String) -> Assertion
smallest most times transfers = go times []
  where
    go 0 said
      | null [() | (Just _, _) <- said] = skip ("nothing was counted: " <> concat (take 1 [last ("" : lines out) | (_, out) <- said]))
      | otherwise = assertFailure (unlines (reverse (map snd said)))
    go left said = do
      (code, out) <- transfers
      let found = subtract (besideGlobals out) <$> figureAfter "with Weft's code on a side: " out
          slow = any (`isInfixOf` out) ["too slow", "said nothing for"]
      unless (slow || "the work was not spread" `isInfixOf` out || code == ExitSuccess && found /= Nothing) (assertFailure out)
      unless (maybe False (<= most) found) (go (if slow then 0 else left - 1) ((found, out) : said))

-- | What moves because a value of the whole program was evaluated beside a thread's descriptor: the object by which it
-- is reached until the first collection, a BLACKHOLE, stays where it was made.
besideGlobals :: String -> Double
besideGlobals out = sum [n | moved : _ : "%" : "Weft" : line <- map words (lines out), "BLACKHOLE" `elem` line, Just n <- [readMaybe moved]]

-- | The number after this text.
figureAfter :: String -> String -> Maybe Double
figureAfter text out = listToMaybe [n | rest <- tails out, Just end <- [prefixOf rest], Just n <- [readMaybe (takeWhile (`elem` "0123456789.") end)]]
  where
    prefixOf rest = if take (length text) rest == text then Just (drop (length text) rest) else Nothing

-- | The plug-in and the program whose answer is known are compiled, since the peers of benchmarks need not be built.
counting :: FilePath -> ((FilePath -> [String] -> IO (ExitCode, String)) -> IO ()) -> IO ()
counting program act = do
  skipUnless "the plug-in is for Linux on x86-64" (os == "linux" && arch == "x86_64")
  mapM_ needProgram ["qemu-x86_64", "prlimit", "cc", "nm", "readelf"]
  scratchFolder "cores" $ \folder -> do
    createDirectory (folder </> "peers")
    makeAbsolute (takeDirectory program </> "subjects") >>= (`createDirectoryLink` (folder </> "subjects"))
    compile folder "transfers.so" ["-shared", "-fPIC", peers </> "transfers.c"]
    compile folder "shared-word" [peers </> "shared-word.c", peers </> "peer.c"]
    act $ \subject options -> outcome program [("WEFT_BENCH_DIR", folder)] (["transfers", subject, "-N", "8"] <> options)
  where
    peers = ".." </> "bench" </> "peers"
    compile folder name arguments = do
      (code, _, err) <- readProcessWithExitCode "cc" (["-O2", "-pthread", "-o", folder </> "peers" </> name] <> arguments) ""
      assertEqual err ExitSuccess code
