{-# LANGUAGE OverloadedStrings #-}

-- | Extended CONNECT (RFC 8441): what begins a tunnel, what may follow, and how long it may be silent.
module Spec.Tunnels
  ( tests,
  )
where

import Bytes
import Data.ByteString (ByteString)
import Data.List (foldl')
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Http.Limits (Refusal (..))
import Weft.Http2.Core
import Weft.Http2.Frame
import Weft.Http2.Request (Head (..))

tests :: TestTree
tests =
  testGroup
    "tunnels"
    [ testCase "3: SETTINGS_ENABLE_CONNECT_PROTOCOL is 1" $ case beginning of
        SendSettings parameters : _ -> lookup 8 parameters @?= Just 1
        frames -> assertFailure (show frames),
      testCase "4: CONNECT with a protocol begins a stream, in upper or lower case" . sequence_ $ do
        protocol <- ["websocket", "WebSocket"]
        pure ([(n, headMethod found, headProtocol found, headTarget found, final) | Start n found final <- runActions (tunnel protocol)] @?= [(1, "CONNECT", Just protocol, "/", False)]),
      testCase "5: data in both directions, and an end in each" $ do
        let run = flush (send (end 1 "three") (flush (give (Offer 1 7) (give (Respond 1 [(":status", "200")]) (send (content 1 "one") (tunnel "websocket"))))))
        drop 1 (runActions run) @?= [Deliver 1 "one", Deliver 1 "three", DeliverEnd 1 []]
        runFrames run @?= [SendHeaders 1 [(":status", "200")] False, SendData 1 7 False]
        let over = flush (give (Finish 1 []) run)
        drop 2 (runFrames over) @?= [SendData 1 0 True]
        openStreams (runCore over) @?= 0,
      testCase "a protocol that is not known is answered 501, and the client told to stop" $ do
        let run = flush (tunnel "connect-udp")
        started run @?= []
        runFrames run @?= [SendHeaders 1 [(":status", "501"), ("content-length", "0")] True, SendReset 1 NoError]
        goneAway run @?= Nothing,
      malformed "a plain CONNECT" [(":method", "CONNECT"), (":authority", "a")],
      malformed "CONNECT with scheme and path, and no protocol" (request "CONNECT" []),
      malformed "a protocol without CONNECT" (extended "GET" "websocket"),
      malformed "two protocols" ((":protocol", "websocket") : extended "CONNECT" "websocket"),
      malformed "a protocol behind fields" (request "CONNECT" [("x", "y"), (":protocol", "websocket")]),
      malformed "no scheme" (filter ((/= ":scheme") . fst) (extended "CONNECT" "websocket")),
      malformed "no path" (filter ((/= ":path") . fst) (extended "CONNECT" "websocket")),
      malformed "no authority" (filter ((/= ":authority") . fst) (extended "CONNECT" "websocket")),
      malformed "a protocol of no bytes" (extended "CONNECT" ""),
      malformed "a protocol that is not a token" (extended "CONNECT" "web socket"),
      malformed "a protocol with two slashes" (extended "CONNECT" "a/b/c"),
      malformed "a content length" (extended "CONNECT" "websocket" <> [("content-length", "0")]),
      malformed "Upgrade" (extended "CONNECT" "websocket" <> [("upgrade", "websocket")]),
      testCase "RFC 9113, 8.5: trailers in a tunnel reset it" $
        resets (flush (send (trailers 1) (tunnel "websocket"))) @?= [(1, ProtocolError)],
      testCase "3: a client's SETTINGS_ENABLE_CONNECT_PROTOCOL of 0 or 1 means nothing, and 2 is an error" $
        [goneAway (flush (send (settings [(8, value)]) begun)) | value <- [0, 1, 2]] @?= [Nothing, Nothing, Just ProtocolError],
      testCase "each silence may take all of the time, and one that is longer ends the tunnel" $ do
        let pause milli run = later milli (give (Want 1) run)
            round' run = give (Consume 1 1) (send (content 1 "x") (pause 20000 run))
            many = foldl' (\run _ -> round' run) (tunnel "websocket") [1 .. 50 :: Int]
        resets (flush many) @?= []
        let silent = flush (pause 30001 many)
        resets silent @?= [(1, Cancel)]
        [(n, refusal) | Refuse n refusal _ _ <- runActions silent] @?= [(1, ClientTooSlow)]
        -- A request's body has less and less.
        let body = foldl' (\run _ -> round' run) (send (post 1) begun) [1 .. 50 :: Int]
        resets (flush body) @?= [(1, Cancel)],
      testCase "a client that takes nothing ends its connection" $ do
        let full = flush (give (Offer 1 65536) (give (Respond 1 [(":status", "200")]) (tunnel "websocket")))
        goneAway (flush (later 29000 full)) @?= Nothing
        goneAway (flush (later 30001 full)) @?= Just EnhanceYourCalm,
      testCase "a drain waits for a tunnel" $ do
        let draining = later 2000 (give BeginDrain (flush (give (Respond 1 [(":status", "200")]) (tunnel "websocket"))))
            moved = flush (give (Offer 1 3) (send (content 1 "x") draining))
        isEnded (runCore moved) @?= False
        [size | SendData 1 size _ <- runFrames moved] @?= [3]
        isEnded (runCore (flush (give (Finish 1 []) (send (end 1 "") moved)))) @?= True,
      testCase "more tunnels than streams are refused" $
        length (started (flush (foldl' (\run n -> send (connect n "websocket") run) begun [1, 3 .. 301]))) @?= 100
    ]
  where
    beginning = case begun of
      Run _ t _ _ -> let (frames, _, _) = takeFrames t maxBound (newCore defaultConfig t toyDecode) in frames
    malformed name fields = testCase ("malformed: " <> name) $ do
      let run = flush (send (headers 1 False fields) begun)
      (started run, resets run) @?= ([], [(1, ProtocolError)])

tunnel :: ByteString -> Run
tunnel protocol = send (connect 1 protocol) begun

connect :: StreamId -> ByteString -> ByteString
connect n protocol = headers n False (extended "CONNECT" protocol)

extended :: ByteString -> ByteString -> [Field]
extended method protocol = (":protocol", protocol) : request method []
