-- |
-- Three controllers, an etcd, and switches of Open vSwitch that connect to all of them. Controllers are killed in
-- random order, and answers of etcd and connections to it are lost.
--
-- Time limits are numbers of rounds of a controller, not seconds, since the rounds slow down with the machine.
module Spec.Cluster
  ( tests,

    -- * For other tests
    Member (..),
    startMember,
    startMemberWith,
    startMemberUntil,
    eventually',
  )
where

import Control.Concurrent (threadDelay)
import Control.Concurrent.Async
import Control.Concurrent.MVar
import Control.Exception (IOException, bracket, handle)
import Control.Monad (filterM, forM, forM_, replicateM, replicateM_, unless, void, when)
import qualified Data.ByteString.Char8 as B
import Data.IORef
import qualified Data.Map.Strict as Map
import Data.Maybe (fromMaybe)
import Data.Word (Word8)
import EtcdServer
import Peer
import Test.QuickCheck (generate, shuffle)
import Test.Tasty
import Test.Tasty.HUnit hiding (testCase)
import Weft.OpenFlow.App
import Weft.OpenFlow.Cluster
import Weft.OpenFlow.Controller
import Weft.OpenFlow.Learning
import Weft.OpenFlow.Lldp
import Weft.OpenFlow.Match
import Weft.OpenFlow.Message
import Weft.OpenFlow.Topology
import Weft.OpenFlow.Types
import Weft.Socket hiding (close)
import qualified Weft.Socket as Socket
import Weft.Socket.ByteString (recv, sendAll)
import Weft.Test.OpenVSwitch
import Weft.Test.Skip (needProgram, testCase)

tests :: TestTree
tests = localOption (mkTimeout 600000000) $ testGroup "several controllers" [failover V13, failover V10, lostAnswer, unreachable, deathWithoutEtcd, silentEtcd, halfAnswer, brokenCallback, oneGeneration, lateKeys, manySwitches, oneOfTwo, answeredLink, answeredAgain]

-- | The length of a lease in seconds. A controller has four rounds in this time.
lease :: Int
lease = 2

-- | A controller that runs until it is killed. etcd is not informed of its end.
data Member = Member {memberCluster :: Cluster, memberController :: Controller, memberAddress :: SockAddr, memberThread :: Async ()}

startMember :: String -> String -> IO Member
startMember url = startMemberOf [url]

startMemberOf :: [String] -> String -> IO Member
startMemberOf urls name = startMemberWith (defaultClusterSettings name urls)

startMemberWith :: ClusterSettings -> IO Member
startMemberWith options = startMemberUntil (threadDelay maxBound) options {clusterLease = lease}

-- | Until the action ends, the controller runs. Then it leaves the cluster.
startMemberUntil :: IO () -> ClusterSettings -> IO Member
startMemberUntil end options = do
  ready <- newEmptyMVar
  thread <- async . withCluster options $ \cluster around ->
    withTestControllerOf (clusterSettings cluster (patient defaultSettings) {settingsPortStats = Nothing}) (perSwitch learningSwitch) $ \c address ->
      around c (putMVar ready (cluster, c, address) >> end)
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
      eventually' members "each switch has one master" (all ((== 1) . length) <$> mapM (masters members) switches)
      eventually' members "all know all links" (and <$> mapM (fmap ((== 4) . length . topologyLinks) . controllerNetwork . memberController) members)
      settled members
      crosses members ovs 1 3
      eventually' members "all know the hosts" (and <$> mapM (fmap ((>= 2) . Map.size . topologyHosts) . controllerNetwork . memberController) members)
      order <- generate (shuffle members)
      kill ovs order
  where
    switches = [1, 2, 3]
    head' ms = case ms of m : _ -> m; [] -> error "no members"
    address m = "tcp:" <> show (memberAddress m)
    settled ms = eventually' ms "ports have settled" (and <$> sequence [floods . flooding (DatapathId (fromIntegral n)) <$> controllerNetwork (memberController m) | m <- ms, n <- switches])
    floods f = case f of FloodTo ports _ -> PortNo 10 `elem` ports; FloodByItself -> False
    kill _ [_] = pure ()
    kill _ [] = pure ()
    kill ovs (m : rest) = do
      cancel (memberThread m)
      -- Two leases are eight rounds.
      within' 8 rest "each switch has one master again" (all ((== 1) . length) <$> mapM (masters rest) switches)
      settled rest
      -- Earlier flows still forward packets, and new addresses are learned.
      crosses rest ovs 1 3
      kill ovs rest

