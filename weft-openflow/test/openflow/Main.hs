-- |
-- The controller: its pure parts, over connections with peers of all kinds, and with Open vSwitch and mininet.
module Main (main) where

import qualified Spec.Cluster
import qualified Spec.Load
import qualified Spec.Mininet
import qualified Spec.Network
import qualified Spec.Northbound
import qualified Spec.Ovs
import qualified Spec.Peers
import qualified Spec.Secure
import Test.Tasty

main :: IO ()
main = defaultMain (testGroup "openflow" [Spec.Network.tests, Spec.Peers.tests, Spec.Load.tests, Spec.Northbound.tests, Spec.Ovs.tests, Spec.Secure.tests, Spec.Cluster.tests, Spec.Mininet.tests])
