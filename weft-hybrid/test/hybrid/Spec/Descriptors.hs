-- |
-- Sockets and other descriptors: data, deadlines, closing; one server in both worlds.
module Spec.Descriptors
  ( tests,
  )
where

import qualified Control.Exception as E
import Control.Monad (forM, forM_, forever, replicateM, replicateM_, unless, void)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import Data.List (sort)
import Foreign.C.Error (Errno (..), eBADF, eCONNREFUSED, eINVAL)
import GHC.Clock (getMonotonicTime)
import GHC.IO.Exception (IOException (ioe_errno))
import Support
import System.Directory (listDirectory)
import System.Posix.IO (FdOption (NonBlockingRead), closeFd, createPipe, fdWrite, setFdOption)
import System.Posix.Terminal (openPseudoTerminal)
import System.Posix.Types (Fd (..))
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Hybrid
import qualified Weft.Hybrid.Class as Both
import qualified Weft.Socket as Weft
import qualified Weft.Socket.ByteString as Weft (sendAll, sendNow)
import Weft.Test.Descriptors (openCount)
import Weft.Test.Skip (skip)
import qualified Weft.Test.Skip as Skip

tests :: IO Scheduler -> TestTree
tests scheduler =
  testGroup
    "descriptors"
    [ test "echo: many connections, more bytes than buffers hold" $ \s -> leavesNothing s . runIn s $ do
        (l, addr) <- listening
        server <- forkThread (forever (accept l >>= \(c, _) -> fork (echo c)))
        clients <- forM [1 .. times 40] $ \i -> do
          box <- newEmptyMVar
          fork (client addr (1000 * (i `mod` 40) ^ (2 :: Int)) >>= putMVar box)
          pure box
        oks <- mapM takeMVar clients
        killThread server
        close l
        nonBlocking (and oks @? "bytes differ"),
      test "a deadline: in time, and not" $ \s -> runIn s $ do
        (a, b) <- pair
        soon <- deadlineIn (milliseconds 5)
        r <- try (recv (withDeadline soon a) 10)
        nonBlocking (either isTimeout (const False) r @? "no timeout")
        later <- deadlineIn (seconds 50)
        fork (sleep (milliseconds 3) >> sendAll b (C.pack "x"))
        x <- recv (withDeadline later a) 10
        nonBlocking (x @?= C.pack "x")
        replicateM_ 50 $ do
          brief <- deadlineIn (microseconds 200)
          fork (sleep (microseconds 200) >> sendAll b (C.pack "y"))
          got <- try (recv (withDeadline brief a) 1)
          case got of
            Right y -> nonBlocking (y @?= C.pack "y")
            Left e | isTimeout e -> recv a 1 >>= \y -> nonBlocking (y @?= C.pack "y")
            Left e -> throwM e
        close a >> close b,
      test "another process has cleared O_NONBLOCK: recv and send wait all the same" $ \s -> do
        (a, b) <- Weft.socketPair Weft.AF_UNIX Weft.Stream 0
        let fill = Weft.sendNow a (B.replicate 65536 1) >>= \r -> unless (r == Right 0) (either (assertFailure . show) (const fill) r)
        fill
        Weft.withFdSocket a (\fd -> setFdOption (Fd fd) NonBlockingRead False)
        runIn s $ do
          taken <- fromSocket a
          forM_ [\c -> void (recv c 10), \c -> void (send c (B.replicate 65536 1))] $ \act -> do
            soon <- deadlineIn (milliseconds 5)
            r <- try (act (withDeadline soon taken))
            nonBlocking (either isTimeout (const False) r @? "no timeout")
          close taken
        Weft.close b,
      test "a socket that keeps messages apart: behind a short one there may be another" $ \s ->
        Weft.socketPair Weft.AF_UNIX Weft.SeqPacket 0 >>= twoMessages s,
      Skip.testCase "a stream of SCTP: behind a short message there may be another" $
        streamOfSctp >>= either (\e -> skip ("no SCTP: " <> show e)) (\sockets -> finishes "the messages" (scheduler >>= (`twoMessages` sockets))),
      test "closed while threads wait, and before" $ \s -> runIn s $ do
        (a, b) <- pair
        boxes <- replicateM 5 $ do
          box <- newEmptyMVar
          fork (try (recv a 10) >>= putMVar box)
          pure box
        sleep (milliseconds 3)
        close a
        rs <- mapM takeMVar boxes
        nonBlocking (forM_ rs (isBad >=>? "waiter"))
        r <- try (recv a 10)
        nonBlocking (isBad r @? "afterwards")
        r' <- try (void (send a (C.pack "x")))
        nonBlocking (isBad r' @? "send")
        close b,
      test "closing races with waiting" $ \s -> forM_ [1 .. times 50] $ \i -> runIn s $ do
        (a, b) <- pair
        box <- newEmptyMVar
        fork (replicateM_ (i `mod` 5) yield >> try (recv a 10) >>= putMVar box)
        fork (replicateM_ (i `mod` 3) yield >> close a)
        r <- takeMVar box
        nonBlocking (isBad r @? "recv")
        close b,
      test "the peer goes" $ \s -> runIn s $ do
        (a, b) <- pair
        sendAll b (C.pack "last words")
        close b
        x <- recv a 4
        y <- recv a 100
        z <- recv a 100
        nonBlocking ([x, y, z] @?= map C.pack ["last", " words", ""])
        close a,
      test "connection refused" $ \s -> runIn s $ do
        (l, addr) <- listening
        close l
        r <- try (connectTo addr)
        case r of
          Left e -> nonBlocking ((code e == Just eCONNREFUSED) @? show e)
          Right c -> close c >> nonBlocking (assertFailure "connected"),
      test "an argument that fails is the thread's exception, and the socket goes on" $ \s -> runIn s $ do
        (a, b) <- pair
        -- Attached, by a wait.
        reader <- forkThread (void (recv a 4))
        yield
        failed <- try (send a (E.throw (userError "no string")))
        nonBlocking (either (\e -> (e == userError "no string") @? show e) (const (assertFailure "sent")) failed)
        n <- send a (C.pack "good")
        got <- recv b 4
        nonBlocking ((n, got) @?= (4, C.pack "good"))
        killThread reader
        close a
        end <- recv b 4
        nonBlocking (end @?= B.empty)
        close b,
      test "an address that cannot be encoded leaves no descriptor" $ \s -> do
        before <- length <$> listDirectory "/proc/self/fd"
        replicateM_ 20 $ do
          r <- E.try (runIn s (connectTo (SockAddrUnix (replicate 200 'x')))) :: IO (Either E.SomeException Socket)
          either (const (pure ())) (const (assertFailure "connected")) r
        left <- length <$> listDirectory "/proc/self/fd"
        (left <= before + 2) @? show (left - before),
      test "several accept on one socket" $ \s -> runIn s $ do
        (l, addr) <- listening
        got <- newChannel
        ts <- replicateM 5 (forkThread (forever (accept l >>= writeChannel got . fst)))
        replicateM_ 10 (fork (connectTo addr >>= \c -> sleep (milliseconds 20) >> close c))
        conns <- replicateM 10 (readChannel got)
        mapM_ killThread ts
        mapM_ close conns
        close l,
      test "pipes: a stream through 4 KiB" $ \s -> do
        ends <- createPipe
        total <- runIn s $ do
          r <- nonBlocking (adopt (fst ends))
          w <- nonBlocking (adopt (snd ends))
          fork (replicateM_ 100 (writeBytes w (B.replicate 10007 1)) >> nonBlocking (void (closeDescriptor w)))
          let go n = readBytes r 65536 >>= \x -> if B.null x then pure n else go (n + B.length x)
          n <- go 0
          n <$ nonBlocking (closeDescriptor r)
        total @?= 1000700,
      Skip.testCase "a terminal: all lines that came at once" $ do
        ends <- either (\e -> skip ("no pseudoterminal: " <> show (e :: IOException))) pure =<< E.try openPseudoTerminal
        finishes "lines" $ scheduler >>= \s -> runIn s (linesOf ends),
      test "adopt throws EBADF for a number that is negative or not open" $ \s -> runIn s . forM_ [-1, minBound, maxBound] $ \n -> do
        r <- try (nonBlocking (adopt n))
        nonBlocking (isBad r @? show n),
      test "recv of no bytes is an error, and not the end of the stream" $ \s -> runIn s $ do
        (a, b) <- pair
        sendAll a (B.replicate 4 1)
        forM_ [0, -1] $ \n -> do
          r <- try (recv b n)
          nonBlocking (either ((@? "EINVAL") . (== Just eINVAL) . code) (assertFailure . show) r)
        recv b 10 >>= \got -> nonBlocking (B.length got @?= 4),
      test "SO_LINGER: a close holds up no other thread" $ \s -> do
        (l, addr) <- listenHere
        a <- Weft.socket Weft.AF_INET Weft.Stream 0
        Weft.connect a addr
        (b, _) <- Weft.accept l
        Weft.setSocketOption a Weft.Linger 30
        let fill = Weft.sendNow a (B.replicate 65536 1) >>= \r -> unless (r == Right 0) (either (assertFailure . show) (const fill) r)
        fill
        before <- getMonotonicTime
        runIn s (fromSocket a >>= close)
        took <- subtract before <$> getMonotonicTime
        mapM_ Weft.close [b, l]
        (took < 15) @? show took,
      test "garbage is closed" $ \s -> do
        before <- openCount
        runIn s (replicateM_ 20 pair)
        eventually "closed" (collect >> (<= before) <$> openCount),
      test "one server, both worlds" $ \s -> do
        ghc <- both
        hybrid <- runIn s both
        ghc @?= C.pack "over and over"
        hybrid @?= ghc
    ]
  where
    test name act = testCase name (finishes name (scheduler >>= act))
    isBad :: Either IOException a -> Bool
    isBad = either ((== Just eBADF) . code) (const False)
    (f >=>? what) r = f r @? what

-- | A read of a terminal returns one line, although more have come.
linesOf :: (Fd, Fd) -> Hybrid ()
linesOf (master, slave) = do
  d <- nonBlocking (adopt slave)
  waits <- newEmptyMVar
  -- It waits at the terminal before the lines come.
  fork (replicateM (length expected) (readBytes d 100) >>= putMVar waits)
  sleep (milliseconds 2)
  void (nonBlocking (fdWrite master (concatMap C.unpack expected)))
  takeMVar waits >>= \got -> nonBlocking (got @?= expected)
  nonBlocking (closeDescriptor d >> closeFd master)
  where
    expected = [C.pack (show i <> "\n") | i <- [100 .. 300 :: Int]]

-- | Each of two threads that wait gets a message, though the two come together.
twoMessages :: Scheduler -> (Weft.Socket, Weft.Socket) -> Assertion
twoMessages s (a, b) = do
  runIn s $ do
    taken <- fromSocket a
    got <- forM messages $ \_ -> do
      box <- newEmptyMVar
      fork (recv taken 100 >>= putMVar box)
      pure box
    -- They wait before the messages come.
    sleep (milliseconds 5)
    nonBlocking (mapM_ (Weft.sendAll b) messages)
    received <- mapM takeMVar got
    nonBlocking (sort received @?= messages)
    close taken
  Weft.close b
  where
    messages = map C.pack ["another", "one"]

-- | Two ends of a connection by SCTP, in the style of a stream (RFC 6458, 4), or why there is none.
streamOfSctp :: IO (Either IOException (Weft.Socket, Weft.Socket))
streamOfSctp = E.try $ do
  l <- create
  Weft.bind l (SockAddrInet 0 (Weft.tupleToHostAddress (127, 0, 0, 1)))
  Weft.listen l 1
  a <- create
  Weft.getSocketName l >>= Weft.connect a
  (b, _) <- Weft.accept l
  (a, b) <$ Weft.close l
  where
    create = Weft.socket Weft.AF_INET Weft.Stream 132

code :: IOException -> Maybe Errno
code = fmap Errno . ioe_errno

leavesNothing :: Scheduler -> IO a -> IO a
leavesNothing s act = do
  runIn s (pure ())
  before <- openCount
  a <- act
  eventually "descriptors closed" (collect >> (<= before) <$> openCount)
  pure a

pair :: Hybrid (Socket, Socket)
pair = do
  (a, b) <- nonBlocking (Weft.socketPair Weft.AF_UNIX Weft.Stream 0)
  (,) <$> fromSocket a <*> fromSocket b

listening :: Hybrid (Socket, SockAddr)
listening = do
  (l, addr) <- nonBlocking listenHere
  l' <- fromSocket l
  pure (l', addr)

listenHere :: IO (Weft.Socket, SockAddr)
listenHere = do
  l <- Weft.socket Weft.AF_INET Weft.Stream 0
  Weft.bind l (SockAddrInet 0 (Weft.tupleToHostAddress (127, 0, 0, 1)))
  Weft.listen l 4096
  (,) l <$> Weft.getSocketName l

echo :: Socket -> Hybrid ()
echo c = go `finally` close c
  where
    go = recv c 4096 >>= \x -> unless (B.null x) (sendAll c x >> go)

-- | Send this many bytes and expect them back.
client :: SockAddr -> Int -> Hybrid Bool
client addr n = bracket (connectTo addr) close $ \c -> do
  let bytes = B.take n (B.concat (replicate (n `div` 251 + 1) (B.pack [0 .. 250])))
  fork (sendAll c bytes >> shutdown c ShutdownSend)
  let go acc = recv c 65536 >>= \x -> if B.null x then pure (B.concat (reverse acc)) else go (x : acc)
  (== bytes) <$> go []

-- | A server and its client, in either world.
both :: Both.Threads m => m B.ByteString
both = do
  (l, addr) <- Both.blocking listenHere
  l' <- Both.fromSocket l
  Both.fork $ do
    (c, _) <- Both.accept l'
    let go = Both.recv c 100 >>= \x -> if B.null x then Both.close c else Both.sendAll c x >> go
    go
  c <- Both.blocking (Weft.socket Weft.AF_INET Weft.Stream 0) >>= Both.fromSocket
  Both.connect c addr
  box <- Both.newEmptyMVar
  Both.fork $ do
    let go acc = Both.recv c 100 >>= \x -> if B.null x then Both.putMVar box (B.concat (reverse acc)) else go (x : acc)
    go []
  Both.sendAll c (C.pack "over and ")
  Both.sleep (milliseconds 1)
  Both.sendAll c (C.pack "over")
  Both.shutdown c ShutdownSend
  x <- Both.takeMVar box
  Both.close c
  Both.close l'
  pure x
