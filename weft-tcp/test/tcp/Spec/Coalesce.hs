-- |
-- Coalescing of segments that arrive together: a connection that gets them in one step must end up in the same state
-- as one that gets each in its own step.
module Spec.Coalesce (tests) where

import qualified Data.ByteString as B
import Data.List (foldl')
import Data.Word (Word32)
import Handmade
import Test.Tasty
import Test.Tasty.HUnit
import Test.Tasty.QuickCheck
import Weft.Tcp.Core
import Weft.Tcp.Core.Coalesce
import Weft.Tcp.Core.Invariants
import Weft.Tcp.Core.State (Receive (..), receiveSide)
import Weft.Tcp.Wire.Options
import Weft.Tcp.Wire.Segment

tests :: TestTree
tests =
  testGroup
    "segments that arrive together"
    [ testProperty "in one step or in one step each: the same data, state and window" together,
      testCase "a stream of 64 segments becomes one" $ do
        let (joined, others) = coalesceFirst 64 (c base) (piece 0) (map piece [1 .. 63])
        (payloadLength joined, length (payload joined), others) @?= (6400, 64, []),
      testCase "another acknowledgment, window or option, a FIN and a gap end it" $
        map
          (joinedWith . (\f -> f (piece 1)))
          [id, \s -> s {flags = ack <> psh}, \s -> s {ackNumber = 500}, \s -> s {window = 9}, \s -> s {options = stamped}, \s -> s {flags = ack <> fin}, \s -> s {seqNumber = 1102}]
          @?= [200, 200, 100, 100, 100, 100, 100],
      testCase "the first 64, and 64 after a duplicate, are acknowledged by twos, and then by thirty-twos" $ do
        let arriving t from to = fmap (map ((`div` 100) . subtract 1001 . ackNumber)) (on cfg t (Arrive (map piece [from .. to - 1])))
            few n = snd (arriving base 0 n)
            (t1, beginning) = arriving base 0 100
            (t2, later) = arriving t1 100 164
            (t3, duplicate) = arriving t2 163 164
            (_, afterwards) = arriving t3 164 174
        map few [1, 2, 3, 4, 7] @?= [[], [2], [3], [2, 4], [2, 4, 7]]
        beginning @?= [2, 4 .. 64] ++ [96, 100]
        later @?= [132, 164]
        duplicate @?= [164]
        afterwards @?= [166, 168 .. 174],
      testCase "behind a gap nothing is joined: each segment is reported" $ do
        let (_, out) = on cfg base (Arrive (map piece [1 .. 5]))
        length out @?= 5
    ]
  where
    joinedWith s = payloadLength (fst (coalesceFirst 2 (c base) (piece 0) [s]))
    stamped = noOptions {timestamps = Just (Timestamps 1 2)}

-- | The segment with the given number in a stream of segments of 100 bytes.
piece :: Word32 -> Segment
piece n = (plain (1001 + 100 * n) 501 "") {payload = [B.replicate 100 (fromIntegral n)]}

-- | Compare the two ways for random batches: out of order, with losses and duplicates, other flags, windows and
-- acknowledgments.
together :: Property
together = forAll batch $ \segments ->
  let whole = one (Arrive segments) (c base)
      each = foldl' (\x s -> one (Arrive [s]) x) (c base) segments
   in counterexample (unlines (map show segments)) $
        conjoin
          [ content (T 0 whole) === content (T 0 each),
            state whole === state each,
            facts whole === facts each,
            invariants cfg whole === []
          ]
  where
    one e x = fst (step (env' cfg (at base + 10000)) e x)
    facts x = let r = receiveSide x in (rcvNxt r, rcvAdvertised r, rcvFin r)

batch :: Gen [Segment]
batch = do
  sizes <- listOf (choose (1, 700))
  let starts = scanl (+) 0 sizes
  inOrder <- sequence [segmentAt (fromIntegral start) size | (start, size) <- zip starts sizes]
  disturbed <- frequency [(3, pure inOrder), (1, shuffle inOrder), (1, concat <$> mapM (\s -> elements [[s], [s, s], []]) inOrder)]
  ended <- elements [[], [(plain (1001 + fromIntegral (sum sizes)) 501 "") {flags = ack <> fin}]]
  pure (disturbed ++ ended)
  where
    segmentAt :: Word32 -> Int -> Gen Segment
    segmentAt start size = do
      f <- frequency [(8, pure ack), (3, pure (ack <> psh)), (1, pure (ack <> fin))]
      acked <- frequency [(8, pure 501), (1, pure 499)]
      w <- frequency [(8, pure 10000), (1, pure 9000)]
      pure (plain (1001 + start) acked "") {flags = f, window = w, payload = [B.pack (take size [fromIntegral start ..])]}
