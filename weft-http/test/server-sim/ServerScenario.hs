{-# LANGUAGE OverloadedStrings #-}

-- |
-- A whole web server on the simulated machine: threads are the program that serves, and clients that use the model kernel's sockets.
-- In each run every thread has to end, and nothing stays open.
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
import qualified Data.ByteString.Lazy as L
import Data.IORef
import Kernel
import KernelSocket
import Network.HTTP.Types (status200)
import Network.Wai (Application, getRequestBodyChunk, rawPathInfo, responseLBS, responseStream)
import Search hiding (large)
import Simulation (Scenario (..), blockUntil, patientClock, virtualTime)
import Test.Tasty
import qualified Weft.Backend.Choice as Choice
import qualified Weft.Backend.Epoll as Epoll
import qualified Weft.Backend.Poll as Poll
import qualified Weft.Backend.Uring as Uring
import Weft.Duration (seconds)
import Weft.FFI.RingEntries (preferRingEntries)
import Weft.Http.Limits
import Weft.Http.Server
import Weft.Http.Settings
import Weft.Runtime.Managers (stopManagers)
import qualified Weft.Socket as W

-- | The back end, and how often the kernel misbehaves.
data Setting = Setting (IO ()) Faults

onEpoll, onPoll, onUring :: Setting
onEpoll = Setting (Choice.useBackend Epoll.new) noFaults
onPoll = Setting (Choice.useBackend Poll.new) noFaults
onUring = Setting (Choice.useBackend (preferRingEntries (Just 8) >> Uring.new)) noFaults

-- | A server, what is done beside it once all clients have ended, and those.
data Plan = Plan
  { planLimits :: Limits,
    planTimeout :: Int,
    planApplication :: Application,
    -- | While the clients run.
    planBeside :: Server -> IO (),
    -- | Wait for the clients before the server ends?
    planWaits :: Bool,
    planClients :: [Server -> IO ()],
    -- | What is wrong afterwards.
    planCheck :: IO [(Bool, String)]
  }

-- | With times that are over when nobody can go on.
plain :: Application -> [Server -> IO ()] -> IO [(Bool, String)] -> Plan
plain app = Plan defaultLimits {limitHeadTime = seconds 100000000, limitIdle = seconds 100000000} 100000000 app (const (pure ())) True

serving :: Setting -> Plan -> IO Scenario
serving (Setting backend faults) plan = do
  bootKernel faults
  backend
  patientClock
  up <- newEmptyMVar
  ended <- mapM (const newEmptyMVar) (planClients plan)
  left <- newIORef (-1)
  let program = do
        l <- W.socket W.AF_INET W.Stream W.defaultProtocol
        W.bind l (W.SockAddrInet 8000 (W.tupleToHostAddress (127, 0, 0, 1)))
        W.listen l 8
        withServerWith (options l) settings (planApplication plan) $ \server -> do
          putMVar up server
          planBeside plan server
          when (planWaits plan) $ do
            mapM_ takeMVar ended
            -- Their connections end.
            _ <- drainServer server (seconds 100000000)
            serverConnections server >>= writeIORef left
        stopManagers
      options l = defaultOptions {optionLimits = Just (planLimits plan), optionListeners = [l]}
      settings = defaultSettings {settingsTimeout = planTimeout plan, settingsOnException = \_ _ -> pure (), settingsBeforeMainLoop = pure (), settingsPort = 8000, settingsHost = "127.0.0.1"}
      client (act, done) = (readMVar up >>= act) `finally` putMVar done ()
  pure . Scenario (program : map client (zip (planClients plan) ended)) $ \stuck -> do
    numbers <- openNumbers
    connections <- readIORef left
    claims <- planCheck plan
    pure $ case [why | (False, why) <- claims <> [(null stuck, "never woken: threads " <> show stuck), (null numbers, "left open: " <> show numbers), (not (planWaits plan) || connections == 0, show connections <> " connections are left")]] of
      why : _ -> Just why
      [] -> Nothing

-- Applications --------------------------------------------------------------------------

-- | The path, again.
echoing :: Application
echoing request respond = respond (responseLBS status200 [] (L.fromStrict (rawPathInfo request)))

-- | The body, again.
returning :: Application
returning request respond = whole >>= respond . responseLBS status200 [] . L.fromChunks
  where
    whole = getRequestBodyChunk request >>= \b -> if B.null b then pure [] else (b :) <$> whole

-- | More than a socket holds.
large :: Application
large _ respond = respond (responseLBS status200 [] (L.fromStrict (C.replicate 3000 'x')))

-- Clients --------------------------------------------------------------------------------

-- | What came, and how the stream ended.
data End = Ended | Reset | NoConnection
  deriving (Eq, Show)

type Seen = IORef (ByteString, End)

unseen :: IO Seen
unseen = newIORef ("", NoConnection)

-- | With a connection, which is closed afterwards.
connecting :: (Int -> IO ()) -> Server -> IO ()
connecting act _ = do
  n <- newSocket
  r <- connectSocket n 8000
  when (r == 0) (act n)
  void (closeNumber n)

-- | All of it; an error ends it.
sending :: Int -> ByteString -> IO ()
sending n bytes = unless (B.null bytes) $ do
  blockUntil (canSend n)
  r <- sendSocket n bytes
  case r of
    -11 -> sending n bytes
    _ | r < 0 -> pure ()
    _ -> sending n (B.drop r bytes)

-- | Until that is found, or the end.
receivingUntil :: Seen -> Int -> (ByteString -> Bool) -> IO ()
receivingUntil seen n enough = do
  (have, _) <- readIORef seen
  unless (enough have) $ do
    blockUntil (canReceive n)
    r <- receiveSocket n 4096
    case r of
      Right "" -> writeIORef seen (have, Ended)
      Right bytes -> writeIORef seen (have <> bytes, Ended) >> receivingUntil seen n enough
      Left (-11) -> receivingUntil seen n enough
      Left _ -> writeIORef seen (have, Reset)

toTheEnd :: Seen -> Int -> IO ()
toTheEnd seen n = receivingUntil seen n (const False)

get :: ByteString -> ByteString
get path = "GET " <> path <> " HTTP/1.1\r\nHost: a\r\n\r\n"

lastGet :: ByteString -> ByteString
lastGet path = "GET " <> path <> " HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"

-- | How many answers of status 200 there are, which are whole: the head, and a body of its length.
answers :: ByteString -> [ByteString]
answers bytes
  | "HTTP/1.1 200" `B.isPrefixOf` bytes,
    (h, rest) <- B.breakSubstring "\r\n\r\n" bytes,
    not (B.null rest),
    (_, field) <- B.breakSubstring "Content-Length: " h,
    Just (size, _) <- C.readInt (B.drop 16 field),
    B.length rest >= size + 4 =
    B.take size (B.drop 4 rest) : answers (B.drop (size + 4) rest)
  | otherwise = []

expecting :: Seen -> [ByteString] -> IO [(Bool, String)]
expecting seen wanted = do
  (bytes, end) <- readIORef seen
  pure [(answers bytes == wanted, "answers " <> show (answers bytes) <> ", instead of " <> show wanted <> ", of " <> show bytes <> ", " <> show end)]

-- Scenarios -------------------------------------------------------------------------------

type Make = Setting -> IO Scenario

-- | One client, which sends these pieces and receives to the end.
exchange :: Application -> [ByteString] -> [ByteString] -> Make
exchange app pieces wanted setting = do
  seen <- unseen
  serving setting (plain app [connecting (\n -> mapM_ (sending n) pieces >> toTheEnd seen n)] (expecting seen wanted))

singly :: ByteString -> [ByteString]
singly = map B.singleton . B.unpack

-- | Requests one after the other, each when the answer to the one before has come.
keptAlive :: Make
keptAlive setting = do
  seen <- unseen
  let client n = do
        sending n (get "/a")
        receivingUntil seen n ((== 1) . length . answers)
        sending n (get "/b")
        receivingUntil seen n ((== 2) . length . answers)
  serving setting (plain echoing [connecting client] (expecting seen ["/a", "/b"]))

-- | It closes its sending side behind a request.
halfClosed :: Make
halfClosed setting = do
  seen <- unseen
  serving setting (plain echoing [connecting (\n -> sending n (get "/a") >> void (shutdownSocket n) >> toTheEnd seen n)] (expecting seen ["/a"]))

-- | One resets behind so much of a request; another one is served.
resets :: Int -> Application -> Make
resets k app setting = do
  seen <- unseen
  let rude n = sending n (B.take k (get "/gone")) >> void (abortAtClose n)
      polite n = sending n (lastGet "/a") >> toTheEnd seen n
  serving setting (plain app [connecting rude, connecting polite] (if k > 40 then pure [] else expecting seen ["/a"]))

-- | It never reads; the server gives up after its time, and not before. The peer hears of it as a reset.
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
        pure [(end == Reset, "it ended with " <> show end), (at >= 5000000000, "it was reset at " <> show at)]
  serving setting plan {planTimeout = 5}

-- | It sends a part of a request, and nothing more.
neverSends :: ByteString -> Make
neverSends part setting = do
  seen <- unseen
  ended <- newIORef 0
  let client n = sending n part >> toTheEnd seen n >> virtualTime >>= writeIORef ended
      plan = plain echoing [connecting client] $ do
        (bytes, _) <- readIORef seen
        at <- readIORef ended
        pure [(B.null bytes, "it was sent " <> show bytes), (at >= 7000000000, "it was closed at " <> show at)]
  serving setting plan {planLimits = defaultLimits {limitHeadTime = seconds 7, limitIdle = seconds 100000000}}

-- | It waits behind an answer.
staysIdle :: Make
staysIdle setting = do
  seen <- unseen
  times <- newIORef (0, 0)
  let client n = do
        sending n (get "/a")
        receivingUntil seen n ((== 1) . length . answers)
        a <- virtualTime
        toTheEnd seen n
        b <- virtualTime
        writeIORef times (a, b)
      plan = plain echoing [connecting client] $ do
        (a, b) <- readIORef times
        more <- expecting seen ["/a"]
        pure ((a == 0 || b >= 9000000000, "it was closed at " <> show b) : more)
  serving setting plan {planLimits = defaultLimits {limitHeadTime = seconds 100000000, limitIdle = seconds 9}}

-- | The promise of an end: a request that the server has received is answered. A client that has sent one sees its answer, or a reset (it was not received), and
-- never an end of the stream in its place.
answeredOrReset :: Seen -> Int -> IO [(Bool, String)]
answeredOrReset seen wanted = do
  (bytes, end) <- readIORef seen
  pure [(length (answers bytes) == wanted || end /= Ended, "a request was received and not answered: " <> show bytes)]

-- | The server shuts down as requests come.
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
      -- The client was told that there is no more.
      closing bytes = "Connection: close" `B.isInfixOf` bytes
  serving setting plan {planBeside = \server -> drainServer server (seconds 100000000) >>= writeIORef drained}

-- | There is room for one connection: an idle one makes room for another, as its next request comes.
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

-- | The thread of an application is killed; others are served.
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

-- | The application throws before it answers: status 500, and the connection goes on.
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

-- | It throws in the middle of a body: the client does not see the end of one.
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

-- | It goes away before it is accepted.
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
      -- Others have too many steps for that.
      testGroup "each schedule that departs once" [holdsWithin 1 "a request" (exchange echoing [lastGet "/a"] ["/a"] onEpoll)],
      testGroup
        "a kernel that misbehaves"
        [ holdsAtRandom "a connection that is accepted when no descriptor is left" (exchange echoing [lastGet "/a"] ["/a"] (misbehaving noFaults {faultShort = 1})),
          holdsAtRandom "a body that is larger than a socket holds" (exchange returning [post 1500, C.replicate 1500 'b'] [C.replicate 1500 'b'] (misbehaving noFaults)),
          holdsAtRandom "events in another order, spurious ones, interrupted waits" (exchange echoing [get "/a" <> lastGet "/b"] ["/a", "/b"] (misbehaving allFaults))
        ]
    ]
  where
    misbehaving = Setting (Choice.useBackend Epoll.new)
    post n = "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: " <> C.pack (show (n :: Int)) <> "\r\n\r\n"
    scenarios =
      [ ("a request", exchange echoing [lastGet "/a"] ["/a"]),
        ("one byte a segment", exchange echoing (singly (lastGet "/a")) ["/a"]),
        ("a pipeline in one segment", exchange echoing [get "/a" <> get "/b" <> lastGet "/c"] ["/a", "/b", "/c"]),
        ("requests one after the other", keptAlive),
        ("a sending side that is closed behind a request", halfClosed),
        ("an idle connection makes room as its next request comes", evicted),
        ("a shutdown as requests come", shutDown 2),
        ("a client that resets behind a request", resets 40 echoing),
        ("a client that resets within a request", resets 10 echoing),
        ("a client that leaves at once", leavesAtOnce),
        ("a body in two segments", exchange returning [post 20, "0123456789", "0123456789"] ["01234567890123456789"]),
        ("an answer that is larger than a socket holds", exchange large [lastGet "/a"] [C.replicate 3000 'x']),
        ("a client that never reads", neverReads),
        ("a client that sends nothing", neverSends ""),
        ("a client that sends half a head", neverSends "GET / HTTP/1.1\r\nHo"),
        ("a client that stays idle", staysIdle),
        ("a handler that is killed", killedHandler),
        ("an application that throws", throws),
        ("an application that throws in the middle of a body", throwsLater),
        ("a server that is stopped", stopped),
        ("a request that is none", \s -> unseen >>= \seen -> serving s (plain echoing [connecting (\n -> sending n "nonsense\r\n\r\n" >> toTheEnd seen n)] (readIORef seen >>= \(b, _) -> pure [("HTTP/1.1 400" `B.isPrefixOf` b, "it was sent " <> show b)])))
      ]
