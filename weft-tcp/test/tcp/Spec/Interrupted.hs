-- |
-- Threads that are interrupted between their wake-up and their turn: they have taken nothing.
module Spec.Interrupted (tests) where

import Control.Concurrent
import Control.Exception (SomeException, throwIO, try)
import Control.Monad (forM)
import qualified Data.ByteString.Char8 as C
import Data.Word (Word32)
import GHC.Conc (ThreadStatus (..), threadStatus)
import Lone
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Socket (deadlineIn)
import Weft.Tcp
import Weft.Tcp.Stack.Input (arriveBatch)
import Weft.Tcp.Wire.Options
import qualified Weft.Tcp.Wire.Packet as Packet
import Weft.Tcp.Wire.Segment (Segment (..))
import qualified Weft.Tcp.Wire.Segment as Segment
import Weft.Timer (milliseconds, within)
import Weft.Transport (noDeadline)

tests :: TestTree
tests =
  testGroup
    "woken and interrupted"
    [ testCase "recv takes no bytes" . withLone id $ \st sent -> do
        l <- listen st Nothing 80
        arriveBatch st [packetFrom addressA 4000 (synFrom 1)]
        answer <- first <$> sent
        isn <- numberOf answer
        handshake st answer
        s <- accept l
        losses <- forM [1 .. rounds] $ \i -> do
          let arrives = arriveBatch st [packetFrom addressA 4000 (Segment (seqNumber (synFrom 1) + fromIntegral i) (isn + 1) Segment.ack 500 0 noOptions {timestamps = Just (Timestamps 6 0)} [C.pack "x"])]
          taken <- interrupted (recv s noDeadline 10) arrives
          limit <- deadlineIn (milliseconds 50)
          if taken then pure False else either lost (const False) <$> try (recv s limit 10)
        few losses,
      testCase "accept takes no connection" . withLone id $ \st sent -> do
        l <- listen st Nothing 80
        losses <- forM [1 .. rounds] $ \i -> do
          -- The reset of the last connection.
          _ <- sent
          arriveBatch st [packetFrom addressA (4000 + i) (synFrom 1)]
          answer <- first <$> sent
          isn <- numberOf answer
          let arrives = arriveBatch st [packetFrom addressA (4000 + i) (Segment (seqNumber (synFrom 1) + 1) (isn + 1) Segment.ack 500 0 noOptions {timestamps = Just (Timestamps 6 0)} [])]
          taken <- interrupted (accept l >>= abort) arrives
          if taken then pure False else maybe True (const False) <$> within (milliseconds 50) (accept l >>= abort)
        few losses
    ]
  where
    rounds = 100 :: Int
    -- If the killing thread's time slice ends at the wrong moment, the other thread runs and may be killed after its
    -- call has returned and before it has recorded that. This is no fault, and rare.
    few losses = let n = length (filter id losses) in assertBool (show n ++ " lost") (10 * n < rounds)
    first packets = case packets of
      p : _ -> p
      [] -> error "no answer to a SYN"
    lost :: SomeException -> Bool
    lost = const True

-- | A thread waits, the second action ends its wait, and it is killed before it has run. Whether it has ended all the
-- same. All this happens on one capability, so that the thread does not run meanwhile.
interrupted :: IO a -> IO () -> IO Bool
interrupted waits arrives = do
  here <- fst <$> (myThreadId >>= threadCapability)
  outcome <- newEmptyMVar
  _ <- forkOn here (try (interruptedOn here) >>= putMVar outcome)
  takeMVar outcome >>= either (throwIO :: SomeException -> IO a) pure
  where
    interruptedOn here = do
      ended <- newEmptyMVar
      t <- forkOn here (try waits >>= putMVar ended)
      untilBlocked t
      arrives
      killThread t
      either (const False . (id :: SomeException -> SomeException)) (const True) <$> takeMVar ended
    untilBlocked t =
      threadStatus t >>= \status -> case status of
        ThreadBlocked _ -> pure ()
        _ -> yield >> untilBlocked t

-- | The initial sequence number in a SYN-ACK.
numberOf :: C.ByteString -> IO Word32
numberOf answer = case Packet.decode answer of
  Right (Packet.Whole p) | Right v <- Segment.view (Packet.packetBody p) -> pure (seqNumber (Segment.segment v))
  _ -> assertFailure "no SYN-ACK"
