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
tests = localOption (mkTimeout 600000000) $ testGroup "mininet" [pingAll "tree,2,3" V13, after AllFinish "/tree,2,3/" (pingAll "linear,8" V10)]

-- | Needs root, and creates devices in the network namespace of the test; mininet removes them.
pingAll :: String -> Version -> TestTree
pingAll topology version = testCase (topology <> ", " <> show version <> ": pingall drops nothing") $ do
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
    environment <- ovsEnvironment ovs
    let switch = "ovsk,datapath=user,protocols=" <> protocolName version
        arguments = ["--kill-after=10", "--signal=INT", "500", "mn", "--topo", topology, "--switch", switch, "--controller", "remote,ip=127.0.0.1,port=" <> port, "--test", "pingall"]
    (_, out, err) <- readCreateProcessWithExitCode (proc "timeout" arguments) {env = Just environment} ""
    let said = lines (out <> err)
    assertBool (unlines (lastOf 8 said)) (any ("Results: 0% dropped" `isInfixOf`) said)
    errors <- filter ("OFPT_ERROR" `isInfixOf`) . lines <$> ovsLog ovs
    assertEqual "errors in the log" [] (take 3 errors)
  where
    lastOf n xs = drop (length xs - n) xs
