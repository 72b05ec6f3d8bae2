-- |
-- "Weft.Deadline": actions and transactions with a deadline, and sockets' transactions.
module Spec.Deadline
  ( tests,
  )
where

import Control.Concurrent.STM
import Control.Exception
import Control.Monad (forM, forM_, void, when)
import qualified Data.ByteString.Char8 as C
import Data.IORef
import Foreign.C.Error (eBADF, eINVAL, errnoToIOError)
import Harness
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Deadline
import Weft.Socket (Family (AF_UNIX), SocketType (Stream), close, defaultProtocol, socketPair, waitAndCancelReadSocketSTM, waitReadSocketSTM, waitWriteSocketSTM, withDeadline)
import Weft.Socket.ByteString (recv, sendAll)
import Weft.Thread (threadDelay)

tests :: TestTree
tests =
  testGroup
    "deadlines"
    [ testGroup
        "inTime"
        [ test "in time: the result, and other exceptions" $
            leavesNothing $ do
              ample <- deadlineIn (seconds 60)
              inTime ample (pure 'x') >>= (@?= 'x')
              inTime noDeadline (pure 'y') >>= (@?= 'y')
              failsWith "the action" eINVAL (inTime ample (throwIO invalid :: IO ()))
              failsWith "the action" eINVAL (inTime noDeadline (throwIO invalid :: IO ())),
          test "too late, and not early" $
            leavesNothing $ do
              (_, s) <- timed $ do
                soon <- deadlineIn (milliseconds 20)
                tooLate (inTime soon (threadDelay 100000000))
              s @>= 0.02,
          test "passed: the action does not begin" $ do
            ran <- newIORef False
            forM_ [mempty, seconds (-1), minBound] $ \d -> do
              passed <- deadlineIn d
              tooLate (inTime passed (writeIORef ran True))
            readIORef ran >>= (@?= False),
          test "one deadline for several actions, and nested ones" $ do
            soon <- deadlineIn (milliseconds 20)
            inTime soon (threadDelay 1)
            ample <- deadlineIn (seconds 60)
            tooLate (inTime ample (inTime soon (threadDelay 100000000)))
            tooLate (inTime soon (inTime ample (threadDelay 100000000)))
            tooLate (inTime soon (pure ())),
          test "a duration without end is no deadline" $ do
            d <- deadlineIn maxBound
            d @?= noDeadline
        ],
      testGroup
        "atomicallyInTime"
        [ test "a transaction that need not wait commits, also after the deadline" $ do
            var <- newTVarIO (0 :: Int)
            passed <- deadlineIn (seconds (-1))
            forM_ [passed, noDeadline] $ \d -> atomicallyInTime d (modifyTVar' var (+ 1))
            readTVarIO var >>= (@?= 2),
          test "it waits until it can commit" $
            leavesNothing $ do
              box <- newEmptyTMVarIO
              ample <- deadlineIn (seconds 60)
              t <- start (atomicallyInTime ample (takeTMVar box))
              blocked t >>= assertBool "does not wait"
              atomically (putTMVar box 'x')
              result "the transaction" t >>= (@?= 'x'),
          test "too late, and not early" $
            leavesNothing $ do
              (_, s) <- timed $ do
                soon <- deadlineIn (milliseconds 20)
                tooLate (atomicallyInTime soon retry)
              s @>= 0.02,
          test "what it throws passes through" $
            leavesNothing $ do
              ample <- deadlineIn (seconds 60)
              failsWith "the transaction" eINVAL (atomicallyInTime ample (throwSTM invalid :: STM ()))
              box <- newEmptyTMVarIO
              t <- start (atomicallyInTime ample (takeTMVar box >>= \() -> throwSTM invalid) :: IO ())
              blocked t >>= assertBool "does not wait"
              atomically (putTMVar box ())
              failsWith "after a wait" eINVAL (result "the transaction" t),
          test "it commits or throws, not both" $ do
            taken <- forM [1 .. times 100] $ \i -> do
              box <- newEmptyTMVarIO
              soon <- deadlineIn (microseconds 300)
              t <- start (try (atomicallyInTime soon (takeTMVar box)))
              threadDelay (i `mod` 600)
              atomically (putTMVar box ())
              r <- result "the transaction" t
              left <- atomically (isEmptyTMVar box)
              either isTimeout (const True) r @? "another error"
              pure (either (const False) (const True) r, left)
            [x | x@(ended, empty) <- taken, ended /= empty] @?= []
        ],
      testGroup
        "transactions of sockets"
        [ pair "after the deadline they throw, and not before" $ \a _ -> leavesNothing $ do
            (_, s) <- timed $ do
              soon <- deadlineIn (milliseconds 20)
              (wait, cancel) <- waitAndCancelReadSocketSTM (withDeadline soon a)
              tooLate (atomically wait)
              tooLate (atomically wait)
              cancel
            s @>= 0.02,
          pair "what has come before the deadline is found after it" $ \a b -> do
            sendAll b (C.pack "x")
            passed <- deadlineIn (seconds (-1))
            (wait, cancel) <- waitAndCancelReadSocketSTM (withDeadline passed a)
            eventually "readable" (atomically ((True <$ wait) `orElse` pure False) `catch` \e -> False <$ when (not (isTimeout e)) (throwIO e))
            cancel
            recv a 10 >>= (@?= C.pack "x"),
          pair "in time, and cancelled" $ \a b -> leavesNothing $ do
            ample <- deadlineIn (seconds 60)
            (wait, cancel) <- waitAndCancelReadSocketSTM (withDeadline ample a)
            t <- start (atomically wait)
            blocked t >>= assertBool "does not wait"
            sendAll b (C.pack "x")
            result "the transaction" t
            cancel,
          pair "closed, and writable" $ \a _ -> do
            soon <- deadlineIn (seconds 60)
            writable <- waitWriteSocketSTM (withDeadline soon a)
            within 60 "writable" (atomically writable)
            wait <- waitReadSocketSTM (withDeadline soon a)
            t <- start (atomically wait)
            blocked t >>= assertBool "does not wait"
            close a
            failsWith "the transaction" eBADF (result "the transaction" t)
        ]
    ]
  where
    test name act = testCase name (finishes name act)
    pair name act = test name (bracket (socketPair AF_UNIX Stream defaultProtocol) (\(a, b) -> close a >> close b) (uncurry act))

invalid :: IOException
invalid = errnoToIOError "a test" eINVAL Nothing Nothing

tooLate :: IO a -> Assertion
tooLate act = do
  r <- try (void act)
  case r of
    Right () -> assertFailure "no error"
    Left e -> isTimeout e @? show e
