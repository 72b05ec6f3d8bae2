-- |
-- "Weft.Thread" on descriptors: the meaning of waiting. The same tests run on
-- GHC's own functions, to show that they ask for what GHC does.
module Spec.Thread
  ( Api (..),
    weft,
    ghc,
    tests,
    ownTests,
  )
where

import Control.Concurrent.MVar
import Control.Exception
import Control.Monad (forM, forM_, replicateM, when, (>=>))
import qualified Data.ByteString.Char8 as C
import Data.List (sort)
import Foreign.C.Error (eBADF)
import GHC.Clock (getMonotonicTimeNSec)
import qualified GHC.Conc as G
import Harness
import System.Posix.IO (dup)
import System.Posix.Types (Fd)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Socket (Family (..), SocketType (..), close, defaultProtocol, socketPair)
import Weft.Socket.ByteString (recv, sendAll)
import Weft.Test.Descriptors
import qualified Weft.Thread as W

-- | One way to wait.
data Api = Api
  { apiName :: String,
    waitRead :: Fd -> IO (),
    waitWrite :: Fd -> IO (),
    closeWith :: (Fd -> IO ()) -> Fd -> IO ()
  }

weft, ghc :: Api
weft = Api "Weft" W.threadWaitRead W.threadWaitWrite W.closeFdWith
ghc = Api "GHC" G.threadWaitRead G.threadWaitWrite G.closeFdWith

-- | Tests of both implementations.
tests :: Api -> TestTree
tests api =
  testGroup
    ("waiting, " <> apiName api)
    (readiness api <> kinds api <> closing api <> crowds api)

test :: String -> (Fds -> IO ()) -> TestTree
test name act = testCase name (withFds (finishes name . act))

-- | Only a thread that found nothing to wait for is done.
blocks :: String -> Task a -> Assertion
blocks what task = blocked task >>= assertBool (what <> " does not block")

-- Readiness --------------------------------------------------------------------------

readiness :: Api -> [TestTree]
readiness api =
  [ test "data that is there" $ \fds -> do
      (r, w) <- pipe fds
      say w 1
      waitRead api r,
    test "data that comes later" $ \fds -> do
      (r, w) <- pipe fds
      t <- start (waitRead api r)
      blocks "reading an empty pipe" t
      say w 1
      result "wait" t,
    test "level: data left unread wakes the next call" $ \fds -> do
      (r, w) <- pipe fds
      say w 2
      waitRead api r
      readOne r
      waitRead api r
      _ <- drain r
      t <- start (waitRead api r)
      blocks "reading a drained pipe" t
      stop t,
    test "the end of the stream" $ \fds -> do
      (r, w) <- pipe fds
      t <- start (waitRead api r)
      blocks "reading an empty pipe" t
      shut fds w
      result "wait" t
      waitRead api r,
    test "room in a pipe" $ \fds -> do
      (r, w) <- pipe fds
      waitWrite api w
      fill w
      t <- start (waitWrite api w)
      blocks "writing to a full pipe" t
      _ <- drain r
      result "wait" t,
    test "a reader that went away" $ \fds -> do
      (r, w) <- pipe fds
      fill w
      t <- start (waitWrite api w)
      blocks "writing to a full pipe" t
      shut fds r
      result "wait" t,
    test "the two directions of a socket are apart" $ \fds -> do
      (a, b) <- streamPair fds
      fill a
      toRead <- start (waitRead api a)
      toWrite <- start (waitWrite api a)
      blocks "reading" toRead
      blocks "writing" toWrite
      say b 1
      result "to read" toRead
      blocks "writing still" toWrite
      _ <- drain b
      result "to write" toWrite
  ]

-- Kinds of descriptors ---------------------------------------------------------------

