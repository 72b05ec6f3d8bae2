{-# LANGUAGE OverloadedStrings #-}

-- | Priorities: RFC 9218.
module Spec.Priority
  ( tests,
  )
where

import Bytes
import qualified Data.ByteString as B
import Data.List (foldl', nub)
import Test.Tasty
import Test.Tasty.HUnit
import Test.Tasty.QuickCheck (testProperty)
import Weft.Http2.Core
import Weft.Http2.Core.Priority
import Weft.Http2.Frame (ErrorCode (..))

tests :: TestTree
tests =
  testGroup
    "priorities (RFC 9218)"
    [ testCase "values of the field" $
        [parsePriority v | v <- ["", "u=0", "u=7, i", "i;x=1,u=5", "u=8", "u=-1", "u=2.0", "i=?0", "i=?1", "u=1,u=6", "x=?1, \tu=4", "u", "U=1", "i=1"]]
          @?= [ Priority 3 False,
                Priority 0 False,
                Priority 7 True,
                Priority 5 True,
                Priority 3 False,
                Priority 3 False,
                Priority 3 False,
                Priority 3 False,
                Priority 3 True,
                Priority 6 False,
                Priority 4 False,
                Priority 3 False,
                Priority 3 False,
                Priority 3 False
              ],
      testProperty "any value is read" $ \bytes -> let Priority u _ = parsePriority (B.pack bytes) in u >= 0 && u <= 7,
      testCase "the most urgent first, then in the order of the streams" $
        take 6 (order [(1, "u=5"), (3, "u=1"), (5, "u=3"), (7, "")]) @?= [3, 3, 3, 3, 5, 5],
      testCase "incremental ones in turn" $
        take 6 (order [(1, "i"), (3, "i"), (5, "i")]) @?= [1, 3, 5, 1, 3, 5],
      testCase "the least urgent does not starve" $
        (1 `elem` take 16 (orderOf 400000 [(1, "u=7"), (3, "u=0"), (5, "u=0")])) @?= True,
      testCase "PRIORITY_UPDATE before the stream, and while it is sent" $ do
        let early = foldl' (flip answer) (send (priority 3 "u=0" <> get 1 <> get 3) begun) [1, 3]
        dataOf (flushAtMost 16384 early) @?= [3]
        let late = foldl' (flip answer) (send (get 1 <> get 3) begun) [1, 3]
        dataOf (flushAtMost 16384 (send (priority 3 "u=0") late)) @?= [3],
      testCase "PRIORITY_UPDATE that is too short, of the connection, and on a stream" $ do
        goneAway (everything [B.concat [B.pack [0, 0, 3, 16, 0, 0, 0, 0, 0], "abc"]]) @?= Just FrameSizeError
        goneAway (everything [priority 0 "u=1"]) @?= Just ProtocolError
        goneAway (everything [B.concat [B.pack [0, 0, 4, 16, 0, 0, 0, 0, 1], B.pack [0, 0, 0, 1]]]) @?= Just ProtocolError
    ]
  where
    order = orderOf 65000
    -- The streams of the frames of data, for a client with large windows.
    orderOf size streams =
      dataOf (flush (foldl' (flip (answerOf size)) (send (B.concat (settings [(4, 10000000)] : update 0 100000000 : [headers n True (request "GET" [("priority", p)]) | (n, p) <- streams])) begun) (map fst streams)))
    answer = answerOf 20000
    answerOf :: Int -> Int -> Run -> Run
    answerOf size n = give (Finish n []) . give (Offer n size) . give (Respond n [(":status", "200")])
    dataOf run = [n | SendData n size _ <- runFrames run, size > 0, n `elem` nub (started run)]
