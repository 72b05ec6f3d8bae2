-- |
-- What the controllers of a cluster know of the hosts at each other's switches. The switches are peers
-- of the tests.
module Spec.Members (tests) where

import Control.Concurrent.Async
import Control.Exception (bracket)
import Control.Monad (forM)
import qualified Data.Map.Strict as Map
import Data.Word (Word8)
import Peer
import Spec.Cluster hiding (tests)
import Test.Tasty
import Test.Tasty.HUnit hiding (testCase)
import Weft.OpenFlow.Cluster
import Weft.OpenFlow.Controller
import Weft.OpenFlow.Topology
import Weft.OpenFlow.Types
import Weft.Test.Skip (needProgram, testCase)

tests :: TestTree
tests = localOption (mkTimeout 600000000) $ testGroup "members of a cluster" [movingHost]

-- | Two controllers, each the master of the switch that has its number.
withTwo :: (String -> (Member, Peer) -> (Member, Peer) -> IO ()) -> IO ()
withTwo act = do
  needProgram "etcd"
  withEtcd $ \url -> bracket (forM ["one", "two"] (startMember url)) (mapM_ (cancel . memberThread)) $ \members -> case members of
    [one, two] -> withPeer (memberAddress one) $ \first -> withPeer (memberAddress two) $ \second -> do
      switchOf 1 one first
      switchOf 2 two second
      act url (one, first) (two, second)
    _ -> assertFailure "two members"

-- | A switch connects, and the controller becomes its master.
switchOf :: Word8 -> Member -> Peer -> IO ()
switchOf n m p = do
  switchHandshake (memberController m) V10 n p
  eventually' [m] "it is the master" (clusterMaster (memberCluster m) (DatapathId (fromIntegral n)))

-- | Where a controller has the host with this number.
placeOf :: Word8 -> Member -> IO (Maybe Place)
placeOf n m = fmap hostPlace . Map.lookup (MacAddress (0x020000000000 + fromIntegral n)) . topologyHosts <$> controllerNetwork (memberController m)

-- | A packet of a host arrives, and both controllers have the host there.
arrives :: (Member, Member) -> Word8 -> (Word8, PortNo) -> Peer -> IO ()
arrives (one, two) host (n, port) p = do
  packetFrom V10 noBuffer' port host 99 p
  eventually' [one, two] ("both have it at switch " <> show n) ((== replicate 2 (Just (DatapathId (fromIntegral n), port))) <$> mapM (placeOf host) [one, two])
  where
    noBuffer' = 0xffffffff

movingHost :: TestTree
movingHost = testCase "a host that moves between switches of two masters is at its new place for both" $
  withTwo $ \_ (one, first) (two, second) -> do
    arrives (one, two) 7 (1, PortNo 2) first
    arrives (one, two) 7 (2, PortNo 3) second
    -- Another port tells the host from one that never left.
    arrives (one, two) 7 (1, PortNo 4) first
    before <- mapM (clusterRounds . memberCluster) [one, two]
    eventually' [one, two] "four rounds" (and . zipWith (\n m -> m >= n + 4) before <$> mapM (clusterRounds . memberCluster) [one, two])
    mapM (placeOf 7) [one, two] >>= (@?= replicate 2 (Just (DatapathId 1, PortNo 4)))
