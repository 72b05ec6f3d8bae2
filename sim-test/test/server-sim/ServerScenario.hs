{-# LANGUAGE OverloadedStrings #-}

-- |
-- A whole web server on the simulated machine. The threads are the server program and clients that use the model
-- kernel's sockets. In each run every thread has to end, and nothing may stay open.
module ServerScenario
  ( serverTests,
  )
where

import Control.Concurrent
import Control.Exception
import Control.Monad
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import Data.IORef
import Data.Int (Int64)
import Data.Maybe (isJust)
import Kernel
import KernelSocket
import KernelStream (streamBacklog)
import Network.HTTP.Types (status200)
import Network.Wai (Application, rawPathInfo, responseLBS, responseStream)
import Search hiding (large)
import ServerMachine
import Simulation (Scenario (..), blockUntil, virtualTime)
import Test.Tasty
import qualified Weft.Backend.Choice as Choice
import qualified Weft.Backend.Epoll as Epoll
import Weft.Duration (seconds)
import Weft.Http.Limits
import Weft.Http.Server

-- Scenarios -------------------------------------------------------------------------------

type Make = Setting -> IO Scenario

-- | A client sends these pieces and receives until the end.
exchange :: Application -> [ByteString] -> [ByteString] -> Make
exchange app pieces wanted setting = do
  seen <- unseen
  serving setting (plain app [connecting (\n -> mapM_ (sending n) pieces >> toTheEnd seen n)] (expecting seen wanted))

-- | As 'exchange', but the client sends each piece when the server has received the one before.
slowExchange :: Application -> [ByteString] -> [ByteString] -> Make
slowExchange app pieces wanted setting = do
  seen <- unseen
  let client n = forM_ pieces (\piece -> sending n piece >> blockUntil (allReceived n)) >> toTheEnd seen n
  serving setting (plain app [connecting client] (expecting seen wanted))

singly :: ByteString -> [ByteString]
singly = map B.singleton . B.unpack

-- | Requests one after the other, each sent after the response to the previous one.
keptAlive :: Make
keptAlive setting = do
  seen <- unseen
  let client n = do
        sending n (get "/a")
        receivingUntil seen n ((== 1) . length . answers)
        sending n (get "/b")
        receivingUntil seen n ((== 2) . length . answers)
  serving setting (plain echoing [connecting client] (expecting seen ["/a", "/b"]))

-- | The client closes its sending side after a request.
halfClosed :: Make
halfClosed setting = do
  seen <- unseen
  serving setting (plain echoing [connecting (\n -> sending n (get "/a") >> void (shutdownSocket n) >> toTheEnd seen n)] (expecting seen ["/a"]))

-- | A client resets after part of a request; another client is served.
resets :: Int -> Application -> Make
resets k app setting = do
  seen <- unseen
  let rude n = sending n (B.take k (get "/gone")) >> void (abortAtClose n)
      polite n = sending n (lastGet "/a") >> toTheEnd seen n
  serving setting (plain app [connecting rude, connecting polite] (if k > 40 then pure [] else expecting seen ["/a"]))

-- | The client never reads. The server gives up when its timeout has passed, not before. The client sees a reset.
neverReads :: Make
neverReads setting = do
  seen <- unseen
  ended <- newIORef 0
  let client n = do
        sending n (get "/a")
        blockUntil (canSend n)
        blockUntil (wasReset n)
        virtualTime >>= writeIORef ended
        toTheEnd seen n
      plan = plain large [connecting client] $ do
        (_, end) <- readIORef seen
        at <- readIORef ended
        pure [(end == Reset, "it ended with " <> show end), (at `isWithin` 5, "it was reset at " <> show at)]
  serving setting plan {planTimeout = 5}

-- | Whether an instant is at least that many seconds from the beginning, and not much more.
isWithin :: Int64 -> Int64 -> Bool
isWithin at limit = at >= limit * 1000000000 && at < (limit + 10) * 1000000000

-- | The client sends part of a request, and nothing more.
neverSends :: ByteString -> Make
neverSends part setting = do
  seen <- unseen
  ended <- newIORef 0
  let client n = sending n part >> toTheEnd seen n >> virtualTime >>= writeIORef ended
      plan = plain echoing [connecting client] $ do
        (bytes, _) <- readIORef seen
        at <- readIORef ended
        pure [(B.null bytes, "it was sent " <> show bytes), (at `isWithin` 7, "it was closed at " <> show at)]
  serving setting plan {planLimits = defaultLimits {limitHeadTime = seconds 7, limitIdle = seconds 100000000}}

-- | The client is idle after a response.
staysIdle :: Make
staysIdle setting = do
  seen <- unseen
  ended <- newIORef 0
  let client n = do
        sending n (get "/a")
        receivingUntil seen n ((== 1) . length . answers)
        toTheEnd seen n
        virtualTime >>= writeIORef ended
      plan = plain echoing [connecting client] $ do
        at <- readIORef ended
        more <- expecting seen ["/a"]
        pure ((at `isWithin` 9, "it was closed at " <> show at) : more)
  serving setting plan {planLimits = defaultLimits {limitHeadTime = seconds 100000000, limitIdle = seconds 9}}

-- | The promise about the end of a connection: a request that the server has received is answered. A client that has
-- sent one sees its response, or a reset (it was not received), but never an end of stream instead.
answeredOrReset :: Seen -> Int -> IO [(Bool, String)]
answeredOrReset seen wanted = do
  (bytes, end) <- readIORef seen
  pure [(length (answers bytes) == wanted || end /= Ended, "a request was received and not answered: " <> show bytes)]

-- | The server shuts down while requests arrive.
shutDown :: Int -> Make
shutDown clients setting = do
  seen <- replicateM clients unseen
  drained <- newIORef True
  let client s n = do
        sending n (get "/a")
        receivingUntil s n ((== 1) . length . answers)
        (have, _) <- readIORef s
        when (length (answers have) == 1) (sending n (get "/b") >> receivingUntil s n ((== 2) . length . answers))
      plan = plain echoing (map (connecting . client) seen) $ do
        ok <- readIORef drained
        claims <- forM seen $ \s -> do
          (bytes, end) <- readIORef s
          pure [(length (answers bytes) == 2 || end /= Ended || closing bytes, "a request was received and not answered: " <> show bytes)]
        pure ((ok, "it was not drained") : concat claims)
      -- The client was told that this response is the last.
      closing bytes = "Connection: close" `B.isInfixOf` bytes
  serving setting plan {planBeside = \server -> drainServer server (seconds 100000000) >>= writeIORef drained}

-- | There is room for one connection: an idle one makes room for another while its next request arrives.
evicted :: Make
evicted setting = do
  seen <- unseen
  other <- unseen
  ready <- newEmptyMVar
  let first n = do
        sending n (get "/a")
        receivingUntil seen n ((== 1) . length . answers)
        putMVar ready ()
        sending n (get "/b")
        receivingUntil seen n ((== 2) . length . answers)
      second n = sending n (lastGet "/c") >> toTheEnd other n
      plan = plain echoing [connecting first, \s -> takeMVar ready >> connecting second s] (answeredOrReset seen 2)
  serving setting plan {planLimits = defaultLimits {limitConnections = 1, limitHeadTime = seconds 100000000, limitIdle = seconds 100000000}}

-- | There is room for one connection, and several clients send requests at once: one more than the limit may be told to
-- end and continue. The clients of the others see a reset.
crowded :: Make
crowded setting = do
  seen <- replicateM 4 unseen
  (running, most) <- (,) <$> newIORef (0 :: Int) <*> newIORef 0
  let app request respond = bracket_ (change 1) (change (-1)) (threadDelay 1000000 >> echoing request respond)
      change d = atomicModifyIORef' running (\k -> (k + d, k + d)) >>= \k -> atomicModifyIORef' most (\m -> (max k m, ()))
      client s n = sending n (get "/a") >> receivingUntil s n ((== 1) . length . answers)
      plan = plain app (map (connecting . client) seen) $ do
        k <- readIORef most
        claims <- mapM (`answeredOrReset` 1) seen
        pure ((k >= 1 && k <= 2, show k <> " requests at once") : concat claims)
  serving setting plan {planLimits = defaultLimits {limitConnections = 1, limitHeadTime = seconds 100000000, limitIdle = seconds 100000000}}

-- | There is room for one connection, and its request is being answered: another connection is refused.
busyStays :: Make
busyStays setting = do
  seen <- unseen
  other <- unseen
  entered <- newEmptyMVar
  goOn <- newEmptyMVar
  let app request respond = putMVar entered () >> takeMVar goOn >> echoing request respond
      client n = sending n (lastGet "/a") >> toTheEnd seen n
      refused s = takeMVar entered >> connecting (\n -> sending n (lastGet "/b") >> toTheEnd other n) s >> putMVar goOn ()
      plan = plain app [connecting client, refused] $ (<>) <$> expecting seen ["/a"] <*> expecting other []
  serving setting plan {planLimits = defaultLimits {limitConnections = 1, limitHeadTime = seconds 100000000, limitIdle = seconds 100000000}}

-- | A response that begins after the shutdown has begun is the connection's last, and says so.
lastResponse :: Make
lastResponse setting = do
  seen <- unseen
  entered <- newEmptyMVar
  goOn <- newEmptyMVar
  drained <- newIORef False
  let app request respond = putMVar entered () >> takeMVar goOn >> echoing request respond
      client n = sending n (get "/a") >> toTheEnd seen n
      watcher _ = blockUntil (not . any (isJust . streamBacklog . snd) <$> allStreams) >> putMVar goOn ()
      plan = plain app [connecting client, watcher] $ do
        (bytes, _) <- readIORef seen
        ok <- readIORef drained
        more <- expecting seen ["/a"]
        pure ((ok, "it was not drained") : ("Connection: close" `B.isInfixOf` bytes, "it does not end the connection: " <> show bytes) : more)
  serving setting plan {planBeside = \server -> takeMVar entered >> drainServer server (seconds 100000000) >>= writeIORef drained}

-- | A shutdown ends before the idle connection does; a second one ends the connection at once.
drainedTwice :: Make
drainedTwice setting = do
  seen <- unseen
  answered <- newEmptyMVar
  ended <- newIORef (-1)
  let client n = do
        sending n (get "/a")
        receivingUntil seen n ((== 1) . length . answers)
        putMVar answered ()
        toTheEnd seen n
        virtualTime >>= writeIORef ended
      plan = plain echoing [connecting client] $ do
        at <- readIORef ended
        more <- expecting seen ["/a"]
        pure ((at `isWithin` 0, "it ended at " <> show at) : more)
      twice server = do
        takeMVar answered
        _ <- drainServer server (seconds 0)
        void (drainServer server (seconds 100000000))
  serving setting plan {planBeside = twice}

-- | The application takes longer than each of the client's time limits.
slowApplication :: Make
slowApplication setting = do
  seen <- unseen
  let app request respond = threadDelay 50000000 >> echoing request respond
      client n = do
        sending n (get "/a")
        receivingUntil seen n ((== 1) . length . answers)
        sending n (lastGet "/b")
        toTheEnd seen n
      plan = plain app [connecting client] (expecting seen ["/a", "/b"])
  serving setting plan {planTimeout = 5, planLimits = defaultLimits {limitHeadTime = seconds 7, limitIdle = seconds 9}}

-- | A request is refused, and the client has sent more. It reads why.
refusedWithMore :: Make
refusedWithMore setting = do
  seen <- unseen
  let client n = sending n "nonsense\r\n\r\n" >> blockUntil (allReceived n) >> sending n (C.replicate 300 'x') >> toTheEnd seen n
  serving setting . plain echoing [connecting client] $ do
    (bytes, end) <- readIORef seen
    pure [("HTTP/1.1 400" `B.isPrefixOf` bytes, "it was sent " <> show bytes <> ", " <> show end)]

-- | The client goes on sending after the last response, or is silent: the connection is closed when its time is over.
-- The client notices by a reset.
lingers :: Bool -> Int64 -> Make
lingers talks limit setting = do
  seen <- unseen
  ended <- newIORef 0
  let client n = do
        sending n "nonsense\r\n\r\n"
        toTheEnd seen n
        if talks then talk n else threadDelay 6000000 >> sending n "x" >> blockUntil (wasReset n)
        virtualTime >>= writeIORef ended
      talk n = do
        over <- wasReset n
        unless over (sending n "x" >> threadDelay 4000000 >> talk n)
      plan = plain echoing [connecting client] $ do
        (bytes, end) <- readIORef seen
        at <- readIORef ended
        pure
          [ ("HTTP/1.1 400" `B.isPrefixOf` bytes && end == Ended, "it was sent " <> show bytes <> ", " <> show end),
            (at `isWithin` limit, "it was closed at " <> show at)
          ]
  serving setting plan

-- | The application streams a body.
streamed :: Make
streamed setting = do
  seen <- unseen
  let app _ respond = respond (responseStream status200 [] (\write flush -> write "one" >> flush >> write "two"))
  serving setting . plain app [connecting (\n -> sending n (lastGet "/a") >> toTheEnd seen n)] $ do
    (bytes, end) <- readIORef seen
    pure [("\r\n\r\n3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n" `B.isSuffixOf` bytes, "it was sent " <> show bytes <> ", " <> show end)]

-- | The thread of an application is killed; other requests are served.
killedHandler :: Make
killedHandler setting = do
  seen <- unseen
  other <- unseen
  victim <- newEmptyMVar
  let app request respond
        | rawPathInfo request == "/killed" = do
          myThreadId >>= putMVar victim
          never <- newEmptyMVar
          () <- takeMVar never
          respond (responseLBS status200 [] "")
        | otherwise = echoing request respond
      killer _ = takeMVar victim >>= killThread
      doomed n = sending n (get "/killed") >> toTheEnd seen n
      polite n = sending n (lastGet "/a") >> toTheEnd other n
  serving setting . plain app [connecting doomed, killer, connecting polite] $ do
    (bytes, _) <- readIORef seen
    more <- expecting other ["/a"]
    pure ((B.null bytes, "it was sent " <> show bytes) : more)

-- | The application throws before it responds: status 500, and the connection continues.
throws :: Make
throws setting = do
  seen <- unseen
  let app request respond
        | rawPathInfo request == "/bad" = throwIO (userError "bad")
        | otherwise = echoing request respond
      client n = do
        sending n (get "/bad")
        receivingUntil seen n (\b -> "\r\n\r\n" `B.isInfixOf` b && "500" `B.isInfixOf` b)
        sending n (lastGet "/a")
        toTheEnd seen n
  serving setting . plain app [connecting client] $ do
    (bytes, _) <- readIORef seen
    pure [("HTTP/1.1 500" `B.isPrefixOf` bytes, "it was sent " <> show bytes), ("/a" `B.isSuffixOf` bytes, "no second answer in " <> show bytes)]

-- | The application throws in the middle of a body: the client must not see a complete body.
throwsLater :: Make
throwsLater setting = do
  seen <- unseen
  let app _ respond = respond (responseStream status200 [] (\write flush -> write "begun" >> flush >> throwIO (userError "bad")))
  serving setting . plain app [connecting (\n -> sending n (get "/a") >> toTheEnd seen n)] $ do
    (bytes, _) <- readIORef seen
    pure [("begun" `B.isInfixOf` bytes, "it was sent " <> show bytes), (not ("0\r\n\r\n" `B.isSuffixOf` bytes), "the body has an end: " <> show bytes)]

-- | The action beside the server ends while connections are open.
stopped :: Make
stopped setting = do
  seen <- unseen
  serving setting (plain echoing [connecting (\n -> sending n (get "/a") >> toTheEnd seen n)] (pure [])) {planWaits = False}

-- | The client disconnects before it is accepted.
leavesAtOnce :: Make
leavesAtOnce setting = do
  seen <- unseen
  serving setting (plain echoing [connecting (void . abortAtClose), connecting (\n -> sending n (lastGet "/a") >> toTheEnd seen n)] (expecting seen ["/a"]))

serverTests :: TestTree
serverTests =
  testGroup
    "a web server"
    [ testGroup "epoll" [holdsAtRandom name (make onEpoll) | (name, make) <- scenarios],
      testGroup "poll" [holdsAtRandom name (make onPoll) | (name, make) <- take 8 scenarios],
      testGroup "io_uring" [holdsAtRandom name (make onUring) | (name, make) <- take 8 scenarios],
      -- The other scenarios have too many steps for this search.
      testGroup "every schedule with at most one departure" [holdsWithin 1 "a request" (exchange echoing [lastGet "/a"] ["/a"] onEpoll)],
      testGroup
        "a kernel that misbehaves"
        [ holdsAtRandom "a connection that is accepted when no descriptor is left" (exchange echoing [lastGet "/a"] ["/a"] (misbehaving noFaults {faultShort = 1})),
          holdsAtRandom "a request body that is larger than a socket's buffer" (exchange returning [post 1500, C.replicate 1500 'b'] [C.replicate 1500 'b'] (misbehaving noFaults)),
          holdsAtRandom "events in another order, spurious ones, interrupted waits" (exchange echoing [get "/a" <> lastGet "/b"] ["/a", "/b"] (misbehaving allFaults))
        ]
    ]
  where
    misbehaving = Setting (Choice.useBackend Epoll.new)
    post n = "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: " <> C.pack (show (n :: Int)) <> "\r\n\r\n"
    scenarios =
      [ ("a request", exchange echoing [lastGet "/a"] ["/a"]),
        ("a request in segments of one byte", exchange echoing (singly (lastGet "/a")) ["/a"]),
        ("a pipeline in one segment", exchange echoing [get "/a" <> get "/b" <> lastGet "/c"] ["/a", "/b", "/c"]),
        ("requests one after the other", keptAlive),
        ("a client that closes its sending side after a request", halfClosed),
        ("an idle connection is evicted while its next request arrives", evicted),
        ("requests of connections that are told to end", crowded),
        ("a shutdown while requests arrive", shutDown 2),
        ("a client that resets after a request", resets 40 echoing),
        ("a client that resets within a request", resets 10 echoing),
        ("a client that leaves at once", leavesAtOnce),
        ("a body in two segments", slowExchange returning [post 20 <> "0123456789", "abcdefghij"] ["0123456789abcdefghij"]),
        ("a response that is larger than a socket's buffer", exchange large [lastGet "/a"] [C.replicate 3000 'x']),
        ("a client that never reads", neverReads),
        ("a client that sends nothing", neverSends ""),
        ("a client that sends half a head", neverSends "GET / HTTP/1.1\r\nHo"),
        ("a client that stays idle", staysIdle),
        ("a handler that is killed", killedHandler),
        ("an application that throws", throws),
        ("an application that throws in the middle of a body", throwsLater),
        ("a server that is stopped", stopped),
        ("a request in progress when there is no room for another connection", busyStays),
        ("a response after a shutdown has begun", lastResponse),
        ("a shutdown that gives up, and another one", drainedTwice),
        ("an application that takes longer than the client's time limits", slowApplication),
        ("a refused request, and more bytes behind it", refusedWithMore),
        ("a client that goes on sending after the last response", lingers True 30),
        ("a client that is silent after the last response", lingers False 5),
        ("a streamed response", streamed),
        ("bytes that are not a request", \s -> unseen >>= \seen -> serving s (plain echoing [connecting (\n -> sending n "nonsense\r\n\r\n" >> toTheEnd seen n)] (readIORef seen >>= \(b, _) -> pure [("HTTP/1.1 400" `B.isPrefixOf` b, "it was sent " <> show b)])))
      ]
