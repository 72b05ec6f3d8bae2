-- |
-- The laws of "Weft.Core.Backend" as tests. One suite for all back ends: what
-- passes on one and fails on another is a fault of one of them. The tests look at
-- the numbers of descriptors, so nothing may run beside them: @-j1@, or
-- @TASTY_NUM_THREADS=1@.
module Laws
  ( laws,
    lawsOfOverflow,
  )
where

import Control.Concurrent (threadDelay)
import Control.Exception (try)
import Control.Monad (forM, forM_, replicateM, replicateM_, unless, void, when)
import Data.List (nub, sort)
import Foreign.C.Error (Errno (..), eBADF)
import GHC.Clock (getMonotonicTimeNSec)
import GHC.IO.Exception (ioe_errno)
import LawsAsking
import LawsConcurrent
import LawsModel
import System.Info (os)
import System.Posix.IO (dup)
import System.Posix.Types (Fd)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Core.Backend
import Weft.Core.Events
import Weft.Core.Time (milliseconds)
import Weft.Test.Descriptors

-- | All laws, for the back end of that name.
laws :: String -> IO Backend -> TestTree
laws name make = testGroup name (lawsOfAll make <> [testGroup "latest" (latestLaws make), testGroup "many" (manyLaws make)])

-- | The laws that hold even if completions overflow. The kernel then ends standing requests, which are made again and
-- report the present state once more; the others say that nothing is reported twice.
lawsOfOverflow :: String -> IO Backend -> TestTree
lawsOfOverflow name make = testGroup name (lawsOfAll make <> [testGroup "overflow" (overflowLaws make)])

lawsOfAll :: IO Backend -> [TestTree]
lawsOfAll make =
  [ testGroup "present" (presentLaws make),
    testGroup "trigger" (triggerLaws make),
    testGroup "always" (alwaysLaws make),
    testGroup "half-close" (halfCloseLaws make),
    testGroup "urgent" (urgentLaws make),
    testGroup "kinds" (kindLaws make),
    testGroup "forgotten" (forgottenLaws make),
    testGroup "errors" (errorLaws make),
    testGroup "wake" (wakeLaws make),
    testGroup "threads" (threadLaws make),
    testGroup "lifecycle" (lifecycleLaws make),
    modelLaw make
  ]

-- Overflow -------------------------------------------------------------------------

-- | Requests that are made again at once, all of them, complete at once and overflow again: their number would grow
-- with the square of that of the descriptors.
overflowLaws :: IO Backend -> [TestTree]
overflowLaws make =
  [ law make "hundreds of descriptors ready at once are each reported, a few times at most" $ \b fds -> do
      (_, copies) <- ready b fds
      found <- (<>) <$> untilAll b copies <*> untilSilent b
      texts found @?= texts (expected copies)
      assertBool (show (length found) <> " reports of " <> show many <> " descriptors") (length found <= 4 * many),
    law make "a poll that waits makes the requests that overflow left" $ \b fds -> do
      (r, idle) <- ready b fds
      (_, copies) <- ready b fds
      found <- poll b NoWait
      readOne r
      -- Those that are idle now come first. A poll that made some of them and then waited would wait for twenty
      -- seconds.
      more <- untilAll b copies
      filter (`notElem` texts (expected idle)) (texts (found <> more)) @?= texts (expected copies)
  ]
  where
    many = 200
    -- Copies of a descriptor that is ready, armed.
    ready b fds = do
      (r, w) <- pipe fds
      say w 1
      copies <- replicateM many (dup r >>= own fds)
      (r, copies) <$ forM_ copies (\fd -> armed b fd (tokenOf fd) Edge evtRead)
    expected copies = [(tokenOf fd, evtRead) | fd <- copies]
    texts = nub . sort . map show
    untilAll b copies = go []
      where
        go found
          | all (`elem` texts found) (texts (expected copies)) = pure found
          | otherwise = poll b soon >>= go . (<> found)
    untilSilent b = poll b NoWait >>= \found -> if null found then pure [] else (found <>) <$> untilSilent b

-- Present --------------------------------------------------------------------------

