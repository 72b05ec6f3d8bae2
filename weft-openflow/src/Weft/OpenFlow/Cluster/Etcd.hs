{-# LANGUAGE OverloadedStrings #-}

-- |
-- A client for the part of etcd that controllers need, over its JSON gateway (etcd 3.4 and later): leases, keys that
-- belong to a lease, and reading all keys with a prefix. Any thread may call it. Throws 'EtcdError' if no endpoint
-- answers in time.
--
-- Requests are those of "Weft.Http.Client", over HTTP\/1.1: connections are kept, and a request, all of its phases and
-- a log-in that it may need together, has one time limit at each endpoint. There is no stream of changes (a watch):
-- what changes is read in rounds, and each request has one answer, also the renewal of a lease.
--
-- With a user it logs in before the first request, and again when etcd refuses the token that it gave for that:
--
-- @
--   no token -> token a    the log-in before the first request
--   token a  -> token b    a request with token a was refused, and nobody has logged in since it was sent
-- @
module Weft.OpenFlow.Cluster.Etcd
  ( Etcd,
    withEtcd,
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
import Control.Exception (Exception (..), SomeAsyncException, SomeException, catch, fromException, throwIO, try)
import Control.Monad (forM)
import Data.Aeson
import qualified Data.Aeson.KeyMap as KeyMap
import Data.Aeson.Types (Parser, parseEither, parseMaybe)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Base64 as Base64
import qualified Data.ByteString.Char8 as BC
import qualified Data.ByteString.Lazy as L
import Data.Char (isPrint)
import Data.IORef
import Data.List (intercalate, isPrefixOf)
import Data.Maybe (listToMaybe)
import Data.Text (Text)
import qualified Data.Text as T
import qualified Data.Text.Encoding as T
import Data.Word (Word64)
import GHC.IO.Exception (IOException (ioe_description, ioe_filename, ioe_location))
import Network.HTTP.Types (Status, hAuthorization, hContentType, methodPost, statusCode, statusIsSuccessful, statusMessage)
import System.IO.Error (isUserError)
import Text.Read (readMaybe)
import Weft.Dial
import Weft.Duration
import Weft.Http.Client
import Weft.OpenFlow.Cluster.Settings
import Weft.Timer (within)
import Weft.Transport (Connection, Instant, deadlineIn, timeoutError, untilDeadline)

-- | How etcd is asked.
data Etcd = Etcd
  { etcdClient :: !Client,
    -- | That of requests about leases, which do not stand in the line of others.
    etcdLeases :: !Client,
    -- | The time limit of a request at an endpoint, with a log-in that it may need.
    etcdLimit :: !Duration,
    -- | The endpoint that answered last comes first. Changed atomically by any thread.
    etcdEndpoints :: !(IORef [Endpoint]),
    -- | The user, and the token of the last log-in. All endpoints take it: etcd replicates log-ins.
    etcdUser :: !(Maybe (EtcdUser, MVar (Maybe Token)))
  }

-- | An endpoint as it was given, and its URL, or why it is none.
data Endpoint = Endpoint !String !(Either String Url)

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

-- | etcd answered with another status than of success: it, and the body.
data Refusal = Refusal !Status !ByteString

instance Show Refusal where
  show (Refusal status _) = show status

instance Exception Refusal

-- | Run an action with a client for the endpoints of these settings. The time limit of a request applies to each
-- endpoint. At the end all connections are closed.
withEtcd :: Duration -> ClusterSettings -> (Etcd -> IO a) -> IO a
withEtcd least settings act = withClient options $ \client -> withClient options {clientMostPerServer = 2} $ \leases -> do
  endpoints <- newIORef [Endpoint url (parseUrl url) | url <- clusterEndpoints settings]
  user <- forM (clusterUser settings) (\user -> (,) user <$> newMVar Nothing)
  act (Etcd client leases limit endpoints user)
  where
    limit = max (milliseconds 1) least
    options =
      defaultClientSettings
        { clientConnect = Just (connectWith settings),
          clientMostPerServer = mostConnections,
          clientBodyLimit = mostBytes,
          -- The deadline of the request is what counts.
          clientQueueTime = limit,
          clientConnectTime = limit,
          clientSendTime = limit,
          clientAnswerTime = limit,
          clientReadTime = limit
        }

-- | The maximum number of connections to an endpoint. When thousands of switches connect at once, each of them is a
-- request, and those that find no connection wait for one, as long as a request may take.
mostConnections :: Int
mostConnections = 64

-- | The maximum number of bytes of an answer, 128 MiB. All of what controllers share with a million hosts takes less.
mostBytes :: Int
mostBytes = 134217728

-- | Connect to an endpoint before the deadline, with 'clusterUpgrade' for @https@.
connectWith :: ClusterSettings -> Instant -> Url -> IO Connection
connectWith settings due url = dialConnection options due (Host (urlHost url) (urlPort url))
  where
    options
      | urlSecure url = defaultDialOptions {dialUpgrade = const upgraded}
      | otherwise = defaultDialOptions
    upgraded below = do
      left <- untilDeadline due
      within left (clusterUpgrade settings (urlHost url) below) >>= maybe (throwIO (timeoutError "Weft.OpenFlow.Cluster")) pure

-- | Send a request to the endpoints in turn, until one answers.
call :: Etcd -> ByteString -> Value -> (Object -> Parser a) -> IO a
call etcd = callBy (etcdClient etcd) etcd

callBy :: Client -> Etcd -> ByteString -> Value -> (Object -> Parser a) -> IO a
callBy client etcd rpc body parser = readIORef (etcdEndpoints etcd) >>= go []
  where
    go failed [] = throwIO (EtcdError (unwords (reverse failed)))
    go failed (endpoint@(Endpoint name address) : rest) = do
      r <- try $ do
        url <- either (throwIO . EtcdError) pure address
        due <- deadlineIn (etcdLimit etcd)
        withToken etcd due url (\token -> post (Post client due token url) rpc body parser)
      case r of
        Right a -> do
          -- The others follow, in any order.
          atomicModifyIORef' (etcdEndpoints etcd) (\all' -> (endpoint : [other | other@(Endpoint name' _) <- all', name' /= name], ()))
          pure a
        Left e
          | Just asynchronous <- fromException e -> throwIO (asynchronous :: SomeAsyncException)
          | otherwise -> go ((name <> ": " <> reason etcd e) : failed) rest

-- | That a request took too long, and in which phase.
tooSlow :: Etcd -> String -> String
tooSlow etcd phase = "etcd did not answer a request within " <> show (toSeconds (etcdLimit etcd)) <> " s (" <> phase <> ")"

-- | By whom a request is sent, until when, with which token, and to which endpoint.
data Post = Post !Client !Instant !(Maybe Token) !Url

-- | Send one request to one endpoint, before the deadline. (Redirects are not followed: another server must not get the
-- password or the token.)
--
-- It is sent once more if the connection ends without an answer: an endpoint, or a proxy before it, may have ended a
-- kept one at that moment. All requests may come twice, as those that another endpoint gets do.
post :: Post -> ByteString -> Value -> (Object -> Parser a) -> IO a
post (Post client due token url) rpc body parser = do
  answer <-
    send `catch` \e -> case errorCause e of
      NoAnswer _ -> send
      _ -> throwIO e
  if statusIsSuccessful (answerStatus answer)
    then either (throwIO . EtcdError . notUnderstood) pure (eitherDecodeStrict (answerBody answer) >>= parseEither (withObject "an answer" parser))
    else throwIO (Refusal (answerStatus answer) (answerBody answer))
  where
    send =
      request client due $
        Request
          { requestMethod = methodPost,
            requestUrl = url {urlPath = BC.dropWhileEnd (== '/') (urlPath url) <> rpc},
            requestFields = (hContentType, "application/json") : [(hAuthorization, T.encodeUtf8 t) | Just t <- [token]],
            requestBody = BytesBody (L.toStrict (encode body))
          }

-- | Run a request with the token, if there is a user. If the endpoint refuses it, log in again and run the request once
-- more: of a request that was refused etcd has done nothing.
withToken :: Etcd -> Instant -> Url -> (Maybe Token -> IO a) -> IO a
withToken etcd due url act = case etcdUser etcd of
  Nothing -> act Nothing
  Just (user, held) -> do
    -- Of the threads whose token was refused one logs in, and the others wait for it.
    let otherThan stale = inTime . modifyMVar held $ \known -> case known of
          Just token | known /= stale -> pure (known, token)
          _ -> (\token -> (Just token, token)) <$> logIn user
    token <- otherThan Nothing
    act (Just token) `catch` \e ->
      if refused e then otherThan (Just token) >>= act . Just else throwIO e
  where
    -- The function that gives the password, and the wait for another thread's log-in, have no deadline of their own.
    inTime io = do
      left <- untilDeadline due
      within left io >>= maybe (throwIO (EtcdError (tooSlow etcd "logging in"))) pure
    logIn user = do
      password <- etcdUserPassword user
      r <- try (post (Post (etcdClient etcd) due Nothing url) "/v3/auth/authenticate" (object ["name" .= etcdUserName user, "password" .= password]) (.: "token"))
      case r of
        Left e@(Refusal _ _) -> throwIO (EtcdError ("the log-in of user " <> show (etcdUserName user) <> " failed: " <> refusal e))
        Right token -> pure token

-- | Whether etcd answered that the token is unknown (401), or given before something changed that it depends on, which
-- has the status of any request that is not valid (400).
refused :: Refusal -> Bool
refused (Refusal status _) = statusCode status `elem` [400, 401]

-- | What etcd says in an answer that is no success.
refusal :: Refusal -> String
refusal (Refusal status body) = "etcd answered " <> show (statusCode status) <> " " <> BC.unpack (statusMessage status) <> maybe "" (": " <>) problem
  where
    problem = decodeStrict body >>= parseMaybe (withObject "an error" (\o -> o .: "error" <|> o .: "message"))

-- | What an exception says, without the request, in one line.
reason :: Etcd -> SomeException -> String
reason etcd e = filter isPrint . takeWhile (/= '\n') $ case fromException e of
  Just (ClientError _ phase cause) -> failedIn phase cause
  Nothing
    | Just io <- fromException e -> failure io
    | Just answer <- fromException e -> refusal answer
    | otherwise -> displayException e
  where
    failedIn phase cause = case cause of
      TimedOut -> tooSlow etcd (takeWhile (/= ':') said)
      ConnectionBroken io -> failure io
      NoAnswer (Just io) -> failure io
      NotConnected (NoneConnected _ failures) | all (isLate . snd) failures -> tooSlow etcd "connecting"
      NotConnected why -> "etcd does not answer: " <> notConnected why
      NotHttp _ -> notUnderstood said
      OtherProtocol _ -> notUnderstood said
      EndedEarly -> notUnderstood said
      BodyTooLarge _ -> notUnderstood said
      _ -> "etcd does not answer: " <> said
      where
        -- The phase and the cause.
        said = drop 2 (show (ClientError "" phase cause))
    -- A file of a certificate or a password; TLS; the kernel.
    failure io
      | Just file <- ioe_filename io = file <> ": " <> ioe_description io
      | isUserError io = ioe_description io
      | "Weft.Tls" `isPrefixOf` ioe_location io = "no TLS with etcd: " <> ioe_description io
      | otherwise = "etcd does not answer: " <> ioe_description io

-- | Whether an address was given up for want of time.
isLate :: Failure a -> Bool
isLate why = case why of
  Refused _ -> False
  TooSlow -> True
  NotTried -> True

-- | Why there is no connection. Of several addresses each is named; a single one is in the URL, or its name is.
notConnected :: DialError -> String
notConnected e = case e of
  NoneConnected _ [(_, why)] -> failed why
  NoneConnected _ several -> intercalate "; " [show address <> ": " <> failed why | (address, why) <- several]
  NotFound _ _ -> show e
  where
    failed why = case why of
      Refused io -> ioe_description io
      TooSlow -> "no answer in time"
      NotTried -> "not tried in time"

notUnderstood :: String -> String
notUnderstood = ("etcd's answer was not understood: " <>)

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
grant etcd ttl = callBy (etcdLeases etcd) etcd "/v3/lease/grant" (object ["TTL" .= show ttl]) (.: "ID")

-- | Renew a lease. 'False' if it has expired.
keepAlive :: Etcd -> Lease -> IO Bool
keepAlive etcd lease = callBy (etcdLeases etcd) etcd "/v3/lease/keepalive" (object ["ID" .= lease]) $ \o -> do
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
