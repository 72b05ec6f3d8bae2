-- |
-- The simulated link as a device: the effects of the seed, and connections over it.
module Spec.Links (tests) where

import Control.Concurrent
import Control.Monad
import qualified Data.ByteString as B
import Lone
import System.IO.Error (tryIOError)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Duration (milliseconds, seconds)
import Weft.Tcp
import Weft.Tcp.Device
import Weft.Tcp.Device.Simulated
import Weft.Test.Limits (limited)
import Weft.Transport (deadlineIn)

tests :: TestTree
tests =
  testGroup
    "simulated links"
    [ testCase "a perfect link delivers everything at once, in order" $ do
        (a, b) <- simulatedLink perfectLink
        forM_ [1 .. 100] (put a . B.singleton)
        got <- concat <$> mapM receiveBatch (deviceQueues b)
        map incomingPacket got @?= map B.singleton [1 .. 100],
      testCase "the same seed, the same fates; another seed or direction, others" $ do
        fates dirty False @?= fates dirty False
        assertBool "seed" (fates dirty False /= fates dirty {linkSeed = 8} False)
        assertBool "direction" (fates dirty False /= fates dirty True),
      testCase "packets are lost, duplicated and changed at the configured rates" $ do
        let all' = [f | n <- [0 .. 19999], let Fate f = fateOf dirty False n]
            near what wanted n = assertBool (what ++ ": " ++ show n) (abs (n - wanted) < wanted `div` 5)
        near "lost" (1000 :: Int) (length (filter null all'))
        near "duplicated" (19000 * 3 `div` 100) (length (filter ((== 2) . length) all'))
        near "changed" 195 (length [() | Delivery _ (Just _) <- concat all']),
      testCase "no more packets than the queue has room for" $ do
        (a, b) <- simulatedLink perfectLink {linkQueue = 10}
        forM_ [1 .. 100] (put a . B.singleton)
        got <- concat <$> mapM receiveBatch (deviceQueues b)
        length got @?= 10,
      testCase "a closed device ends its reader, and the other end's packets are lost" $ do
        (a, b) <- simulatedLink perfectLink
        ended <- newEmptyMVar
        _ <- forkIO (tryIOError (mapM_ receiveBatch (deviceQueues b)) >>= putMVar ended)
        threadDelay 20000
        deviceClose b
        r <- limited 60 (takeMVar ended)
        either (const "ended") (const "received") <$> r @?= Just "ended"
        put a (B.singleton 1)
        threadDelay 20000,
      testGroup "two stacks, byte for byte" [testCase ("seed " ++ show s) (transfer dirty {linkSeed = s}) | s <- [1 .. 5]]
    ]
  where
    put d bytes = forM_ (take 1 (deviceQueues d)) (\q -> sendPacket q NoOffload [bytes])
    fates l backwards = map (fateOf l backwards) [0 .. 99]

dirty :: Link
dirty = perfectLink {linkSeed = 7, linkDelay = milliseconds 2, linkJitter = milliseconds 1, linkLoss = 0.05, linkDuplication = 0.03, linkReordering = 0.05, linkCorruption = 0.01}

transfer :: Link -> Assertion
transfer l = do
  (a, b) <- simulatedLink l
  withStack (quick [addressA]) a $ \client -> withStack (quick [addressB]) b $ \server -> do
    listener <- listen server Nothing 80
    limit <- deadlineIn (seconds 100)
    let sent = B.pack (take 200000 (cycle [0 .. 250]))
    _ <- forkIO $ do
      c <- connect client limit addressB 80
      send c limit sent
      shutdownSend c
    s <- accept listener
    let receiveAll parts = recv s limit 65536 >>= \p -> if B.null p then pure (B.concat (reverse parts)) else receiveAll (p : parts)
    got <- receiveAll []
    assertBool ("received " ++ show (B.length got)) (got == sent)
