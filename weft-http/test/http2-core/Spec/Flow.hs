{-# LANGUAGE OverloadedStrings #-}

-- | Flow control in both directions: RFC 9113, 5.2 and 6.9.
module Spec.Flow
  ( tests,
  )
where

import Bytes
import qualified Data.ByteString as B
import Data.List (foldl')
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Http2.Budget (Rate (..))
import Weft.Http2.Core
import Weft.Http2.Core.Flow
import Weft.Http2.Core.Types (Core (..))
import Weft.Http2.Frame (ErrorCode (..), flagPadded, frame, typeData)
import Weft.Http2.Resets (ResetRule (..))

tests :: TestTree
tests =
  testGroup
    "flow control"
    [ testCase "a response takes the windows of its stream and of the connection, and goes on with updates of both" $ do
        let run = flush (answer 1 200000 (send (get 1) begun))
        sent 1 run @?= 65535
        sent 1 (flush (send (update 1 1000) run)) @?= 65535
        sent 1 (flush (send (update 0 500) (send (update 1 1000) run))) @?= 66035
        sent 1 (flush (send (update 0 5000) (send (update 1 1000) run))) @?= 66535,
      testCase "SETTINGS that make a window negative: nothing is sent until it is positive again" $ do
        let run = flush (send (settings [(4, 10)]) (flushAtMost 1000 (answer 1 2000 (send (get 1) begun))))
        sent 1 run @?= 1000
        sent 1 (flush (send (update 1 990) run)) @?= 1000
        sent 1 (flush (send (update 1 991) run)) @?= 1001
        goneAway run @?= Nothing,
      testCase "a window beyond 2^31 - 1: an error of the stream, of the connection, and in SETTINGS" $ do
        resets (everything [get 1, update 1 2147483647]) @?= [(1, FlowControlError)]
        goneAway (everything [update 0 2147483647]) @?= Just FlowControlError
        goneAway (everything [get 1, update 1 1000, settings [(4, 2147483647)]]) @?= Just FlowControlError,
      testCase "data beyond the window of the stream, and beyond that of the connection" $ do
        let whole = B.replicate 16384 0
        resets (everything [post 1, content 1 whole]) @?= [(1, FlowControlError)]
        goneAway (everything (concat [[post n, content n (B.replicate share 0)] | n <- [1, 3 .. 199]])) @?= Nothing
        -- Discarded data come back; so these are on streams that nobody reads, from a client that ignores our SETTINGS.
        goneAway (flush (foldl' (flip send) unaware (concat [post n : replicate 3 (content n whole) | n <- [1, 3 .. 81]]))) @?= Just FlowControlError,
      testCase "a client that does not know our SETTINGS yet may use the default window" $ do
        let run = flush (foldl' (flip send) unaware (post 1 : replicate 3 (content 1 (B.replicate 16384 0))))
        (resets run, goneAway run) @?= ([], Nothing)
        -- The window was enlarged meanwhile, to the default of those who know.
        let more = sum [by | SendWindow 1 by <- runFrames run]
            rest = replicate ((65535 + more) `div` 16384 - 3) (content 1 (B.replicate 16384 0))
        more @?= 65535 - share
        resets (flush (foldl' (flip send) run rest)) @?= []
        resets (flush (foldl' (flip send) run (content 1 (B.replicate 16384 0) : rest))) @?= [(1, FlowControlError)],
      testCase "99 streams that nobody reads leave the hundredth its window: an upload of 20 MB" $ do
        let slow = foldl' (flip send) begun (concat [[post n, content n (B.replicate share 0)] | n <- [1, 3 .. 197]])
            (run, done) = upload 199 20000000 (flush (send (post 199) slow))
        (goneAway run, resets run) @?= (Nothing, [])
        done @?= 20000000
        isSound (runCore run) @? "sound",
      testCase "the window of a stream grows with what its application reads, to half of the connection's" $ do
        let (run, done) = upload 1 20000000 (flush (send (post 1) begun))
            room = share + sum [by | SendWindow 1 by <- runFrames run] - done
        room >= 400000 @? show room
        -- The other half is there for the others.
        let other = send (post 3) run
        isSound (runCore other) @? "sound",
      testCase "a stream that is not read gets the default window when it uses its share, and does not grow further" $ do
        let grown run = [by | SendWindow 1 by <- runFrames (flush run)]
            used = send (post 1 <> content 1 (B.replicate 5000 0)) begun
        grown (send (post 1 <> content 1 (B.replicate 2000 0)) begun) @?= []
        grown (send (postOf 1 5100 <> content 1 (B.replicate 5000 0)) begun) @?= []
        grown used @?= [65535 - share]
        grown (foldl' (flip send) used (replicate 4 (content 1 (B.replicate 15000 0)))) @?= [65535 - share],
      testCase "so many streams that are not read get the default window as half of the connection's allows" $ do
        let run = flush (foldl' (flip send) begun (concat [[post n, content n (B.replicate 5000 0)] | n <- [1, 3 .. 199]]))
        length [() | SendWindow n _ <- runFrames run, n > 0] @?= 8
        isSound (runCore run) @? "sound",
      testCase "all credit comes back: after resets by each side, early answers, errors, and padding" $ do
        let ends =
              [ \n -> send (reset n),
                \n -> give (Abandon n InternalError),
                \n -> answer n 4,
                \n -> send (content n (B.replicate 16384 0)),
                \n -> send (end n "") . give (Consume n 5000) . answer n 4,
                \n -> send (frame typeData flagPadded n (B.cons 255 (B.replicate 300 0)))
              ]
            one run (i, how) =
              let n = 2 * i + 1
                  used = flush (how n (send (post n <> content n (B.replicate 5000 0)) run))
               in flush (send (reset n) used)
            run' = foldl' one (beginWith defaultConfig {configResets = ResetRule (Rate 10000 10000) 0}) (zip [0 ..] (concat (replicate 60 ends)))
        goneAway run' @?= Nothing
        openStreams (runCore run') @?= 0
        isSound (runCore run') @? "sound"
        -- What it has not announced yet is less than half of what it has.
        let flow = coreFlow (runCore run')
        case discard (receiveSize flow * 2 `div` 3) flow of
          Nothing -> assertFailure (show flow)
          Just _ -> pure (),
      testCase "a length that the data contradict, too many and too few" $ do
        resets (everything [postOf 1 3, content 1 "four"]) @?= [(1, ProtocolError)]
        resets (everything [postOf 1 5, end 1 "four"]) @?= [(1, ProtocolError)]
        resets (everything [postOf 1 5, content 1 "four", trailers 1]) @?= [(1, ProtocolError)]
        resets (everything [postOf 1 4, content 1 "four", trailers 1]) @?= [],
      testCase "an early answer: the rest of the body is discarded, and beyond a limit the client is told to stop" $ do
        let run = flush (answer 1 4 (send (post 1) (beginWith defaultConfig {configDiscard = 20000})))
            (run', _) = upload 1 20000 run
            (run'', _) = upload 1 15000 run'
        resets run' @?= []
        resets run'' @?= [(1, NoError)]
        [() | Stop 1 _ <- runActions run''] @?= []
    ]
  where
    share = receiveShare (coreFlow (runCore begun))
    unaware = let t = runTime begun in flush (send (B.take 33 preface) (Run (newCore defaultConfig t toyDecode) t [] []))

answer :: Int -> Int -> Run -> Run
answer n size = give (Finish n []) . give (Offer n size) . give (Respond n [(":status", "200")])

sent :: Int -> Run -> Int
sent n run = sum [size | SendData m size _ <- runFrames run, m == n]

-- | A client sends a body as its windows allow, and the application reads all of it. Returns the bytes that were sent.
upload :: Int -> Int -> Run -> (Run, Int)
upload n size start = go start 0
  where
    given0 = sum [by | SendWindow m by <- runFrames start, m == n]
    share = receiveShare (coreFlow (runCore start))
    -- Outputs are dropped as they are counted, to keep this linear.
    go run = loop run {runFrames = []} (share + given0)
    loop run may done
      | done >= size || may <= 0 = (run {runFrames = SendWindow n (may + done - share) : runFrames run}, done)
      | otherwise =
        let k = minimum [16384, may, size - done]
            run' = flush (give (Consume n k) (send (content n (B.replicate k 0)) run {runActions = [], runFrames = filter notWindow (runFrames run)}))
            more = sum [by | SendWindow m by <- runFrames run', m == n]
         in loop run' {runFrames = [f | f <- runFrames run', notWindow f]} (may - k + more) (done + k)
    notWindow frame' = case frame' of
      SendWindow _ _ -> False
      _ -> True
