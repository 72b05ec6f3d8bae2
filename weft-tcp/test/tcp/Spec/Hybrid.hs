-- |
-- Hybrid threads on two stacks that are connected in memory, with one loop and with two: echo, many connections, a
-- thread that is killed in each wait, closing while another thread waits, resets, deadlines, and stopping the
-- scheduler.
module Spec.Hybrid (tests) where

import Control.Concurrent (getNumCapabilities, setNumCapabilities, threadDelay)
import qualified Control.Concurrent as GHC
import qualified Control.Exception as E
import Control.Monad (forM, forM_, forever, replicateM_, unless, void, when)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import Data.IORef
import Data.Maybe (fromJust)
import Data.Word (Word16)
import Foreign.C.Error (Errno (..), eBADF, eCONNREFUSED, eCONNRESET, ePIPE)
import GHC.IO.Exception (ioe_description, ioe_errno)
import System.Directory (listDirectory)
import System.IO.Error (tryIOError)
import qualified System.Timeout as GHC
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Hybrid (Hybrid, bracket, defaultSettings, finally, fork, forkFromIn, forkThread, killThread, mask_, milliseconds, newEmptyMVar, nonBlocking, putMVar, readMVar, runIn, seconds, settingsLoops, settingsOnException, sleep, try, wait, waitCatch, withScheduler, yield)
import Weft.Hybrid.Scheduler (Scheduler, startScheduler, stopScheduler)
import Weft.Tcp (Address, Config (..), Policy (..), Stack, StackSettings (..), closeStack, connections, defaultConfig, newStack, parseAddress)
import qualified Weft.Tcp as Tcp
import Weft.Tcp.Core (millis, secs)
import Weft.Tcp.Core.Listener (Decision (..))
import Weft.Tcp.Device (pairOfDevices)
import Weft.Tcp.Hybrid

tests :: TestTree
tests = testGroup "hybrid threads" [testGroup ("-N" ++ show n) (map (withLoops n) cases) | n <- [1, 2]]

-- | The environment of a test: a scheduler, a stack that connects, and one that listens.
data Net = Net {scheduler :: Scheduler, ours, theirs :: Stack}

withLoops :: Int -> (String, Int -> Bool, Net -> Assertion) -> TestTree
withLoops n (name, loses, act) = testCase name $ do
  caps <- getNumCapabilities
  when (caps < n) (setNumCapabilities n)
  r <- GHC.timeout 250000000 . withScheduler defaultSettings {settingsLoops = Just n, settingsOnException = \_ _ -> pure ()} $ \s -> do
    (da, db) <- pairOfDevices 1500 loses
    E.bracket (newStack (quick [addressA]) da) closeStack $ \a ->
      E.bracket (newStack (quick [addressB]) db) closeStack $ \b -> act (Net s a b)
  maybe (assertFailure "still not done after 250 s") pure r

quick :: [Address] -> StackSettings
quick a = (Tcp.defaultSettings a) {stackConfig = defaultConfig {timeWaitTime = secs 1, minRto = millis 50}, stackPolicy = Policy "all" (\_ _ -> Remember) Nothing}

addressA, addressB, nowhere :: Address
addressA = fromJust (parseAddress "10.0.0.1")
addressB = fromJust (parseAddress "10.0.0.2")
nowhere = fromJust (parseAddress "10.0.0.9")

cases :: [(String, Int -> Bool, Net -> Assertion)]
cases =
  [ ("echo, 4 MB", const False, echoes 4000000),
    ("echo over a link that loses every 17th packet", \n -> n `mod` 17 == 16, echoes 1000000),
    ("a GHC thread and a hybrid thread", const False, mixed),
    ("2,000 connections at once, without kernel threads for them", const False, many),
    ("several threads accept", const False, acceptors),
    ("killed in accept", const False, killed acceptCase),
    ("killed in recv", const False, killed recvCase),
    ("killed in recv with a deadline", const False, killed deadlineCase),
    ("killed in sendAll", const False, killed sendCase),
    ("killed in connect", const False, killedConnecting),
    ("a kill and the data at the same moment", const False, killRaces),
    ("closing wakes threads that receive, send and accept", const False, closing),
    ("a reset wakes threads that receive and send", const False, resets),
    ("a refused connection, and one that takes too long", const False, refused),
    ("data that is available is received even after the deadline", const False, deadlines),
    ("a sendAll that is cut off after a part makes all further sends fail", const False, cutOffs),
    ("half-close", const False, halfClose),
    ("stopping the scheduler runs the handlers of waiting threads", const False, ends),
    ("a listener that is closed resets connections that were being opened", const False, closedListener),
    ("GHC's threads cannot wait on a connection that was handed over", const False, handedOver)
  ]