kinds :: Api -> [TestTree]
kinds api =
  [ test "a TCP connection, a half-close and a reset" $ \fds -> do
      (a, b) <- abruptTcpPair fds
      t <- start (waitRead api a)
      blocks "reading" t
      finishWriting b
      result "half-close" t
      _ <- drain a
      shut fds b
      waitRead api a
      waitWrite api a,
    test "a listening socket" $ \fds -> do
      (l, connect) <- listener fds
      t <- start (waitRead api l)
      blocks "listening" t
      _ <- connect
      result "connection" t,
    test "urgent data" $ \fds -> do
      (a, b) <- tcpPair fds
      t <- start (waitRead api a)
      blocks "reading" t
      sayUrgent b
      say b 1
      result "data behind it" t,
    test "datagrams" $ \fds -> do
      (a, b) <- udpPair fds
      waitWrite api a
      t <- start (waitRead api b)
      blocks "reading" t
      say a 1
      result "datagram" t,
    testCase "bad descriptors: EBADF" $
      forM_ [-1, minBound, 1000000] $ \fd -> do
        failsWith ("reading " <> show fd) eBADF (waitRead api fd)
        failsWith ("writing " <> show fd) eBADF (waitWrite api fd),
    test "a descriptor that was closed: EBADF" $ \fds -> do
      (r, w) <- pipe fds
      say w 1
      waitRead api r
      shut fds r
      failsWith "wait" eBADF (waitRead api r)
  ]

-- Closing ----------------------------------------------------------------------------

closing :: Api -> [TestTree]
closing api =
  [ test "an exception of the closing action is rethrown after the waiters were woken" $ \fds -> do
      (r, _) <- pipe fds
      t <- start (waitRead api r)
      blocks "reading" t
      e <- try (closeWith api (\fd -> shut fds fd >> throwIO (userError "not so")) r)
      e @?= Left (userError "not so")
      failsWith "waiter" eBADF (result "waiter" t),
    test "close races: closing while a wait registers (GHC 21969)" $ \fds ->
      forM_ [1 .. times 400] $ \n -> do
        (r, w) <- pipe fds
        t <- start (waitRead api r)
        when (n `mod` 3 == (0 :: Int)) G.yield
        when (n `mod` 3 == 1) (blocks "reading" t)
        finishes "closing" (closeWith api (shut fds) r)
        failsWith "waiter" eBADF (result "waiter" t)
        shut fds w,
    -- By the median, which other programs on this machine do not move much.
    test "a close is heard within 100 ms" $ \fds -> do
      delays <- replicateM 21 $ do
        (r, w) <- pipe fds
        t <- start (try (waitRead api r) >>= \e -> (,) (e :: Either IOException ()) <$> getMonotonicTimeNSec)
        blocks "reading" t
        before <- getMonotonicTimeNSec
        closeWith api (shut fds) r
        (ended, heard) <- result "waiter" t
        either (const (pure ())) (const (assertFailure "the wait has not failed")) ended
        shut fds w
        pure (heard - before)
      let middle = sort delays !! 10
      assertBool ("after " <> show middle <> " ns") (middle < 100000000)
  ]

-- Many threads -----------------------------------------------------------------------

crowds :: Api -> [TestTree]
crowds api =
  [ test "an event wakes everybody whom it concerns" $ \fds -> do
      (a, b) <- streamPair fds
      fill a
      readers <- replicateM 50 (start (waitRead api a))
      writers <- replicateM 50 (start (waitWrite api a))
      forM_ (readers <> writers) (blocks "waiting")
      say b 1
      forM_ readers (result "a reader")
      forM_ writers (blocks "a writer")
      _ <- drain b
      forM_ writers (result "a writer"),
    test "masked: the wait is interruptible, and uninterruptible where that was asked for" $ \fds -> do
      (r, w) <- pipe fds
      t <- start (mask_ (waitRead api r))
      blocks "reading" t
      stop t
      u <- start (uninterruptibleMask_ (waitRead api r))
      blocks "reading" u
      killer <- start (stop u)
      pause 5
      blocks "reading still" u
      say w 1
      result "killing" killer,
    test "killing some waiters does not disturb the others" $ \fds -> do
      (r, w) <- pipe fds
      ts <- replicateM 60 (start (waitRead api r))
      forM_ ts (blocks "reading")
      let (dying, living) = splitAt 30 ts
      forM_ dying stop
      forM_ living (blocks "reading still")
      say w 1
      forM_ living (result "a reader")
  ]

-- Ours alone -------------------------------------------------------------------------

