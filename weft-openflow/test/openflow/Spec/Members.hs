-- |
-- What the controllers of a cluster know of the hosts at each other's switches, and their names. The switches are peers
-- of the tests.
module Spec.Members (tests) where

import Control.Concurrent.Async
import Control.Concurrent.MVar
import Control.Exception (bracket)
import Control.Monad (forM, replicateM_, void)
import Data.Aeson (encode, object, (.=))
import qualified Data.ByteString.Base64 as Base64
import qualified Data.ByteString.Char8 as C
import qualified Data.ByteString.Lazy.Char8 as LC
import Data.IORef
import Data.List (isInfixOf)
import qualified Data.Map.Strict as Map
import Data.Maybe (fromMaybe, isJust)
import Data.String (fromString)
import qualified Data.Text.Encoding as T
import Data.Word (Word8)
import EtcdServer
import qualified Network.HTTP.Client as Client
import Peer
import Spec.Cluster hiding (tests)
import Test.Tasty
import Test.Tasty.HUnit hiding (testCase)
import Weft.OpenFlow.Cluster
import Weft.OpenFlow.Controller
import Weft.OpenFlow.Lldp
import Weft.OpenFlow.Message
import Weft.OpenFlow.Topology
import Weft.OpenFlow.Types
import Weft.Test.Skip (needProgram, testCase)

tests :: TestTree
tests = localOption (mkTimeout 600000000) $ testGroup "members of a cluster" [movingHost, departedHost, takenOverHost, sameName, newKey, orderlyEnd]

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

departedHost :: TestTree
departedHost = testCase "a host that its master has forgotten is forgotten by the others" $
  withTwo $ \_ (one, first) (two, _) -> do
    arrives (one, two) 7 (1, PortNo 2) first
    arrives (one, two) 8 (1, PortNo 3) first
    sendMessageOf V10 0 (PortStatus PortDeleted (Port (PortNo 2) (MacAddress 2) mempty 0 0 (0, 0, 0, 0) (0, 0))) first
    eventually' [one] "its master forgets it" ((== Nothing) <$> placeOf 7 one)
    eventually' [one, two] "the other one forgets it" ((== Nothing) <$> placeOf 7 two)
    placeOf 8 two >>= (@?= Just (DatapathId 1, PortNo 3))

-- | The first switch is connected to both. Its host is known to the second controller by the view of the first only.
takenOverHost :: TestTree
takenOverHost = testCase "the hosts of a dead master's switch stay, and leave with the switch" $
  withTwo $ \url (one, first) (two, _) -> withPeer (memberAddress two) $ \p -> do
    switchHandshake (memberController two) V10 1 p
    arrives (one, two) 7 (1, PortNo 2) first
    cancel (memberThread one)
    eventually' [two] "the second has the switch" (clusterMaster (memberCluster two) (DatapathId 1))
    bracket (startMember url "three") (cancel . memberThread) $ \three -> do
      eventually' [two, three] "a third one hears of the host" ((== Just (DatapathId 1, PortNo 2)) <$> placeOf 7 three)
      placeOf 7 two >>= (@?= Just (DatapathId 1, PortNo 2))
      sendMessageOf V10 0 (PortStatus PortDeleted (Port (PortNo 2) (MacAddress 2) mempty 0 0 (0, 0, 0, 0) (0, 0))) p
      eventually' [two, three] "nobody has it" ((== [Nothing, Nothing]) <$> mapM (placeOf 7) [two, three])

sameName :: TestTree
sameName = testCase "a second controller with the name of another waits until it has ended" $ do
  needProgram "etcd"
  withEtcd $ \url -> bracket (startMember url "one") (cancel . memberThread) $ \one -> withPeer (memberAddress one) $ \first -> do
    switchOf 1 one first
    said <- newIORef []
    bracket (startMemberWith (defaultClusterSettings "one" [url]) {clusterOnName = \why -> modifyIORef' said (why :)}) (cancel . memberThread) $ \other -> withPeer (memberAddress other) $ \second -> do
      switchHandshake (memberController other) V10 2 second
      before <- clusterRounds (memberCluster other)
      -- More than three leases.
      eventually' [other] "fourteen rounds" ((>= before + 14) <$> clusterRounds (memberCluster other))
      mapM (\m -> mapM (clusterMaster (memberCluster m) . DatapathId) [1, 2]) [one, other] >>= (@?= [[True, False], [False, False]])
      readIORef said >>= (@?= [True, True]) . map isJust
      cancel (memberThread one)
      eventually' [other] "it has joined" (clusterMaster (memberCluster other) (DatapathId 2))
      readIORef said >>= (@?= [False, True, True]) . map isJust

-- | etcd loses the key of LLDP frames, and later has another one, of a controller that was started meanwhile. With
-- different keys controllers would not find the links between their switches, and flood in loops.
newKey :: TestTree
newKey = testCase "all controllers have the key of LLDP frames that etcd has" $
  withTwo $ \url (one, first) (two, second) -> do
    let rounds = do
          before <- mapM (clusterRounds . memberCluster) [one, two]
          eventually' [one, two] "three rounds" (and . zipWith (\n m -> m >= n + 3) before <$> mapM (clusterRounds . memberCluster) [one, two])
        stored = C.pack "weft/openflow/lldp-key"
        base64 = T.decodeUtf8 . Base64.encode
        kv action fields = do
          manager <- Client.newManager Client.defaultManagerSettings
          asked <- Client.parseRequest (url <> "/v3/kv/" <> action)
          Client.responseBody <$> Client.httpLbs asked {Client.method = C.pack "POST", Client.requestBody = Client.RequestBodyLBS (encode (object (fromString "key" .= base64 stored : fields)))} manager
        known p m n key = do
          sendMessageOf V10 0 (PacketInMessage (PacketIn noBuffer 60 (PortNo 2) 0 0 0 [] (lldpFrame key (DatapathId 9) (PortNo n) (MacAddress 3)))) p
          eventually' [one, two] ("the link from port " <> show n) (any ((== (DatapathId 9, PortNo n)) . fst) . topologyOwnLinks <$> controllerNetwork (memberController m))
    void (kv "deleterange" [])
    rounds
    found <- kv "range" []
    assertBool "etcd has a key again" ("kvs" `isInfixOf` LC.unpack found)
    void (kv "put" [fromString "value" .= base64 (C.pack "0123456789abcdef")])
    rounds
    let key = fromMaybe (error "16 bytes") (lldpKey (C.pack "0123456789abcdef"))
    known first one 7 key
    known second two 8 key

-- | Their lease is much longer than the test waits.
orderlyEnd :: TestTree
orderlyEnd = testCase "a controller that ends gives its switches and its name up at once" $ do
  needProgram "etcd"
  withEtcd $ \url -> do
    -- Until etcd answers: the next ones ask once in 150 seconds.
    bracket (startMember url "zero") (cancel . memberThread) $ \m -> withPeer (memberAddress m) (switchOf 2 m)
    replicateM_ 2 $ do
      end <- newEmptyMVar
      bracket (startMemberUntil (takeMVar end) (defaultClusterSettings "one" [url]) {clusterLease = 600}) (cancel . memberThread) $ \m -> do
        eventually "the first round" ((>= 1) <$> clusterRounds (memberCluster m))
        withPeer (memberAddress m) (switchOf 1 m)
        putMVar end ()
        wait (memberThread m)
