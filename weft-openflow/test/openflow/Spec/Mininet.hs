-- |
-- Mininet's networks on the userspace datapath: every host reaches every other one.
module Spec.Mininet (tests) where

import Control.Monad (unless)
import Data.List (isInfixOf)
import Peer
import System.Exit (ExitCode (..))
import System.Process
import Test.Tasty
import Test.Tasty.HUnit hiding (testCase)
import Weft.OpenFlow.Controller
import Weft.OpenFlow.Types
import Weft.Socket
import Weft.Test.OpenVSwitch
import Weft.Test.Skip (needProgram, skip, testCase)

tests :: TestTree
-- The tests run one after the other, since they use the same names of devices.
tests =
  localOption (mkTimeout 600000000) $
    testGroup
      "mininet"
      [ pingAll "tree,2,3" V13,
        after AllFinish "/tree,2,3/" (pingAll "linear,8" V10),
        after AllFinish "/linear,8/" (bridged V13 False),
        after AllFinish "/V13, a bridge/" (bridged V10 True)
      ]

pingAll :: String -> Version -> TestTree
pingAll topology version = testCase (topology <> ", " <> show version <> ": pingall drops nothing") $
  withMininet $ \port environment -> do
    let switch = "ovsk,datapath=user,protocols=" <> protocolName version
    said <- bounded environment ["mn", "--topo", topology, "--switch", switch, "--controller", "remote,ip=127.0.0.1,port=" <> port, "--test", "pingall"]
    assertBool (unlines (lastOf 40 said)) (any ("Results: 0% dropped" `isInfixOf`) said)

-- | A network in which a bridge that is not controlled joins the three switches of a ring, and has a host of its own.
-- It forwards LLDP frames or drops them.
bridged :: Version -> Bool -> TestTree
bridged version forwards = testCase (show version <> ", a bridge that " <> (if forwards then "forwards" else "drops") <> " LLDP frames: no loop, and all reach all") $
  withMininet $ \port environment -> do
    said <- bounded environment ["/usr/bin/python3", "test/openflow/bridge.py", port, protocolName version, if forwards then "1" else "0"]
    assertEqual "what the script says" ["done"] (lastOf 20 said)

-- | Run a program for at most 500 seconds, and return the lines that it prints.
bounded :: [(String, String)] -> [String] -> IO [String]
bounded environment command = do
  (_, out, err) <- readCreateProcessWithExitCode (proc "timeout" (["--kill-after=10", "--signal=INT", "500"] <> command)) {env = Just environment} ""
  pure (lines (out <> err))

lastOf :: Int -> [a] -> [a]
lastOf n xs = drop (length xs - n) xs

-- | Run an action with the port of a controller and the environment of an Open vSwitch, which reports no error. Needs
-- root. Mininet creates devices in the network namespace of the test, and removes them.
withMininet :: (String -> [(String, String)] -> IO ()) -> IO ()
withMininet act = do
  needOvs
  mapM_ needProgram ["mn", "ping", "ip"]
  user <- readProcess "id" ["-u"] ""
  unless (user == "0\n") (skip "mininet needs root")
  (namespaces, _, why) <- readProcessWithExitCode "unshare" ["-n", "true"] ""
  unless (namespaces == ExitSuccess) (skip ("no network namespaces: " <> why))
  withOvs Userspace $ \ovs -> withTestController defaultSettings $ \_ address -> do
    port <- case address of
      SockAddrInet p _ -> pure (show p)
      _ -> assertFailure "no port"
    ovsEnvironment ovs >>= act port
    errors <- filter ("OFPT_ERROR" `isInfixOf`) . lines <$> ovsLog ovs
    assertEqual "errors in the log" [] (take 3 errors)
