-- |
-- "Weft.Hybrid.Datagram": that many datagrams by one call are those that were sent, between both kinds of threads, and
-- that none is lost by an interruption, a deadline or a close. The first functions are the example of its
-- documentation, word for word.
module Spec.Datagrams
  ( tests,
  )
where

import qualified Control.Concurrent as GHC
import qualified Control.Exception as E
import Control.Monad (forM, forM_, forever, replicateM, replicateM_, unless, void, when)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import Data.IORef
import Data.List (sort)
import Foreign.C.Error (Errno (..), eBADF, eCONNREFUSED, eMSGSIZE)
import GHC.IO.Exception (IOException (ioe_errno))
import Support
import System.Directory (getTemporaryDirectory, removeFile)
import System.Posix.Process (getProcessID)
import Test.Tasty
import Test.Tasty.HUnit
import qualified Weft.Datagram as GHC (newReceiver, receiveDatagrams, sendDatagrams, sendDatagramsTo)
import qualified Weft.Deadline as GHC (deadlineIn)
import Weft.Hybrid
import Weft.Hybrid.Datagram
import qualified Weft.Socket as Weft
import Weft.Test.Skip (skip)
import qualified Weft.Test.Skip as Skip

answering :: (ByteString -> ByteString) -> Socket -> Hybrid ()
answering answer sock = do
  receiver <- newReceiver defaultReceiverSettings sock
  forever $ do
    queries <- receiveDatagrams receiver noDeadline
    sendDatagramsTo sock noDeadline [(datagramPeer q, answer (datagramBytes q)) | q <- queries]

