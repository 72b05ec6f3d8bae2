-- |
-- The STM forms of waiting: registered before one blocks, given up by hand or by
-- the collector.
module Spec.Stm
  ( tests,
  )
where

import Control.Concurrent.STM hiding (registerDelay)
import Control.Monad (forM_, replicateM, replicateM_, void, when)
import Foreign.C.Error (eBADF)
import Harness
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Metrics
import Weft.Test.Descriptors
import Weft.Thread

tests :: TestTree
tests =
  testGroup
    "waiting in STM"
    [ test "descriptors that are ready, and ones that become ready" $ \fds -> do
        (r, w) <- pipe fds
        (wait, _) <- threadWaitReadSTM r
        t <- start (atomically wait)
        blocked t >>= assertBool "does not block"
        say w 1
        result "wait" t
        (again, _) <- threadWaitReadSTM r
        atomically again,
      test "writing" $ \fds -> do
        (r, w) <- pipe fds
        fill w
        (wait, _) <- threadWaitWriteSTM w
        t <- start (atomically wait)
        blocked t >>= assertBool "does not block"
        _ <- drain r
        result "wait" t,
      test "registered before one blocks: an event in between is seen" $ \fds -> do
        (r, w) <- pipe fds
        (wait, _) <- threadWaitReadSTM r
        say w 1
        eventually "the event" (atomically ((True <$ wait) `orElse` pure False))
        readOne r
        atomically wait,
      test "orElse, with a delay" $ \fds -> leavesNothing $ do
        (r, w) <- pipe fds
        forM_ [False, True] $ \there -> do
          (wait, cancel) <- threadWaitReadSTM r
          late <- registerDelay (if there then 100000000 else 20000)
          when there (say w 1)
          found <- atomically ((True <$ wait) `orElse` (False <$ (readTVar late >>= check)))
          found @?= there
          cancel,
      test "orElse, of two descriptors" $ \fds -> do
        (r1, _) <- pipe fds
        (r2, w2) <- pipe fds
        (a, cancelA) <- threadWaitReadSTM r1
        (b, cancelB) <- threadWaitReadSTM r2
        t <- start (atomically ((1 <$ a) `orElse` (2 <$ b)))
        say w2 1
        found <- result "choice" t
        found @?= (2 :: Int)
        cancelA >> cancelB,
      test "one wait, many threads, many times" $ \fds -> do
        (r, w) <- pipe fds
        (wait, _) <- threadWaitReadSTM r
        ts <- replicateM 20 (start (atomically wait))
        say w 1
        mapM_ (result "wait") ts
        replicateM_ 3 (atomically wait),
      test "descriptors that are always ready, and ones that are not open" $ \fds -> do
        f <- regularFile fds
        (wait, cancel) <- threadWaitReadSTM f
        atomically wait >> cancel
        failsWith "register" eBADF (threadWaitReadSTM (-1)),
      test "closeFdWith: EBADF" $ \fds -> do
        (r, _) <- pipe fds
        (wait, cancel) <- threadWaitReadSTM r
        t <- start (atomically wait)
        blocked t >>= assertBool "does not block"
        closeFdWith (shut fds) r
        failsWith "waiter" eBADF (result "waiter" t)
        failsWith "afterwards" eBADF (atomically wait)
        cancel >> cancel,
      test "given up: nothing stays registered, and the wait does not end" $ \fds -> leavesNothing $ do
        (r, w) <- pipe fds
        (wait, cancel) <- threadWaitReadSTM r
        cancel
        say w 1
        ended <- atomically ((True <$ wait) `orElse` pure False)
        pause 5
        ended' <- atomically ((True <$ wait) `orElse` pure False)
        (ended, ended') @?= (False, False),
      test "abandoned STM waits: the collector gives them up" abandoned,
      test "collector: a thread that waits in STM is not taken for deadlocked" $ \fds -> do
        (r, w) <- pipe fds
        t <- start (threadWaitReadSTM r >>= \(wait, _) -> atomically wait)
        blocked t >>= assertBool "does not block"
        replicateM_ 3 collect
        blocked t >>= assertBool "no longer blocks"
        say w 1
        result "wait" t
    ]
  where
    test name act = testCase name (withFds (finishes name . act))

abandoned :: Fds -> Assertion
abandoned fds = do
  before <- registered
  pipes <- replicateM 50 (pipe fds)
  forM_ pipes $ \(r, _) -> do
    void (threadWaitReadSTM r)
    (wait, _) <- threadWaitReadSTM r
    ended <- atomically ((True <$ wait) `orElse` pure False)
    ended @?= False
  left <- settled before registered
  -- Fewer if one of an earlier test was given up meanwhile.
  assertBool (show (left - before) <> " registrations left") (left <= before)
  -- And one whose thread was killed while it waited.
  forM_ pipes $ \(r, _) -> do
    t <- start (threadWaitReadSTM r >>= \(wait, _) -> atomically wait)
    stop t
  left' <- settled before registered
  assertBool (show (left' - before) <> " registrations left") (left' <= before)
  where
    registered = metricsRegistered <$> readMetrics
