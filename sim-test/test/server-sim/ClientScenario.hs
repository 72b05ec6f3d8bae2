{-# LANGUAGE OverloadedStrings #-}
{-# LANGUAGE PackageImports #-}

-- |
-- The web client and the web server together on the simulated machine, also with a relay between them that splits what
-- it passes on, and cuts connections. Whatever happens: an answer is the whole answer to its own request, a request
-- that may not be repeated is run once at most, nothing fails without a cause, and nothing that the server has answered
-- is lost unless a connection was cut.
module ClientScenario
  ( clientTests,
  )
where

import Control.Concurrent
import Control.Exception
import Control.Monad
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import qualified Data.ByteString.Lazy as L
import Data.IORef
import qualified "base" Data.IORef as Base
import qualified Data.Map.Strict as Map
import Kernel
import KernelSocket
import Network.HTTP.Types (Method, status200)
import Network.Wai (Application, getRequestBodyChunk, rawPathInfo, responseLBS)
import Search hiding (large)
import ServerMachine
import Simulation (Scenario (..), blockUntil, choose)
import Test.Tasty
import Weft.Duration (Duration, milliseconds, seconds)
import Weft.Http.Client
import Weft.Http.Limits
import Weft.Http.Server
import Weft.Socket (deadlineIn, noDeadline)

type Make = Setting -> IO Scenario

-- | Longer than anything else in a scenario.
patient :: Duration
patient = seconds 100000000

-- Requests --------------------------------------------------------------------------------

-- | A request, and its body's bytes.
data Asked = Asked {askedMethod :: Method, askedPath :: ByteString, askedBody :: RequestBody, askedBytes :: ByteString}

asGet :: ByteString -> Asked
asGet path = Asked "GET" path EmptyBody ""

asPost :: ByteString -> ByteString -> Asked
asPost path bytes = Asked "POST" path (BytesBody bytes) bytes

-- | A POST whose body is a stream of these pieces.
asStream :: ByteString -> [ByteString] -> IO Asked
asStream path pieces = do
  left <- newIORef pieces
  let next = atomicModifyIORef' left (\ps -> (drop 1 ps, B.concat (take 1 ps)))
  pure (Asked "POST" path (StreamBody Nothing next) (B.concat pieces))

-- | Requests of the kinds that differ in what may be done again. One body is longer than what a socket buffers.
mixed :: IO [Asked]
mixed = do
  stream <- asStream "/c" [C.replicate 40 'c', "d"]
  pure [asPost "/a" (C.replicate 750 'a'), asGet "/b", stream, asPost "/d" "d"]

-- | What a server has run and what a client has got, both by path.
data Record = Record {recordRuns :: IORef (Map.Map ByteString Int), recordGot :: IORef [(Asked, Either ClientError ByteString)]}

newRecord :: IO Record
newRecord = Record <$> newIORef Map.empty <*> newIORef []

-- | Answers with path and body.
recorded :: Record -> Application
recorded record req respond = do
  atomicModifyIORef' (recordRuns record) (\runs -> (Map.insertWith (+) path 1 runs, ()))
  bytes <- whole
  respond (responseLBS status200 [] (L.fromStrict (answerTo path (B.concat bytes))))
  where
    path = rawPathInfo req
    whole = getRequestBodyChunk req >>= \b -> if B.null b then pure [] else (b :) <$> whole

answerTo :: ByteString -> ByteString -> ByteString
answerTo path bytes = path <> ":" <> bytes

-- | Use a client.
using :: (Client -> IO ()) -> IO ()
using = withClient defaultClientSettings {clientIdleTime = patient}

-- | Send a request to the port, and record what comes.
ask :: Record -> Client -> Int -> Asked -> IO ()
ask record client port asked = do
  r <- try (request client noDeadline (Request (askedMethod asked) url [] (askedBody asked)))
  modifyIORef' (recordGot record) ((asked, answerBody <$> r) :)
  where
    url = Url "a" (show port) Nothing (askedPath asked) False

-- | The laws that hold whatever happens; at most the given number of requests may have failed.
lawful :: Int -> Record -> IO [(Bool, String)]
lawful mostFailed record = do
  runs <- readIORef (recordRuns record)
  got <- reverse <$> readIORef (recordGot record)
  let failed = [askedPath asked <> ": " <> C.pack (show e) | (asked, Left e) <- got]
      claims (asked, r) =
        let path = askedPath asked
            n = Map.findWithDefault 0 path runs
            most = if askedMethod asked == "GET" then 2 else 1
         in [ (n <= most, C.unpack path <> " was run " <> show n <> " times"),
              (either (const True) (const (n > 0)) r, C.unpack path <> " was answered, but not run"),
              (either (const True) (== answerTo path (askedBytes asked)) r, C.unpack path <> " was answered by " <> show r)
            ]
  pure ((length failed <= mostFailed, "failed: " <> show failed) : concatMap claims got)

-- The relay -------------------------------------------------------------------------------

-- | What a relay does to a connection.
data Relay
  = -- | It passes on all, in pieces.
    Splits
  | -- | It ends the connection after some number of bytes, less than the given one.
    CutsWithin Int
  | -- | It ends the connection instead of passing on the first byte of the answer with that number.
    CutsBefore Int

relayPort :: Int
relayPort = 9000

-- | Run clients behind a relay to the server, which treats its first connections as it is told, and passes on all of
-- the others. Returns the number of connections.
relaying :: [Relay] -> IO () -> IO Int
relaying kinds clients = do
  over <- Base.newIORef False
  count <- newEmptyMVar
  l <- newSocket
  _ <- bindSocket l relayPort
  _ <- listenSocket l 8
  _ <- forkIO ((relay over l 0 (kinds <> repeat Splits) >>= putMVar count) `finally` closeNumber l)
  clients `finally` (Base.writeIORef over True >> yield)
  takeMVar count
  where
    relay over l n left = do
      blockUntil ((||) <$> canReceive l <*> Base.readIORef over)
      r <- acceptSocket l
      case (r, left) of
        (Right (c, _), kind : others) -> do
          s <- newSocket
          _ <- connectSocket s 8000
          passing kind c s
          mapM_ closeNumber [c, s]
          relay over l (n + 1 :: Int) others
        _ -> do
          ended <- Base.readIORef over
          if ended then pure n else relay over l n left

-- | Pass on what a client and a server send until both have ended, or the connection is cut.
passing :: Relay -> Int -> Int -> IO ()
passing kind c s = do
  budget <- case kind of
    CutsWithin n -> choose n
    _ -> pure maxBound
  go budget False (0 :: Int) [(c, s, True), (s, c, False)]
  where
    go _ _ _ [] = pure ()
    go left asked answered open = do
      blockUntil (or <$> mapM (\(from, _, _) -> canReceive from) open)
      ready <- filterM (\(from, _, _) -> canReceive from) open
      forM_ (take 1 ready) $ \way@(from, to, isClient) -> do
        size <-
          ([4096, 1, 7, 100] !!) <$> case kind of
            CutsBefore _ -> pure 0
            _ -> choose 4
        r <- receiveSocket from (min left size)
        let answered' = if asked && not isClient then answered + 1 else answered
            others = [w | w <- open, w /= way]
            cut = case kind of
              CutsWithin _ -> left == 0
              CutsBefore k -> answered' >= k
              Splits -> False
        case r of
          Right bytes
            | cut -> cutOff
            | B.null bytes -> shutdownSocket to >> go left asked answered others
            | otherwise -> sending to bytes >> go (left - B.length bytes) isClient answered' open
          Left (-11) -> go left asked answered open
          Left _ -> abortAtClose to >> pure ()
    -- By a reset or by an end of the stream, for the client.
    cutOff = choose 2 >>= \how -> when (how == 1) (void (abortAtClose c))

-- | A plan of clients behind a relay.
behind :: [Relay] -> Record -> IORef Int -> (Client -> (Asked -> IO ()) -> IO ()) -> IO [(Bool, String)] -> Plan
behind kinds record connections act = plain (recorded record) [client]
  where
    client _ = relaying kinds (using (\c -> act c (ask record c relayPort))) >>= writeIORef connections

-- Scenarios -------------------------------------------------------------------------------

-- | Requests and answers arrive in pieces, over one connection.
inPieces :: Make
inPieces setting = do
  record <- newRecord
  connections <- newIORef 0
  serving setting . behind [] record connections (\_ send -> mixed >>= mapM_ send) $ do
    n <- readIORef connections
    ((n == 1, show n <> " connections") :) <$> lawful 0 record

-- | The first two connections are cut somewhere.
cutSomewhere :: Make
cutSomewhere setting = do
  record <- newRecord
  connections <- newIORef 0
  serving setting (behind [CutsWithin 1400, CutsWithin 400] record connections (\_ send -> mixed >>= mapM_ send) (lawful 2 record))

-- | An answer is cut before its first byte: on a new connection the request fails, and on a kept one it is run again if
-- it may be. The numbers are of the answer that is cut, of requests that fail, and of times that the last one is run.
unanswered :: Int -> (ByteString -> Asked) -> Int -> Int -> Make
unanswered k asked failures runs setting = do
  record <- newRecord
  connections <- newIORef 0
  let paths = map (C.pack . ('/' :) . show) [1 .. k]
      send' send = mapM_ (send . asGet) (take (k - 1) paths) >> mapM_ (send . asked) (drop (k - 1) paths)
  serving setting . behind [CutsBefore k] record connections (const send') $ do
    n <- Map.findWithDefault 0 (last paths) <$> readIORef (recordRuns record)
    got <- readIORef (recordGot record)
    let failed = length [() | (_, Left _) <- got]
    ([(failed == failures, show failed <> " requests failed"), (n == runs, "it was run " <> show n <> " times")] <>) <$> lawful failures record

-- | A server that closes each connection after two requests, and says so: no request fails.
fewRequests :: Make
fewRequests setting = do
  record <- newRecord
  let client _ = using (\c -> forM_ [1 .. 3 :: Int] (\i -> ask record c 8000 (asPost (C.pack ('/' : show i)) "x")))
      plan = plain (recorded record) [client] (lawful 0 record)
  serving setting plan {planLimits = (planLimits plan) {limitRequests = 2}}

-- | A server that closes idle connections after nine seconds. The pauses are the client's, in milliseconds; the third
-- number is that of requests that may fail.
afterPauses :: [Int] -> (ByteString -> Asked) -> Int -> Make
afterPauses pauses asked mostFailed setting = do
  record <- newRecord
  let client _ = using $ \c -> forM_ (zip [1 :: Int ..] pauses) $ \(i, pause) -> do
        ask record c 8000 (asked (C.pack ('/' : show i)))
        threadDelay (1000 * pause)
      plan = plain (recorded record) [client] (lawful mostFailed record)
  serving setting plan {planLimits = (planLimits plan) {limitIdle = seconds 9}}

-- | The body of an answer is not read: the next request gets its own answer.
notRead :: Make
notRead setting = do
  record <- newRecord
  let app req respond = if rawPathInfo req == "/large" then large req respond else recorded record req respond
      client _ = using $ \c -> forM_ [1, 2 :: Int] $ \i -> do
        withResponse c noDeadline (getUrl "http://a:8000/large") (\response -> when (i > 1) (void (responsePiece response)))
        ask record c 8000 (asPost (C.pack ('/' : show i)) "x")
  serving setting (plain app [client] (lawful 0 record))

-- | Two threads share one connection.
shared :: Make
shared setting = do
  record <- newRecord
  let few c name = forM_ [1, 2 :: Int] (\i -> ask record c 8000 (asPost (name <> C.pack (show i)) "x"))
      client _ = withClient defaultClientSettings {clientIdleTime = patient, clientMostPerServer = 1, clientQueueTime = patient} $ \c -> do
        done <- newEmptyMVar
        _ <- forkIO (few c "/a" `finally` putMVar done ())
        few c "/b"
        takeMVar done
  serving setting (plain (recorded record) [client] (lawful 0 record))

-- | A server drains while a client sends requests. What was answered has arrived, whole.
drained :: Make
drained setting = do
  record <- newRecord
  answered <- newIORef (0 :: Int)
  begun <- newEmptyMVar
  complete <- newIORef False
  let app req respond = recorded record req $ \response -> respond response >>= \r -> r <$ atomicModifyIORef' answered (\n -> (n + 1, ()))
      client _ = using $ \c -> do
        requests <- mixed
        putMVar begun ()
        mapM_ (ask record c 8000) requests
      plan = plain app [client] $ do
        n <- readIORef answered
        ok <- readIORef complete
        got <- readIORef (recordGot record)
        let arrived = length [() | (_, Right _) <- got]
        ([(ok, "it was not drained"), (arrived == n, show n <> " requests were answered, and " <> show arrived <> " answers arrived")] <>) <$> lawful 4 record
      drain server = do
        takeMVar begun
        pause <- choose 60
        replicateM_ pause yield
        drainServer server patient >>= writeIORef complete
  serving setting plan {planBeside = drain}

-- | A request has a deadline, and the application takes longer. The next one gets its own answer.
tooLate :: Make
tooLate setting = do
  record <- newRecord
  let app req respond = when (rawPathInfo req == "/slow") (threadDelay 3000000) >> recorded record req respond
      client _ = using $ \c -> do
        slow <- try (withinTime c)
        ask record c 8000 (asPost "/1" "x")
        either (\e -> e `seq` pure ()) (\a -> throwIO (userError ("it was answered: " <> show a))) (slow :: Either ClientError Answer)
        ask record c 8000 (asPost "/2" "x")
      withinTime c = deadlineIn (milliseconds 1000) >>= \due -> request c due (getUrl "http://a:8000/slow")
  serving setting (plain app [client] (lawful 0 record))

clientTests :: TestTree
clientTests =
  testGroup
    "client and server"
    ( [testGroup "epoll" [holdsAtRandom name (make onEpoll) | (name, make) <- scenarios]]
        <> [testGroup name' [holdsAtRandom name (make setting) | (name, make) <- take 1 (drop 1 scenarios)] | (name', setting) <- [("poll", onPoll), ("io_uring", onUring)]]
    )
  where
    post path = asPost path "x"
    scenarios =
      [ ("requests and answers in pieces, over one connection", inPieces),
        ("connections that are cut somewhere", cutSomewhere),
        ("a kept connection ends without an answer: a GET is sent again", unanswered 2 asGet 0 2),
        ("a kept connection ends without an answer: a POST is not sent again", unanswered 2 post 1 1),
        ("a new connection ends without an answer: a GET is not sent again", unanswered 1 asGet 1 1),
        ("a server that ends each connection after two requests", fewRequests),
        ("a server that has ended idle connections long ago: a POST is not sent on them", afterPauses [20000, 20000, 1] post 0),
        ("a server that ends idle connections as a GET is sent", afterPauses [9000, 9000, 1] asGet 0),
        ("a server that ends idle connections as a POST is sent", afterPauses [9000, 9000, 1] post 2),
        ("answers that are not read", notRead),
        ("two threads with one connection", shared),
        ("a drain while a client sends requests", drained),
        ("a request that is given up", tooLate)
      ]
