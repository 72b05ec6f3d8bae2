{-# LANGUAGE OverloadedStrings #-}

-- |
-- The little of etcd that controllers need, by its JSON gateway (etcd 3.4 and later): leases, keys that belong to a
-- lease, and reading all keys below a prefix. Any thread; throws 'EtcdError' when no endpoint answers in time.
module Weft.OpenFlow.Cluster.Etcd
  ( Etcd,
    newEtcd,
    EtcdError (..),
    Lease,
    Revision,
    grant,
    keepAlive,
    createKey,
    putKey,
    removeKey,
    readPrefix,
    Entry (..),
  )
where

import Control.Exception (Exception (..), SomeAsyncException, SomeException, fromException, throwIO, try)
import Data.Aeson
import qualified Data.Aeson.KeyMap as KeyMap
import Data.Aeson.Types (Parser, parseEither)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Base64 as Base64
import Data.IORef
import Data.Maybe (listToMaybe)
import Data.Text (Text)
import qualified Data.Text as T
import qualified Data.Text.Encoding as T
import Data.Word (Word64)
import Network.HTTP.Client
import Text.Read (readMaybe)
import Weft.Duration

-- | Endpoints, the one that answered last first.
data Etcd = Etcd !Manager !Int !(IORef [String])

-- | No endpoint answered, or not as etcd does.
newtype EtcdError = EtcdError String
  deriving (Show)

instance Exception EtcdError where
  displayException (EtcdError why) = why

-- | A lease's number, as text.
type Lease = Text

-- | Grows with every change of any key.
type Revision = Word64

-- | For these endpoints, as @http:\/\/127.0.0.1:2379@; each request may take that long at each of them.
newEtcd :: Duration -> [String] -> IO Etcd
newEtcd limit urls = do
  manager <- newManager defaultManagerSettings
  Etcd manager (max 1000 (round (toSeconds limit * 1e6))) <$> newIORef urls

-- | Ask the endpoints in turn.
call :: Etcd -> String -> Value -> (Object -> Parser a) -> IO a
call (Etcd manager limit ref) rpc body parser = readIORef ref >>= go []
  where
    go failed [] = throwIO (EtcdError (unwords (reverse failed)))
    go failed (url : rest) = do
      r <- try (one url)
      case r of
        Right a -> do
          -- The others remain behind it, in some order.
          atomicModifyIORef' ref (\urls -> (url : filter (/= url) urls, ()))
          pure a
        Left e
          | Just asynchronous <- fromException e -> throwIO (asynchronous :: SomeAsyncException)
          | otherwise -> go ((url <> ": " <> reason e) : failed) rest
    -- Without the request, which is what the exception begins with.
    reason e = takeWhile (/= '\n') $ case fromException e of
      Just (HttpExceptionRequest _ content) -> show content
      _ -> displayException (e :: SomeException)
    one url = do
      request <- parseRequest (url <> rpc)
      answer <- httpLbs request {method = "POST", requestBody = RequestBodyLBS (encode body), responseTimeout = responseTimeoutMicro limit, checkResponse = throwErrorStatusCodes} manager
      either (throwIO . EtcdError) pure (eitherDecode (responseBody answer) >>= parseEither (withObject "an answer" parser))

-- | Numbers are texts there, and zero is left out.
number :: Object -> Key -> Parser Word64
number o name = case KeyMap.lookup name o of
  Nothing -> pure 0
  Just (String s) | Just n <- readMaybe (T.unpack s) -> pure n
  Just v -> parseJSON v

revisionOf :: Object -> Parser Revision
revisionOf o = o .: "header" >>= (`number` "revision")

base64 :: ByteString -> Value
base64 = String . T.decodeLatin1 . Base64.encode

unbase64 :: Object -> Key -> Parser ByteString
unbase64 o name = do
  s <- o .:? name .!= ""
  either fail pure (Base64.decode (T.encodeUtf8 s))

-- | A lease of that many seconds.
grant :: Etcd -> Int -> IO Lease
grant etcd ttl = call etcd "/v3/lease/grant" (object ["TTL" .= show ttl]) (.: "ID")

-- | Prolong a lease. 'False': it is gone.
keepAlive :: Etcd -> Lease -> IO Bool
keepAlive etcd lease = call etcd "/v3/lease/keepalive" (object ["ID" .= lease]) $ \o -> do
  result <- o .: "result"
  (> 0) <$> number result "TTL"

-- | Create a key that goes with the lease. 'False': it is there already. And the revision of its creation.
createKey :: Etcd -> Lease -> ByteString -> ByteString -> IO (Bool, Revision)
createKey etcd lease key value = call etcd "/v3/kv/txn" body $ \o -> do
  created <- o .:? "succeeded" .!= False
  (,) created <$> if created then revisionOf o else o .: "responses" >>= firstOf >>= (.: "response_range") >>= (.: "kvs") >>= firstOf >>= (`number` "create_revision")
  where
    firstOf :: [a] -> Parser a
    firstOf = maybe (fail "an empty list") pure . listToMaybe
    body =
      object
        [ "compare" .= [object ["target" .= ("CREATE" :: Text), "result" .= ("EQUAL" :: Text), "key" .= base64 key, "create_revision" .= ("0" :: Text)]],
          "success" .= [object ["request_put" .= object ["key" .= base64 key, "value" .= base64 value, "lease" .= lease]]],
          "failure" .= [object ["request_range" .= object ["key" .= base64 key]]]
        ]

-- | Write a key that goes with the lease.
putKey :: Etcd -> Lease -> ByteString -> ByteString -> IO ()
putKey etcd lease key value =
  call etcd "/v3/kv/put" (object ["key" .= base64 key, "value" .= base64 value, "lease" .= lease]) (const (pure ()))

-- | Delete a key if it goes with the lease.
removeKey :: Etcd -> Lease -> ByteString -> IO ()
removeKey etcd lease key = call etcd "/v3/kv/txn" body (const (pure ()))
  where
    body =
      object
        [ "compare" .= [object ["target" .= ("LEASE" :: Text), "result" .= ("EQUAL" :: Text), "key" .= base64 key, "lease" .= lease]],
          "success" .= [object ["request_delete_range" .= object ["key" .= base64 key]]]
        ]

-- | A key without the beginning that was asked for, its value, the lease that it goes with (@0@: none), and the revision of its
-- creation.
data Entry = Entry
  { entryKey :: !ByteString,
    entryValue :: !ByteString,
    entryLease :: !Lease,
    entryCreated :: !Revision
  }

-- | All keys that begin so.
readPrefix :: Etcd -> ByteString -> IO [Entry]
readPrefix etcd prefix = call etcd "/v3/kv/range" (object ["key" .= base64 prefix, "range_end" .= base64 end]) $ \o -> do
  entries <- o .:? "kvs" .!= []
  mapM (\e -> Entry . B.drop (B.length prefix) <$> unbase64 e "key" <*> unbase64 e "value" <*> e .:? "lease" .!= "0" <*> number e "create_revision") entries
  where
    -- The first key behind all of them; the prefix does not end with the highest byte.
    end = B.snoc (B.init prefix) (B.last prefix + 1)
