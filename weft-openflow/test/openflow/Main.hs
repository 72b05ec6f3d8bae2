-- |
-- The controller: its pure parts, its connections with correct and faulty peers, and Open vSwitch and mininet.
module Main (main) where

import qualified Spec.Access
import qualified Spec.Announced
import qualified Spec.Answers
import qualified Spec.Cluster
import qualified Spec.Etcd
import qualified Spec.Flows
import qualified Spec.Guarded
import qualified Spec.Handshake
import qualified Spec.Invented
import qualified Spec.Leaving
import qualified Spec.Limits
import qualified Spec.Load
import qualified Spec.Members
import qualified Spec.Mininet
import qualified Spec.Network
import qualified Spec.Northbound
import qualified Spec.Ovs
import qualified Spec.Packets
import qualified Spec.Page
import qualified Spec.Peers
import qualified Spec.Roles
import qualified Spec.Rude
import qualified Spec.Secure
import qualified Spec.Segments
import qualified Spec.Statistics
import qualified Spec.Views
import Test.Tasty hiding (defaultMain)
import Weft.Test.Main (defaultMain)

main :: IO ()
main = defaultMain (testGroup "openflow" [Spec.Packets.tests, Spec.Network.tests, Spec.Invented.tests, Spec.Segments.tests, Spec.Peers.tests, Spec.Handshake.tests, Spec.Roles.tests, Spec.Announced.tests, Spec.Leaving.tests, Spec.Statistics.tests, Spec.Rude.tests, Spec.Limits.tests, Spec.Load.tests, Spec.Northbound.tests, Spec.Access.tests, Spec.Answers.tests, Spec.Flows.tests, Spec.Page.tests, Spec.Ovs.tests, Spec.Secure.tests, Spec.Cluster.tests, Spec.Members.tests, Spec.Guarded.tests, Spec.Etcd.tests, Spec.Views.tests, Spec.Mininet.tests])
