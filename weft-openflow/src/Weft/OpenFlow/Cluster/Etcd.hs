{-# LANGUAGE OverloadedStrings #-}

-- |
-- A client for the part of etcd that controllers need, over its JSON gateway (etcd 3.4 and later): leases, keys that
-- belong to a lease, and reading all keys with a prefix. Any thread may call it. Throws 'EtcdError' if no endpoint
-- answers in time.
--
-- With a user it logs in before the first request, and again when etcd refuses the token that it gave for that:
--
-- @
--   no token -> token a    the log-in before the first request
--   token a  -> token b    a request with token a was refused, and nobody has logged in since it was sent
-- @
module Weft.OpenFlow.Cluster.Etcd
  ( Etcd,
    newEtcd,
    EtcdError (..),
    Lease,
    Revision,
    grant,
    keepAlive,
    revoke,
    createKey,
    createOrHolder,
    createOrRead,
    putKey,
    removeKey,
    readPrefix,
    Entry (..),
  )
where

import Control.Applicative ((<|>))
import Control.Concurrent.MVar
import Control.Exception (Exception (..), SomeAsyncException, SomeException, catch, fromException, mask_, throwIO, try)
import Control.Monad (forM)
import Data.Aeson
import qualified Data.Aeson.KeyMap as KeyMap
import Data.Aeson.Types (Parser, parseEither, parseMaybe)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Base64 as Base64
import qualified Data.ByteString.Char8 as BC
import Data.Char (isPrint)
import Data.IORef
import Data.List (isPrefixOf)
import Data.Maybe (listToMaybe)
import Data.Text (Text)
import qualified Data.Text as T
import qualified Data.Text.Encoding as T
import Data.Word (Word64)
import GHC.IO.Exception (IOException (ioe_description, ioe_filename, ioe_location))
import Network.HTTP.Client
import Network.HTTP.Types (hAuthorization, statusCode, statusMessage)
import System.IO.Error (isUserError)
import Text.Read (readMaybe)
import Weft.Dial
import Weft.Duration
import Weft.OpenFlow.Cluster.Settings
import Weft.Timer (within)
import Weft.Transport (connClose, connReceive, connSendBytes, noDeadline)

-- | How etcd is asked.
data Etcd = Etcd
  { etcdManager :: !Manager,
    -- | The time limit of a request at an endpoint, with a log-in that it may need.
    etcdLimit :: !Duration,
    -- | The endpoint that answered last comes first.
    etcdEndpoints :: !(IORef [String]),
    -- | The user, and the token of the last log-in. All endpoints take it: etcd replicates log-ins.
    etcdUser :: !(Maybe (EtcdUser, MVar (Maybe Token)))
  }

-- | What etcd gives for a password. It is valid for a time that etcd is configured with, and until the user's password
-- or roles change, or the member of etcd is restarted.
type Token = Text

-- | The reason for each endpoint: it did not answer, it answered with an error, or the answer was not understood.
newtype EtcdError = EtcdError String
  deriving (Show)

instance Exception EtcdError where
  displayException (EtcdError why) = why

-- | The ID of a lease, as text.
type Lease = Text

-- | The revision of etcd. It increases with every change of any key.
type Revision = Word64

-- | A client for the endpoints of these settings. The time limit of a request applies to each endpoint.
newEtcd :: Duration -> ClusterSettings -> IO Etcd
newEtcd limit settings = do
  manager <- newManager (managerSetSecureProxy noProxy defaultManagerSettings {managerTlsConnection = pure (const secured)})
  Etcd manager (max (milliseconds 1) limit) <$> newIORef (clusterEndpoints settings) <*> forM (clusterUser settings) (\user -> (,) user <$> newMVar Nothing)
  where
    -- The limit of the request ends the operations on the connection, too.
    secured named number' = mask_ $ do
      let name = filter (\x -> x /= '[' && x /= ']') named
      c <- dialConnection defaultDialOptions {dialUpgrade = const (clusterUpgrade settings name)} noDeadline (Host name (show (number' :: Int)))
      makeConnection (connReceive c noDeadline 16384) (connSendBytes c noDeadline) (connClose c)

-- | Send a request to the endpoints in turn, until one answers.
call :: Etcd -> String -> Value -> (Object -> Parser a) -> IO a
call etcd rpc body parser = readIORef (etcdEndpoints etcd) >>= go []
  where
    go failed [] = throwIO (EtcdError (unwords (reverse failed)))
    go failed (url : rest) = do
      r <- try (within limit (withToken etcd url (\token -> post etcd token (url <> rpc) body parser)) >>= maybe (throwIO tooSlow) pure)
      case r of
        Right a -> do
          -- The others follow, in any order.
          atomicModifyIORef' (etcdEndpoints etcd) (\urls -> (url : filter (/= url) urls, ()))
          pure a
        Left e
          | Just asynchronous <- fromException e -> throwIO (asynchronous :: SomeAsyncException)
          | otherwise -> go ((url <> ": " <> reason e) : failed) rest
    limit = etcdLimit etcd
    tooSlow = EtcdError ("etcd did not answer a request within " <> show (toSeconds limit) <> " s")

-- | Send one request to one endpoint.
post :: Etcd -> Maybe Token -> String -> Value -> (Object -> Parser a) -> IO a
post etcd token url body parser = do
  request <- parseRequest url
  answer <-
    httpLbs
      request
        { method = "POST",
          requestHeaders = [(hAuthorization, T.encodeUtf8 t) | Just t <- [token]],
          requestBody = RequestBodyLBS (encode body),
          -- Another server must not get the password or the token.
          redirectCount = 0,
          -- The limit of http-client would end with the header of the response.
          responseTimeout = responseTimeoutNone,
          checkResponse = throwErrorStatusCodes
        }
      (etcdManager etcd)
  either (throwIO . EtcdError . ("etcd's answer was not understood: " <>)) pure (eitherDecode (responseBody answer) >>= parseEither (withObject "an answer" parser))

-- | Run a request with the token, if there is a user. If the endpoint refuses it, log in again and run the request once
-- more: of a request that was refused etcd has done nothing.
withToken :: Etcd -> String -> (Maybe Token -> IO a) -> IO a
withToken etcd url act = case etcdUser etcd of
  Nothing -> act Nothing
  Just (user, held) -> do
    -- Of the threads whose token was refused one logs in, and the others wait for it.
    let otherThan stale = modifyMVar held $ \known -> case known of
          Just token | known /= stale -> pure (known, token)
          _ -> (\token -> (Just token, token)) <$> logIn user
    token <- otherThan Nothing
    act (Just token) `catch` \e ->
      if refused e then otherThan (Just token) >>= act . Just else throwIO e
  where
    logIn user = do
      password <- etcdUserPassword user
      r <- try (post etcd Nothing (url <> "/v3/auth/authenticate") (object ["name" .= etcdUserName user, "password" .= password]) (.: "token"))
      case r of
        Left e | Just (HttpExceptionRequest _ (StatusCodeException _ _)) <- fromException e -> throwIO (EtcdError ("the log-in of user " <> show (etcdUserName user) <> " failed: " <> reason e))
        Left e -> throwIO (e :: SomeException)
        Right token -> pure token

-- | Whether etcd answered that the token is unknown (401), or given before something changed that it depends on, which
-- has the status of any request that is not valid (400).
refused :: HttpException -> Bool
refused e = case e of
  HttpExceptionRequest _ (StatusCodeException answer _) -> statusCode (responseStatus answer) `elem` [400, 401]
  _ -> False

-- | What an exception says, without the request, in one line.
reason :: SomeException -> String
reason e = filter isPrint . takeWhile (/= '\n') $ case fromException e of
  Just (HttpExceptionRequest _ (StatusCodeException answer start)) -> "etcd answered " <> statusLine (responseStatus answer) <> maybe "" (": " <>) (problemIn start)
  Just (HttpExceptionRequest _ (ConnectionFailure failed)) | Just io <- fromException failed -> failure io
  Just (HttpExceptionRequest _ (InternalException failed)) | Just io <- fromException failed -> failure io
  Just (HttpExceptionRequest _ content) -> "etcd does not answer: " <> show content
  Nothing
    | Just io <- fromException e -> failure io
    | Just failed <- fromException e -> "etcd does not answer: " <> show (failed :: DialError)
  _ -> displayException e
  where
    statusLine status = show (statusCode status) <> " " <> BC.unpack (statusMessage status)
    problemIn start = decodeStrict start >>= parseMaybe (withObject "an error" (\o -> o .: "error" <|> o .: "message"))
    -- A file of a certificate or a password; TLS; the kernel.
    failure io
      | Just file <- ioe_filename io = file <> ": " <> ioe_description io
      | isUserError io = ioe_description io
      | "Weft.Tls" `isPrefixOf` ioe_location io = "no TLS with etcd: " <> ioe_description io
      | otherwise = "etcd does not answer: " <> ioe_description io

-- | A number, which etcd sends as text, or omits if it is zero.
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

-- | Create a lease of that many seconds.
grant :: Etcd -> Int -> IO Lease
grant etcd ttl = call etcd "/v3/lease/grant" (object ["TTL" .= show ttl]) (.: "ID")

-- | Renew a lease. 'False' if it has expired.
keepAlive :: Etcd -> Lease -> IO Bool
keepAlive etcd lease = call etcd "/v3/lease/keepalive" (object ["ID" .= lease]) $ \o -> do
  result <- o .: "result"
  (> 0) <$> number result "TTL"

-- | End a lease, and remove its keys.
revoke :: Etcd -> Lease -> IO ()
revoke etcd lease = call etcd "/v3/lease/revoke" (object ["ID" .= lease]) (const (pure ()))

-- | Create a key that belongs to the lease. Returns whether it was created ('False' if it exists), and the revision of
-- its creation.
createKey :: Etcd -> Lease -> ByteString -> ByteString -> IO (Bool, Revision)
createKey etcd lease key value =
  create etcd lease key value revisionOf (`number` "create_revision") >>= \r -> pure $ case r of
    Left revision -> (False, revision)
    Right revision -> (True, revision)

-- | Create a key that belongs to the lease. If it exists, the lease that it belongs to (@0@: none).
createOrHolder :: Etcd -> Lease -> ByteString -> IO (Maybe Lease)
createOrHolder etcd lease key = either Just (const Nothing) <$> create etcd lease key B.empty (const (pure ())) (\o -> o .:? "lease" .!= "0")

-- | Create a key that belongs to no lease, or read it if it exists: the value that it has afterwards.
createOrRead :: Etcd -> ByteString -> ByteString -> IO ByteString
createOrRead etcd key value = either id id <$> create etcd "0" key value (const (pure value)) (`unbase64` "value")

-- | Create a key and parse the answer ('Right'), or read the key if it exists ('Left').
create :: Etcd -> Lease -> ByteString -> ByteString -> (Object -> Parser a) -> (Object -> Parser b) -> IO (Either b a)
create etcd lease key value new old = call etcd "/v3/kv/txn" body $ \o -> do
  created <- o .:? "succeeded" .!= False
  if created
    then Right <$> new o
    else Left <$> (o .: "responses" >>= firstOf >>= (.: "response_range") >>= (.: "kvs") >>= firstOf >>= old)
  where
    firstOf :: [a] -> Parser a
    firstOf = maybe (fail "an empty list") pure . listToMaybe
    body =
      object
        [ "compare" .= [object ["target" .= ("CREATE" :: Text), "result" .= ("EQUAL" :: Text), "key" .= base64 key, "create_revision" .= ("0" :: Text)]],
          "success" .= [object ["request_put" .= object ["key" .= base64 key, "value" .= base64 value, "lease" .= lease]]],
          "failure" .= [object ["request_range" .= object ["key" .= base64 key]]]
        ]

-- | Write a key that belongs to the lease.
putKey :: Etcd -> Lease -> ByteString -> ByteString -> IO ()
putKey etcd lease key value =
  call etcd "/v3/kv/put" (object ["key" .= base64 key, "value" .= base64 value, "lease" .= lease]) (const (pure ()))

-- | Delete a key if it belongs to the lease.
removeKey :: Etcd -> Lease -> ByteString -> IO ()
removeKey etcd lease key = call etcd "/v3/kv/txn" body (const (pure ()))
  where
    body =
      object
        [ "compare" .= [object ["target" .= ("LEASE" :: Text), "result" .= ("EQUAL" :: Text), "key" .= base64 key, "lease" .= lease]],
          "success" .= [object ["request_delete_range" .= object ["key" .= base64 key]]]
        ]

-- | A key without the prefix, its value, its lease (@0@: none), and the revision of its creation.
data Entry = Entry
  { entryKey :: !ByteString,
    entryValue :: !ByteString,
    entryLease :: !Lease,
    entryCreated :: !Revision
  }

-- | The revision of etcd, and all keys with that prefix.
readPrefix :: Etcd -> ByteString -> IO (Revision, [Entry])
readPrefix etcd prefix = call etcd "/v3/kv/range" (object ["key" .= base64 prefix, "range_end" .= base64 end]) $ \o -> do
  entries <- o .:? "kvs" .!= []
  revision <- revisionOf o
  (,) revision <$> mapM (\e -> Entry . B.drop (B.length prefix) <$> unbase64 e "key" <*> unbase64 e "value" <*> e .:? "lease" .!= "0" <*> number e "create_revision") entries
  where
    -- The first key after all of them. The last byte of the prefix is below 255.
    end = B.snoc (B.init prefix) (B.last prefix + 1)