presentLaws :: IO Backend -> [TestTree]
presentLaws make =
  concat
    [ everyTrigger make "an event that is already present is reported by a poll" $ \t b fds -> do
        (r, w) <- pipe fds
        say w 1
        armed b r (tokenOf r) t evtRead
        got <- poll b NoWait
        got @?= [(tokenOf r, evtRead)],
      everyTrigger make "an event that comes later is reported" $ \t b fds -> do
        (r, w) <- pipe fds
        armed b r (tokenOf r) t evtRead
        silent b
        say w 1
        reports b [(tokenOf r, evtRead)],
      everyTrigger make "a socket with room is writable" $ \t b fds -> do
        (_, s) <- tcpPair fds
        armed b s (tokenOf s) t evtWrite
        reports b [(tokenOf s, evtWrite)],
      everyTrigger make "both directions in one report" $ \t b fds -> do
        (s, peer) <- streamPair fds
        say peer 1
        armed b s (tokenOf s) t (evtRead <> evtWrite)
        reports b [(tokenOf s, evtRead <> evtWrite)],
      everyTrigger make "arming again looks again" $ \t b fds -> do
        (r, w) <- pipe fds
        say w 1
        armed b r (tableToken r 1) t evtRead
        reports b [(tableToken r 1, evtRead)]
        armed b r (tableToken r 2) t evtRead
        reports b [(tableToken r 2, evtRead)],
      everyTrigger make "tokens come back as they were given" $ \t b fds -> do
        (r, w) <- pipe fds
        say w 1
        forM_ [tableToken r 0, tableToken r 0x7fffffff, readinessToken r 0, readinessToken r 0x7ffffffe] $ \tok -> do
          armed b r tok t evtRead
          reports b [(tok, evtRead)]
    ]

-- Trigger --------------------------------------------------------------------------

triggerLaws :: IO Backend -> [TestTree]
triggerLaws make = repeatingLaws make <> edgeLaws make

repeatingLaws :: IO Backend -> [TestTree]
repeatingLaws make =
  [ law make "Once: reported once, whatever comes" $ \b fds -> do
      (r, w) <- pipe fds
      armed b r (tokenOf r) Once evtRead
      say w 1
      reports b [(tokenOf r, evtRead)]
      silent b
      say w 1
      silent b
      armed b r (tokenOf r) Once evtRead
      reports b [(tokenOf r, evtRead)],
    law make "Once: one direction uses up the other" $ \b fds -> do
      (s, peer) <- streamPair fds
      armed b s (tokenOf s) Once (evtRead <> evtWrite)
      reports b [(tokenOf s, evtWrite)]
      say peer 1
      silent b,
    law make "Level: reported by every poll while it lasts" $ \b fds -> do
      (r, w) <- pipe fds
      armed b r (tokenOf r) Level evtRead
      replicateM_ 2 $ do
        say w 2
        replicateM_ 3 (reports b [(tokenOf r, evtRead)])
        readOne r
        got <- poll b NoWait
        got @?= [(tokenOf r, evtRead)]
        _ <- drain r
        settle b
        silent b
  ]

edgeLaws :: IO Backend -> [TestTree]
edgeLaws make =
  [ law make "Edge: reported once, and again after each change" $ \b fds -> do
      (r, w) <- pipe fds
      armed b r (tokenOf r) Edge evtRead
      replicateM_ 3 $ do
        say w 2
        reports b [(tokenOf r, evtRead)]
        silent b
        readOne r
        silent b
        _ <- drain r
        notReady b r evtRead
        silent b,
    law make "Edge: more data is a change" $ \b fds -> do
      (r, w) <- pipe fds
      armed b r (tokenOf r) Edge evtRead
      replicateM_ 3 $ do
        say w 1
        reports b [(tokenOf r, evtRead)]
        -- Where edges are not kept, a change counts from here on.
        notReady b r evtRead,
    law make "Edge: room is a change" $ \b fds -> do
      (s, peer) <- streamPair fds
      fill s
      armed b s (tokenOf s) Edge (evtRead <> evtWrite)
      silent b
      replicateM_ 3 $ do
        _ <- drain peer
        reportsSome b (tokenOf s) (`includes` evtWrite)
        fill s
        notReady b s evtWrite
        settle b
        silent b,
    law make "Edge: the directions do not disturb each other" $ \b fds -> do
      (s, peer) <- streamPair fds
      armed b s (tokenOf s) Edge (evtRead <> evtWrite)
      reports b [(tokenOf s, evtWrite)]
      say peer 1
      reportsSome b (tokenOf s) (`includes` evtRead)
      silent b
  ]

-- | A report may be about what was so a moment ago.
settle :: Backend -> IO ()
settle b = do
  got <- poll b (WaitFor (milliseconds 2))
  unless (null got) (settle b)

-- Latest ---------------------------------------------------------------------------