-- | etcd creates the key of a switch, and the connection ends before the answer arrives.
lostAnswer :: TestTree
lostAnswer = testCase "a switch gets its master though etcd's answer is lost" $ do
  needProgram "etcd"
  withEtcd $ \url -> losing url (B.unpack masterKeys) $ \proxy lost ->
    bracket (startMember proxy "one") (cancel . memberThread) $ \m -> withPeer (memberAddress m) $ \p -> do
      switchHandshake (memberController m) V13 1 p
      eventually' [m] "the switch has a master" (not . null <$> masters [m] 1)
      readIORef lost >>= (@?= True)

-- | What requests with the key of a switch contain: the base64 form of @weft/openflow/m@.
masterKeys :: B.ByteString
masterKeys = B.pack "d2VmdC9vcGVuZmxvdy9t"

-- | A controller that has lost the connection to its switch must not remain the master.
unreachable :: TestTree
unreachable = testCase "a switch that has lost its master's connection gets another one" $ do
  needProgram "etcd"
  withEtcd $ \url -> bracket (forM ["one", "two"] (startMember url)) (mapM_ (cancel . memberThread)) $ \members -> case members of
    [one, two] -> withPeer (memberAddress two) $ \p -> do
      withPeer (memberAddress one) $ \first -> do
        switchHandshake (memberController one) V13 1 first
        eventually' [one] "the first has it" (clusterMaster (memberCluster one) (DatapathId 1))
      switchHandshake (memberController two) V13 1 p
      eventually' members "the second has it" (clusterMaster (memberCluster two) (DatapathId 1))
      clusterMaster (memberCluster one) (DatapathId 1) >>= (@?= False)
    _ -> assertFailure "two members"

-- | Nobody can be elected without etcd, which still has the key of the dead master when it is back.
deathWithoutEtcd :: TestTree
deathWithoutEtcd = testCase "a master that dies while etcd is down is replaced when etcd is back" $ do
  needProgram "etcd"
  withStoppableEtcd $ \url down up -> bracket (forM ["one", "two"] (startMember url)) (mapM_ (cancel . memberThread)) $ \members -> case members of
    [one, two] -> withPeer (memberAddress one) $ \first -> withPeer (memberAddress two) $ \second -> do
      switchHandshake (memberController one) V13 1 first
      eventually' [one] "the first has it" (clusterMaster (memberCluster one) (DatapathId 1))
      switchHandshake (memberController two) V13 1 second
      down
      cancel (memberThread one)
      before <- clusterRounds (memberCluster two)
      eventually "two leases without etcd" ((>= before + 8) <$> clusterRounds (memberCluster two))
      clusterMaster (memberCluster two) (DatapathId 1) >>= (@?= False)
      up
      eventually "the second has it" (clusterMaster (memberCluster two) (DatapathId 1))
    _ -> assertFailure "two members"

-- | The network between a master and etcd is cut: its requests wait, at each endpoint in turn, for longer than its
-- lease lasts. It must have given up the role before another controller takes it. The cut follows a renewal of the
-- lease, so that the master is still waiting for the next requests when the lease ends.
silentEtcd :: TestTree
silentEtcd = testCase "a master that gets no answers from etcd gives its switch up before another one has it" $ do
  needProgram "etcd"
  withEtcd $ \url -> do
    open <- newMVar ()
    cutting <- newIORef False
    let proxied = through url cutting open
    proxied $ \a -> proxied $ \b -> proxied $ \d ->
      bracket (sequence [startMemberOf [a, b, d] "one", startMember url "two"]) (mapM_ (cancel . memberThread)) $ \members -> case members of
        [one, two] -> withPeer (memberAddress one) $ \first -> do
          switchHandshake (memberController one) V13 1 first
          eventually' [one] "the first has it" (clusterMaster (memberCluster one) (DatapathId 1))
          withPeer (memberAddress two) $ \second -> do
            switchHandshake (memberController two) V13 1 second
            writeIORef cutting True
            eventually' [two] "the second has it" (clusterMaster (memberCluster two) (DatapathId 1))
            active <- fmap infoActive . Map.lookup (DatapathId 1) <$> connectedSwitches (memberController one)
            held <- clusterMaster (memberCluster one) (DatapathId 1)
            (active, held) @?= (Just False, False)
            -- The network works again, and one master remains.
            writeIORef cutting False
            void (tryPutMVar open ())
            before <- mapM (clusterRounds . memberCluster) members
            eventually' members "four rounds" (and . zipWith (\n m -> m >= n + 4) before <$> mapM (clusterRounds . memberCluster) members)
            masters members 1 >>= (@?= 1) . length
        _ -> assertFailure "two members"

