-- |
-- Closing a descriptor while others use it ("Weft.Core.Readiness").
module ReadinessScenario
  ( channelTests,
  )
where

import Control.Monad
import Data.IORef
import Search
import Simulation
import Test.Tasty
import Weft.Core.Events (unstamped)
import Weft.Core.Readiness
import Weft.Sys

-- | Threads with this many operations, and this many threads that close. As for the kernel, an operation must find
-- the number open, and it is closed once.
scenario :: Int -> Int -> (Readiness -> IO Bool) -> IO Scenario
scenario operations closers leaving = do
  rd <- newReadiness 7 1
  closed <- newIORef (0 :: Int)
  fault <- newIORef Nothing
  let blame = writeIORef fault . Just
      closing = modifyIORef' closed (+ 1)
      operation = do
        ok <- acquire rd
        when ok $ do
          point
          gone <- readIORef closed
          when (gone > 0) (blame "a system call on a closed descriptor")
          lastOut <- leaving rd
          when lastOut closing
      closer = do
        r <- shut rd
        when (r == YoursToClose) closing
      check stuck = do
        n <- readIORef closed
        f <- readIORef fault
        shutNow <- isShut rd
        pure $ case () of
          _
            | Just why <- f -> Just why
            | not (null stuck) -> Just "a thread is stuck"
            | not shutNow -> Just "it is not shut"
            | n /= 1 -> Just ("closed " <> show n <> " times")
            | otherwise -> Nothing
  pure (Scenario (replicate operations operation <> replicate closers closer) check)

-- | A closer against a waiter: the waiter must come back.
waiting :: IO Scenario
waiting = do
  rd <- newReadiness 7 1
  _ <- tryTakeMVar (token rd Reading)
  let waiter = takeMVar (token rd Reading) >> void (tryPutMVar (token rd Reading) unstamped)
      check stuck = pure (if null stuck then Nothing else Just "a waiter was not woken by the close")
  pure (Scenario [waiter, waiter, void (shut rd)] check)

channelTests :: IO TestTree
channelTests = do
  more <-
    mapM
      large
      [ holds "one operation and two closes" 1000 (scenario 1 2 release),
        holds "two operations and a close" 1000 (scenario 2 1 release)
      ]
  pure . testGroup "closing a descriptor that is in use" $
    [ holds "one operation and a close" 100 (scenario 1 1 release),
      holds "two waiters and a close" 100 waiting,
      holdsOnArm 2 "two operations and a close, on ARM" (scenario 2 1 release),
      holdsOnArm 2 "two waiters and a close, on ARM" waiting,
      isFound "broken on purpose: nobody closes behind the last operation" $
        scenario 2 1 (\rd -> False <$ release rd),
      isFound "broken on purpose: every operation closes" $
        scenario 2 1 (\rd -> release rd >> isShut rd)
    ]
      <> concat more