latestLaws :: IO Backend -> [TestTree]
latestLaws make =
  [ law make (show t1 <> " replaced by " <> show t2 <> (if seen then ", after a poll" else "")) $ \b fds -> do
      (r, w) <- pipe fds
      armed b r (tableToken r 1) t1 evtRead
      when seen (silent b)
      armed b r (tableToken r 2) t2 evtRead
      say w 1
      reports b [(tableToken r 2, evtRead)]
      if t2 == Level then reports b [(tableToken r 2, evtRead)] else silent b
    | t1 <- [Once, Level, Edge],
      t2 <- [Once, Level, Edge],
      seen <- [False, True]
  ]
    <> concat
      [ everyTrigger make "events replaced by others" $ \t b fds -> do
          (s, peer) <- streamPair fds
          armed b s (tableToken s 1) t evtWrite
          armed b s (tableToken s 2) t evtRead
          silent b
          say peer 1
          reports b [(tableToken s 2, evtRead)]
          armed b s (tableToken s 3) t evtWrite
          reports b [(tableToken s 3, evtWrite)],
        everyTrigger make "a hundred times, the last counts" $ \t b fds -> do
          (r, w) <- pipe fds
          forM_ [1 .. 100] $ \g -> armed b r (tableToken r g) t evtRead
          say w 1
          reports b [(tableToken r 100, evtRead)],
        everyTrigger make "forgotten and armed again between two polls" $ \t b fds -> do
          (s, peer) <- streamPair fds
          say peer 1
          armed b s (tableToken s 1) t evtRead
          forgets b s
          armed b s (tableToken s 2) t evtWrite
          reports b [(tableToken s 2, evtWrite)]
      ]

-- Hang-ups -------------------------------------------------------------------------

alwaysLaws :: IO Backend -> [TestTree]
alwaysLaws make =
  concat
    [ everyTrigger make ("the peer is gone, asked for " <> show evs) $ \t b fds -> do
        (s, peer) <- streamPair fds
        fill s
        armed b s (tokenOf s) t evs
        silent b
        shut fds peer
        reportsSome b (tokenOf s) (`includes` hungUp)
      | evs <- [evtRead, evtWrite, evtPeerClosed, mempty]
    ]
    <> concat
      [ everyTrigger make "closed before it was armed" $ \t b fds -> do
          (s, peer) <- streamPair fds
          shut fds peer
          armed b s (tokenOf s) t evtRead
          reportsSome b (tokenOf s) (`includes` hungUp),
        everyTrigger make "reset" $ \t b fds -> do
          (s, peer) <- abruptTcpPair fds
          fill s
          armed b s (tokenOf s) t evtRead
          silent b
          shut fds peer
          reportsSome b (tokenOf s) (`includes` hungUp),
        everyTrigger make "the pipe's writer has closed" $ \t b fds -> do
          (r, w) <- pipe fds
          armed b r (tokenOf r) t evtRead
          silent b
          shut fds w
          reportsSome b (tokenOf r) (`includes` hungUp),
        everyTrigger make "the pipe's writer has closed, with data left" $ \t b fds -> do
          (r, w) <- pipe fds
          say w 1
          shut fds w
          armed b r (tokenOf r) t evtRead
          reportsSome b (tokenOf r) (`includes` hungUp),
        everyTrigger make "the pipe's reader has closed" $ \t b fds -> do
          (r, w) <- pipe fds
          fill w
          armed b w (tokenOf w) t evtWrite
          silent b
          shut fds r
          reportsSome b (tokenOf w) (`includes` hungUp),
        everyTrigger make "an error that came later" $ \t b fds -> do
          (a, peer) <- udpPair fds
          armed b a (tokenOf a) t evtRead
          silent b
          shut fds peer
          say a 1
          reportsSome b (tokenOf a) (`includes` hungUp)
      ]

halfCloseLaws :: IO Backend -> [TestTree]
halfCloseLaws make =
  concat
    [ concat
        [ everyTrigger make (kind <> ": asked for") $ \t b fds -> do
            (s, peer) <- pair fds
            armed b s (tokenOf s) t (evtRead <> evtPeerClosed)
            silent b
            finishWriting peer
            reports b [(tokenOf s, evtRead <> evtPeerClosed)],
          everyTrigger make (kind <> ": there already") $ \t b fds -> do
            (s, peer) <- pair fds
            finishWriting peer
            ended s
            armed b s (tokenOf s) t (evtRead <> evtPeerClosed)
            reports b [(tokenOf s, evtRead <> evtPeerClosed)],
          everyTrigger make (kind <> ": not asked for") $ \t b fds -> do
            (s, peer) <- pair fds
            finishWriting peer
            ended s
            armed b s (tokenOf s) t evtRead
            reports b [(tokenOf s, evtRead)],
          everyTrigger make (kind <> ": nothing else asked for") $ \t b fds -> do
            (s, peer) <- pair fds
            say peer 1
            armed b s (tokenOf s) t evtPeerClosed
            silent b
            finishWriting peer
            reports b [(tokenOf s, evtPeerClosed)],
          everyTrigger make (kind <> ": a writer waits for room all the same") $ \t b fds -> do
            (s, peer) <- pair fds
            fill s
            finishWriting peer
            ended s
            -- What the peer acknowledges meanwhile makes room.
            threadDelay 2000
            fill s
            armed b s (tokenOf s) t evtWrite
            silent b
            _ <- drain peer
            reportsSome b (tokenOf s) (== evtWrite)
        ]
      | (kind, pair) <- [("TCP", tcpPair), ("Unix", streamPair)]
    ]

