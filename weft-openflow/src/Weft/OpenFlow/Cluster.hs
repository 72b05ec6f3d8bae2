{-# LANGUAGE OverloadedStrings #-}

-- |
-- Several controllers for one network, coordinated by etcd. Each switch connects to all controllers. The controller
-- that created the switch's key in etcd is its master. The key is bound to the controller's lease: if a controller
-- dies, other controllers take over its switches when the lease has expired; the flows remain. A master shares the
-- links and hosts that it discovers.
--
-- @
--   slave   -> master   the key did not exist, and this controller created it; or this controller had created it
--                       before, with its current lease, and the reply of etcd was lost
--   master  -> slave    the lease has expired or could not be renewed in time, before others can create the key; or the
--                       switch has not been connected for the duration of a lease, and the controller deletes the key
-- @
--
-- Masters and slaves use the etcd revision in which the switch's key was created as the generation ID. It only
-- increases, so a switch of version 1.3 rejects an earlier master. A slave's request, which may arrive first, has the
-- same generation ID as the master's, so the switch does not reject the current master because of it; a later revision
-- would cause that. If etcd has lost its data, or has those of an earlier time, its revisions are lower than what a
-- switch has seen. The switch then refuses the request, and the controller asks for its generation ID and continues
-- from there ("Weft.OpenFlow.Controller.Roles").
--
-- A controller has its name by a key that is bound to its lease, too. It has a lease only together with this key:
--
-- @
--   outside -> member    the key did not exist, and this controller created it; or an earlier lease of this process has
--                        it
--   outside -> outside   another lease has the key: of another controller, or of this one before it was restarted,
--                        which ends by itself. It is reported
--   member  -> outside   the lease has expired or could not be renewed in time, or etcd has the key with another lease
--                        or not at all
-- @
--
-- @since 0.1.0
module Weft.OpenFlow.Cluster
  ( ClusterSettings (..),
    defaultClusterSettings,
    EtcdUser (..),
    withCluster,
    Cluster,
    clusterSettings,
    clusterMaster,
    clusterRounds,
  )
where

import Control.Concurrent.MVar
import Control.Exception (SomeAsyncException, SomeException, displayException, fromException, throwIO, toException, try)
import Control.Monad (forM_, forever, join, unless, when)
import Data.Aeson (eitherDecodeStrict, encode)
import Data.ByteString (ByteString)
import qualified Data.ByteString.Char8 as B
import qualified Data.ByteString.Lazy as L
import Data.Either (isRight)
import Data.IORef
import qualified Data.Map.Strict as Map
import Data.Maybe (fromMaybe, isJust, isNothing)
import Data.Ord (Down (..))
import qualified Data.Set as Set
import Data.Word (Word32, Word64)
import Weft.Duration
import Weft.OpenFlow.App (Millis)
import Weft.OpenFlow.Cluster.Etcd
import Weft.OpenFlow.Cluster.Settings
import Weft.OpenFlow.Controller
import Weft.OpenFlow.Controller.Discovery (topologyStep)
import Weft.OpenFlow.Controller.Threads
import Weft.OpenFlow.Controller.Types (controllerLldpKey, currentMillis, report)
import Weft.OpenFlow.Lldp
import Weft.OpenFlow.Message (Role (..))
import Weft.OpenFlow.Topology
import Weft.OpenFlow.Types
import Weft.Scope (forConcurrently_, withScope)
import Weft.Timer (sleep, within)

-- | This controller's membership of a cluster.
data Cluster = Cluster
  { clusterOptions :: !ClusterSettings,
    clusterEtcd :: !Etcd,
    -- | The lease, and the time by our clock at which it expires. Changed while 'clusterLock' is held.
    clusterHeld :: !(IORef (Maybe (Lease, Millis))),
    -- | The time by our clock at which the switches are given up: shortly before the lease expires. Always evaluated.
    -- Written with 'clusterHeld', read by any thread.
    clusterEnd :: !(IORef Millis),
    -- | The last leases that etcd gave to this process. Used only by the thread that runs the rounds.
    clusterLeases :: !(IORef [Lease]),
    -- | For how many rounds another lease has had our name. Used only by the thread that runs the rounds.
    clusterNameless :: !(IORef Int),
    -- | Switches whose key we hold. Changed while 'clusterLock' is held.
    clusterMine :: !(IORef (Set.Set DatapathId)),
    -- | The last known revision in which each switch's key was created.
    clusterGenerations :: !(IORef (Map.Map DatapathId Revision)),
    -- | Held while roles are decided.
    clusterLock :: !(MVar ()),
    -- | Whether etcd responded in the last round. Used only by the thread that runs the rounds.
    clusterReached :: !(IORef Bool),
    -- | Our switches that were not connected in the last rounds, with the number of these rounds. Used only by the
    -- thread that runs the rounds.
    clusterAway :: !(IORef (Map.Map DatapathId Int)),
    -- | Whether etcd had our key of LLDP frames in the last round. Used only by the thread that runs the rounds.
    clusterKeyed :: !(IORef Bool),
    -- | Why a part of our network was not shared in the last round. Used only by the thread that runs the rounds.
    clusterUnshared :: !(IORef (Maybe String)),
    -- | Hosts that were not in the views of the last round. Used only by the thread that runs the rounds.
    clusterUnseen :: !(IORef (Set.Set (MacAddress, Place))),
    -- | The number of rounds so far. Written by the thread that runs the rounds.
    clusterDone :: !(IORef Int)
  }

-- | Join a cluster during an action. The given function runs the controller, with the settings that 'clusterSettings'
-- returns. If etcd cannot be reached, nothing is thrown; this controller is then master of no switch. When the action
-- returns, masterships and the lease are given up, for which etcd has two seconds, so that others take over at once.
-- After an exception the lease expires. The function's second argument runs an action as a part of the cluster; the
-- threads for that have ended when it returns or throws.
withCluster :: ClusterSettings -> (Cluster -> (Controller -> IO b -> IO b) -> IO a) -> IO a
withCluster options act = withEtcd (interval options) options $ \etcd -> do
  cluster <- Cluster options etcd <$> newIORef Nothing <*> newIORef minBound <*> newIORef [] <*> newIORef 0 <*> newIORef Set.empty <*> newIORef Map.empty <*> newMVar () <*> newIORef True <*> newIORef Map.empty <*> newIORef False <*> newIORef Nothing <*> newIORef Set.empty <*> newIORef 0
  result <- act cluster $ \c inner -> withScope $ \scope -> do
    forM_ (threads cluster c) (\(label, loop) -> spawn c scope (labelled label) loop)
    inner
  leases <- hold cluster Nothing >> readIORef (clusterLeases cluster)
  result <$ within (seconds 2) (mapM_ (ifReached . revoke etcd) leases)
  where
    threads cluster c =
      [ ("weft openflow cluster", forever (reportingFailures c (round' cluster c) >> modifyIORef' (clusterDone cluster) (+ 1) >> sleep (interval options))),
        ("weft openflow lease", forever (sleep (milliseconds (watchOfLease options)) >> reportingFailures c (watchLease cluster c)))
      ]

-- | The time between rounds, each of which renews the lease and reads the keys.
interval :: ClusterSettings -> Duration
interval options = milliseconds (clusterLease options * 1000 `div` roundsOfLease)

-- | The number of rounds in the duration of a lease.
roundsOfLease :: Int
roundsOfLease = 4

-- | In milliseconds: the time between checks for the end of the lease, and how long before that end the switches are
-- given up.
watchOfLease :: ClusterSettings -> Int
watchOfLease options = clusterLease options * 1000 `div` 16

-- | Controller settings for a member: the cluster assigns the roles, which end with the lease, and new ports settle for
-- so long that other controllers can learn of their links.
clusterSettings :: Cluster -> Settings -> Settings
clusterSettings cluster settings =
  settings
    { settingsRole = fmap Just . elect cluster,
      settingsActiveUntil = readIORef (clusterEnd cluster),
      settingsTopology = (\t -> t {topologySettle = topologySettle t + 2 * millis}) <$> settingsTopology settings
    }
  where
    millis = round (toSeconds (interval (clusterOptions cluster)) * 1000)

-- | Whether this controller is the switch's master.
clusterMaster :: Cluster -> DatapathId -> IO Bool
clusterMaster cluster d = Set.member d <$> readIORef (clusterMine cluster)

-- | The number of rounds so far, successful or not. A round renews the lease and reads the keys; there are four in the
-- duration of a lease.
clusterRounds :: Cluster -> IO Int
clusterRounds = readIORef . clusterDone

-- Roles -----------------------------------------------------------------------------------

-- | The role at a switch, and the generation ID: master if we hold its key, or can create it now. The lock is not held
-- while etcd is asked, so that the switches that connect at the same time do not wait for one another. The key is ours
-- only if the lease with which it was created is still valid afterwards.
elect :: Cluster -> DatapathId -> IO (Role, Word64)
elect cluster d = do
  (mine, valid) <- withMVar (clusterLock cluster) (const ((,) <$> (Set.member d <$> readIORef (clusterMine cluster)) <*> validLease cluster))
  case valid of
    Just _ | mine -> (,) RoleMaster <$> generationOf cluster d
    Just lease -> do
      r <- ifReached (createKey (clusterEtcd cluster) lease (key cluster ("master/" <> show d)) (B.pack (clusterName (clusterOptions cluster))))
      case r of
        Just (created, revision) -> do
          seen cluster d revision
          generation <- generationOf cluster d
          withMVar (clusterLock cluster) $ \_ -> do
            still <- validLease cluster
            -- An existing key may be ours ('claim'), or may just be being deleted ('release'): the next round knows.
            let ours = created && still == Just lease
            when ours (modifyIORef' (clusterMine cluster) (Set.insert d))
            pure (if ours then RoleMaster else RoleSlave, generation)
        Nothing -> slave
    Nothing -> slave
  where
    slave = (,) RoleSlave <$> generationOf cluster d

-- | The lease that we hold, unless it has expired.
validLease :: Cluster -> IO (Maybe Lease)
validLease cluster = do
  held <- readIORef (clusterHeld cluster)
  now <- currentMillis
  pure (case held of Just (lease, until') | until' > now -> Just lease; _ -> Nothing)

key :: Cluster -> String -> ByteString
key cluster name = B.pack (clusterPrefix (clusterOptions cluster) <> name)

-- | Record the revision in which a switch's key was created.
seen :: Cluster -> DatapathId -> Revision -> IO ()
seen cluster d revision = atomicModifyIORef' (clusterGenerations cluster) (\g -> (Map.insertWith max d revision g, ()))

-- | The generation ID of the roles at a switch.
generationOf :: Cluster -> DatapathId -> IO Word64
generationOf cluster d = Map.findWithDefault 0 d <$> readIORef (clusterGenerations cluster)

-- | 'Nothing' if etcd could not be reached.
ifReached :: IO a -> IO (Maybe a)
ifReached = fmap (either (const Nothing) Just) . asked

-- | The exception of an action, unless it is asynchronous.
asked :: IO a -> IO (Either SomeException a)
asked act = do
  r <- try act
  case r of
    Left e | Just asynchronous <- fromException e -> throwIO (asynchronous :: SomeAsyncException)
    _ -> pure r

-- | One round: renew the lease, give up switches that are no longer ours, become master of switches without one, and
-- share the topology.
round' :: Cluster -> Controller -> IO ()
round' cluster c = do
  -- The key comes first: without it this controller would take the frames of the others for forged ones.
  keyed <- asked (shareLldpKey cluster c)
  when (isRight keyed) (prolong cluster c)
  -- Read before the keys of etcd: a key that is created meanwhile may not be among them, and is not lost.
  mine <- readIORef (clusterMine cluster)
  found <- asked (either throwIO pure keyed >> readPrefix (clusterEtcd cluster) (key cluster ""))
  before <- readIORef (clusterReached cluster)
  writeIORef (clusterReached cluster) (isRight found)
  when (isRight found /= before) (clusterOnReach (clusterOptions cluster) (either (Just . displayException) (const Nothing) found))
  forM_ found $ \(revision, entries) -> do
    -- Otherwise etcd has lost its data, and the next round shares a key again.
    ours <- lldpKeyBytes <$> readIORef (controllerLldpKey c)
    writeIORef (clusterKeyed cluster) ([entryValue e | e <- entries, entryKey e == "lldp-key"] == [ours])
    member <- fmap fst <$> readIORef (clusterHeld cluster)
    unless (isNothing member || [entryLease e | e <- entries, key cluster (B.unpack (entryKey e)) == nameKey cluster] == maybe [] pure member) (leave cluster c)
    let masters = Map.fromList [(d, e) | e <- entries, Just name <- [B.stripPrefix "master/" (entryKey e)], Just d <- [readDatapathId (B.unpack name)]]
    forM_ (Map.toList masters) (\(d, e) -> seen cluster d (entryCreated e))
    infos <- connectedSwitches c
    let own = B.pack (clusterName (clusterOptions cluster))
        connected = Map.keys infos
        lost = [d | d <- Set.toList mine, fmap entryValue (Map.lookup d masters) /= Just own]
        -- Ours, but the switch was given up at the same time.
        asleep = [d | (d, i) <- Map.toList infos, not (infoActive i), Set.member d mine, d `notElem` lost]
    giveUp cluster c lost
    release cluster c connected
    claimed <- claim cluster [(d, entryLease e) | (d, e) <- Map.toList masters, entryValue e == own, Set.notMember d mine]
    -- The next round must renew the lease in time, and elects the others.
    began <- currentMillis
    let quarter = fromIntegral (clusterLease (clusterOptions cluster) * 1000 `div` roundsOfLease)
        inTime d = do
          now <- currentMillis
          when (now - began < quarter) $ do
            (role, generation) <- elect cluster d
            when (role == RoleMaster) (setRole c d role generation)
    forConcurrently_ electionsAtOnce [d | d <- connected, Map.notMember d masters || d `Set.member` Set.fromList (claimed <> asleep)] inTime
    let views = [(name, e) | e <- entries, Just name <- [B.stripPrefix "view/" (entryKey e)]]
    merge cluster c revision (Map.keysSet masters) [view | (name, e) <- views, isNothing (partOf own name), Right view <- [eitherDecodeStrict (entryValue e)]]
    share cluster c (Map.fromList [(part, e) | (name, e) <- views, Just part <- [partOf own name]])
  where
    -- The part of our view that a key is for.
    partOf own name = B.stripPrefix (own <> "/") name >>= \part -> if B.elem '/' part then Nothing else Just part

-- | How many switches that have no master a round elects at once.
electionsAtOnce :: Int
electionsAtOnce = 32

-- | Use the key of LLDP frames that is in etcd. The first controller that looks for it writes its own there.
shareLldpKey :: Cluster -> Controller -> IO ()
shareLldpKey cluster c = do
  done <- readIORef (clusterKeyed cluster)
  unless done $ do
    own <- readIORef (controllerLldpKey c)
    bytes <- createOrRead (clusterEtcd cluster) name (lldpKeyBytes own)
    shared <- maybe (throwIO (EtcdError (B.unpack name <> " is not a key of 16 bytes: delete it"))) pure (lldpKey bytes)
    writeIORef (controllerLldpKey c) shared
    writeIORef (clusterKeyed cluster) True
  where
    name = key cluster "lldp-key"

-- | Keys with our name that we do not know as ours: the reply of etcd to their creation was lost. Those that belong to
-- the current lease are ours. Those of an earlier lease end with it.
claim :: Cluster -> [(DatapathId, Lease)] -> IO [DatapathId]
claim cluster found = withMVar (clusterLock cluster) $ \_ -> do
  held <- readIORef (clusterHeld cluster)
  let ours = [d | (d, lease) <- found, fmap fst held == Just lease]
  ours <$ modifyIORef' (clusterMine cluster) (`Set.union` Set.fromList ours)

-- | Renew the lease, or get a new one. Without a valid lease no switch is ours.
prolong :: Cluster -> Controller -> IO ()
prolong cluster c = do
  started <- currentMillis
  held <- readIORef (clusterHeld cluster)
  renewed <- case held of
    Just (lease, _) -> fmap (\ok -> if ok then Just lease else Nothing) <$> ifReached (keepAlive etcd lease)
    Nothing -> pure (Just Nothing)
  case renewed of
    -- Counted from the request: etcd starts to count later.
    Just (Just lease) -> hold cluster (Just (lease, started + life))
    Just Nothing -> do
      lose
      granted <- ifReached (enrol cluster)
      hold cluster ((\lease -> (lease, started + life)) <$> join granted)
      mapM_ (named cluster . isJust) granted
    Nothing -> do
      now <- currentMillis
      -- The next round would be too late.
      when (maybe True (\(_, until') -> now + life `div` fromIntegral roundsOfLease >= until') held) (leave cluster c)
  where
    etcd = clusterEtcd cluster
    life = fromIntegral (clusterLease (clusterOptions cluster)) * 1000
    lose = readIORef (clusterMine cluster) >>= giveUp cluster c . Set.toList

-- | Give up all switches, and the lease.
leave :: Cluster -> Controller -> IO ()
leave cluster c = do
  readIORef (clusterMine cluster) >>= giveUp cluster c . Set.toList
  hold cluster Nothing

-- | Record the lease.
hold :: Cluster -> Maybe (Lease, Millis) -> IO ()
hold cluster held = withMVar (clusterLock cluster) $ \_ -> do
  writeIORef (clusterHeld cluster) held
  writeIORef (clusterEnd cluster) $! maybe minBound (subtract (2 * fromIntegral (watchOfLease (clusterOptions cluster))) . snd) held

-- | The key of our name.
nameKey :: Cluster -> ByteString
nameKey cluster = key cluster ("name/" <> clusterName (clusterOptions cluster))

-- | Get a lease with our name. 'Nothing' if another lease has the name.
enrol :: Cluster -> IO (Maybe Lease)
enrol cluster = do
  before <- readIORef (clusterLeases cluster)
  lease <- grant etcd (clusterLease (clusterOptions cluster))
  -- Of those that are left out none lives any more.
  writeIORef (clusterLeases cluster) (take (4 * roundsOfLease) (lease : before))
  holder <- createOrHolder etcd lease (nameKey cluster)
  case holder of
    Nothing -> pure (Just lease)
    Just other
      -- The reply to its creation or to a renewal was lost.
      | other == lease || other `elem` before -> Just lease <$ putKey etcd lease (nameKey cluster) B.empty
      | otherwise -> pure Nothing
  where
    etcd = clusterEtcd cluster

-- | Tell 'clusterOnName' whether we have our name, if it has not been told.
named :: Cluster -> Bool -> IO ()
named cluster True = do
  before <- readIORef (clusterNameless cluster)
  writeIORef (clusterNameless cluster) 0
  when (before > 0) (clusterOnName (clusterOptions cluster) Nothing)
named cluster False = do
  before <- readIORef (clusterNameless cluster)
  writeIORef (clusterNameless cluster) (before + 1)
  when (before == 0) . say $ "a lease in etcd has the name " <> name <> ": another controller, or this one before it was restarted; waiting for the end of the lease"
  when (before == 3 * roundsOfLease) . say $ "another controller has the name " <> name <> ", and this one masters no switch until that one has ended: each controller needs a name of its own"
  where
    name = clusterName (clusterOptions cluster)
    say = clusterOnName (clusterOptions cluster) . Just

-- | Give up all switches before the lease expires. A round may last longer than the lease: if no endpoint answers, each
-- of its requests waits for each endpoint in turn, and meanwhile others may become masters. If etcd did renew the
-- lease, the next round finds the keys and claims them. This thread may run late, after a pause of the process, so the
-- switches' own threads look at the time, too ('settingsActiveUntil').
watchLease :: Cluster -> Controller -> IO ()
watchLease cluster c = do
  end <- readIORef (clusterEnd cluster)
  now <- currentMillis
  mine <- Set.toList <$> readIORef (clusterMine cluster)
  when (now >= end && not (null mine)) $ do
    -- The roles come first: nothing may delay them.
    forM_ mine (\d -> generationOf cluster d >>= setRole c d RoleSlave)
    giveUp cluster c mine

-- | Give up our switches that were not connected for the duration of a lease: others may be connected to them.
release :: Cluster -> Controller -> [DatapathId] -> IO ()
release cluster c connected = do
  mine <- readIORef (clusterMine cluster)
  before <- readIORef (clusterAway cluster)
  held <- readIORef (clusterHeld cluster)
  let away = Map.fromSet (\d -> Map.findWithDefault 0 d before + 1) (mine `Set.difference` Set.fromList connected)
      (gone, rest) = Map.partition (>= roundsOfLease) away
  writeIORef (clusterAway cluster) rest
  giveUp cluster c (Map.keys gone)
  forM_ held $ \(lease, _) -> forM_ (Map.keys gone) $ \d ->
    ifReached (removeKey (clusterEtcd cluster) lease (key cluster ("master/" <> show d)))

giveUp :: Cluster -> Controller -> [DatapathId] -> IO ()
giveUp cluster c ds = unless (null ds) $ do
  withMVar (clusterLock cluster) (\_ -> modifyIORef' (clusterMine cluster) (`Set.difference` Set.fromList ds))
  forM_ ds (\d -> generationOf cluster d >>= setRole c d RoleSlave)

-- Sharing the topology --------------------------------------------------------------------

-- | What a controller shares: the links whose probes it has seen (switch and port of both ends), and the hosts at the
-- switches of which it is master (address, switch, port, IPv4 address, 'hostMoved').
type View = ([(Word64, Word32, Word64, Word32)], [(Word64, Word64, Word32, Maybe Word32, Word64)])

-- | Write our view to etcd: the parts that differ from what etcd has, which are given. The links of a switch that has
-- got another master are shared until they expire. Otherwise they would be known in one direction only, and out of the
-- tree, until the new master has seen their probes. An etcd takes at most 1.5 MiB in a request, and keeps the earlier
-- values of a key, so an unchanged part is not written again. Parts of links are called @l0@, @l1@ and so on, those of
-- hosts @h0@, @h1@ and so on.
share :: Cluster -> Controller -> Map.Map ByteString Entry -> IO ()
share cluster c before = do
  held <- readIORef (clusterHeld cluster)
  mine <- readIORef (clusterMine cluster)
  t <- controllerNetwork c
  let links = [(a, p, b, q) | ((DatapathId a, PortNo p), (DatapathId b, PortNo q)) <- topologyOwnLinks t]
      hosts = [(m, b, q, hostIpv4 h, hostMoved h) | (MacAddress m, h) <- Map.toList (topologyHosts t), let (d@(DatapathId b), PortNo q) = hostPlace h, Set.member d mine]
      (shared, others) = splitAt mostShared hosts
      parts = Map.fromList (numbered 'l' [(ls, []) | ls <- pieces links] <> numbered 'h' [([], hs) | hs <- pieces shared])
  forM_ held $ \(lease, _) -> do
    written <- asked $ do
      forM_ (Map.toList parts) $ \(part, value) ->
        unless (fmap (\e -> (entryLease e, entryValue e)) (Map.lookup part before) == Just (lease, value)) $
          putKey (clusterEtcd cluster) lease (keyOf part) value
      forM_ (Map.keys (Map.difference before parts)) (removeKey (clusterEtcd cluster) lease . keyOf)
    let problem = case written of
          Left e -> Just ("the network of this controller's switches could not be written to etcd: " <> displayException e)
          Right () | null others -> Nothing
          Right () -> Just ("this controller shares " <> show mostShared <> " hosts with the others, and its switches have more")
    known <- readIORef (clusterUnshared cluster)
    writeIORef (clusterUnshared cluster) problem
    when (problem /= known) (forM_ problem (report c . Failed . toException . EtcdError))
  where
    keyOf part = key cluster ("view/" <> clusterName (clusterOptions cluster) <> "/" <> B.unpack part)
    numbered :: Char -> [View] -> [(ByteString, ByteString)]
    numbered kind views = [(B.pack (kind : show n), L.toStrict (encode view)) | (n, view) <- zip [0 :: Int ..] views]

-- | The maximum number of links or hosts in a part of a view. Each takes 82 bytes at the most.
mostInPart :: Int
mostInPart = 8192

-- | The maximum number of hosts that a controller shares. Links have no limit: without one of them other controllers
-- could flood in a loop.
mostShared :: Int
mostShared = 65536

pieces :: [a] -> [[a]]
pieces xs = case splitAt mostInPart xs of
  ([], _) -> []
  (piece, rest) -> piece : pieces rest

-- | Add the views of other controllers to the topology, and remove the hosts at other controllers' switches that are in
-- no view any more.
--
-- @
--   unknown  -> reported   a view has the host, at a switch of another master
--   reported -> unknown    in two rounds no view has it. Until then a new master of the switch may share it again; and
--                          while a switch that is connected here has no master, its hosts stay, as we may become its
--                          master
--   reported -> own        this controller has become master of the switch, and shares the host from now on
--   any      -> own        a packet of the host came to one of our switches
--   own      -> reported   a view has a newer claim, at a switch of another master ('hostReported'); or we have lost
--                          the switch
-- @
--
-- A host is our own if we are master of its switch. Only such hosts are shared.
merge :: Cluster -> Controller -> Revision -> Set.Set DatapathId -> [View] -> IO ()
merge cluster c revision mastered views = do
  time <- currentMillis
  mine <- readIORef (clusterMine cluster)
  let links = [((DatapathId a, PortNo p), (DatapathId b, PortNo q)) | (ls, _) <- views, (a, p, b, q) <- ls]
      hosts = Map.fromListWith newer [(MacAddress m, ((DatapathId d, PortNo p), ip, moved)) | (_, hs) <- views, (m, d, p, ip, moved) <- hs]
      newer a@(place, _, moved) b@(place', _, moved') = if (moved, Down place) > (moved', Down place') then a else b
      report' = hostReported time (`Set.member` mine)
  topologyStep c (linksReported time links)
  topologyStep c (\now -> (revisionRead revision now, []))
  t <- controllerNetwork c
  -- One step for each host, so that the switches' threads do not wait long.
  forM_ [host | host@(m, claimed) <- Map.toList hosts, isJust (report' m claimed t)] $ \(m, claimed) ->
    topologyStep c (\now -> (fromMaybe now (report' m claimed now), []))
  after <- controllerNetwork c
  before <- readIORef (clusterUnseen cluster)
  let kept d = Set.member d mine || (Set.notMember d mastered && Map.member d (topologySwitches after))
      unseen = hostsUnreported kept (Map.keysSet hosts) after
  writeIORef (clusterUnseen cluster) $! Set.fromList unseen
  forM_ (filter (`Set.member` before) unseen) $ \(m, place) -> topologyStep c (\now -> (hostGone m place now, []))
