-- |
-- @weft controller@ with Open vSwitch.
module Controlled (tests) where

import Control.Concurrent (threadDelay)
import Control.Monad (forM_, void)
import Data.List (isInfixOf)
import Program
import System.IO (hGetLine)
import System.Process (waitForProcess)
import System.Timeout (timeout)
import Test.Tasty
import Test.Tasty.HUnit hiding (testCase)
import Weft.Test.OpenVSwitch
import Weft.Test.Skip (testCase)

tests :: FilePath -> TestTree
tests program = testGroup "controller" (map (killed program) ["OpenFlow10", "OpenFlow13"])

killed :: FilePath -> String -> TestTree
killed program version = testCase (version <> ": killed (SIGKILL) and started again: flows forward meanwhile, and new hosts are learned") $ do
  needOvs
  withOvs Dummy $ \ovs -> do
    let arrives what port act = do
          before <- length <$> sentFrames ovs port
          let again = do
                () <- act
                threadDelay 100000
                now <- length <$> sentFrames ovs port
                if now > before then pure () else again
          timeout 100000000 again >>= maybe (assertFailure ("no frame at " <> port <> ": " <> what)) pure
    address <- weft program [] ["controller", "--listen", "127.0.0.1:0", "--quiet"] $ \p -> do
      address <- last . words <$> hGetLine (output p)
      dummyBridge ovs version "br0" 1 ("tcp:" <> address)
      forM_ [1, 2] $ \n -> dummyPort ovs "br0" ("p" <> show n) n
      arrives "a flooded one" "p2" (receive ovs "p1" 1 2)
      arrives "one to a host that was learned" "p1" (receive ovs "p2" 2 1)
      send' 9 p
      address <$ waitForProcess (process p)
    arrives "without a controller" "p1" (receive ovs "p2" 2 1)
    weft program [] ["controller", "--listen", address, "--quiet"] $ \p -> do
      void (hGetLine (output p))
      arrives "from a new host" "p2" (receive ovs "p1" 3 2)
      arrives "to the new host" "p1" (receive ovs "p2" 2 3)
    complaints <- filter ("OFPT_ERROR" `isInfixOf`) . lines <$> ovsLog ovs
    take 3 complaints @?= []