-- | During an action, accept connections, and serve each in its own thread.
serving :: Net -> (Socket -> Hybrid ()) -> (Word16 -> Hybrid a) -> IO a
serving net serve act = do
  l <- listen (theirs net) Nothing 0
  r <- runIn (scheduler net) $ do
    t <- forkThread . forever $ accept l >>= \s -> fork (serve s `finally` close s)
    act (listenerPort l) `finally` killThread t
  r <$ closeListener l

connectTo :: Net -> Word16 -> Hybrid Socket
connectTo net = connect (ours net) noDeadline addressB

-- | A connection and its other end.
pair :: Net -> Hybrid (Socket, Socket)
pair net = do
  l <- nonBlocking (listen (theirs net) Nothing 0)
  c <- connectTo net (listenerPort l)
  s <- accept l
  nonBlocking (closeListener l)
  pure (c, s)

echo :: Socket -> Hybrid ()
echo s = recv s 65536 >>= \b -> unless (B.null b) (sendAll s b >> echo s)

receiveAll :: Socket -> Hybrid B.ByteString
receiveAll s = go []
  where
    go acc = recv s 100000 >>= \b -> if B.null b then pure (B.concat (reverse acc)) else go (b : acc)

receiveExactly :: Socket -> Int -> Hybrid B.ByteString
receiveExactly s n
  | n <= 0 = pure B.empty
  | otherwise = recv s n >>= \b -> if B.null b then pure b else (b <>) <$> receiveExactly s (n - B.length b)

pattern' :: Int -> B.ByteString
pattern' n = B.pack (take n (cycle [1 .. 251]))

echoes :: Int -> Net -> Assertion
echoes n net = do
  got <- serving net echo $ \port ->
    bracket (connectTo net port) close $ \c -> do
      fork (sendAll c sent >> shutdownSend c)
      receiveAll c
  assertBool "other bytes" (got == sent)
  where
    sent = pattern' n

mixed :: Net -> Assertion
mixed net = do
  l <- Tcp.listen (theirs net) Nothing 80
  answered <- GHC.newEmptyMVar
  _ <- GHC.forkIO $ do
    s <- Tcp.accept l
    b <- Tcp.recv s noDeadline 100
    Tcp.send s noDeadline (B.reverse b)
    Tcp.close s
    GHC.putMVar answered ()
  got <- runIn (scheduler net) . bracket (connectTo net 80) close $ \c -> sendAll c (C.pack "abc") >> receiveAll c
  GHC.takeMVar answered
  got @?= C.pack "cba"
  Tcp.closeListening (theirs net) l