tests :: IO Scheduler -> TestTree
tests scheduler =
  testGroup "datagrams" $
    [ testGroup
        ("offload " <> show offload)
        [ test "10,000 of several sizes, from a GHC thread to a hybrid thread and back" $ \s -> withBound v4 $ \here -> do
            there <- bound v4
            name <- Weft.getSocketName there
            echoes <- background (runIn s (fromSocket there >>= echo offload (length numbered)))
            receiver <- GHC.newReceiver settings {receiverOffload = offload} here
            forM_ (chunksOf 50 numbered) $ \some -> do
              deadline <- generous
              GHC.sendDatagramsTo here deadline [(name, bytes) | bytes <- some]
              got <- exactly (generous >>= GHC.receiveDatagrams receiver) (length some)
              map datagramBytes got @?= some
              map datagramPeer got @?= map (const name) some
            echoes,
          test "of all sizes from two senders, by IPv4 and IPv6, in order, with their addresses" $ \s -> forM_ [v4, v6] $ \local ->
            hybridly s (replicate 3 (bound local)) $ \sockets -> case sockets of
              [(to, target), one, other] -> do
                receiver <- newReceiver settings {receiverLargest = 3000, receiverOffload = offload} to
                forM_ [one, other] $ \(from, name) -> do
                  deadline <- deadlineIn patience
                  sendDatagramsTo from deadline [(target, bytes) | bytes <- mixed]
                  got <- receiving receiver (length mixed)
                  nonBlocking (got @?= [Datagram name bytes False | bytes <- mixed])
              _ -> pure (),
          test "longer ones are truncated, and say so" $ \s -> connected s v4 $ \from to -> do
            receiver <- newReceiver settings {receiverLargest = 10, receiverOffload = offload} to
            deadline <- deadlineIn patience
            sendDatagrams from deadline (map (`C.replicate` 'x') [9, 10, 11, 11, 11, 1000])
            got <- receiving receiver 6
            nonBlocking $ do
              map (B.length . datagramBytes) got @?= [9, 10, 10, 10, 10, 10]
              map datagramTruncated got @?= [False, False, True, True, True, True]
        ]
      | offload <- [False, True]
    ]
      <> [ test "the example of the documentation" $ \s -> withBound v4 $ \here -> do
             there <- bound v4
             Weft.getSocketName there >>= Weft.connect here
             receiver <- GHC.newReceiver settings here
             runIn s $ do
               sock <- fromSocket there
               server <- forkThread (answering (B.map (+ 1)) sock)
               onGhcThread $ do
                 deadline <- generous
                 GHC.sendDatagrams here deadline (map C.pack ["abc", "HAL"])
                 got <- exactly (GHC.receiveDatagrams receiver deadline) 2
                 map datagramBytes got @?= map C.pack ["bcd", "IBM"]
               killThread server
               close sock,
           Skip.testCase "the kernel cuts and joins" . finishes "cutting" $
             scheduler >>= \s -> do
               counted <- newIORef 0
               connected s v4 $ \from to -> do
                 receiver <- newReceiver settings {receiverMost = 1, receiverOffload = True} to
                 deadline <- deadlineIn patience
                 sendDatagrams from deadline (replicate 50 (C.replicate 100 'a'))
                 receiveDatagrams receiver deadline >>= nonBlocking . writeIORef counted . length
               count <- readIORef counted
               when (count == 1) (skip "this kernel does neither")
               count @?= 50,
           test "no more than was asked for comes by a call" $ \s -> connected s v4 $ \from to -> do
             receiver <- newReceiver settings {receiverMost = 3} to
             deadline <- deadlineIn patience
             sendDatagrams from deadline (replicate 10 (C.pack "a"))
             counts <- replicateM 4 (length <$> receiveDatagrams receiver deadline)
             nonBlocking (counts @?= [3, 3, 3, 1])
             nothing receiver,
           test "Unix datagrams stay apart, and a full queue is waited for" $ \s -> pairOf s $ \a b -> do
             receiver <- newReceiver settings {receiverOffload = True} b
             deadline <- deadlineIn patience
             sender <- forkThread (sendDatagrams a deadline (take 3000 numbered))
             got <- receiving receiver 3000
             wait sender
             nonBlocking (map datagramBytes got @?= take 3000 numbered),
           test "to the addresses of Unix sockets" $ \s -> addressed s $ \from (to, name) -> do
             receiver <- newReceiver settings to
             deadline <- deadlineIn patience
             sender <- forkThread (sendDatagramsTo from deadline [(name, bytes) | bytes <- take 2000 numbered])
             got <- receiving receiver 2000
             wait sender
             nonBlocking (got @?= [Datagram (SockAddrUnix "") bytes False | bytes <- take 2000 numbered]),
           test "a deadline of a receive: nothing came, something came, and both at once" $ \s -> connected s v4 $ \from to -> do
             receiver <- newReceiver settings to
             nothing receiver
             deadline <- deadlineIn patience
             fork (sleep (milliseconds 3) >> sendDatagrams from deadline [C.pack "x"])
             got <- receiveDatagrams receiver deadline
             nonBlocking (map datagramBytes got @?= [C.pack "x"])
             -- In time, and looked for only after that.
             past <- deadlineIn mempty
             sendDatagrams from deadline [C.pack "y"]
             late <- receiveDatagrams receiver past
             nonBlocking (map datagramBytes late @?= [C.pack "y"])
             forM_ [1 .. times 50] $ \i -> do
               brief <- deadlineIn (microseconds 200)
               fork (sleep (microseconds 200) >> sendDatagrams from deadline [C.pack (show i)])
               r <- try (receiveDatagrams receiver brief)
               came <- case r of
                 Left e -> nonBlocking (isTimeout e @? show e) >> receiveDatagrams receiver deadline
                 Right these -> pure these
               nonBlocking (map datagramBytes came @?= [C.pack (show i)]),
           test "a deadline of a send that finds no room: those before it were sent" $ \s -> do
             let sent sending receiver = do
                   brief <- deadlineIn (milliseconds 20)
                   r <- try (sending brief)
                   nonBlocking (either (\e -> isTimeout e @? show e) (const (assertFailure "there was room for all")) r)
                   got <- map datagramBytes <$> rest receiver
                   nonBlocking (not (null got) @? "none was sent")
                   nonBlocking (got @?= take (length got) numbered)
             pairOf s $ \a b -> newReceiver settings b >>= sent (\d -> sendDatagrams a d numbered)
             addressed s $ \from (to, name) ->
               newReceiver settings to >>= sent (\d -> sendDatagramsTo from d [(name, bytes) | bytes <- numbered]),
           test "a deadline that has passed ends a send between two calls" $ \s -> connected s v4 $ \from to -> do
             receiver <- newReceiver settings to
             past <- deadlineIn mempty
             -- Each is longer than the one before, so none is joined.
             r <- try (sendDatagrams from past (map (`B.replicate` 7) [1 .. 200]))
             nonBlocking (either (\e -> isTimeout e @? show e) (const (assertFailure "sent")) r)
             got <- rest receiver
             nonBlocking (map (B.length . datagramBytes) got @?= [1 .. 64]),
           test "a time limit interrupts a receive, which has then received nothing" $ \s -> connected s v4 $ \from to -> do
             receiver <- newReceiver settings to
             deadline <- deadlineIn patience
             none <- within (milliseconds 3) (receiveDatagrams receiver noDeadline)
             nonBlocking (none @?= Nothing)
             soon <- deadlineIn (milliseconds 3)
             r <- try (inTime soon (receiveDatagrams receiver noDeadline))
             nonBlocking (either (\e -> isTimeout e @? show e) (assertFailure . show) r)
             sendDatagrams from deadline [C.pack "a", C.pack "b"]
             got <- receiving receiver 2
             nonBlocking (map datagramBytes got @?= map C.pack ["a", "b"]),
           test "receives that are killed again and again lose nothing" $ \s -> withBound v4 $ \from -> do
             to <- bound v4
             Weft.getSocketName to >>= Weft.connect from
             came <- newIORef []
             over <- newIORef False
             receivers <- background . runIn s $ do
               sock <- fromSocket to
               receiver <- newReceiver settings sock
               let store got = nonBlocking (modifyIORef' came (reverse (map datagramBytes got) <>))
                   go i = do
                     -- Masked: what was received is stored, and it is killed only where it waits.
                     t <- forkThread (forever (mask_ (receiveDatagrams receiver noDeadline >>= store)))
                     if i `mod` 5 == 0 then sleep (microseconds 100) else replicateM_ (i `mod` 5) yield
                     killThread t
                     end <- waitCatch t
                     nonBlocking (isKilled end @? show end)
                     ends <- nonBlocking (readIORef over)
                     unless ends (go (i + 1 :: Int))
               go 0 `finally` close sock
             forM_ (zip [1 ..] (chunksOf 20 (take 1000 numbered))) $ \(i, some) -> do
               deadline <- generous
               GHC.sendDatagrams from deadline some
               eventually "all of them" ((>= 20 * i) . length <$> readIORef came)
             writeIORef over True
             receivers
             got <- readIORef came
             reverse got @?= take 1000 numbered,
           test "several threads receive from one socket: each datagram comes once" $ \s -> withBound v4 $ \from -> do
             to <- bound v4
             Weft.getSocketName to >>= Weft.connect from
             came <- newIORef []
             runIn s $ do
               sock <- fromSocket to
               ts <- replicateM 4 . forkThread $ do
                 receiver <- newReceiver settings {receiverMost = 2} sock
                 forever $ do
                   got <- receiveDatagrams receiver noDeadline
                   nonBlocking (atomicModifyIORef' came (\before -> (map datagramBytes got <> before, ())))
               onGhcThread . forM_ (zip [1 ..] (chunksOf 30 (take 600 numbered))) $ \(i, some) -> do
                 deadline <- generous
                 GHC.sendDatagrams from deadline some
                 eventually "all of them" ((>= 30 * i) . length <$> readIORef came)
               mapM_ killThread ts
               close sock
             got <- readIORef came
             sort got @?= sort (take 600 numbered),
           test "closed while threads wait, and before" $ \s -> pairOf s $ \a b -> do
             -- Nothing is sent to it, and it has no room, if a thread runs at all in that time.
             brief <- deadlineIn (milliseconds 300)
             void (try (sendDatagrams a brief (replicate 3000 (C.pack "ab"))) :: Hybrid (Either IOException ()))
             receivers <- replicateM 5 (newReceiver settings a)
             boxes <- forM (sendDatagrams a noDeadline [C.pack "ab"] : map (void . (`receiveDatagrams` noDeadline)) receivers) $ \act -> do
               box <- newEmptyMVar
               fork (try act >>= putMVar box)
               pure box
             sleep (milliseconds 3)
             close a
             forM_ boxes $ \box -> takeMVar box >>= failed "waiting" eBADF
             forM_ receivers $ \receiver -> try (receiveDatagrams receiver noDeadline) >>= failed "receiving" eBADF
             try (newReceiver settings {receiverOffload = True} a) >>= failed "asking for offload" eBADF
             forM_ [1, 2] $ \n -> try (sendDatagrams a noDeadline (replicate n (C.pack "ab"))) >>= failed "sending" eBADF
             close b,
           test "closing races with a receive" $ \s -> forM_ [1 .. times 50] $ \i -> connected s v4 $ \_ to -> do
             receiver <- newReceiver settings to
             box <- newEmptyMVar
             fork (replicateM_ (i `mod` 5) yield >> try (receiveDatagrams receiver noDeadline) >>= putMVar box)
             fork (replicateM_ (i `mod` 3) yield >> close to)
             takeMVar box >>= failed "receiving" eBADF,
           test "a send to the address of a full Unix socket notices that its own was closed" $ \s -> addressed s $ \from (_, name) -> do
             box <- newEmptyMVar
             fork (try (sendDatagramsTo from noDeadline [(name, bytes) | bytes <- numbered]) >>= putMVar box)
             sleep (milliseconds 5)
             close from
             takeMVar box >>= failed "sending" eBADF,
           test "a peer that is gone: the error of the network, also for a thread that waits" $ \s -> forM_ [v4, v6] $ \local -> do
             from <- bound local
             gone <- withBound local Weft.getSocketName
             Weft.connect from gone
             runIn s $ do
               sock <- fromSocket from
               receiver <- newReceiver settings sock
               deadline <- deadlineIn patience
               forM_ [milliseconds 3, mempty] $ \d -> do
                 box <- newEmptyMVar
                 fork (try (receiveDatagrams receiver deadline) >>= putMVar box)
                 sleep d
                 sendDatagrams sock deadline [C.pack "a"]
                 takeMVar box >>= failed "receiving" eCONNREFUSED
               close sock,
           test "one that is too long is an error, and those before it are sent" $ \s -> connected s v4 $ \from to -> do
             receiver <- newReceiver settings to
             deadline <- deadlineIn patience
             try (sendDatagrams from deadline [C.pack "a", C.pack "bc", B.replicate 70000 1, C.pack "d"]) >>= failed "sending" eMSGSIZE
             got <- receiving receiver 2
             nonBlocking (map datagramBytes got @?= map C.pack ["a", "bc"])
             nothing receiver,
           test "an argument that fails is the thread's exception, and the socket goes on" $ \s ->
             hybridly s [bound v4, bound v4] $ \sockets -> case sockets of
               [(to, target), (from, _)] -> do
                 receiver <- newReceiver settings to
                 deadline <- deadlineIn patience
                 let ok = (target, C.pack "a")
                 forM_ [[ok, (target, E.throw Oops)], [(E.throw Oops, C.pack "b"), ok], [ok, E.throw Oops], ok : E.throw Oops] $ \datagrams -> do
                   r <- try (sendDatagramsTo from deadline datagrams)
                   nonBlocking (r @?= Left Oops)
                 r <- try (sendDatagramsTo from deadline [ok, (SockAddrUnix (replicate 200 'x'), C.pack "b")])
                 nonBlocking (either (const (pure ()) :: E.SomeException -> IO ()) (const (assertFailure "sent")) r)
                 sendDatagramsTo from deadline [ok]
                 sendDatagramsTo from deadline []
                 got <- receiving receiver 1
                 nonBlocking (map datagramBytes got @?= [C.pack "a"])
                 nothing receiver
               _ -> pure ()
         ]
  where
    test name act = testCase name (finishes name (scheduler >>= act))
    settings = defaultReceiverSettings

-- | Send back what comes, until it is that many.
echo :: Bool -> Int -> Socket -> Hybrid ()
echo offload count sock = do
  receiver <- newReceiver defaultReceiverSettings {receiverOffload = offload} sock
  let go n = when (n > 0) $ do
        deadline <- deadlineIn patience
        got <- receiveDatagrams receiver deadline
        sendDatagramsTo sock deadline [(datagramPeer d, datagramBytes d) | d <- got]
        go (n - length got)
  go count `finally` close sock

-- What is sent ---------------------------------------------------------------------------

-- | 10,000 different datagrams, in runs of one size and not.
numbered :: [ByteString]
numbered = [B.take (size i) (C.pack (show i) <> B.drop (i `mod` 251) bytes) | i <- [0 .. 9999]]
  where
    bytes = B.concat (replicate 8 (B.pack [0 .. 250]))
    size i = case (i `div` 7) `mod` 4 of
      0 -> 100
      1 -> 8 + (i * 97) `mod` 1393
      2 -> 1400
      _ -> 5 + i `mod` 3

-- | 150 datagrams, in runs and not, some of them empty.
mixed :: [ByteString]
mixed = [C.replicate (size n) (toEnum (97 + n `mod` 26)) | n <- [0 .. 149]]
  where
    size n
      | n < 50 = (n * 97) `mod` 1400
      | n < 100 = 700
      | otherwise = n `mod` 3

chunksOf :: Int -> [a] -> [[a]]
chunksOf n xs = case splitAt n xs of
  ([], _) -> []
  (some, more) -> some : chunksOf n more

-- Sockets ----------------------------------------------------------------------------------

v4, v6 :: SockAddr
v4 = SockAddrInet 0 (Weft.tupleToHostAddress (127, 0, 0, 1))
v6 = SockAddrInet6 0 0 (0, 0, 0, 1) 0

bound :: SockAddr -> IO Weft.Socket
bound address = do
  s <- Weft.socket family Weft.Datagram Weft.defaultProtocol
  s <$ Weft.bind s address
  where
    family = case address of
      SockAddrInet6 {} -> Weft.AF_INET6
      SockAddrUnix _ -> Weft.AF_UNIX
      _ -> Weft.AF_INET

withBound :: SockAddr -> (Weft.Socket -> IO a) -> IO a
withBound address = E.bracket (bound address) Weft.close

-- | A hybrid thread with sockets, and their names.
hybridly :: Scheduler -> [IO Weft.Socket] -> ([(Socket, SockAddr)] -> Hybrid a) -> IO a
hybridly s make act = do
  made <- sequence make
  names <- mapM Weft.getSocketName made
  runIn s $ do
    sockets <- mapM fromSocket made
    act (zip sockets names) `finally` mapM_ close sockets

-- | A hybrid thread with a socket that is connected to the other one.
connected :: Scheduler -> SockAddr -> (Socket -> Socket -> Hybrid a) -> IO a
connected s local act = do
  to <- bound local
  from <- bound local
  Weft.getSocketName to >>= Weft.connect from
  runIn s $ do
    (from', to') <- (,) <$> fromSocket from <*> fromSocket to
    act from' to' `finally` (close from' >> close to')

-- | A hybrid thread with a pair of Unix sockets.
pairOf :: Scheduler -> (Socket -> Socket -> Hybrid a) -> IO a
pairOf s act = do
  (a, b) <- Weft.socketPair Weft.AF_UNIX Weft.Datagram Weft.defaultProtocol
  runIn s $ do
    (a', b') <- (,) <$> fromSocket a <*> fromSocket b
    act a' b' `finally` (close a' >> close b')

-- | A hybrid thread with a Unix socket that is not connected, and one that has a name.
addressed :: Scheduler -> (Socket -> (Socket, SockAddr) -> Hybrid a) -> IO a
addressed s act = do
  folder <- getTemporaryDirectory
  me <- getProcessID
  let path = folder <> "/weft-hybrid-datagrams-" <> show me
  flip E.finally (removeFile path) $ do
    to <- bound (SockAddrUnix path)
    from <- Weft.socket Weft.AF_UNIX Weft.Datagram Weft.defaultProtocol
    runIn s $ do
      (from', to') <- (,) <$> fromSocket from <*> fromSocket to
      act from' (to', SockAddrUnix path) `finally` (close from' >> close to')

-- Waiting ----------------------------------------------------------------------------------

patience :: Duration
patience = seconds 50

generous :: IO Instant
generous = GHC.deadlineIn patience

-- | Run an action in a GHC thread. The result waits for it.
background :: IO a -> IO (IO a)
background act = do
  box <- GHC.newEmptyMVar
  void (GHC.forkIO (E.try act >>= GHC.putMVar box))
  pure (GHC.readMVar box >>= either (\e -> E.throwIO (e :: E.SomeException)) pure)

-- | Repeat a receive until that many have come, and no more.
exactly :: MonadFail m => m [Datagram] -> Int -> m [Datagram]
exactly receive n
  | n == 0 = pure []
  | n < 0 = fail "more than were sent"
  | otherwise = do
    got <- receive
    when (null got) (fail "a receive of nothing")
    (got <>) <$> exactly receive (n - length got)

receiving :: Receiver -> Int -> Hybrid [Datagram]
receiving receiver = exactly (deadlineIn patience >>= receiveDatagrams receiver)

-- | What is there.
rest :: Receiver -> Hybrid [Datagram]
rest receiver = do
  past <- deadlineIn mempty
  r <- try (receiveDatagrams receiver past)
  case r of
    Left e -> [] <$ nonBlocking (isTimeout e @? show e)
    Right got -> (got <>) <$> rest receiver

-- | Nothing comes.
nothing :: Receiver -> Hybrid ()
nothing receiver = do
  soon <- deadlineIn (milliseconds 10)
  r <- try (receiveDatagrams receiver soon)
  nonBlocking (either (\e -> isTimeout e @? show e) (assertFailure . show) r)

failed :: String -> Errno -> Either IOException a -> Hybrid ()
failed what wanted r = nonBlocking $ case r of
  Left e -> (fmap Errno (ioe_errno e) == Just wanted) @? (what <> ": " <> show e)
  Right _ -> assertFailure (what <> " succeeded")
