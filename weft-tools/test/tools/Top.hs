-- | @weft top@ while a program restarts, and its terminal.
module Top (tests) where

import Control.Monad
import qualified Data.ByteString.Char8 as B
import Network.Socket (PortNumber)
import Program
import System.Exit (ExitCode (..))
import System.IO (Handle)
import System.Posix.Signals (sigKILL)
import System.Process
import Test.Tasty
import Test.Tasty.HUnit hiding (testCase)
import Weft.Test.Skip (testCase)

tests :: FilePath -> FilePath -> TestTree
tests program folder =
  testGroup
    "top, restarts and terminals"
    [ testCase "it goes on when the program restarts, and says since when it does not answer" . serving 0 $ \old port ->
        weft program [] ["top", url port, "--interval", "0.1"] $ \top -> do
          readUntil "requests" (output top)
          send' sigKILL old
          _ <- waitForProcess (process old)
          readUntil "no answer since " (output top)
          readUntil "connection refused" (output top)
          serving port $ \_ _ -> readUntil "requests" (output top),
      testCase "with --count, a reading that fails ends it" . serving 0 $ \old port ->
        weft program [] ["top", url port, "--interval", "0.1", "--count", "1000000"] $ \top -> do
          readUntil "requests" (output top)
          send' sigKILL old
          code <- waitForProcess (process top)
          code @?= ExitFailure 1,
      testCase "intervals that are too short or too long are refused" . forM_ ["1e-9", "1e20", "Infinity", "0"] $ \interval -> do
        (code, out) <- outcome program [] ["top", "http://127.0.0.1:1", "--interval", interval]
        code @?= ExitFailure 2
        contains out ("not a number of seconds from 0.05 to 86400: " <> interval)
    ]
  where
    serving port act = weft program [] ["serve", folder, "--port", show (port :: PortNumber)] (\p -> portOf p >>= act p)
    url port = "http://127.0.0.1:" <> show port

-- | Read until a text comes.
readUntil :: String -> Handle -> Assertion
readUntil text from = go B.empty
  where
    go seen = unless (B.pack text `B.isInfixOf` seen) $ do
      more <- B.hGetSome from 4096
      when (B.null more) (assertFailure (text <> " does not come after:\n" <> B.unpack seen))
      go (seen <> more)
