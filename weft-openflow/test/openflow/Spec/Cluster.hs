-- |
-- Three controllers, an etcd, and switches of Open vSwitch that connect to all of them; controllers are killed in random
-- order.
module Spec.Cluster (tests) where

import Control.Concurrent (threadDelay)
import Control.Concurrent.Async
import Control.Concurrent.MVar
import Control.Exception (bracket)
import Control.Monad (filterM, forM, forM_, void)
import qualified Data.Map.Strict as Map
import GHC.Clock (getMonotonicTime)
import Peer
import System.Directory (removePathForcibly)
import System.FilePath ((</>))
import System.IO (IOMode (WriteMode), openFile)
import System.Process
import Test.QuickCheck (generate, shuffle)
import Test.Tasty
import Test.Tasty.HUnit hiding (testCase)
import Weft.OpenFlow.App
import Weft.OpenFlow.Cluster
import Weft.OpenFlow.Controller
import Weft.OpenFlow.Learning
import Weft.OpenFlow.Topology
import Weft.OpenFlow.Types
import Weft.Socket hiding (close)
import qualified Weft.Socket as Socket
import Weft.Test.OpenVSwitch
import Weft.Test.Skip (needProgram, testCase)

tests :: TestTree
tests = testGroup "several controllers" [failover V13, failover V10]

-- | Seconds of a lease.
lease :: Int
lease = 2

-- | An etcd on free ports, in a directory of its own.
withEtcd :: (String -> IO a) -> IO a
withEtcd act = bracket directory removePathForcibly $ \dir -> do
  client <- freePort
  peer <- freePort
  let url n = "http://127.0.0.1:" <> show n
      arguments =
        ["--data-dir", dir </> "data", "--listen-client-urls", url client, "--advertise-client-urls", url client]
          ++ ["--listen-peer-urls", url peer, "--initial-advertise-peer-urls", url peer, "--initial-cluster", "default=" <> url peer]
  bracket (start dir arguments) (\p -> terminateProcess p >> waitForProcess p) (const (act (url client)))
  where
    directory = takeWhile (/= '\n') <$> readProcess "mktemp" ["-d", "/tmp/etcd.XXXXXX"] ""
    start dir arguments = do
      out <- openFile (dir </> "log") WriteMode
      (_, _, _, p) <- createProcess (proc "etcd" arguments) {std_in = NoStream, std_out = UseHandle out, std_err = UseHandle out}
      pure p

freePort :: IO Int
freePort = bracket (socket AF_INET Stream defaultProtocol) Socket.close $ \s -> do
  bind s (SockAddrInet 0 (tupleToHostAddress (127, 0, 0, 1)))
  fromIntegral <$> socketPort s

-- | A controller that runs until it is killed, which tells etcd nothing.
data Member = Member {memberCluster :: Cluster, memberController :: Controller, memberAddress :: SockAddr, memberThread :: Async ()}

startMember :: String -> String -> IO Member
startMember url name = do
  ready <- newEmptyMVar
  thread <- async . withCluster (defaultClusterSettings name [url]) {clusterLease = lease} $ \cluster around ->
    withTestControllerOf (clusterSettings cluster defaultSettings {settingsPortStats = Nothing}) (perSwitch learningSwitch) $ \c address ->
      around c (putMVar ready (cluster, c, address) >> threadDelay maxBound)
  (cluster, c, address) <- takeMVar ready
  pure (Member cluster c address thread)

failover :: Version -> TestTree
failover version = testCase (show version <> ": killed in random order, each switch has a master within two leases") $ do
  needOvs
  needProgram "etcd"
  withEtcd $ \url -> withOvs Dummy $ \ovs ->
    bracket (forM ["one", "two", "three"] (startMember url)) (mapM_ (cancel . memberThread)) $ \members -> do
      forM_ switches $ \n -> do
        dummyBridge ovs (protocolName version) ("br" <> show n) n (address (head' members))
        void (vsctl ovs (["set-controller", "br" <> show n] ++ map address members))
        dummyPort ovs ("br" <> show n) ("h" <> show n) 10
      patch ovs 1 2
      patch ovs 2 3
      eventually' "each switch has one master" (all ((== 1) . length) <$> mapM (masters members) switches)
      eventually' "all know all links" (and <$> mapM (fmap ((== 4) . length . topologyLinks) . controllerNetwork . memberController) members)
      settled members
      crosses ovs 1 3
      eventually' "all know the hosts" (and <$> mapM (fmap ((>= 2) . Map.size . topologyHosts) . controllerNetwork . memberController) members)
      order <- generate (shuffle members)
      kill ovs order
  where
    switches = [1, 2, 3]
    head' ms = case ms of m : _ -> m; [] -> error "no members"
    address m = "tcp:" <> show (memberAddress m)
    settled ms = eventually' "ports have settled" (and <$> sequence [floods . flooding (DatapathId (fromIntegral n)) <$> controllerNetwork (memberController m) | m <- ms, n <- switches])
    floods f = case f of FloodTo ports _ -> PortNo 10 `elem` ports; FloodByItself -> False
    kill _ [_] = pure ()
    kill _ [] = pure ()
    kill ovs (m : rest) = do
      cancel (memberThread m)
      start <- getMonotonicTime
      eventually' "each switch has one master again" (all ((== 1) . length) <$> mapM (masters rest) switches)
      took <- subtract start <$> getMonotonicTime
      assertBool ("it took " <> show took <> " seconds") (took <= 2 * fromIntegral lease)
      settled rest
      -- A flow from before goes on, and what is new is learned.
      crosses ovs 1 3
      kill ovs rest

-- | Who thinks that it is the switch's master.
masters :: [Member] -> Int -> IO [Member]
masters members n = filterM (\m -> clusterMaster (memberCluster m) (DatapathId (fromIntegral n))) members

-- | Twenty seconds.
eventually' :: String -> IO Bool -> Assertion
eventually' what condition = go (400 :: Int)
  where
    go 0 = assertFailure ("not within twenty seconds: " <> what)
    go n = condition >>= \ok -> if ok then pure () else threadDelay 50000 >> go (n - 1)

-- | A host's broadcast reaches the other end, and the answer comes back.
crosses :: Ovs -> Int -> Int -> Assertion
crosses ovs a b = do
  before <- length <$> sentFrames ovs ("h" <> show b)
  receive ovs ("h" <> show a) a 255
  eventually' "the broadcast arrives" ((== before + 1) . length <$> sentFrames ovs ("h" <> show b))
  there <- length <$> sentFrames ovs ("h" <> show a)
  receive ovs ("h" <> show b) b a
  eventually' "the answer arrives" ((== there + 1) . length <$> sentFrames ovs ("h" <> show a))

patch :: Ovs -> Int -> Int -> IO ()
patch ovs a b = end a b >> end b a
  where
    end x y =
      void . vsctl ovs $
        ["--", "add-port", "br" <> show x, here, "--", "set", "interface", here, "type=patch", "options:peer=" <> there, "ofport_request=" <> show y]
      where
        here = "t" <> show x <> "-" <> show y
        there = "t" <> show y <> "-" <> show x