many :: Net -> Assertion
many net = do
  before <- tasks
  right <- newIORef (0 :: Int)
  open <- newIORef (0 :: Int)
  during <- serving net echo $ \port -> do
    allOpen <- newEmptyMVar
    threads <- forM [1 .. count] $ \i -> forkThread . bracket (connectTo net port) close $ \c -> do
      let line = C.pack (show i ++ "\n")
          exchange = do
            sendAll c line
            got <- receiveExactly c (B.length line)
            when (got == line) (add right)
      exchange
      n <- nonBlocking (atomicModifyIORef' open (\n -> (n + 1, n + 1)))
      when (n == count) (putMVar allOpen ())
      readMVar allOpen
      exchange
    mapM_ wait threads
    nonBlocking tasks
  n <- readIORef right
  n @?= 2 * count
  assertBool (show (before, during) ++ " threads of the kernel's") (during < before + 20)
  where
    count = 2000
    tasks = length <$> listDirectory "/proc/self/task"
    add ref = nonBlocking (atomicModifyIORef' ref (\n -> (n + 1, ())))

acceptors :: Net -> Assertion
acceptors net = do
  l <- listen (theirs net) Nothing 0
  served <- newIORef (0 :: Int)
  runIn (scheduler net) $ do
    threads <- forM [1 .. 5 :: Int] $ \_ -> forkThread . forever $ do
      s <- accept l
      nonBlocking (atomicModifyIORef' served (\n -> (n + 1, ())))
      fork (echo s `finally` close s)
    clients <- forM [1 .. 100 :: Int] $ \_ -> forkThread . bracket (connectTo net (listenerPort l)) close $ \c -> do
      sendAll c (C.pack "x")
      void (receiveExactly c 1)
    mapM_ wait clients
    mapM_ killThread threads
  readIORef served >>= (@?= 100)
  closeListener l

-- Interrupted ---------------------------------------------------------------------------

-- | A case: it prepares a connection or listener, and returns an action that waits, and a check that it still works
-- afterwards.
type Waits = Net -> Hybrid (Hybrid (), Hybrid Bool)

-- | Kill the thread at once, when it has just begun to wait, and while it waits.
killed :: Waits -> Net -> Assertion
killed c net = forM_ (replicate 20 yield <> replicate 5 (replicateM_ 3 yield) <> [pure (), sleep (milliseconds 3)]) $ \delay -> do
  cleaned <- newIORef False
  (end, fine) <- runIn (scheduler net) $ do
    (waits, check) <- c net
    t <- forkThread (waits `finally` nonBlocking (writeIORef cleaned True))
    delay
    killThread t
    end <- waitCatch t
    (,) end <$> check
  isKilled end @? show end
  fine @? "does not work any more"

isKilled :: Either E.SomeException a -> Bool
isKilled (Left e) = E.fromException e == Just E.ThreadKilled
isKilled (Right _) = False

acceptCase, recvCase, deadlineCase, sendCase :: Waits
acceptCase net = do
  l <- nonBlocking (listen (theirs net) Nothing 0)
  pure
    ( void (accept l),
      do
        c <- connectTo net (listenerPort l)
        s <- accept l
        sendAll c (C.pack "x") >> close c
        got <- receiveAll s
        close s >> nonBlocking (closeListener l)
        pure (got == C.pack "x")
    )
recvCase net = do
  (c, s) <- pair net
  pure (void (recv s 10), passes c s)
deadlineCase net = do
  (c, s) <- pair net
  pure (deadlineIn (seconds 100) >>= \d -> void (recv (withDeadline d s) 10), passes c s)
sendCase net = do
  (c, s) <- pair net
  pure
    ( sendAll c (B.replicate 10000000 0),
      do
        later <- try (sendAll c (B.pack [9]))
        shutdownSend c
        got <- receiveAll s
        close c >> close s
        -- If a part was sent, the peer would take other data for the rest.
        pure $ case later of
          Right () -> got == B.pack [9]
          Left e -> errnoOf e == Just ePIPE && not (B.null got) && B.all (== 0) got
    )

passes :: Socket -> Socket -> Hybrid Bool
passes c s = do
  sendAll c (B.pack [7])
  got <- recv s 10
  close c >> close s
  pure (got == B.pack [7])

-- | The address does not answer. After the thread is killed, the connection is gone.
killedConnecting :: Net -> Assertion
killedConnecting net = do
  forM_ [replicateM_ 3 yield, sleep (milliseconds 3)] $ \delay -> do
    end <- runIn (scheduler net) $ do
      t <- forkThread (void (connect (ours net) noDeadline nowhere 80))
      delay
      killThread t
      waitCatch t
    isKilled end @? show end
  left <- connections (ours net)
  length left @?= 0

-- | A thread that is killed either gets the data or leaves it to the next one: each byte arrives exactly once.
killRaces :: Net -> Assertion
killRaces net = do
  (sent, got) <- runIn (scheduler net) $ do
    (c, s) <- pair net
    taken <- nonBlocking (newIORef B.empty)
    forM_ [0 .. 299 :: Int] $ \i -> do
      -- The thread is masked, so that it is killed only while it waits.
      t <- forkThread . forever . mask_ $ do
        b <- recv s 1000
        nonBlocking (modifyIORef' taken (<> b))
      fork (sendAll c (B.singleton (fromIntegral i)))
      replicateM_ (i `mod` 7) yield
      killThread t
      void (waitCatch t)
    shutdownSend c
    rest <- receiveAll s
    close c >> close s
    first <- nonBlocking (readIORef taken)
    pure (B.pack (map fromIntegral [0 .. 299 :: Int]), first <> rest)
  B.sort got @?= B.sort sent

-- Closing -------------------------------------------------------------------------------

-- | The result of an operation during which something happens.
outcome :: Hybrid a -> Hybrid () -> Hybrid (Either (Maybe Errno) ())
outcome waits happens = do
  box <- nonBlocking (newIORef Nothing)
  t <- forkThread (try (void waits) >>= nonBlocking . writeIORef box . Just)
  sleep (milliseconds 3)
  happens
  wait t
  r <- nonBlocking (readIORef box)
  pure (maybe (Right ()) (either (Left . errnoOf) Right) r)

errnoOf :: IOError -> Maybe Errno
errnoOf e = Errno <$> ioe_errno e

fails :: Errno -> Either (Maybe Errno) () -> Assertion
fails expected r = case r of
  Left (Just e) | e == expected -> pure ()
  Left (Just (Errno e)) -> assertFailure ("errno " ++ show e)
  Left Nothing -> assertFailure "another error"
  Right () -> assertFailure "it ended well"

closing :: Net -> Assertion
closing net = do
  rs <- runIn (scheduler net) $ do
    (_, s) <- pair net
    a <- outcome (recv s 10) (close s)
    (c, _) <- pair net
    b <- outcome (sendAll c (B.replicate 10000000 0)) (close c)
    l <- nonBlocking (listen (theirs net) Nothing 0)
    d <- outcome (accept l) (nonBlocking (closeListener l))
    -- The results of operations after closing.
    e <- outcome (recv s 10) (pure ())
    f <- outcome (accept l) (pure ())
    pure [a, b, d, e, f]
  mapM_ (fails eBADF) rs

resets :: Net -> Assertion
resets net = do
  (a, b, c) <- runIn (scheduler net) $ do
    (c1, s1) <- pair net
    a <- outcome (recv s1 10) (abort c1)
    (c2, s2) <- pair net
    b <- outcome (sendAll c2 (B.replicate 10000000 0)) (abort s2)
    c <- outcome (recv c2 10) (pure ())
    mapM_ close [s1, c2]
    pure (a, b, c)
  fails eCONNRESET a
  fails eCONNRESET b
  fails eCONNRESET c

refused :: Net -> Assertion
refused net = do
  (a, b) <- runIn (scheduler net) $ do
    a <- outcome (connectTo net 4444) (pure ())
    limit <- deadlineIn (milliseconds 30)
    b <- try (connect (ours net) limit nowhere 80)
    pure (a, b)
  fails eCONNREFUSED a
  case b of
    Left e -> assertBool (show e) (isTimeout e)
    Right _ -> assertFailure "connected"
  left <- connections (ours net)
  length left @?= 0

deadlines :: Net -> Assertion
deadlines net = do
  (late, got) <- runIn (scheduler net) $ do
    (c, s) <- pair net
    soon <- deadlineIn (milliseconds 20)
    late <- try (recv (withDeadline soon s) 10)
    sendAll c (C.pack "abc")
    sleep (milliseconds 20)
    -- The deadline has passed, but the data is available.
    got <- recv (withDeadline soon s) 10
    close c >> close s
    pure (late, got)
  got @?= C.pack "abc"
  case late of
    Left e -> assertBool (show e) (isTimeout e)
    Right b -> assertFailure ("received " ++ show b)

-- | A deadline that passes before a part was sent changes nothing; one that passes after a part ends sending.
cutOffs :: Net -> Assertion
cutOffs net = do
  (first, second, third, fourth, got) <- runIn (scheduler net) $ do
    (c, s) <- pair net
    let large = B.replicate 10000000 1
        within t act = deadlineIn (milliseconds t) >>= \d -> try (act (withDeadline d c))
        limited = within 20
        -- For a whole second the buffers have taken nothing: they are full, and not only slow.
        fill n = within 1000 (`send` large) >>= either (\e -> pure (n, e)) (fill . (n +))
    -- 'send' leaves the rest to its caller.
    (filled, first) <- fill 0
    second <- limited (`sendAll` B.singleton 2)
    fork (sendAll c (B.singleton 3))
    got <- receiveExactly s (filled + 1)
    third <- limited (`sendAll` large)
    fourth <- try (send c (B.singleton 4))
    close c >> close s
    pure (first, second, third, fourth, got)
  assertBool (show first) (isTimeout first)
  forM_ [second, third] (either (\e -> assertBool (show e) (isTimeout e)) (const (assertFailure "sent")))
  B.drop (B.length got - 1) got @?= B.singleton 3
  B.notElem 2 got @?= True
  fails ePIPE (either (Left . errnoOf) (const (Right ())) fourth)
  either ioe_description show fourth @?= "an earlier send was cut off after a part: this connection can send nothing more"

halfClose :: Net -> Assertion
halfClose net = do
  (got, back, after') <- runIn (scheduler net) $ do
    (c, s) <- pair net
    sendAll c (C.pack "request")
    shutdownSend c
    got <- receiveAll s
    sendAll s (C.pack "response") >> shutdownSend s
    back <- receiveAll c
    after' <- outcome (sendAll c (C.pack "more")) (pure ())
    close c >> close s
    pure (got, back, after')
  (got, back) @?= (C.pack "request", C.pack "response")
  fails ePIPE after'

-- The end -----------------------------------------------------------------------------------

-- | Stop a scheduler on which 50 threads wait, half of them with a thread handle. All their 'finally' handlers must
-- run.
ends :: Net -> Assertion
ends net = do
  cleaned <- newIORef (0 :: Int)
  s <- startScheduler defaultSettings {settingsLoops = Just 2, settingsOnException = \_ _ -> pure ()}
  l <- listen (theirs net) Nothing 0
  begun <- newIORef (0 :: Int)
  let handler = nonBlocking (atomicModifyIORef' cleaned (\n -> (n + 1, ())))
      waits c = (nonBlocking (atomicModifyIORef' begun (\n -> (n + 1, ()))) >> recv c 10) `finally` (handler >> close c)
  _ <- forkFromIn s . forM_ [1 .. 50 :: Int] $ \i -> do
    c <- connectTo net (listenerPort l)
    if even i then fork (void (waits c)) else void (forkThread (void (waits c)))
  let settled = readIORef begun >>= \n -> unless (n == 50) (threadDelay 1000 >> settled)
  settled
  stopScheduler s
  readIORef cleaned >>= (@?= 50)
  closeListener l

-- | The listener is closed after a connection to it was opened, and before it was accepted.
closedListener :: Net -> Assertion
closedListener net = do
  l <- listen (theirs net) Nothing 0
  r <- runIn (scheduler net) $ do
    c <- connectTo net (listenerPort l)
    -- The connection is open, but has not been accepted.
    nonBlocking (closeListener l)
    outcome (recv c 10) (pure ()) <* close c
  fails eCONNRESET r
  let gone = connections (theirs net) >>= \left -> unless (null left) (threadDelay 1000 >> gone)
  gone

handedOver :: Net -> Assertion
handedOver net = do
  l <- Tcp.listen (theirs net) Nothing 8081
  client <- Tcp.connect (ours net) noDeadline addressB 8081
  _ <- runIn (scheduler net) (nonBlocking (fromTcp client))
  r <- tryIOError (Tcp.recv client noDeadline 10)
  either (const (pure ())) (const (assertFailure "it waited")) r
  again <- tryIOError (fromTcp client)
  either (const (pure ())) (const (assertFailure "handed over twice")) again
  Tcp.close client
  Tcp.closeListening (theirs net) l
