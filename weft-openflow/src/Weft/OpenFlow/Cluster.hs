{-# LANGUAGE OverloadedStrings #-}

-- |
-- Several controllers for one network, by way of etcd. Each switch connects to all of them; one is its master, which is
-- who created the switch's key in etcd. The key goes with the controller's lease: a controller that dies loses its
-- switches to others when its lease has run out, and nothing else; flows stay. What a master finds out, links and hosts, it
-- shares.
--
-- @
--   slave   -> master   the key was free, and this controller created it; or it has created it before with the lease
--                       that it holds, and the answer that said so was lost
--   master  -> slave    its lease is gone, or could not be prolonged in time: before others can take the key; or the
--                       switch has not been connected to it for the time of a lease: then it deletes the key
-- @
--
-- The generation of a role is the revision of etcd in which the switch's key was created, for the master and for slaves. It
-- only grows, so a switch of 1.3 refuses a master of before; and a slave's request, which may come first, does not make it refuse
-- the present one, as a later revision would.
--
-- @since 0.1.0
module Weft.OpenFlow.Cluster
  ( ClusterSettings (..),
    defaultClusterSettings,
    withCluster,
    Cluster,
    clusterSettings,
    clusterMaster,
    clusterRounds,
  )
where

import Control.Concurrent (killThread)
import Control.Concurrent.MVar
import Control.Exception (SomeAsyncException, SomeException, bracket, displayException, fromException, throwIO, try)
import Control.Monad (forM_, forever, unless, void, when)
import Data.Aeson (eitherDecodeStrict, encode)
import Data.ByteString (ByteString)
import qualified Data.ByteString.Char8 as B
import qualified Data.ByteString.Lazy as L
import Data.Either (isRight)
import Data.IORef
import qualified Data.Map.Strict as Map
import Data.Maybe (fromMaybe, mapMaybe)
import qualified Data.Set as Set
import Data.Word (Word32, Word64)
import Weft.Duration
import Weft.OpenFlow.App (Millis)
import Weft.OpenFlow.Cluster.Etcd
import Weft.OpenFlow.Controller
import Weft.OpenFlow.Controller.Discovery (spawn, topologyStep)
import Weft.OpenFlow.Controller.Types (currentMillis)
import Weft.OpenFlow.Message (Role (..))
import Weft.OpenFlow.Topology
import Weft.OpenFlow.Types
import Weft.Timer (sleep)

-- | Settings; begin with 'defaultClusterSettings'.
data ClusterSettings = ClusterSettings
  { -- | Endpoints of etcd, as @http:\/\/127.0.0.1:2379@.
    clusterEndpoints :: [String],
    -- | A name that no other controller has.
    clusterName :: String,
    -- | Seconds of a lease; others take over within twice that.
    clusterLease :: Int,
    -- | Keys begin with this.
    clusterPrefix :: String,
    -- | Called when etcd does not answer any more, with the reason, and when it does again ('Nothing'). From a thread of the
    -- controller; it must not block.
    clusterOnReach :: Maybe String -> IO ()
  }

-- | Leases of 5 seconds, keys below @weft\/openflow\/@; what becomes of etcd is not reported.
defaultClusterSettings :: String -> [String] -> ClusterSettings
defaultClusterSettings name endpoints = ClusterSettings endpoints name 5 "weft/openflow/" (const (pure ()))

-- | This controller's part.
data Cluster = Cluster
  { clusterOptions :: !ClusterSettings,
    clusterEtcd :: !Etcd,
    -- | The lease, and until when it holds by our clock. Changed under 'clusterLock'.
    clusterHeld :: !(IORef (Maybe (Lease, Millis))),
    -- | Switches whose key is ours. Changed under 'clusterLock'.
    clusterMine :: !(IORef (Set.Set DatapathId)),
    -- | The revision in which each switch's key was created last, as far as is known.
    clusterGenerations :: !(IORef (Map.Map DatapathId Revision)),
    -- | Held while roles are decided.
    clusterLock :: !(MVar ()),
    -- | Did etcd answer in the last round? Of the thread of the rounds.
    clusterReached :: !(IORef Bool),
    -- | Switches of ours that were not connected in the last rounds, and in how many. Of the thread of the rounds.
    clusterAway :: !(IORef (Map.Map DatapathId Int)),
    -- | Rounds so far. Written by the thread of the rounds.
    clusterDone :: !(IORef Int)
  }

-- | Take part in a cluster beside an action; the function runs the controller, with the settings that 'clusterSettings'
-- makes. Throws nothing when etcd cannot be reached: then no switch is mastered.
withCluster :: ClusterSettings -> (Cluster -> (Controller -> IO b -> IO b) -> IO a) -> IO a
withCluster options act = do
  etcd <- newEtcd (interval options) (clusterEndpoints options)
  cluster <- Cluster options etcd <$> newIORef Nothing <*> newIORef Set.empty <*> newIORef Map.empty <*> newMVar () <*> newIORef True <*> newIORef Map.empty <*> newIORef 0
  act cluster $ \c inner ->
    bracket (mapM (uncurry (spawn c)) (threads cluster c)) (mapM_ killThread) (const inner)
  where
    threads cluster c =
      [ ("weft openflow cluster", forever (round' cluster c >> modifyIORef' (clusterDone cluster) (+ 1) >> sleep (interval options))),
        ("weft openflow lease", forever (sleep (milliseconds (watchOfLease options)) >> watchLease cluster c))
      ]

-- | How often the lease is prolonged and the keys are read.
interval :: ClusterSettings -> Duration
interval options = milliseconds (clusterLease options * 1000 `div` roundsOfLease)

-- | How often, in the time of a lease.
roundsOfLease :: Int
roundsOfLease = 4

-- | How often the end of the lease is looked for, and how long before it the switches are given up: milliseconds.
watchOfLease :: ClusterSettings -> Int
watchOfLease options = clusterLease options * 1000 `div` 16

-- | Settings of a controller that takes part: roles are the cluster's, and ports settle until others can know their
-- links.
clusterSettings :: Cluster -> Settings -> Settings
clusterSettings cluster settings =
  settings
    { settingsRole = fmap Just . elect cluster,
      settingsTopology = (\t -> t {topologySettle = topologySettle t + 2 * millis}) <$> settingsTopology settings
    }
  where
    millis = round (toSeconds (interval (clusterOptions cluster)) * 1000)

-- | Is this controller the switch's master?
clusterMaster :: Cluster -> DatapathId -> IO Bool
clusterMaster cluster d = Set.member d <$> readIORef (clusterMine cluster)

-- | How often this controller has prolonged its lease and looked at the keys, or has tried to: four times in the time of
-- a lease.
clusterRounds :: Cluster -> IO Int
clusterRounds = readIORef . clusterDone

-- Roles -----------------------------------------------------------------------------------

-- | The role at a switch, and the generation: the master's if its key is ours or is free now.
elect :: Cluster -> DatapathId -> IO (Role, Word64)
elect cluster d = withMVar (clusterLock cluster) $ \_ -> do
  held <- readIORef (clusterHeld cluster)
  now <- currentMillis
  mine <- Set.member d <$> readIORef (clusterMine cluster)
  case held of
    Just (lease, until')
      | until' > now, mine -> (,) RoleMaster <$> generationOf cluster d
      | until' > now -> do
        r <- attempt (createKey (clusterEtcd cluster) lease (key cluster ("master/" <> show d)) (B.pack (clusterName (clusterOptions cluster))))
        case r of
          Just (created, revision) -> do
            seen cluster d revision
            when created (modifyIORef' (clusterMine cluster) (Set.insert d))
            pure (if created then RoleMaster else RoleSlave, revision)
          Nothing -> slave
    _ -> slave
  where
    slave = (,) RoleSlave <$> generationOf cluster d

key :: Cluster -> String -> ByteString
key cluster name = B.pack (clusterPrefix (clusterOptions cluster) <> name)

-- | A switch's key was created in that revision.
seen :: Cluster -> DatapathId -> Revision -> IO ()
seen cluster d revision = atomicModifyIORef' (clusterGenerations cluster) (\g -> (Map.insertWith max d revision g, ()))

-- | The generation of the roles at a switch.
generationOf :: Cluster -> DatapathId -> IO Word64
generationOf cluster d = Map.findWithDefault 0 d <$> readIORef (clusterGenerations cluster)

-- | 'Nothing' when etcd could not be asked.
attempt :: IO a -> IO (Maybe a)
attempt = fmap (either (const Nothing) Just) . asked

-- | Why etcd could not be asked.
asked :: IO a -> IO (Either SomeException a)
asked act = do
  r <- try act
  case r of
    Left e | Just asynchronous <- fromException e -> throwIO (asynchronous :: SomeAsyncException)
    _ -> pure r

-- | Prolong the lease, give up what is not ours any more, take what is free, share what is known.
round' :: Cluster -> Controller -> IO ()
round' cluster c = do
  prolong cluster c
  found <- asked (readPrefix (clusterEtcd cluster) (key cluster ""))
  before <- readIORef (clusterReached cluster)
  writeIORef (clusterReached cluster) (isRight found)
  when (isRight found /= before) (clusterOnReach (clusterOptions cluster) (either (Just . displayException) (const Nothing) found))
  forM_ found $ \entries -> do
    let masters = Map.fromList [(d, e) | e <- entries, Just name <- [B.stripPrefix "master/" (entryKey e)], Just d <- [readDatapathId (B.unpack name)]]
    forM_ (Map.toList masters) (\(d, e) -> seen cluster d (entryCreated e))
    connected <- Map.keys <$> connectedSwitches c
    mine <- readIORef (clusterMine cluster)
    let own = B.pack (clusterName (clusterOptions cluster))
        lost = [d | d <- Set.toList mine, fmap entryValue (Map.lookup d masters) /= Just own]
    giveUp cluster c lost
    release cluster c connected
    claimed <- claim cluster [(d, entryLease e) | (d, e) <- Map.toList masters, entryValue e == own, Set.notMember d mine]
    forM_ [d | d <- connected, Map.notMember d masters || d `elem` claimed] $ \d -> do
      (role, generation) <- elect cluster d
      when (role == RoleMaster) (setRole c d role generation)
    merge c [view | e <- entries, Just name <- [B.stripPrefix "view/" (entryKey e)], name /= own, Right view <- [eitherDecodeStrict (entryValue e)]]
  share cluster c

-- | Keys with our name that we do not know as ours: etcd's answer to their creation did not arrive. They are ours if they
-- go with the lease that holds now; with one of before they end when that does.
claim :: Cluster -> [(DatapathId, Lease)] -> IO [DatapathId]
claim cluster found = withMVar (clusterLock cluster) $ \_ -> do
  held <- readIORef (clusterHeld cluster)
  let ours = [d | (d, lease) <- found, fmap fst held == Just lease]
  ours <$ modifyIORef' (clusterMine cluster) (`Set.union` Set.fromList ours)

-- | Keep the lease, or get a new one. Without one that surely holds, no switch is ours.
prolong :: Cluster -> Controller -> IO ()
prolong cluster c = do
  started <- currentMillis
  held <- readIORef (clusterHeld cluster)
  renewed <- case held of
    Just (lease, _) -> fmap (\ok -> if ok then Just lease else Nothing) <$> attempt (keepAlive etcd lease)
    Nothing -> pure (Just Nothing)
  case renewed of
    -- From when it was asked for: etcd's count began later.
    Just (Just lease) -> set (Just (lease, started + life))
    Just Nothing -> do
      lose
      granted <- attempt (grant etcd (clusterLease (clusterOptions cluster)))
      set ((\lease -> (lease, started + life)) <$> granted)
    Nothing -> do
      now <- currentMillis
      -- Another round would be too late.
      when (maybe True (\(_, until') -> now + life `div` fromIntegral roundsOfLease >= until') held) (lose >> set Nothing)
  where
    etcd = clusterEtcd cluster
    life = fromIntegral (clusterLease (clusterOptions cluster)) * 1000
    set v = withMVar (clusterLock cluster) (\_ -> writeIORef (clusterHeld cluster) v)
    lose = readIORef (clusterMine cluster) >>= giveUp cluster c . Set.toList

-- | Give up all switches before the lease ends. A round may last longer than that: where no endpoint answers, each of its
-- requests waits for each of them in turn, and others may be masters meanwhile. If etcd prolonged the lease all the same,
-- the next round finds the keys, and claims them.
watchLease :: Cluster -> Controller -> IO ()
watchLease cluster c = do
  held <- readIORef (clusterHeld cluster)
  now <- currentMillis
  let over = maybe True (\(_, until') -> now + 2 * fromIntegral (watchOfLease (clusterOptions cluster)) >= until') held
  mine <- Set.toList <$> readIORef (clusterMine cluster)
  when (over && not (null mine)) $ do
    -- The lock may be held by a request that waits.
    forM_ mine (\d -> generationOf cluster d >>= setRole c d RoleSlave)
    giveUp cluster c mine

-- | Switches of ours that are not connected, and were not for the time of a lease, may be connected to others.
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
    attempt (removeKey (clusterEtcd cluster) lease (key cluster ("master/" <> show d)))

giveUp :: Cluster -> Controller -> [DatapathId] -> IO ()
giveUp cluster c ds = unless (null ds) $ do
  withMVar (clusterLock cluster) (\_ -> modifyIORef' (clusterMine cluster) (`Set.difference` Set.fromList ds))
  forM_ ds (\d -> generationOf cluster d >>= setRole c d RoleSlave)

-- What is known ---------------------------------------------------------------------------

-- | Links by their ends, and hosts: what a master has seen at its switches.
type View = ([(Word64, Word32, Word64, Word32)], [(Word64, Word64, Word32, Maybe Word32)])

-- | Write what was seen at the switches that are ours.
share :: Cluster -> Controller -> IO ()
share cluster c = do
  held <- readIORef (clusterHeld cluster)
  mine <- readIORef (clusterMine cluster)
  t <- controllerNetwork c
  let links = [(a, p, b, q) | ((DatapathId a, PortNo p), (d@(DatapathId b), PortNo q)) <- topologyLinks t, Set.member d mine]
      hosts = [(m, b, q, hostIpv4 h) | (MacAddress m, h) <- Map.toList (topologyHosts t), let (d@(DatapathId b), PortNo q) = hostPlace h, Set.member d mine]
      view = (links, hosts) :: View
  forM_ held $ \(lease, _) ->
    void (attempt (putKey (clusterEtcd cluster) lease (key cluster ("view/" <> clusterName (clusterOptions cluster))) (L.toStrict (encode view))))

-- | Know what others have seen.
merge :: Controller -> [View] -> IO ()
merge c views = do
  time <- currentMillis
  let links = [((DatapathId a, PortNo p), (DatapathId b, PortNo q)) | (ls, _) <- views, (a, p, b, q) <- ls]
      hosts = [(MacAddress m, (DatapathId d, PortNo p), ip) | (_, hs) <- views, (m, d, p, ip) <- hs]
  forM_ links $ \(from, to) -> topologyStep c (linkSeen time from to)
  t <- controllerNetwork c
  let new = mapMaybe (\(m, place, ip) -> if fmap hostPlace (Map.lookup m (topologyHosts t)) == Just place then Nothing else Just (m, place, ip)) hosts
  forM_ new $ \(m, place, ip) -> topologyStep c (\now -> (fromMaybe now (hostSeen time m place ip now), []))
