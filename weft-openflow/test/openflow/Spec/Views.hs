{-# LANGUAGE LambdaCase #-}
{-# LANGUAGE OverloadedStrings #-}

-- |
-- What a controller of several writes to etcd. This etcd is a map, and is never asked by two controllers.
module Spec.Views (tests) where

import Control.Concurrent.Async (cancel)
import Control.Exception (bracket)
import Control.Monad (forM_)
import Data.Aeson
import qualified Data.Aeson.KeyMap as KeyMap
import qualified Data.ByteString as B
import qualified Data.ByteString.Base64 as Base64
import Data.IORef
import qualified Data.Map.Strict as Map
import Data.Maybe (fromMaybe)
import Data.Text (Text)
import qualified Data.Text.Encoding as T
import Network.HTTP.Types
import Network.Wai (Application, pathInfo, responseLBS, strictRequestBody)
import Peer
import Spec.Cluster (Member (..), eventually', startMember)
import Test.Tasty
import Test.Tasty.HUnit
import qualified Weft.Http as Http
import Weft.OpenFlow.Cluster
import Weft.OpenFlow.Message
import Weft.OpenFlow.Types
import qualified Weft.OpenFlow.Wire as Wire
import Weft.Socket (SockAddr (..))

tests :: TestTree
tests = localOption (mkTimeout 600000000) $ testGroup "what controllers share" [manyHosts]

-- | The keys and values in base64, and the number of values that were written.
data Store = Store !(Map.Map Text Text) !Int

fakeEtcd :: IORef Store -> Application
fakeEtcd store asked respond = do
  body <- strictRequestBody asked
  let text path = case decode body >>= at path of
        Just (String s) -> Just s
        _ -> Nothing
      put k v = atomicModifyIORef' store (\(Store m n) -> (Store (Map.insert k v m) (n + 1), ()))
      ok v = respond (responseLBS status200 [] (encode v))
      one = "1" :: Text
  case pathInfo asked of
    ["v3", "lease", "grant"] -> ok (object ["ID" .= one])
    ["v3", "lease", "keepalive"] -> ok (object ["result" .= object ["TTL" .= one]])
    ["v3", "kv", "put"] -> do
      sequence_ (put <$> text ["key"] <*> text ["value"])
      ok (object [])
    ["v3", "kv", "txn"] -> do
      sequence_ (put <$> text ["success", "request_put", "key"] <*> text ["success", "request_put", "value"])
      forM_ (text ["success", "request_delete_range", "key"]) $ \k -> atomicModifyIORef' store (\(Store m n) -> (Store (Map.delete k m) n, ()))
      ok (object ["succeeded" .= True, "header" .= object ["revision" .= one]])
    ["v3", "kv", "range"] -> do
      Store m _ <- readIORef store
      ok (object ["header" .= object ["revision" .= one], "kvs" .= [object ["key" .= k, "value" .= v, "lease" .= one] | (k, v) <- Map.toList m]])
    _ -> respond (responseLBS status404 [] "")
  where
    -- Of an array, the first element.
    at :: [Key] -> Value -> Maybe Value
    at [] v = Just v
    at (k : ks) v = case v of
      Object o -> KeyMap.lookup k o >>= at ks
      Array a -> foldr (\x _ -> at (k : ks) x) Nothing a
      _ -> Nothing

-- | 20,000 hosts take 500 KB, and 8,192 of them, which are a part, 205 KB.
manyHosts :: TestTree
manyHosts = testCase "many hosts are written in parts, and once" $ do
  store <- newIORef (Store Map.empty 0)
  Http.withServer (Http.setHost "127.0.0.1" (Http.setPort 0 Http.defaultSettings)) (fakeEtcd store) $ \server -> case Http.serverAddress server of
    SockAddrInet port _ -> bracket (startMember ("http://127.0.0.1:" <> show port) "one") (cancel . memberThread) $ \m -> withPeer (memberAddress m) $ \p -> do
      switchHandshake (memberController m) V13 1 p
      announcePorts V13 p
      eventually' [m] "it is the master" (clusterMaster (memberCluster m) (DatapathId 1))
      -- Before it has the answer, it ignores packets.
      _ <- expect "ROLE_REQUEST" (\case RoleRequest RoleMaster _ -> Just (); _ -> Nothing) p
      forM_ [0 .. 19] $ \block -> do
        sendBytes p (B.concat [packet (block * 1000 + n) | n <- [1 .. 1000]])
        sendMessageOf V13 7 (EchoRequest "behind them") p
        expect "ECHO_REPLY" (\case EchoReply _ -> Just (); _ -> Nothing) p
      eventually' [m] "all hosts are written" (alive p >> (== 20000) . sum . map snd <$> views store)
      rounds m p 2
      Store _ before <- readIORef store
      sizes <- map fst <$> views store
      assertBool (show sizes) (maximum sizes < 300000)
      rounds m p 3
      Store _ now <- readIORef store
      now @?= before
    _ -> assertFailure "no port"
  where
    rounds m p n = do
      before <- clusterRounds (memberCluster m)
      eventually' [m] "more rounds" (alive p >> (>= before + n) <$> clusterRounds (memberCluster m))
    -- On a slow machine the rounds last longer than the silence after which a switch is dropped.
    alive = sendMessageOf V13 8 (EchoRequest "")
    packet :: Int -> B.ByteString
    packet n = fromMaybe B.empty (Wire.encode V13 1 (PacketInMessage (PacketIn noBuffer 60 (PortNo (1 + fromIntegral (n `mod` 2))) 0 0 0 [] (frame n))))
    frame :: Int -> B.ByteString
    frame n = B.pack ([2, 0, 0, 0, 0, 2, 2, 1, 0, 0, fromIntegral (n `div` 256), fromIntegral n, 8, 0] ++ replicate 46 0)

-- | The sizes of the parts of the controller's view, and their numbers of hosts.
views :: IORef Store -> IO [(Int, Int)]
views store = do
  Store m _ <- readIORef store
  pure
    [ (B.length value, length hosts)
      | (k, v) <- Map.toList m,
        "weft/openflow/view/" `B.isPrefixOf` plain k,
        let value = plain v,
        Just (_, hosts) <- [decodeStrict value :: Maybe ([Value], [Value])]
    ]
  where
    plain = Base64.decodeLenient . T.encodeUtf8
