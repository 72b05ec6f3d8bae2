-- |
-- Switches written in Python from the specification: correct ones, and ones that break its rules.
module Spec.Rude (tests) where

import Data.List (isPrefixOf)
import Peer
import System.Exit (ExitCode (..))
import System.Process
import Test.Tasty
import Test.Tasty.HUnit hiding (testCase)
import Weft.OpenFlow.Controller
import Weft.Socket
import Weft.Test.Skip (needProgram, testCase)

tests :: TestTree
tests =
  localOption (mkTimeout 600000000) . testGroup "switches in Python" $
    [ testCase name . atPort $ \port -> do
        needProgram "python3"
        (code, out, err) <- readProcessWithExitCode "timeout" ["500", "python3", "test/openflow/rude_switch.py", "127.0.0.1", port] ""
        assertEqual (out <> err) [] (filter (not . ("ok " `isPrefixOf`)) (lines out))
        assertEqual (out <> err) (ExitSuccess, 24) (code, length (lines out))
      | (name, atPort) <- [("with topology", serving defaultSettings), ("without topology", serving defaultSettings {settingsTopology = Nothing})]
    ]
  where
    serving settings act = withTestController (patient settings) $ \_ address -> case address of
      SockAddrInet p _ -> act (show p)
      _ -> assertFailure "no port"
