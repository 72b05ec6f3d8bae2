-- |
-- "Weft.Blocking": the bound, the queue, exceptions, results that nobody wants.
module Spec.Blocking
  ( tests,
  )
where

import Control.Concurrent.MVar
import Control.Exception (throwIO)
import Control.Monad (forM_, replicateM)
import Harness
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Blocking

tests :: TestTree
tests =
  testGroup
    "blocking calls"
    [ testCase "the bound holds, the queue is visible, a higher bound starts more" $ do
        pool <- newPool 2
        gate <- newEmptyMVar
        ts <- replicateM 5 (start (runIn pool (readMVar gate)))
        eventually "two run, three wait" ((== PoolStatus 2 2 3 0) <$> statusOf pool)
        setLimit pool 4
        eventually "four run" ((== PoolStatus 4 4 1 0) <$> statusOf pool)
        putMVar gate ()
        forM_ ts (result "call")
        eventually "all are done" ((== PoolStatus 4 0 0 5) <$> statusOf pool),
      testCase "exceptions come to the caller" $ do
        e <- failure "call" (blocking (throwIO (userError "own") :: IO ()))
        e @?= userError "own",
      testCase "cancellation: an abandoned result is disposed of once" $ do
        pool <- newPool 1
        [begun, gate, disposed] <- replicateM 3 newEmptyMVar
        t <- start (runInOr pool (putMVar disposed) (putMVar begun () >> takeMVar gate))
        finishes "begin" (takeMVar begun)
        stop t
        putMVar gate ()
        finishes "disposal" (takeMVar disposed)
        eventually "done" ((== PoolStatus 1 0 0 1) <$> statusOf pool)
    ]
