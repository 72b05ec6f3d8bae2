{-# LANGUAGE OverloadedStrings #-}

-- | Rules of RFC 9113 for a client: what it sends, what it makes of what comes, and what a server may not do.
module Spec.Client
  ( tests,
  )
where

import Bytes (acknowledgement, block, content, end, headers, ping, settings, trailers, update, wrongLengths)
import Client
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import Data.List (foldl')
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Duration (seconds)
import Weft.Http2.Budget (Rate (..))
import Weft.Http2.Client
import Weft.Http2.Core (Field, Frame (..))
import Weft.Http2.Frame

tests :: TestTree
tests =
  testGroup
    "a client's connection"
    [ testGroup "requests" requests,
      testGroup "responses" responses,
      testGroup "ends" ends,
      testGroup "windows" windows,
      testGroup "errors of a stream" streamErrors,
      testGroup "errors of the connection" connectionErrors,
      testGroup "limits on the server" limits
    ]

answer :: Int -> Bool -> [Field] -> ByteString
answer n final more = headers n final ((":status", "200") : more)

summary :: Action -> String
summary action = case action of
  Answer n found -> "head " <> show n <> " " <> show (responseCode found)
  _ -> show action

seen :: Run -> [String]
seen = map summary . runActions

requests :: [TestTree]
requests =
  [ testCase "the first frames: no pushes, the windows, no priorities" $
      runFrames (flush (fresh defaultConfig)) @?= [SendSettings [(2, 0), (4, 262144), (6, 65536), (9, 1)], SendWindow 0 (26214400 + 16777216 - 65535)],
    testCase "streams have odd numbers, and frames their order" $
      runFrames (flush (give (Finish 3 []) (give (Offer 3 5) (get (post (get begun))))))
        @?= [SendHeaders 1 (asked "GET") True, SendHeaders 3 (asked "POST") False, SendHeaders 5 (asked "GET") True, SendData 3 5 True],
    testCase "a body and trailers; an end behind which nothing is" $ do
      runFrames (flush (give (Finish 1 [("x", "y")]) (give (Offer 1 5) (post begun)))) @?= [SendHeaders 1 (asked "POST") False, SendData 1 5 False, SendHeaders 1 [("x", "y")] True]
      runFrames (flush (give (Finish 1 []) (flush (give (Offer 1 5) (post begun))))) @?= [SendHeaders 1 (asked "POST") False, SendData 1 5 False, SendData 1 0 True],
    testCase "one stream until the server has sent its settings, then as many as it allows, up to the client's own limit" $ do
      streamsAllowed (runCore (fresh defaultConfig)) @?= 1
      let allowed parameters = streamsAllowed (runCore (hear (settings parameters) (fresh defaultConfig)))
      map allowed [[], [(3, 7)], [(3, 0)], [(3, 1000)]] @?= [100, 7, 0, 100]
      let two = get (get (get (hear (settings [(3, 2)]) begun)))
      length [n | SendHeaders n _ _ <- runFrames (flush two)] @?= 2
      -- The end of one makes room for another.
      [n | SendHeaders n _ _ <- runFrames (flush (get (hear (answer 1 True []) (flush two))))] @?= [1, 3, 5],
    testCase "bodies take turns, in frames of the size that the server takes" $ do
      let run = hear (settings [(4, 100000)] <> update 0 1000000) begun
          both = give (Offer 3 40000) (give (Offer 1 40000) (post (post run)))
      [(n, size) | SendData n size _ <- runFrames (flushAtMost 50000 both)] @?= [(1, 16384), (3, 16384), (1, 16384), (3, 848)],
    testCase "what is offered behind the end, or for a stream that is over, has no effect" $
      runFrames (flush (give (Offer 7 5) (give (Finish 1 [("a", "b")]) (give (Offer 1 5) (flush (give (Finish 1 []) (post begun)))))))
        @?= [SendHeaders 1 (asked "POST") False, SendData 1 0 True],
    testCase "settings are acknowledged, with the sizes of the header table; pings are answered" $
      runFrames (flush (hear (settings [(1, 100), (1, 4096)] <> ping "12345678" <> frame typePing flagAck 0 "abcdefgh" <> acknowledgement) begun))
        @?= [SendSettingsAck [100, 4096], SendPingAck "12345678"]
  ]
  where
    asked method = [(":method", method), (":scheme", "http"), (":path", "/"), (":authority", "a")]

responses :: [TestTree]
responses =
  [ testCase "a head, a body and trailers" $
      seen (hear (answer 1 False [] <> content 1 "ab" <> content 1 "c" <> trailers 1) (get begun)) @?= ["head 1 200", show (Deliver 1 "ab"), show (Deliver 1 "c"), show (DeliverEnd 1 [("x-sum", "1")])],
    testCase "a head alone; an end without data" $ do
      seen (hear (answer 1 True []) (get begun)) @?= ["head 1 200", show (DeliverEnd 1 [])]
      seen (hear (answer 1 False [] <> end 1 "") (get begun)) @?= ["head 1 200", show (DeliverEnd 1 [])],
    testCase "interim responses" $
      seen (hear (headers 1 False [(":status", "100")] <> headers 1 False [(":status", "103"), ("link", "x")] <> answer 1 True []) (get begun))
        @?= [show (Interim 1 100), show (Interim 1 103), "head 1 200", show (DeliverEnd 1 [])],
    testCase "a length with a response to HEAD, and with 304" $ do
      seen (hear (answer 1 True [("content-length", "7")]) (headOf begun)) @?= ["head 1 200", show (DeliverEnd 1 [])]
      seen (hear (headers 1 True [(":status", "304"), ("content-length", "7")]) (get begun)) @?= ["head 1 304", show (DeliverEnd 1 [])],
    testCase "a block in several frames, with padding and a priority" $ do
      let bytes = block [(":status", "200")]
          (one, two) = B.splitAt 3 bytes
          first = frame typeHeaders (flagPadded + 0x20) 1 (B.concat ["\2", "\0\0\0\0\0", one, "\0\0"])
      seen (hear (first <> frame typeContinuation flagEndHeaders 1 two <> end 1 "x") (get begun)) @?= ["head 1 200", show (Deliver 1 "x"), show (DeliverEnd 1 [])],
    testCase "frames of unknown types and priorities are passed over" $
      seen (hear (frame 99 255 0 "abc" <> frame typePriority 0 1 (B.replicate 5 0) <> frame 10 0 1 "" <> answer 1 True []) (get begun)) @?= ["head 1 200", show (DeliverEnd 1 [])],
    testCase "a response that is complete before its request" $ do
      let run = hear (answer 1 True []) (post begun)
      seen run @?= ["head 1 200", show (DeliverEnd 1 [])]
      -- The rest of the request may follow, or not.
      [f | f@SendData {} <- runFrames (flush (give (Finish 1 []) run))] @?= [SendData 1 0 True]
      resets (flush (give (GiveUp 1) run)) @?= [(1, NoError)]
      losses (hear (resetBy NoError 1) run) @?= [(1, Reset 0)]
  ]

ends :: [TestTree]
ends =
  [ testCase "a reset: refused, which is not processed; another code; behind a head" $ do
      losses (hear (resetBy RefusedStream 1) (get begun)) @?= [(1, Unprocessed)]
      losses (hear (resetBy InternalError 1) (get begun)) @?= [(1, Reset 2)]
      losses (hear (answer 1 False [] <> resetBy RefusedStream 1) (get begun)) @?= [(1, Reset 7)],
    testCase "a stream that is given up: what still comes for it is ignored, and its credit is returned" $ do
      let run = give (GiveUp 1) (hear (answer 1 False []) (get begun))
          late = hear (content 1 "abc" <> trailers 1) run
      resets (flush run) @?= [(1, Cancel)]
      drop 1 (seen late) @?= []
      isSound (runCore late) @?= True
      -- Once: the server has ended it.
      fmap fst (ended (hear (content 1 "abc") late)) @?= Just StreamClosed,
    testCase "5.1: what the server sends behind its reset of a stream is ignored, before and after the client's" $ do
      let still run = ended (hear (resetBy Cancel 1 <> answer 1 False [] <> content 1 "abc" <> trailers 1) run) @?= Nothing
      still (get begun)
      still (hear (answer 1 False []) (get begun))
      still (give (GiveUp 1) (get begun))
      still (hear (answer 1 True [] <> resetBy NoError 1) (get begun)),
    testCase "GOAWAY: streams above the last one were not processed, others go on, none begins" $ do
      let run = hear (goAway 1 NoError) (get (get begun))
      losses run @?= [(3, Unprocessed)]
      streamsAllowed (runCore run) @?= 0
      ended run @?= Nothing
      let over = hear (answer 1 True []) run
      seen over @?= [show Allowed, show (Lost 3 Unprocessed), "head 1 200", show (DeliverEnd 1 []), show (Close NoError "no further streams")],
    testCase "GOAWAY twice, as servers drain; one that takes the former back" $ do
      losses (hear (goAway 2147483647 NoError <> goAway 1 NoError) (get (get begun))) @?= [(3, Unprocessed)]
      fmap fst (ended (hear (goAway 1 NoError <> goAway 3 NoError) (get (get begun)))) @?= Just ProtocolError,
    testCase "a connection without streams ends with GOAWAY" $
      fmap fst (ended (hear (goAway 0 EnhanceYourCalm) begun)) @?= Just NoError,
    testCase "a request that was given up after a silence: no further streams; not if something has come, or soon" $ do
      let waits ms between = streamsAllowed (runCore (give (GiveUp 3) (later ms (between (get (get begun))))))
      waits 5001 id @?= 0
      waits 4000 id @?= 100
      waits 5001 (\run -> hear (ping "12345678") (later 1000 run)) @?= 0
      waits 4500 (\run -> hear (ping "12345678") (later 1000 run)) @?= 100,
    testCase "the owner ends the connection" $ do
      let run = flush (give (Break NoError "bye") (get begun))
      ended run @?= Just (NoError, "bye")
      drop 1 (runFrames run) @?= [SendGoAway 0 NoError]
      seen (hear (answer 1 True []) run) @?= seen run
  ]

windows :: [TestTree]
windows =
  [ testCase "a body waits for the window of its stream, and of the connection" $ do
      let offered = give (Finish 1 []) (give (Offer 1 100000) (post begun))
          sizes run = sum [size | SendData _ size _ <- runFrames run]
      sizes (flush offered) @?= 65535
      sizes (flush (hear (update 1 100000) (flush offered))) @?= 65535
      sizes (flush (hear (update 0 100000) (flush (hear (update 1 100000) (flush offered))))) @?= 100000,
    testCase "a server that grants no window, and grants it later by its settings" $ do
      let closed = flush (give (Finish 1 []) (give (Offer 1 10) (post (hear (settings [(4, 0)]) begun))))
      [f | f@SendData {} <- runFrames closed] @?= []
      hasFrames (runCore closed) @?= False
      [f | f@SendData {} <- runFrames (flush (hear (settings [(4, 4)]) closed))] @?= [SendData 1 4 False],
    testCase "settings may make a window negative" $ do
      let run = flush (give (Offer 1 100000) (post (hear (update 0 100000) begun)))
          less = hear (settings [(4, 0)]) run
      [f | f@SendData {} <- drop 6 (runFrames (flush (hear (update 1 65535) less)))] @?= []
      sum [size | SendData _ size _ <- runFrames (flush (hear (update 1 65540) less))] @?= 65540,
    testCase "credit is returned when the response is read, not before" $ do
      let got = hear (answer 1 False [] <> B.concat (replicate 10 (content 1 (B.replicate 16384 1)))) (get begun)
      [f | f@SendWindow {} <- runFrames (flush got)] @?= []
      let half = piece 1 `times` 6
      -- It lags by half, so that its window stays.
      [f | f@SendWindow {} <- runFrames (flush (give (Consume 1 131072) (hear half got)))] @?= [SendWindow 0 131072, SendWindow 1 131072],
    testCase "the window of a response whose reader keeps up grows to 4 MiB, and no further" $ do
      let sizes = map (allowedOn 1) (iterate (reading 1) (hear (answer 1 False []) (get begun)))
      maximum (take 26 sizes) >= 4000000 @? show (take 26 sizes)
      maximum (take 800 sizes) @?= 4194304,
    testCase "that of a reader who lags by half does not" $ do
      let full = hear (answer 1 False [] <> piece 1 `times` 16) (get begun)
          lagging run = hear (piece 1 `times` 8) (flush (give (Consume 1 131072) run))
      map (allowedOn 1) (take 50 (iterate lagging full)) @?= replicate 50 0,
    testCase "responses grow by 16 MiB together, and what one had is for others when it ends" $ do
      let ids = [1, 3 .. 19]
          begin' run = hear (B.concat [answer n False [] | n <- ids]) (iterate get run !! 10)
          grown = iterate (\run -> foldl' (flip reading) run ids) (begin' begun) !! 100
          total run = sum [allowedOn n run - 262144 | n <- ids]
      -- Less what was read and is not returned yet.
      total grown <= 16777216 && total grown > 16777216 - 10 * 262144 @? show (total grown)
      isSound (runCore grown) @?= True
      -- All have grown to 1 MiB, and the first two further; one ends, and another grows.
      map (\n -> allowedOn n grown > 3900000) ids @?= replicate 2 True <> replicate 8 False
      let next = iterate (reading 19) (hear (end 1 "") grown) !! 100
      allowedOn 19 next > 3900000 @? show (allowedOn 19 next)
      isSound (runCore next) @?= True
      -- None has more if that is the setting.
      let small = hear (answer 1 False []) (get (beginWith defaultConfig {configSpare = 0}))
      maximum (map (allowedOn 1) (take 100 (iterate (reading 1) small))) @?= 262144,
    testCase "one response that nobody reads fills its window, and others go on" $ do
      let unread = hear (answer 1 False [] <> piece 1 `times` 16) (get (get begun))
          go run = give (Consume 3 16384) (hear (piece 3) run)
      -- Of 200 MB on the other stream.
      let far = iterate go (hear (answer 3 False []) unread) !! 1600
      ended far @?= Nothing
      isSound (runCore far) @?= True
      losses (hear (content 1 "x") far) @?= [(1, Malformed "more data than the stream's window")],
    testCase "padding counts, and is returned at once" $ do
      let padded = frame typeData flagPadded 1 (B.cons 255 (B.replicate 255 0))
          run = hear (answer 1 False [] <> B.concat (replicate 1000 padded)) (get begun)
      -- A frame that carries nothing.
      isSound (runCore run) @?= True
      [n | SendWindow n _ <- runFrames (flush run)] @?= [0, 1]
  ]
  where
    times bytes n = B.concat (replicate n bytes)
    piece n = content n (B.replicate 16384 1)
    -- The server sends a piece, and the reader takes it.
    reading n run = flush (give (Consume n 16384) (hear (piece n) run))
    -- What the server may send of a response that was read.
    allowedOn n run = 262144 + sum [by | SendWindow m by <- runFrames run, m == n] - sum [B.length bytes | Deliver m bytes <- runActions run, m == n]

streamErrors :: [TestTree]
streamErrors =
  [ wrong "8.3.2: no status" [headers 1 True [("a", "b")]],
    wrong "8.3.2: two" [headers 1 True [(":status", "200"), (":status", "200")]],
    wrong "8.3.2: a status that is no number" [headers 1 True [(":status", "20x")]],
    wrong "8.3.2: a status below 100" [headers 1 True [(":status", "099")]],
    wrong "8.3: a pseudo-field behind fields" [headers 1 True [(":status", "200"), ("a", "b"), (":status", "200")]],
    wrong "8.3: a request's pseudo-field" [headers 1 True [(":status", "200"), (":path", "/")]],
    wrong "8.2: a name in upper case" [answer 1 True [("Ab", "x")]],
    wrong "8.2.1: a value with a line break" [frame typeHeaders 5 1 (block [(":status", "200"), ("a", "b\rc")])],
    wrong "8.2.1: blanks around a value" [answer 1 True [("a", " b")]],
    wrong "8.2.2: a field of one connection" [answer 1 True [("connection", "close")]],
    wrong "8.2.2: a transfer coding" [answer 1 True [("transfer-encoding", "chunked")]],
    wrong "8.6: a switch of protocols" [headers 1 False [(":status", "101")]],
    wrong "8.1: an interim response that ends the stream" [headers 1 True [(":status", "100")]],
    wrong "8.1: data before the head" [content 1 "x"],
    wrong "8.1: headers in the middle of a body" [answer 1 False [], headers 1 False [("a", "b")]],
    wrong "8.1: a pseudo-field in trailers" [answer 1 False [], headers 1 True [(":status", "200")]],
    wrong "8.1.1: two lengths" [answer 1 False [("content-length", "1"), ("content-length", "2")]],
    wrong "8.1.1: two equal lengths" [answer 1 False [("content-length", "3"), ("content-length", "3")]],
    testGroup "8.1.1: a malformed length" [wrong (show value) [answer 1 False [("content-length", value)]] | value <- wrongLengths],
    wrong "8.1.1: more data than the length" [answer 1 False [("content-length", "1")], content 1 "ab"],
    wrong "8.1.1: less" [answer 1 False [("content-length", "3")], end 1 "ab"],
    wrong "8.1.1: less, behind trailers" [answer 1 False [("content-length", "3")], trailers 1],
    wrong "8.1.1: none" [answer 1 True [("content-length", "3")]],
    testCase "9110, 9.3.2: a body in a response to HEAD" $
      map fst (losses (hear (answer 1 False [("content-length", "2")] <> content 1 "ab") (headOf begun))) @?= [1],
    stream "6.9: an update of nothing" ProtocolError [update 1 0],
    stream "6.9.1: a window beyond the limit" FlowControlError [update 1 2147483647]
  ]
  where
    wrong name = stream name ProtocolError
    stream name code bytes = testCase name $ do
      let run = flush (hear (B.concat bytes) (get (get begun)))
      (map fst (losses run), resets run, ended run) @?= ([1], [(1, code)], Nothing)
      -- The other one goes on.
      last (seen (hear (answer 3 True []) run)) @?= show (DeliverEnd 3 [])

connectionErrors :: [TestTree]
connectionErrors =
  [ testCase "3.4: no settings first" $ forM' [ping "12345678", acknowledgement, "HTTP/1.1 400 Bad Request\r\n"] $ \bytes -> fmap fst (ended (hear bytes (fresh defaultConfig))) @?= Just (if B.take 4 bytes == "HTTP" then FrameSizeError else ProtocolError),
    breaks "4.2: a frame of more than 16,384 bytes" FrameSizeError (B.take 9 (frame typeData 0 1 (B.replicate 16385 0))),
    breaks "4.3: a block that cannot be decoded" CompressionError (frame typeHeaders flagEndHeaders 1 "!"),
    breaks "5.1: data of a stream that has not begun" ProtocolError (content 5 "x"),
    breaks "5.1: headers of a stream that has not begun" ProtocolError (answer 5 True []),
    breaks "5.1: headers of a server's stream" ProtocolError (answer 2 True []),
    breaks "5.1: a reset of a stream that has not begun" ProtocolError (resetBy NoError 5),
    breaks "5.1: an update of a stream that has not begun" ProtocolError (update 5 1),
    breaks "5.1: data of a stream that has ended" StreamClosed (answer 1 True [] <> content 1 "x"),
    breaks "5.1: headers of a stream that has ended" StreamClosed (answer 1 True [] <> trailers 1),
    breaks "6.1: data on the connection" ProtocolError (content 0 "x"),
    breaks "6.1: more padding than payload" ProtocolError (answer 1 False [] <> frame typeData flagPadded 1 (B.pack [9, 0])),
    breaks "6.2: headers on the connection" ProtocolError (answer 0 True []),
    breaks "6.2: a block that is interrupted" ProtocolError (frame typeHeaders 0 1 "" <> ping "12345678"),
    breaks "6.2: a continuation of another stream" ProtocolError (frame typeHeaders 0 1 "" <> frame typeContinuation flagEndHeaders 3 ""),
    breaks "6.3: a priority of another size" FrameSizeError (frame typePriority 0 1 "1234"),
    breaks "6.4: a reset of another size" FrameSizeError (frame typeReset 0 1 "123"),
    breaks "6.4: a reset of the connection" ProtocolError (resetBy NoError 0),
    breaks "6.5: settings on a stream" ProtocolError (frame typeSettings 0 1 ""),
    breaks "6.5: settings of another size" FrameSizeError (frame typeSettings 0 0 "12345"),
    breaks "6.5: an acknowledgement with a payload" FrameSizeError (frame typeSettings flagAck 0 "123456"),
    breaks "6.5.2: a server that permits pushes" ProtocolError (settings [(2, 1)]),
    breaks "6.5.2: a window beyond the limit" FlowControlError (settings [(4, 2147483648)]),
    breaks "6.5.2: frames that are too small" ProtocolError (settings [(5, 16383)]),
    breaks "6.5.2: frames that are too large" ProtocolError (settings [(5, 16777216)]),
    breaks "6.6: a push" ProtocolError (pushPromise 1),
    breaks "6.7: a ping of another size" FrameSizeError (frame typePing 0 0 "1"),
    breaks "6.7: a ping on a stream" ProtocolError (frame typePing 0 1 "12345678"),
    breaks "6.8: a goaway of another size" FrameSizeError (frame typeGoAway 0 0 "1234567"),
    breaks "6.8: a goaway on a stream" ProtocolError (frame typeGoAway 0 1 "12345678"),
    breaks "6.9: an update of another size" FrameSizeError (frame typeWindowUpdate 0 0 "123"),
    breaks "6.9: an update of nothing" ProtocolError (update 0 0),
    breaks "6.9.1: the connection's window beyond the limit" FlowControlError (update 0 2147483647),
    breaks "6.10: a continuation of nothing" ProtocolError (frame typeContinuation flagEndHeaders 1 "")
  ]
  where
    forM' list f = mapM_ f list
    breaks name code bytes = testCase name $ do
      let run = flush (hear bytes (get begun))
      fmap fst (ended run) @?= Just code
      last (runFrames run) @?= SendGoAway 0 code
      streamsAllowed (runCore run) @?= 0

limits :: [TestTree]
limits =
  [ calm "a header block of many frames" (frame typeHeaders 0 1 "" <> B.concat (replicate 70 (frame typeContinuation 0 1 "x"))),
    calm "a header block of many bytes" (frame typeHeaders 0 1 "" <> B.concat (replicate 5 (frame typeContinuation 0 1 (B.replicate 16384 120)))),
    calm "pings" (B.concat (replicate 2001 (ping "12345678"))),
    calm "settings" (B.concat (replicate 51 (settings []))),
    calm "updates of windows" (B.concat (replicate 2001 (update 0 1))),
    calm "empty frames" (answer 1 False [] <> B.concat (replicate 1001 (content 1 ""))),
    calm "frames of unknown types" (B.concat (replicate 1001 (frame 77 0 0 "abc"))),
    calm "resets of a stream that is over" (B.concat (replicate 1002 (resetBy NoError 1))),
    testCase "what was under way on streams that are given up is no flood, however many they are" $ do
      let givenUp run n = hear (answer n False [] <> trailers n <> resetBy NoError n) (flush (give (GiveUp n) (get run)))
          many = foldl' givenUp begun [1, 3 .. 9999]
      ended many @?= Nothing
      length (resets many) @?= 5000
      -- What they allow is not saved up.
      fmap fst (ended (hear (B.concat (replicate 1002 (resetBy NoError 1))) many)) @?= Just EnhanceYourCalm,
    testCase "a reset of a stream that is over for each frame of data that was under way is no flood, and no more" $ do
      -- As Go's server: it ends the stream before the request does.
      let sent = foldl' (\run _ -> flush (give (Offer 1 5) run)) (post (hear (settings [(4, 100000)] <> update 0 1000000) begun)) [1 .. 5000 :: Int]
          answered = hear (answer 1 True [] <> resetBy NoError 1 <> B.concat (replicate 5000 (resetBy StreamClosed 1))) (get sent)
      ended answered @?= Nothing
      isSound (runCore answered) @?= True
      fmap fst (ended (hear (B.concat (replicate 1010 (resetBy StreamClosed 1))) answered)) @?= Just EnhanceYourCalm,
    testCase "what comes behind the server's end of a stream is no flood, however many streams there are" $ do
      -- As the C core of gRPC when deadlines pass.
      let late run n = flush (hear (answer n False [] <> trailers n <> resetBy Cancel n <> trailers n <> resetBy Cancel n) (get run))
      ended (foldl' late begun [1, 3 .. 9999]) @?= Nothing,
    testCase "what waits to be sent" $ do
      let config = defaultConfig {configPings = Rate 1000000 1000000}
      fmap fst (ended (hear (B.concat (replicate 4001 (ping "12345678"))) (beginWith config))) @?= Just EnhanceYourCalm
      -- With much that waits, no stream begins.
      let busy = hear (B.concat (replicate 2001 (ping "12345678"))) (beginWith config)
      [() | SendHeaders {} <- runFrames (flush (get busy))] @?= []
      length [() | SendHeaders {} <- runFrames (flush (get (flush busy)))] @?= 1,
    testCase "interim responses, fields, and bytes of fields: the stream's end" $ do
      let gone bytes = losses (hear bytes (get begun))
      gone (B.concat (replicate 17 (headers 1 False [(":status", "103")]))) @?= [(1, Malformed "too many interim responses")]
      gone (answer 1 True [(C.pack ("a" <> show i), "") | i <- [1 .. 200 :: Int]]) @?= []
      gone (answer 1 True [(C.pack ("a" <> show i), "") | i <- [1 .. 201 :: Int]]) @?= [(1, Malformed "the fields exceed the limits")]
      let small = defaultConfig {configHeaderList = 100}
      losses (hear (answer 1 True [("a", B.replicate 100 120)]) (get (beginWith small))) @?= [(1, Malformed "the fields exceed the limits")],
    testCase "the silence of a configuration" $
      streamsAllowed (runCore (give (GiveUp 1) (later 1001 (get (beginWith defaultConfig {configSilence = seconds 1}))))) @?= 0
  ]
  where
    calm name bytes = testCase name (fmap fst (ended (hear bytes (get begun))) @?= Just EnhanceYourCalm)