-- | Wait until the end of the stream has arrived; there is nothing else to read.
ended :: Fd -> IO ()
ended s = atEnd s >>= \there -> unless there (threadDelay 200 >> ended s)

urgentLaws :: IO Backend -> [TestTree]
urgentLaws make =
  concat
    [ everyTrigger make "reported, and ordinary data not with it" $ \t b fds -> do
        (s, peer) <- tcpPair fds
        armed b s (tokenOf s) t evtUrgent
        say peer 1
        silent b
        sayUrgent peer
        reportsSome b (tokenOf s) (`includes` evtUrgent),
      everyTrigger make "ordinary data is not urgent" $ \t b fds -> do
        (s, peer) <- tcpPair fds
        armed b s (tokenOf s) t (evtRead <> evtUrgent)
        silent b
        say peer 1
        reports b [(tokenOf s, evtRead)],
      everyTrigger make "both" $ \t b fds -> do
        (s, peer) <- tcpPair fds
        sayBoth peer
        -- The loopback interface delivers at once, nearly.
        threadDelay 20000
        armed b s (tokenOf s) t (evtRead <> evtUrgent)
        reports b [(tokenOf s, evtRead <> evtUrgent)]
    ]

-- Kinds of descriptors -------------------------------------------------------------

kindLaws :: IO Backend -> [TestTree]
kindLaws make =
  concat
    [ everyTrigger make "a regular file is always ready" $ \t b fds -> do
        fd <- regularFile fds
        r <- backendArm b fd (tokenOf fd) t (evtRead <> evtWrite)
        r @?= AlwaysReady
        silent b,
      everyTrigger make "a directory is always ready" $ \t b fds -> do
        fd <- openPath fds "/"
        r <- backendArm b fd (tokenOf fd) t evtRead
        r @?= AlwaysReady
        silent b,
      everyTrigger make "a device that never blocks is ready" $ \t b fds -> do
        fd <- openPath fds "/dev/null"
        r <- backendArm b fd (tokenOf fd) t evtRead
        if r == Armed then reports b [(tokenOf fd, evtRead)] else (r @?= AlwaysReady) >> silent b,
      everyTrigger make "a regular file that can be polled is watched" $ \t b fds -> when (os == "linux") $ do
        -- It is readable, never writable, and reports changes.
        fd <- openPath fds "/proc/self/mounts"
        armed b fd (tokenOf fd) t evtWrite
        silent b
        armed b fd (tableToken fd 2) t evtRead
        reports b [(tableToken fd 2, evtRead)],
      everyTrigger make "a file with a number that was a pipe's" $ \t b fds -> do
        (r, w) <- pipe fds
        say w 1
        armed b r (tokenOf r) Once evtRead
        reports b [(tokenOf r, evtRead)]
        shut fds r
        fd <- regularFile fds
        fd @?= r
        kind <- backendArm b fd (tableToken fd 2) t evtRead
        if kind == Armed then reports b [(tableToken fd 2, evtRead)] else (kind @?= AlwaysReady) >> silent b,
      everyTrigger make "a connection to accept" $ \t b fds -> do
        (l, connect) <- listener fds
        armed b l (tokenOf l) t evtRead
        silent b
        _ <- connect
        reports b [(tokenOf l, evtRead)],
      everyTrigger make "a datagram" $ \t b fds -> do
        (a, peer) <- udpPair fds
        armed b a (tokenOf a) t evtRead
        silent b
        say peer 1
        reports b [(tokenOf a, evtRead)],
      everyTrigger make "a terminal" $ \t b fds -> do
        (master, slave) <- terminal fds
        armed b master (tokenOf master) t evtRead
        silent b
        say slave 1
        reports b [(tokenOf master, evtRead)]
    ]