-- | etcd sends the beginning of its answer, and then nothing.
halfAnswer :: TestTree
halfAnswer = testCase "half an answer of etcd does not stop the rounds" $
  withServer defaultServerSettings {serverHost = Just "127.0.0.1"} half $ \s ->
    bracket (startMember ("http://" <> show (serverAddress s)) "one") (cancel . memberThread) $ \m ->
      eventually "three rounds" ((>= 3) <$> clusterRounds (memberCluster m))
  where
    half client _ = handle (\e -> const (pure ()) (e :: IOException)) $ do
      _ <- recv client 65536
      sendAll client (B.pack "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
      untilClosed client
    untilClosed client = recv client 65536 >>= \s -> unless (B.null s) (untilClosed client)

-- | The callback fails, as it does if it writes to a full disk.
brokenCallback :: TestTree
brokenCallback = testCase "a callback that fails does not stop the rounds" $ do
  port <- freePort
  let options = (defaultClusterSettings "one" ["http://127.0.0.1:" <> show port]) {clusterLease = lease, clusterOnReach = const (ioError (userError "no space left"))}
  withCluster options $ \cluster around ->
    withTestControllerOf (clusterSettings cluster defaultSettings) (perSwitch learningSwitch) $ \c _ ->
      around c (eventually "three rounds" ((>= 3) <$> clusterRounds cluster))

-- | A proxy of an etcd that forwards all bytes while the MVar is full. If the flag is set, the next request for keys
-- empties the MVar.
through :: String -> IORef Bool -> MVar () -> (String -> IO a) -> IO a
through url cutting open = relaying url (pure (\s -> cut s >> readMVar open, \_ -> readMVar open))
  where
    cut s = readIORef cutting >>= \now -> when (now && B.pack "/v3/kv/range" `B.isInfixOf` s) (void (tryTakeMVar open))

-- | A proxy of an etcd. For each connection it makes two actions, which run before bytes of a request and of an answer
-- are forwarded.
relaying :: String -> IO (B.ByteString -> IO (), B.ByteString -> IO ()) -> (String -> IO a) -> IO a
relaying url begin act =
  withServer defaultServerSettings {serverHost = Just "127.0.0.1"} forward $ \s -> act ("http://" <> show (serverAddress s))
  where
    port = read (reverse (takeWhile (/= ':') (reverse url))) :: Int
    -- etcd refuses connections while it starts.
    forward client _ = handle (\e -> const (pure ()) (e :: IOException)) . bracket (socket AF_INET Stream defaultProtocol) Socket.close $ \etcd -> do
      connect etcd (SockAddrInet (fromIntegral port) (tupleToHostAddress (127, 0, 0, 1)))
      (request, answer) <- begin
      race_ (passing request client etcd) (passing answer etcd client)
    passing look from to = do
      s <- recv from 65536
      unless (B.null s) (look s >> sendAll to s >> passing look from to)

-- | A slave must not send a newer generation than its master: the switch would then refuse a later request of the
-- master.
oneGeneration :: TestTree
oneGeneration = testCase "the slaves of a switch give the generation of its master" $ do
  needProgram "etcd"
  withEtcd $ \url -> bracket (forM ["one", "two"] (startMember url)) (mapM_ (cancel . memberThread)) $ \members -> case members of
    [one, two] -> withPeer (memberAddress one) $ \first -> do
      switchHandshake (memberController one) V13 1 first
      (_, generation) <- expect "ROLE_REQUEST of the master" (\m -> case m of RoleRequest RoleMaster g -> Just g; _ -> Nothing) first
      -- The first controller writes its network meanwhile, which changes, so that etcd's revision increases.
      forM_ [11 .. 13] $ \host -> do
        packetFrom V13 host (PortNo 1) (fromIntegral host) 9 first
        before <- mapM (clusterRounds . memberCluster) members
        eventually' members "two rounds" (and . zipWith (\n m -> m >= n + 2) before <$> mapM (clusterRounds . memberCluster) members)
      withPeer (memberAddress two) $ \second -> do
        switchHandshake (memberController two) V13 1 second
        (_, r) <- expect "ROLE_REQUEST" (\m -> case m of RoleRequest role g -> Just (role, g); _ -> Nothing) second
        r @?= (RoleSlave, generation)
    _ -> assertFailure "two members"

-- | A switch connects, and its key is created, while the answer of etcd with all keys is on its way.
lateKeys :: TestTree
lateKeys = testCase "a switch that connects while the keys are read keeps its master" $ do
  needProgram "etcd"
  open <- newMVar ()
  held <- newEmptyMVar
  withEtcd $ \url -> holding url open held $ \proxy -> bracket (startMember proxy "one") (cancel . memberThread) $ \m -> do
    eventually' [m] "a round" ((>= 1) <$> clusterRounds (memberCluster m))
    takeMVar open
    takeMVar held
    withPeer (memberAddress m) $ \p -> do
      switchHandshake (memberController m) V13 1 p
      _ <- expect "ROLE_REQUEST of the master" (\message -> case message of RoleRequest RoleMaster _ -> Just (); _ -> Nothing) p
      putMVar open ()
      before <- clusterRounds (memberCluster m)
      eventually' [m] "three rounds" ((>= before + 3) <$> clusterRounds (memberCluster m))
      sendMessageOf V13 77 (EchoRequest B.empty) p
      (_, slave) <- expect "ECHO_REPLY" (\message -> case message of RoleRequest RoleSlave _ -> Just True; EchoReply _ -> Just False; _ -> Nothing) p
      slave @?= False

-- | Forty switches that have connected before etcd is there, which then takes 0.1 seconds for each key: elections of
-- all of them last twice as long as a lease.
manySwitches :: TestTree
manySwitches = testCase "with many switches and a slow etcd the lease is kept" $ do
  needProgram "etcd"
  withStoppableEtcd $ \url down up -> do
    down
    slowly url $ \proxy -> bracket (startMember proxy "one") (cancel . memberThread) $ \m ->
      connectedTo m 40 $ do
        up
        eventually' [m] "all are ours" ((== 40) . length <$> mine m)
        before <- clusterRounds (memberCluster m)
        stayed <- newIORef True
        eventually "two leases" $ do
          n <- length <$> mine m
          when (n /= 40) (writeIORef stayed False)
          (>= before + 8) <$> clusterRounds (memberCluster m)
        readIORef stayed >>= assertBool "all stay ours"
  where
    mine m = filterM (clusterMaster (memberCluster m) . DatapathId) [1 .. 40]
    connectedTo :: Member -> Word8 -> IO a -> IO a
    connectedTo _ 0 act = act
    connectedTo m n act = withPeer (memberAddress m) $ \p -> do
      switchHandshake (memberController m) V13 n p
      connectedTo m (n - 1) act

-- | Two switches with two links between them. One of the controllers is not connected to the first switch, and is the
-- master of the second.
oneOfTwo :: TestTree
oneOfTwo = testCase "a controller that is connected to one end of two links makes no loop" $ do
  needOvs
  needProgram "etcd"
  withEtcd $ \url -> withOvs Dummy $ \ovs ->
    bracket (forM ["one", "two"] (startMember url)) (mapM_ (cancel . memberThread)) $ \members -> case members of
      [one, two] -> do
        let address m = "tcp:" <> show (memberAddress m)
            floods m n = (\f -> case f of FloodTo ports _ -> ports; FloodByItself -> []) . flooding (DatapathId n) <$> controllerNetwork (memberController m)
        forM_ [(2, one), (1, two)] $ \(n, m) -> do
          dummyBridge ovs "OpenFlow13" ("br" <> show n) n (address m)
          dummyPort ovs ("br" <> show n) ("h" <> show n) 10
          eventually' members "each has its switch" (clusterMaster (memberCluster m) (DatapathId (fromIntegral n)))
        void (vsctl ovs ["set-controller", "br2", address one, address two])
        patch ovs 1 2
        patchAs ovs "u" 20 1 2
        eventually' members "ports have settled" ((&&) <$> (elem (PortNo 10) <$> floods one 2) <*> (elem (PortNo 10) <$> floods two 1))
        crosses members ovs 1 2
        -- Further copies would come at once.
        before <- mapM (fmap length . sentFrames ovs) ["h1", "h2"]
        threadDelay 1000000
        later <- mapM (fmap length . sentFrames ovs) ["h1", "h2"]
        assertBool (show (before, later)) (sum (zipWith (-) later before) < 20)
        trunks <- filter (/= PortNo 10) <$> floods one 2
        length (filter (`elem` [PortNo 1, PortNo 21]) trunks) @?= 1
      _ -> assertFailure "two members"

-- | The other end may belong to another controller, and may not have been there when the port sent its probes. Those at
-- intervals come too late.
answeredLink :: TestTree
answeredLink = testCase "a new link is answered by the probes of its port" $ do
  let key = fromMaybe (error "16 bytes") (lldpKey (B.pack "0123456789abcdef"))
      settings = (patient defaultSettings) {settingsPortStats = Nothing, settingsDiscovery = seconds 3600, settingsLldpKey = Just key}
  withTestController settings $ \c address -> withPeer address $ \p -> do
    switchHandshake c V10 1 p
    let frame = snd <$> expect "a probe of a port" (\m -> case m of PacketOutMessage o -> Just (packetOutActions o); _ -> Nothing) p
        -- An LLDP frame, and a probe that bridges forward.
        sent = frame >>= \first -> frame >>= (@?= first) >> pure first
        arrives from at = sendMessageOf V10 0 (PacketInMessage (PacketIn noBuffer 60 (PortNo at) 0 0 0 [] (lldpFrame key (DatapathId 9) (PortNo from) (MacAddress 3)))) p
    -- Each port has sent probes as it came up.
    initial <- replicateM 4 sent
    initial @?= [[output (PortNo n)] | n <- [1 .. 4]]
    arrives 7 2
    sent >>= (@?= [output (PortNo 2)])
    -- A known link is not answered.
    arrives 7 2
    arrives 8 3
    sent >>= (@?= [output (PortNo 3)])
    -- Two other ports at the segment of a port: each is answered once.
    arrives 9 3
    sent >>= (@?= [output (PortNo 3)])
    replicateM_ 10 (arrives 8 3 >> arrives 9 3)
    arrives 10 4
    sent >>= (@?= [output (PortNo 4)])

-- | The other end's new master needs a probe of this end, as the one before does not report the other direction any
-- more. The ports' probes at intervals also come meanwhile; port 2 has those that are answers more than port 1.
answeredAgain :: TestTree
answeredAgain = testCase "a link that is known in one direction is answered again" $ do
  let key = fromMaybe (error "16 bytes") (lldpKey (B.pack "0123456789abcdef"))
      settings = (patient defaultSettings) {settingsPortStats = Nothing, settingsDiscovery = seconds 1, settingsLldpKey = Just key}
  withTestController settings $ \c address -> withPeer address $ \p -> do
    switchHandshake c V10 1 p
    sent <- newIORef (0 :: Int)
    let probes = expect "probes" (\m -> case m of PacketOutMessage o -> Just (packetOutActions o); _ -> Nothing) p >>= count . snd >> probes
        count actions = modifyIORef' sent (+ (if actions == [output (PortNo 2)] then 1 else if actions == [output (PortNo 1)] then (-1) else 0))
    withAsync (probes :: IO ()) . const . eventually "two answers more than to the first probe" $ do
      sendMessageOf V10 0 (PacketInMessage (PacketIn noBuffer 60 (PortNo 2) 0 0 0 [] (lldpFrame key (DatapathId 9) (PortNo 7) (MacAddress 3)))) p
      threadDelay 700000
      (>= 6) <$> readIORef sent

-- | A proxy of an etcd that waits before it forwards a request with the key of a switch.
slowly :: String -> (String -> IO a) -> IO a
slowly url = relaying url (pure (\s -> when (masterKeys `B.isInfixOf` s && B.pack "CREATE" `B.isInfixOf` s) (threadDelay 100000), \_ -> pure ()))

-- | A proxy of an etcd that holds back the answers to requests for keys while the first MVar is empty, and fills the
-- second one when it does.
holding :: String -> MVar () -> MVar () -> (String -> IO a) -> IO a
holding url open held = relaying url ((\keys -> (request keys, const (answer keys))) <$> newIORef False)
  where
    -- The body of a request may follow by itself.
    request keys s = when (B.pack "POST " `B.isPrefixOf` s) (writeIORef keys (B.pack "/v3/kv/range" `B.isInfixOf` s))
    answer keys = do
      asked <- readIORef keys
      free <- tryReadMVar open
      when (asked && free == Nothing) (tryPutMVar held () >> readMVar open)

-- | A proxy of an etcd that closes the connection instead of forwarding the answer to the first request that contains
-- this text. The flag: an answer has been lost.
losing :: String -> String -> (String -> IORef Bool -> IO a) -> IO a
losing url path act = do
  lost <- newIORef False
  withServer defaultServerSettings {serverHost = Just "127.0.0.1"} (forward lost) $ \s -> act ("http://" <> show (serverAddress s)) lost
  where
    port = read (reverse (takeWhile (/= ':') (reverse url))) :: Int
    forward lost client _ = bracket (socket AF_INET Stream defaultProtocol) Socket.close $ \etcd -> do
      connect etcd (SockAddrInet (fromIntegral port) (tupleToHostAddress (127, 0, 0, 1)))
      hit <- newIORef False
      race_ (requests lost hit client etcd) (answers lost hit etcd client)
    requests lost hit from to = pump from $ \s -> do
      before <- readIORef lost
      when (not before && B.pack path `B.isInfixOf` s) (writeIORef hit True)
      True <$ sendAll to s
    answers lost hit from to = pump from $ \s -> do
      lose <- readIORef hit
      if lose then False <$ writeIORef lost True else True <$ sendAll to s
    pump from each = do
      s <- recv from 65536
      unless (B.null s) (each s >>= \more -> when more (pump from each))

-- | The members that regard themselves as the switch's master.
masters :: [Member] -> Int -> IO [Member]
masters members n = filterM (\m -> clusterMaster (memberCluster m) (DatapathId (fromIntegral n))) members

-- | The condition holds within sixty rounds of each of these controllers. A round takes half a second or more.
eventually' :: [Member] -> String -> IO Bool -> Assertion
eventually' = within' 60

-- | The condition holds before each of these controllers has completed more than the given number of rounds.
within' :: Int -> [Member] -> String -> IO Bool -> Assertion
within' most members what condition = rounds >>= go
  where
    rounds = mapM (clusterRounds . memberCluster) members
    go start = do
      ok <- condition
      done <- zipWith subtract start <$> rounds
      unless ok $
        if all (> most) done
          then assertFailure ("not within " <> show most <> " rounds: " <> what)
          else threadDelay 50000 >> go start

-- | A broadcast of one host reaches the other, and its answer comes back. Packets are sent again until they arrive, as
-- those that a switch reports while roles change are lost.
crosses :: [Member] -> Ovs -> Int -> Int -> Assertion
crosses members ovs a b = arrives a 255 b "the broadcast arrives" >> arrives b a a "the answer arrives"
  where
    arrives from to at what = do
      before <- length <$> sentFrames ovs (host at)
      eventually' members what $ do
        receive ovs (host from) from to
        threadDelay 200000
        (> before) . length <$> sentFrames ovs (host at)
    host n = "h" <> show n

patch :: Ovs -> Int -> Int -> IO ()
patch ovs = patchAs ovs "t" 0

-- | A link with names that begin with these letters, at ports with the number of the other switch and this one added.
patchAs :: Ovs -> String -> Int -> Int -> Int -> IO ()
patchAs ovs prefix add a b = end a b >> end b a
  where
    end x y =
      void . vsctl ovs $
        ["--", "add-port", "br" <> show x, here, "--", "set", "interface", here, "type=patch", "options:peer=" <> there, "ofport_request=" <> show (add + y)]
      where
        here = prefix <> show x <> "-" <> show y
        there = prefix <> show y <> "-" <> show x
