{-# LANGUAGE OverloadedStrings #-}

-- | Rules of RFC 9113 about beginnings, frames, header blocks, settings, limits, drains and time.
module Spec.Rules
  ( tests,
  )
where

import Bytes
import qualified Data.ByteString as B
import Data.List (foldl')
import Test.Tasty
import Test.Tasty.HUnit
import Test.Tasty.QuickCheck
import Weft.Duration (milliseconds)
import Weft.Http2.Budget (Rate (..))
import Weft.Http2.Core
import Weft.Http2.Frame

tests :: TestTree
tests =
  testGroup
    "rules"
    [ testCase "the first frame is SETTINGS, with the limits" $ case fresh of
        Run core t _ _ -> case takeFrames t maxBound core of
          (SendSettings parameters : SendWindow 0 more : _, _, _) -> (lookup 3 parameters, lookup 6 parameters, lookup 9 parameters, more) @?= (Just 100, Just 32768, Just 1, 1048576 - 65535)
          (frames, _, _) -> assertFailure (show frames),
      testCase "a request and its response" $ do
        let run = flush (answer 1 5 (send (get 1) begun))
        started run @?= [1]
        runFrames run @?= [SendHeaders 1 ok False, SendData 1 5 True]
        openStreams (runCore run) @?= 0,
      testCase "a request with a body and trailers; a response with trailers" $ do
        let run = flush (give (Finish 1 [("x-sum", "2")]) (give (Offer 1 5) (give (Respond 1 ok) (give (Interim 1 early) (send (post 1 <> content 1 "ab" <> content 1 "c" <> trailers 1) begun)))))
        drop 1 (runActions run) @?= [Deliver 1 "ab", Deliver 1 "c", DeliverEnd 1 [("x-sum", "1")]]
        runFrames run @?= [SendHeaders 1 early False, SendHeaders 1 ok False, SendData 1 5 False, SendHeaders 1 [("x-sum", "2")] True],
      testCase "trailers and nothing else behind the head; an end without data" $ do
        let with fields = runFrames (flush (give (Finish 1 fields) (give (Respond 1 ok) (send (get 1) begun))))
        with [("grpc-status", "0")] @?= [SendHeaders 1 ok False, SendHeaders 1 [("grpc-status", "0")] True]
        with [] @?= [SendHeaders 1 ok False, SendData 1 0 True],
      testCase "an application that waits for the windows is told when both are open, or stopped in time" $ do
        let closed = give (AwaitWindow 1) (send (settings [(4, 0)] <> get 1) begun)
            told run = [n | Opened n <- runActions run]
        told (give (AwaitWindow 1) (send (get 1) begun)) @?= [1]
        told closed @?= []
        told (send (update 1 10) closed) @?= [1]
        told (send (update 1 10) (send (update 1 10) closed)) @?= [1]
        told (send (settings [(4, 10)]) closed) @?= [1]
        -- Another stream has used up the connection's window.
        let used = give (AwaitWindow 3) (send (get 3) (flush (answer 1 65535 (send (get 1) begun))))
        told used @?= []
        told (send (update 0 1) used) @?= [3]
        goneAway (flush (later 30001 closed)) @?= Just EnhanceYourCalm,
      testProperty "a whole response is sent as its parts are" $
        forAll ((,,,) <$> elements [0, 1, 1000, 16384, 16385, 70000] <*> elements [[], [("x", "y")]] <*> elements [get 1, post 1 <> content 1 "ab" <> end 1 "", post 1] <*> elements [[], [(4, 0)], [(4, 1000)], [(5, 20000)]]) $
          \(size, fields, asked, parameters) ->
            let asking = send (settings parameters <> asked) begun
                after' run = flush (send (update 1 100000) (flush run))
                whole = after' (give (Whole 1 ok size fields) asking)
                parts = after' (give (Finish 1 fields) (give (Offer 1 size) (give (Respond 1 ok) asking)))
             in (runFrames whole, runActions whole, openStreams (runCore whole)) === (runFrames parts, runActions parts, openStreams (runCore parts)),
      testCase "whole responses come before the data of others up to what is sent at once" $ do
        let asked = send (settings [(4, 1000000)] <> update 0 10000000 <> B.concat (map get [1, 3 .. 9])) begun
            run = foldl' (\r n -> give (Whole n ok 16000 []) r) asked [1, 3 .. 9]
        [(n, size) | SendData n size _ <- runFrames (flushAtMost mostData run)] @?= [(1, 16000), (3, 16000), (5, 16000), (7, mostData - 48000)]
        -- While others wait for their turn, none comes before them.
        let waits = give (Whole 3 ok 10 []) (give (Offer 1 100) (give (Respond 1 ok) asked))
        [n | SendData n _ _ <- runFrames (flush waits)] @?= [1, 3],
      testCase "many streams: heads and data of all of them come at once" $ do
        let run = flush (foldl' (flip (`answer` 5)) (send (B.concat (map get [1, 3 .. 21])) begun) [1, 3 .. 21])
        length (runFrames run) @?= 22,
      testCase "the application cannot respond twice, nor give more behind the end" $ do
        let run = flush (give (Offer 1 7) (answer 1 5 (answer 1 5 (send (get 1) begun))))
        runFrames run @?= [SendHeaders 1 ok False, SendData 1 5 True],
      ends "a wrong preface" ProtocolError [Raw (B.replicate 24 0x78)],
      ends "no SETTINGS first" ProtocolError [Raw connectionPreface, Raw (ping (B.replicate 8 0))],
      ends "an acknowledgement first" ProtocolError [Raw connectionPreface, Raw acknowledgement],
      ends "4.2: a frame of more than 16,384 bytes" FrameSizeError [After (B.take 9 (frame typeData 0 1 (B.replicate 16385 0)))],
      ends "6.1: DATA on the connection" ProtocolError [After (content 0 "x")],
      ends "6.1: more padding than payload" ProtocolError [After (post 1 <> frame typeData flagPadded 1 (B.pack [9, 0]))],
      ends "6.2: HEADERS on the connection" ProtocolError [After (headers 0 True (request "GET" []))],
      ends "6.2: HEADERS without the priority that they announce" FrameSizeError [After (frame typeHeaders 0x24 1 "abcd")],
      ends "6.2: a block interrupted by a frame of another kind" ProtocolError [After (frame typeHeaders 0 1 "a=b\n" <> ping (B.replicate 8 0))],
      ends "6.10: a block interrupted by another stream's continuation" ProtocolError [After (frame typeHeaders 0 1 "a=b\n" <> frame typeContinuation flagEndHeaders 3 "")],
      ends "6.10: a continuation of nothing" ProtocolError [After (frame typeContinuation flagEndHeaders 1 "")],
      ends "6.3: PRIORITY on the connection" ProtocolError [After (frame typePriority 0 0 (B.replicate 5 0))],
      ends "6.4: RST_STREAM of another size" FrameSizeError [After (get 1 <> frame typeReset 0 1 "abc")],
      ends "6.5: SETTINGS on a stream" ProtocolError [After (get 1 <> frame typeSettings 0 1 "")],
      ends "6.5: SETTINGS of another size" FrameSizeError [After (frame typeSettings 0 0 "abc")],
      ends "6.5: an acknowledgement with a payload" FrameSizeError [After (frame typeSettings flagAck 0 (B.replicate 6 0))],
      ends "6.5.2: SETTINGS_ENABLE_PUSH of 2" ProtocolError [After (settings [(2, 2)])],
      ends "6.5.2: SETTINGS_INITIAL_WINDOW_SIZE of 2^31" FlowControlError [After (settings [(4, 2147483648)])],
      ends "6.5.2: SETTINGS_MAX_FRAME_SIZE of 16,383" ProtocolError [After (settings [(5, 16383)])],
      ends "6.6: PUSH_PROMISE" ProtocolError [After (get 1 <> frame typePushPromise flagEndHeaders 1 (B.replicate 8 0))],
      ends "6.7: PING of another size" FrameSizeError [After (ping "abc")],
      ends "6.7: PING on a stream" ProtocolError [After (get 1 <> frame typePing 0 1 (B.replicate 8 0))],
      ends "6.8: GOAWAY of another size" FrameSizeError [After (frame typeGoAway 0 0 "abcdefg")],
      ends "6.9: WINDOW_UPDATE of another size" FrameSizeError [After (frame typeWindowUpdate 0 0 "abc")],
      ends "6.9: WINDOW_UPDATE of nothing, of the connection" ProtocolError [After (update 0 0)],
      ends "a header block that cannot be decoded" CompressionError [After (frame typeHeaders 5 1 "!")],
      testCase "6.3: PRIORITY of another size, an error of its stream" $ do
        resets (everything [get 1, frame typePriority 0 1 "abcd"]) @?= [(1, FrameSizeError)]
        goneAway (everything [frame typePriority 0 1 "abcd"]) @?= Just FrameSizeError,
      testCase "6.9: WINDOW_UPDATE of nothing, an error of its stream" $ resets (everything [get 1, update 1 0]) @?= [(1, ProtocolError)],
      testCase "8.1.1: malformed requests are errors of their streams" $ do
        let run = everything [headers 1 True [(":method", "GET")], headers 3 True (request "GET" [("Upper", "x")]), headers 5 True (request "GET" [("content-length", "3")]), get 7]
        resets run @?= [(1, ProtocolError), (3, ProtocolError), (5, ProtocolError)]
        started run @?= [7],
      testCase "8.1.1: a request has one length in decimal digits, as in HTTP/1.1" $ do
        let lengths values = resets (everything [headers 1 False (request "POST" [("content-length", value) | value <- values]), end 1 "abc"])
        map lengths [["3"], ["003"]] @?= [[], []]
        map lengths (["3", "3"] : ["3", "4"] : map pure wrongLengths) @?= replicate (2 + length wrongLengths) [(1, ProtocolError)],
      testCase "unknown frames, flags and settings are ignored" $
        goneAway (everything [frame 99 255 1 "x", settings [(77, 5)], frame typePing 0xfe 0 (B.replicate 8 0)]) @?= Nothing,
      testCase "PING and SETTINGS are answered, in the order of the frames" $
        runFrames (everything [ping "abcdefgh", settings [(1, 0), (3, 9), (1, 4096)], ping "ijklmnop"])
          @?= [SendPingAck "abcdefgh", SendSettingsAck [0, 4096], SendPingAck "ijklmnop"],
      testCase "requests with too many or too large fields get 431, and the connection goes on" $ do
        let run = everything [headers 1 True (request "GET" (replicate 101 ("x", "y"))), headers 3 True (request "GET" [("x", B.replicate 32768 97)]), get 5]
            -- The second block is above the limit of blocks; so use one that is only large when decoded.
            many = everything [headers 1 True (request "GET" (replicate 101 ("x", "y"))), get 3]
        goneAway run @?= Just FrameSizeError
        (runFrames many, started many) @?= ([SendHeaders 1 [(":status", "431"), ("content-length", "0")] True], [3]),
      testCase "header blocks: too long, and too many continuations" $ do
        goneAway (everything (frame typeHeaders 1 1 (B.replicate 16384 97) : replicate 2 (frame typeContinuation 0 1 (B.replicate 16384 97)))) @?= Just EnhanceYourCalm
        goneAway (everything (frame typeHeaders 1 1 "a=b\n" : replicate 66 (frame typeContinuation 0 1 "a"))) @?= Just EnhanceYourCalm,
      testGroup
        "floods end the connection"
        [ testCase name (goneAway (floodOf bytes) @?= Just EnhanceYourCalm)
          | (name, bytes) <-
              [ ("PING", const (ping (B.replicate 8 0))),
                ("PING acknowledgements", const (frame typePing flagAck 0 (B.replicate 8 0))),
                ("SETTINGS", const (settings [])),
                ("acknowledgements of SETTINGS", const acknowledgement),
                ("PRIORITY", const (frame typePriority 0 1 (B.replicate 5 0))),
                ("PRIORITY_UPDATE", const (priority 1 "u=1")),
                ("WINDOW_UPDATE", const (update 0 1)),
                ("empty DATA", const (content 1 "")),
                ("unknown frames", const (frame 99 0 0 "x")),
                ("GOAWAY", const (frame typeGoAway 0 0 (B.replicate 8 0))),
                ("RST_STREAM", const (reset 1)),
                ("requests that are reset", \i -> get (2 * i + 3) <> reset (2 * i + 3)),
                ("requests that are malformed", \i -> headers (2 * i + 3) True [])
              ]
        ],
      testCase "window updates are allowed for data that are sent" $ do
        let run0 = answer 1 100000000 (send (get 1) begun)
            run = foldl' (\r _ -> (flush (send (update 0 16384 <> update 1 16384) r)) {runFrames = []}) run0 [1 .. 5000 :: Int]
        goneAway (flush run) @?= Nothing,
      testCase "a reset of a stream that is over for each frame of data that was under way is no attack, and no more" $ do
        -- As Python's h2: it gives up the stream, and answers each frame that still comes for it.
        let run0 = send (settings [(4, 100000)] <> update 0 1000000 <> get 1) begun
            sent = foldl' (\run _ -> flush (give (Offer 1 5) run)) (flush (give (Respond 1 [(":status", "200")]) run0)) [1 .. 2000 :: Int]
            gone = flush (send (B.concat (replicate 2001 (reset 1))) sent)
        goneAway gone @?= Nothing
        goneAway (flush (send (B.concat (replicate 260 (reset 1))) gone)) @?= Just EnhanceYourCalm,
      testCase "resets of a client that completes as many requests are no attack" $ do
        let turn r i = (flush (send (get (n + 2) <> reset (n + 2)) (flush (answer n 5 (send (get n) r))))) {runActions = []} where n = 4 * i + 1
            run = foldl' turn begun [0 .. 3000]
        goneAway run @?= Nothing,
      testCase "too many streams: refused; without a charge until the client knows the limit" $ do
        let many = B.concat (map get [1, 3 .. 1001])
            unaware = flush (send (connectionPreface <> settings [] <> many) fresh)
            aware = flush (send (acknowledgement <> B.concat (map get [1003, 1005 .. 2003])) unaware)
        (length (started unaware), length (resets unaware), goneAway unaware) @?= (100, 401, Nothing)
        goneAway aware @?= Just EnhanceYourCalm,
      testCase "answers that are not taken end the connection" $ do
        let rich = beginWith defaultConfig {configPings = Rate 1000000 1000000, configAnswers = 50}
        goneAway (flush (send (B.concat (replicate 51 (ping (B.replicate 8 0)))) rich)) @?= Just EnhanceYourCalm,
      testGroup
        "a drain"
        [ testCase "GOAWAY twice, with a round trip between; requests until then are served" $ do
            let run = flush (send (get 1 <> frame typePing flagAck 0 "weft end" <> get 3) (flush (give BeginDrain begun)))
            runFrames run @?= [SendGoAway 2147483647 NoError, SendPing "weft end", SendGoAway 1 NoError, SendReset 3 RefusedStream]
            started run @?= [1]
            let over = flush (answer 1 5 run)
            drop 4 (runFrames over) @?= [SendHeaders 1 ok False, SendData 1 5 True, SendGoAway 1 NoError]
            [code | Close _ code _ <- runActions over] @?= [NoError],
          testCase "a client that does not answer the PING gets the second one after a second" $ do
            let run = flush (later 1001 (flush (give BeginDrain (send (get 1) begun))))
            [n | SendGoAway n _ <- runFrames run] @?= [2147483647, 1],
          testCase "without streams it ends at once after the round trip" $ do
            let run = flush (send (frame typePing flagAck 0 "weft end") (flush (give BeginDrain begun)))
            [code | Close _ code _ <- runActions run] @?= [NoError]
        ],
      testGroup
        "time"
        [ testCase "an idle connection" $ do
            [code | Close _ code _ <- runActions (later 59999 begun)] @?= []
            [code | Close _ code _ <- runActions (later 60001 begun)] @?= [NoError],
          testCase "pings do not keep it" $ [code | Close _ code _ <- runActions (later 2000 (send (ping (B.replicate 8 0)) (later 59000 begun)))] @?= [NoError],
          testCase "half a frame, and half a header block" $ do
            goneAway (flush (later 30001 (send (B.take 5 (get 1)) begun))) @?= Just EnhanceYourCalm
            goneAway (flush (later 15001 (send (frame typeContinuation 0 1 "a") (later 15000 (send (frame typeHeaders 0 1 "a=b\n") begun))))) @?= Just EnhanceYourCalm,
          testCase "a response that nobody takes, beside one that goes on: only that one ends" $ do
            let busy = send (settings [(4, 10)] <> get 1 <> get 3) begun
                run = flush (answer 3 1000000 (answer 1 20 busy))
                on r _ = flush (later 1000 (send (update 3 16384) r))
                ended = foldl' on run [1 .. 40 :: Int]
            (resets ended, goneAway ended) @?= ([(1, Cancel)], Nothing)
            [n | Stop n _ <- runActions ended] @?= [1],
          -- 30 seconds, and what it has earned by 65,535 bytes.
          testCase "a client that takes nothing more: the connection ends" $
            goneAway (flush (later 46000 (flush (answer 1 1000000 (send (get 1) begun))))) @?= Just EnhanceYourCalm,
          testCase "a body that does not come, if the application waits for it" $ do
            resets (flush (later 31000 (send (post 1) begun))) @?= []
            resets (flush (later 31000 (give (Want 1) (send (post 1) begun)))) @?= [(1, Cancel)],
          testCase "a body whose length was not announced may stay away once the response has begun, and not before" $ do
            let begins = give (Offer 1 5) . give (Respond 1 ok)
                hour r = let run = foldl' (\before _ -> answersPings (later 30000 before)) r [1 .. 120 :: Int] in (resets run, goneAway run)
            hour (give (Want 1) (begins (send (post 1) begun))) @?= ([], Nothing)
            -- The application waits before it begins its response.
            hour (begins (later 20000 (give (Want 1) (send (post 1) begun)))) @?= ([], Nothing)
            -- After a part of the body, too.
            hour (give (Want 1) (give (Consume 1 1) (send (content 1 "x") (begins (send (post 1) begun))))) @?= ([], Nothing)
            -- An announced one.
            resets (flush (later 31000 (give (Want 1) (begins (send (postOf 1 10) begun))))) @?= [(1, Cancel)]
            -- A client that does not take the response.
            goneAway (flush (later 46000 (give (Want 1) (flush (give (Offer 1 1000000) (begins (send (post 1) begun))))))) @?= Just EnhanceYourCalm
            -- What is left of the body when the response is complete.
            resets (flush (later 46000 (flush (give (Finish 1 []) (begins (send (post 1) begun)))))) @?= [(1, NoError)],
          testCase "a client that has vanished: it is asked after two minutes of silence, and has half a minute" $ do
            let asks run = length [() | SendPing _ <- runFrames run]
                silent = send (get 1) begun
                asked = flush (later 120001 silent)
            asks (flush (later 119999 silent)) @?= 0
            (asks asked, goneAway asked) @?= (1, Nothing)
            (asks (flush (later 29999 asked)), goneAway (flush (later 29999 asked))) @?= (1, Nothing)
            goneAway (flush (later 30001 asked)) @?= Just EnhanceYourCalm
            -- Whatever it sends is an answer, and the next silence begins.
            let heard = send (update 0 1) (later 29999 asked)
            goneAway (flush (later 119999 heard)) @?= Nothing
            asks (flush (later 120001 heard)) @?= 2
            -- Without streams the connection is idle, and nothing is asked.
            asks (flush (later 59000 (flush (answer 1 5 silent)))) @?= 0,
          testCase "the next deadline is not later than what happens" $ do
            let busy = give (Want 1) (send (post 1) (beginWith defaultConfig {configWait = milliseconds 500}))
            resets (flush (later 499 busy)) @?= []
            resets (flush (later 501 busy)) @?= [(1, Cancel)]
        ]
    ]
  where
    ok = [(":status", "200")]
    early = [(":status", "103"), ("link", "</a>")]
    -- What a client does with PINGs.
    answersPings run = let run' = flush run in foldl' (flip send) run' [frame typePing flagAck 0 payload | SendPing payload <- drop (length (runFrames run)) (runFrames run')]
    answer n size = give (Finish n []) . give (Offer n size) . give (Respond n ok)
    fresh = let t = runTime begun in Run (newCore defaultConfig t toyDecode) t [] []
    ends name code parts = testCase name $ do
      let run = flush (foldl' feed fresh parts)
      goneAway run @?= Just code
      [c | Close _ c _ <- runActions run] @?= [code]
    feed run part = case part of
      Raw bytes -> send bytes run
      After bytes -> send (preface <> bytes) run
    -- The client takes all that it is sent; stream 1 is open.
    floodOf :: (Int -> B.ByteString) -> Run
    floodOf bytes = go 0 (send (post 1) begun)
      where
        go i run
          | i > 6000 || goneAway run /= Nothing = run
          | otherwise = go (i + 1) (flush (send (bytes i) run))

-- | What a client sends: from the beginning of a connection, or after its preface.
data Part = Raw B.ByteString | After B.ByteString