-- Forgetting -----------------------------------------------------------------------

forgottenLaws :: IO Backend -> [TestTree]
forgottenLaws make =
  concat
    [ everyTrigger make "nothing comes after it" $ \t b fds -> do
        (r, w) <- pipe fds
        say w 1
        armed b r (tokenOf r) t evtRead
        forgets b r
        silent b
        armed b r (tokenOf r) t evtRead
        reports b [(tokenOf r, evtRead)]
        say w 1
        forgets b r
        silent b,
      everyTrigger make "unknown descriptors, negative ones, and one twice" $ \t b fds -> do
        (r, w) <- pipe fds
        mapM_ (forgets b) [r, -1, minBound, maxBound, 19999]
        armed b r (tokenOf r) t evtRead
        replicateM_ 2 (forgets b r)
        say w 1
        silent b,
      everyTrigger make "a number that is used again" $ \t b fds ->
        forM_ [1 .. 100] $ \g -> do
          (r, w) <- pipe fds
          armed b r (tableToken r (2 * g)) t evtRead
          when (even g) (void (poll b NoWait))
          say w 1
          forgets b r
          shut fds r
          (r', w') <- pipe fds
          r' @?= r
          armed b r' (tableToken r' (2 * g + 1)) t evtRead
          got <- poll b NoWait
          got @?= []
          say w' 1
          reports b [(tableToken r' (2 * g + 1), evtRead)]
          forgets b r'
          mapM_ (shut fds) [r', w, w'],
      everyTrigger make "closing takes effect at once" $ \t b fds ->
        forM_ [False, True] $ \polled -> do
          (s, peer) <- tcpPair fds
          armed b s (tokenOf s) t evtRead
          when polled (silent b)
          forgets b s
          shut fds s
          -- Not asked through the back end, which would give it another chance.
          told <- closesWithin (10000 :: Int) peer
          told @? "the peer was not told",
      [ law make "closing waits for a thread that sleeps in the kernel" $ \b fds -> forM_ [1 .. 3 :: Int] $ \_ -> do
          (s, peer) <- tcpPair fds
          armed b s (tokenOf s) Edge evtRead
          -- The thread submits what is queued, and then sleeps uninterruptibly.
          sleepingInKernel (void (poll b NoWait)) $ do
            released <- backendForget b s
            shut fds s
            released
            told <- closesWithin (100 :: Int) peer
            told @? "the peer was not told",
        law make "forgetting many does not wait for a thread that sleeps in the kernel" $ \b fds -> do
          took <- forM [1 .. 5 :: Int] $ \_ -> do
            pairs <- replicateM 100 (streamPair fds)
            forM_ pairs (\(s, _) -> armed b s (tokenOf s) Edge evtRead)
            sleepingInKernel (void (poll b NoWait)) $ do
              begun <- getMonotonicTimeNSec
              forM_ pairs (backendForget b . fst)
              forgotten <- getMonotonicTimeNSec
              forM_ pairs (\(s, peer) -> shut fds s >> shut fds peer)
              pure ((forgotten - begun) `div` 1000)
          -- Waiting for each would take 100 ms in every round; a busy machine makes some rounds longer.
          minimum took < 50000 @? ("microseconds: " <> show took)
      ]
    ]
  where
    closesWithin n fd = do
      told <- atEnd fd
      if told || n == 0 then pure told else threadDelay 1000 >> closesWithin (n - 1) fd

-- Errors ---------------------------------------------------------------------------

errorLaws :: IO Backend -> [TestTree]
errorLaws make =
  concat
    [ everyTrigger make "a closed descriptor" $ \t b fds -> do
        (r, _) <- pipe fds
        shut fds r
        badDescriptor (backendArm b r (tokenOf r) t evtRead)
        (r', w') <- pipe fds
        r' @?= r
        say w' 1
        silent b,
      everyTrigger make "one that was armed, reported and closed" $ \t b fds -> do
        (r, w) <- pipe fds
        say w 1
        armed b r (tokenOf r) Once evtRead
        reports b [(tokenOf r, evtRead)]
        shut fds r
        badDescriptor (backendArm b r (tokenOf r) t evtRead),
      everyTrigger make "negative descriptors" $ \t b _ ->
        forM_ [-1, -2, minBound] $ \fd -> badDescriptor (backendArm b fd (tokenOf fd) t evtRead)
    ]
  where
    badDescriptor act = do
      r <- try act
      case r of
        Left e -> ioe_errno e @?= Just (let Errno code = eBADF in code)
        Right a -> assertFailure (show a)
