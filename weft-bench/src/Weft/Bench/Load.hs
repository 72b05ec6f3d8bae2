{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : Clients that put load on a server
--
-- Small C programs, built from @bench/peers@: @load@ (a closed loop: every connection has one HTTP request in
-- flight; or an open one; every latency is kept), @roundtrip@ (one blocking echo client), @idle-client@ (connections that never
-- send) and @rude-client@ (misbehaving clients). The programs compute latency percentiles from all samples.
module Weft.Bench.Load
  ( -- * Requests
    LoadSpec (..),
    Handshakes (..),
    LoadResult (..),
    requestLoad,

    -- * Round trips
    TripResult (..),
    roundTrips,

    -- * Idle connections
    withIdle,

    -- * Misbehaving clients
    withRude,

    -- * The programs
    loadTool,
    tripTool,
    idleTool,
    rudeTool,
  )
where

import Data.Aeson (FromJSON (..), Object, withObject, (.:))
import qualified Data.Aeson.Key as K
import Data.Aeson.Types (Parser)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import Data.Map.Strict (Map)
import qualified Data.Map.Strict as M
import Data.Text (Text)
import qualified Data.Text as T
import System.FilePath ((</>))
import Weft.Bench.Child
import Weft.Bench.Server
import Weft.Bench.Types

loadTool, tripTool, idleTool, rudeTool :: FilePath
loadTool = "load"
tripTool = "roundtrip"
idleTool = "idle-client"
rudeTool = "rude-client"

-- | The load, and its duration in seconds.
data LoadSpec = LoadSpec
  { loadConnections :: !Int,
    loadThreads :: !Int,
    -- | A path; or a pattern, and the number of files.
    loadPath :: !String,
    loadFiles :: !Int,
    -- | Count only bytes, and abandon the pending responses at the end.
    loadCut :: !Bool,
    -- | Send a browser's ten fields.
    loadBrowser :: !Bool,
    -- | Post a body of this many bytes.
    loadPost :: !(Maybe Int),
    -- | Whole requests that each connection sends in turn; whether there is a new connection after the last of them.
    loadScript :: ![ByteString],
    loadRenew :: !Bool,
    -- | The path is a WebSocket, which echoes messages of this many bytes.
    loadMessage :: !(Maybe Int),
    -- | Over TLS.
    loadTls :: !(Maybe Handshakes),
    -- | So many requests a second, each when it is due (an open loop), and not the next one after each answer.
    loadRate :: !(Maybe Int),
    loadWarmup :: !Double,
    loadDuration :: !Double
  }

-- | Connections of TLS that are kept, or one for each request: then a latency has the handshake in it, which is a full
-- one or resumes the session before.
data Handshakes = Kept | Full | Resumed
  deriving (Eq, Show)

-- | The result of the measured time.
data LoadResult = LoadResult
  { -- | Requests answered in the measured time.
    loadRequests :: !Double,
    -- | Requests answered since the load began, including the warm-up.
    loadTotal :: !Double,
    -- | Bytes received in the measured time.
    loadBytes :: !Double,
    loadWall :: !Double,
    -- | The server's CPU time.
    loadCpu :: !Double,
    -- | Percentiles, named @p50_us@ and so on.
    loadLatencies :: !(Map Text Double)
  }
  deriving (Eq, Show)

instance FromJSON LoadResult where
  parseJSON = withObject "load" $ \o ->
    LoadResult <$> o .: "requests" <*> o .: "total_requests" <*> o .: "bytes" <*> o .: "wall_s" <*> o .: "cpu_s" <*> latencies o

-- | Put a server under load from these cores. The action gets another action that starts the load and waits for
-- its end. Before the first action begins, all connections are open and have been served once. They stay open until it
-- returns, and outside of the load no request is in progress.
requestLoad :: Env -> [Int] -> LoadSpec -> Server -> (IO LoadResult -> IO a) -> IO a
requestLoad env cores spec server action = withScript $ \script -> withTool env cores loadTool (arguments ++ script) $ \child -> do
  expectLine 60 "connected" child
  action $ do
    sendLine child "go"
    result <- hearJson (loadWarmup spec + loadDuration spec + 60) child
    if loadRequests result > 0 || (loadCut spec && loadBytes result > 0)
      then pure result
      else failWith (subjectName (serverSubject server) <> " answered no request in the measured time")
  where
    -- Each request behind a line with its size.
    withScript act
      | null (loadScript spec) = act []
      | otherwise = do
        let file = envScratch env </> "script"
        B.writeFile file (B.concat [C.pack (show (B.length one)) <> "\n" <> one | one <- loadScript spec])
        act [("script", file)]
    arguments =
      [("port", show (serverPort server)), ("connections", show (loadConnections spec))]
        ++ [("threads", show (loadThreads spec)), ("watch", show (serverPid server))]
        ++ [("path", loadPath spec), ("files", show (loadFiles spec))]
        ++ [("warmup", show (loadWarmup spec)), ("duration", show (loadDuration spec)), ("hold", "")]
        ++ [("cut", "") | loadCut spec]
        ++ [("browser", "") | loadBrowser spec]
        ++ [("post", show size) | Just size <- [loadPost spec]]
        ++ [("renew", "") | loadRenew spec]
        ++ [("websocket", show size) | Just size <- [loadMessage spec]]
        ++ [("tls", word handshakes) | Just handshakes <- [loadTls spec]]
        ++ [("rate", show rate) | Just rate <- [loadRate spec]]
    word handshakes = case handshakes of
      Kept -> "kept"
      Full -> "full"
      Resumed -> "resumed"

-- | Round-trip latencies of one client.
newtype TripResult = TripResult {tripLatencies :: Map Text Double}
  deriving (Eq, Show)

instance FromJSON TripResult where
  parseJSON = withObject "round trips" (fmap TripResult . latencies)

-- | The given number of round trips with the given number of bytes on one connection, after a warm-up.
roundTrips :: Env -> [Int] -> Int -> Int -> Int -> Server -> IO TripResult
roundTrips env cores size warmup count server = withTool env cores tripTool arguments (hearJson 120)
  where
    arguments =
      [("port", show (serverPort server)), ("size", show size), ("warmup", show warmup), ("count", show count)]

-- | Hold this many idle connections to a server during the action. With a path they are connections of TLS, each of
-- which has requested it once.
withIdle :: Env -> [Int] -> Maybe String -> Int -> Server -> IO a -> IO a
withIdle env cores path count server action =
  withTool env cores idleTool ([("port", show (serverPort server)), ("count", show count)] ++ [("tls", requested) | Just requested <- [path]]) $ \child -> do
    expectLine 120 "ready" child
    result <- action
    -- Otherwise the figures would be those of fewer.
    sendLine child ""
    expectLine 120 "closed 0" child
    pure result

-- | Run misbehaving clients during the action, of which the given number are slow. The server must have the files @/1k@
-- and @/large@.
withRude :: Env -> [Int] -> Int -> Server -> IO a -> IO a
withRude env cores slow server action =
  withTool env cores rudeTool ([("port", show (serverPort server)), ("slow", show slow)] ++ [("small", "/1k"), ("large", "/large")]) $ \child -> do
    expectLine 120 "ready" child
    action

latencies :: Object -> Parser (Map Text Double)
latencies object = M.fromList <$> mapM (\name -> (,) name <$> object .: K.fromText name) names
  where
    names = ["p50_us", "p95_us", "p99_us", "max_us"]

expectLine :: Double -> Text -> Child -> IO ()
expectLine seconds expected child = do
  line <- hearLine seconds child
  if line == expected then pure () else failWith ("expected " <> expected <> ", got " <> line)

withTool :: Env -> [Int] -> FilePath -> [(String, String)] -> (Child -> IO a) -> IO a
withTool env cores name arguments action = do
  path <- locate env name >>= maybe (failWith ("missing: " <> T.pack name <> " (make bench-peers)")) pure
  withChild env (Program path (concatMap flag arguments) [] cores) action
  where
    flag (option, "") = ["--" ++ option]
    flag (option, value) = ["--" ++ option, value]
