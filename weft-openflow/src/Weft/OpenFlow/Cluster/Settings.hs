-- |
-- Settings of a member of a cluster, and of its client of etcd. Users find them in "Weft.OpenFlow.Cluster".
module Weft.OpenFlow.Cluster.Settings
  ( ClusterSettings (..),
    defaultClusterSettings,
    EtcdUser (..),
  )
where

import Data.Text (Text)
import Weft.Transport (Connection)

-- | Settings; start from 'defaultClusterSettings'.
data ClusterSettings = ClusterSettings
  { -- | Endpoints of etcd, such as @http:\/\/127.0.0.1:2379@, or @https:\/\/@ with a 'clusterUpgrade'.
    clusterEndpoints :: [String],
    -- | The handshake of TLS with a named host over a connection, for endpoints with @https@, such as @tlsConnect@ of
    -- @Weft.Tls@. Called for each connection to etcd, so certificates that it loads may change while the cluster runs.
    -- A connection is kept for several requests.
    clusterUpgrade :: String -> Connection -> IO Connection,
    -- | The user as whom this controller logs in to etcd.
    clusterUser :: Maybe EtcdUser,
    -- | A name that is unique among the controllers.
    clusterName :: String,
    -- | The duration of a lease in seconds. Other controllers take over within twice that time.
    clusterLease :: Int,
    -- | The prefix of all keys.
    clusterPrefix :: String,
    -- | Called with a reason when etcd stops responding, and with 'Nothing' when it responds again. It runs in one of
    -- the controller's threads and must not block.
    clusterOnReach :: Maybe String -> IO (),
    -- | Called with a reason when another lease has this controller's name, again if it still has it after three
    -- leases, and with 'Nothing' when this controller has got its name after that. Until then it is master of no
    -- switch. It runs in one of the controller's threads and must not block.
    clusterOnName :: Maybe String -> IO ()
  }

-- | A user of etcd.
data EtcdUser = EtcdUser
  { etcdUserName :: Text,
    -- | The password. It is asked for at each log-in: before the first request, and when etcd no longer accepts what it
    -- gave for the last one. So it may change while the cluster runs. What it throws is the reason why etcd cannot be
    -- asked.
    etcdUserPassword :: IO Text
  }

-- | Leases of 5 seconds, keys below @weft\/openflow\/@, no user, no TLS, and no callbacks.
defaultClusterSettings :: String -> [String] -> ClusterSettings
defaultClusterSettings name endpoints =
  ClusterSettings
    { clusterEndpoints = endpoints,
      clusterUpgrade = \_ _ -> ioError (userError "these settings have no TLS (clusterUpgrade)"),
      clusterUser = Nothing,
      clusterName = name,
      clusterLease = 5,
      clusterPrefix = "weft/openflow/",
      clusterOnReach = const (pure ()),
      clusterOnName = const (pure ())
    }
