-- |
-- Closing a descriptor while others use it ("Weft.Core.Channel").
module ChannelScenario
  ( channelTests,
  )
where

import Control.Monad
import Data.IORef
import Search
import Simulation
import Test.Tasty
import Weft.Core.Channel
import Weft.Sys

-- | So many operations and so many that close. The number is what the kernel
-- knows: an operation must find it open, and it is closed once.
scenario :: Int -> Int -> (Channel -> IO Bool) -> IO Scenario
scenario operations closers leaving = do
  ch <- newChannel 7 1
  closed <- newIORef (0 :: Int)
  fault <- newIORef Nothing
  let blame = writeIORef fault . Just
      release = modifyIORef' closed (+ 1)
      operation = do
        ok <- enter ch
        when ok $ do
          point
          gone <- readIORef closed
          when (gone > 0) (blame "a system call on a closed descriptor")
          lastOut <- leaving ch
          when lastOut release
      closer = do
        r <- shut ch
        when (r == YoursToClose) release
      check stuck = do
        n <- readIORef closed
        f <- readIORef fault
        shutNow <- isShut ch
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
  ch <- newChannel 7 1
  _ <- tryTakeMVar (token ch Reading)
  let waiter = takeMVar (token ch Reading) >> void (tryPutMVar (token ch Reading) ())
      check stuck = pure (if null stuck then Nothing else Just "a waiter was not woken by the close")
  pure (Scenario [waiter, waiter, void (shut ch)] check)

channelTests :: IO TestTree
channelTests = do
  more <-
    mapM
      large
      [ holds "one operation and two closes" 1000 (scenario 1 2 leave),
        holds "two operations and a close" 1000 (scenario 2 1 leave)
      ]
  pure . testGroup "closing a descriptor that is in use" $
    [ holds "one operation and a close" 100 (scenario 1 1 leave),
      holds "two waiters and a close" 100 waiting,
      isFound "broken on purpose: nobody closes behind the last operation" $
        scenario 2 1 (\ch -> False <$ leave ch),
      isFound "broken on purpose: every operation closes" $
        scenario 2 1 (\ch -> leave ch >> isShut ch)
    ]
      <> concat more