-- | Tests of Weft's implementation only: GHC's does not promise this, or Weft's counters are needed.
ownTests :: TestTree
ownTests =
  testGroup
    "waiting, beyond GHC"
    [ -- GHC 9.0 throws EPERM for these two, and ENOENT from the third at times.
      test "regular files: always ready" $ \fds -> do
        f <- regularFile fds
        W.threadWaitRead f
        W.threadWaitWrite f,
      test "directories: always ready" $ \fds -> openPath fds "/" >>= W.threadWaitRead,
      test "closeFdWith wakes all waiters with EBADF" $ \fds -> do
        (a, _) <- streamPair fds
        fill a
        readers <- replicateM 20 (start (W.threadWaitRead a))
        writers <- replicateM 20 (start (W.threadWaitWrite a))
        forM_ (readers <> writers) (blocks "waiting")
        W.closeFdWith (shut fds) a
        forM_ (readers <> writers) (failsWith "waiter" eBADF . result "waiter"),
      test "cancellation: an exception thrown into a wait leaves nothing registered" $ \fds -> leavesNothing $ do
        pipes <- replicateM 10 (pipe fds)
        ts <- forM (concat (replicate (times 20) pipes)) (\(r, _) -> start (W.threadWaitRead r))
        forM_ ts (blocks "reading")
        forM_ ts stop,
      test "bad input leaves nothing registered" $ \fds -> leavesNothing $ do
        f <- regularFile fds
        forM_ [1 .. 100 :: Int] $ \_ -> do
          W.threadWaitRead f
          failsWith "wait" eBADF (W.threadWaitRead (-1)),
      test "descriptor reuse (ABA): a wait on a number's new owner gets nothing of the old one's" $ \fds ->
        forM_ [1 .. times 150 :: Int] $ \_ -> reuse fds,
      test "a descriptor closed behind our back: its number can be waited for again" $ \fds ->
        forM_ [1 .. 50 :: Int] $ \_ -> do
          (r, w) <- pipe fds
          t <- start (W.threadWaitRead r)
          blocks "reading" t
          w' <- handOver fds r
          u <- start (W.threadWaitRead r)
          blocks "reading" u
          say w' 1
          result "the new owner" u
          stop t
          mapM_ (shut fds) [w, r, w'],
      test "spin: a duplicate of a closed descriptor stays quiet (golang 59545)" $ \fds -> do
        (a, b) <- streamPair fds
        copy <- dup a >>= own fds
        t <- start (W.threadWaitRead a)
        blocks "reading" t
        W.closeFdWith (shut fds) a
        failsWith "waiter" eBADF (result "waiter" t)
        before <- activity
        say b 1
        pause 50
        later <- activity
        -- A dispatcher that spins makes thousands of turns.
        assertBool (show (later - before) <> " turns for a descriptor that nobody waits for") (later - before < 100)
        W.threadWaitRead copy,
      test "spin: a hang-up that nobody waits for stays quiet" $ \fds -> do
        (a, b) <- streamPair fds
        t <- start (W.threadWaitRead a)
        blocks "reading" t
        say b 1
        result "reading" t
        (c, d) <- socketPair AF_UNIX Stream defaultProtocol
        reader <- start (recv c 10)
        blocks "receiving" reader
        sendAll d (C.pack "x")
        result "receiving" reader >>= (@?= C.pack "x")
        shut fds b
        close d
        before <- activity
        pause 50
        later <- activity
        assertBool (show (later - before) <> " turns for hang-ups that nobody waits for") (later - before < 100)
        W.threadWaitRead a
        recv c 10 >>= (@?= C.empty)
        close c,
      test "cancellation: a storm of kills around the event leaves nothing registered" $ \fds ->
        leavesNothing (storm fds)
    ]

-- | Wait for a descriptor, close it, and wait for another that has its number.
reuse :: Fds -> IO ()
reuse fds = do
  (r, w) <- pipe fds
  t <- start (W.threadWaitRead r)
  blocks "the old one" t
  -- The event for the old one may be on its way while its number changes hands.
  say w 1
  inherited <- newEmptyMVar
  W.closeFdWith (handOver fds >=> putMVar inherited) r
  w' <- takeMVar inherited
  u <- start (W.threadWaitRead r)
  blocks "the new one" u
  say w' 1
  result "the new one" u
  old <- try (result "the old one" t)
  case old of
    Left e -> assertBool ("the old one: " <> show e) (isErrno eBADF e)
    Right () -> pure ()
  mapM_ (shut fds) [w, r, w']

storm :: Fds -> IO ()
storm fds = forM_ [1 .. times 40 :: Int] $ \n -> do
  (r, w) <- pipe fds
  ts <- replicateM 25 (start (W.threadWaitRead r))
  writer <- start (when (even n) G.yield >> say w 1)
  killers <- forM (take 20 ts) (start . stop)
  forM_ killers (result "killing")
  result "writing" writer
  forM_ (drop 20 ts) (result "a reader that was not killed")
  mapM_ (shut fds) [r, w]
