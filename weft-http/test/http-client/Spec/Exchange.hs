{-# LANGUAGE OverloadedStrings #-}

-- |
-- Requests to scripted peers: what is sent, which connections are used again, which requests are sent again, and what
-- the time limits end.
module Spec.Exchange (tests) where

import Control.Concurrent
import Control.Exception
import Control.Monad
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import Data.IORef
import GHC.Stats (GCDetails (..), RTSStats (..), getRTSStats)
import Network.HTTP.Types
import Peer
import System.Mem (performMajorGC)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Duration
import Weft.Http.Client
import Weft.Pool (PoolCounts (..))
import Weft.Transport (deadlineIn)

tests :: TestTree
tests =
  testGroup
    "exchanges"
    [ testGroup "requests" sending,
      testGroup "kept connections" keeping,
      testGroup "repeated requests" repeating,
      testGroup "Expect: 100-continue" expecting,
      testGroup "time limits" limiting,
      testGroup "bodies" bodies
    ]

-- | A response with this body.
plain :: ByteString -> ByteString
plain body = "HTTP/1.1 200 OK\r\nContent-Length: " <> C.pack (show (B.length body)) <> "\r\n\r\n" <> body

-- | Answer each request of a connection with its number and that of the connection.
counting :: Int -> Conversation -> IO ()
counting n c = forM_ [0 :: Int ..] $ \i -> hearRequest c >> say c (plain (C.pack (show (n, i))))

get :: Client -> Int -> IO ByteString
get client port = soon >>= \due -> answerBody <$> request client due (getRequest (url port "/"))

-- | As many connections as a test of memory has, and the body of each response: 64 KiB.
crowd :: Int
crowd = 24

large, largeResponse :: ByteString
large = C.replicate 65536 'x'
largeResponse = plain large

-- | Read a body to its end, and count its bytes.
drained :: Response -> IO Int
drained response = go 0
  where
    go n = responsePiece response >>= \piece -> if B.null piece then pure n else go (n + B.length piece)

liveBytes :: IO Int
liveBytes = performMajorGC >> fromIntegral . gcdetails_live_bytes . gc <$> getRTSStats

sending :: [TestTree]
sending =
  [ testCase "the head of a request, byte by byte" $ do
      heard <- newEmptyMVar
      let script _ c = forever $ do
            h <- hearRequest c
            body <- hearBytes c (if "Content-Length: 3" `B.isInfixOf` h then 3 else 0)
            putMVar heard (h <> body)
            say c (plain "")
      withPeer script $ \port -> withClient defaultClientSettings $ \client -> do
        let host = "Host: 127.0.0.1:" <> C.pack (show port) <> "\r\n"
            sent r = soon >>= \due -> request client due r >> within (takeMVar heard)
            u = url port "/a?b"
        sent (getRequest u) >>= (@?= "GET /a?b HTTP/1.1\r\n" <> host <> "\r\n")
        sent (Request "POST" u [("A", "b")] (BytesBody "abc")) >>= (@?= "POST /a?b HTTP/1.1\r\n" <> host <> "A: b\r\nContent-Length: 3\r\n\r\nabc")
        sent (Request "POST" u [("Host", "x")] EmptyBody) >>= (@?= "POST /a?b HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
        sent (Request "DELETE" u [] EmptyBody) >>= (@?= "DELETE /a?b HTTP/1.1\r\n" <> host <> "\r\n"),
    testCase "a request that would be taken for another one is not sent" $ do
      connections <- newIORef (0 :: Int)
      withPeer (\_ _ -> modifyIORef' connections (+ 1)) $ \port -> withClient defaultClientSettings $ \client -> do
        due <- soon
        let u = url port "/"
            bad =
              [ Request "GET" u [("A", "b\r\nC: d")] EmptyBody,
                Request "GET" u [("A", "b\nC: d")] EmptyBody,
                Request "GET" u [("A", "b\0")] EmptyBody,
                Request "GET" u [("A: b\r\nC", "d")] EmptyBody,
                Request "GET" u [("", "d")] EmptyBody,
                Request "GET" u [("Content-Length", "3")] EmptyBody,
                Request "GET" u [("Transfer-Encoding", "chunked")] EmptyBody,
                Request "GET" u [("Host", "a"), ("Host", "b")] EmptyBody,
                Request "GET /x" u [] EmptyBody,
                Request "" u [] EmptyBody,
                Request "CONNECT" u [] EmptyBody,
                Request "GET" u {urlPath = "/ HTTP/1.1\r\nA: b"} [] EmptyBody,
                Request "GET" u {urlPath = "x"} [] EmptyBody,
                Request "GET" u {urlPath = "/#x"} [] EmptyBody,
                Request "GET" u {urlHost = "a\r\nb"} [] EmptyBody
              ]
        forM_ bad $ \r -> do
          (_, cause) <- causeOf (request client due r)
          case cause of
            InvalidRequest _ -> pure ()
            _ -> assertFailure (show cause)
      readIORef connections >>= (@?= 0),
    testCase "an error names the request, the phase and the reason" $ do
      let answering ends bytes = withPeer (\_ c -> hearRequest c >> say c bytes >> ends c) $ \port ->
            withClient defaultClientSettings $ \client -> do
              due <- soon
              r <- try (request client due (getRequest (url port "/x")))
              either (\e -> pure (port, show (e :: ClientError))) (const (assertFailure "a response")) r
          says (port, found) why = found @?= "GET http://127.0.0.1:" <> show port <> "/x: waiting for the response: " <> why
          shows' bytes begins ends = answering ends bytes >>= (`says` ("the server does not speak HTTP: it has answered with " <> begins))
          closing _ = pure ()
      -- With and without a line's end, and whether the server then closes the connection or waits.
      forM_ [closing, heardEnd] $ \ends -> do
        shows' "SSH-2.0\r\n" "\"SSH-2.0\\r\\n\"" ends
        shows' "SSH-2.0" "\"SSH-2.0\"" ends
        shows' (B.replicate 100000 0xfe) ("\"" <> concat (replicate 64 "\\254") <> "\"") ends
      answering closing "HTT" >>= (`says` "the connection ended before the response did"),
    testCase "nobody listens" $ do
      port <- withPeer (\_ _ -> pure ()) pure
      withClient defaultClientSettings $ \client -> do
        due <- soon
        (phase, cause) <- causeOf (request client due (getRequest (url port "/")))
        phase @?= Connecting
        case cause of
          NotConnected _ -> pure ()
          _ -> assertFailure (show cause)
  ]

keeping :: [TestTree]
keeping =
  [ testCase "what is kept of a connection does not keep its last response" $
      withPeer (\_ c -> hearRequest c >> say c (plain "") >> forever (hearRequest c >> say c largeResponse)) $ \port ->
        withClient defaultClientSettings {clientMostPerServer = crowd} $ \client -> do
          let together = do
                begun <- newIORef (0 :: Int)
                proceed <- newEmptyMVar
                dones <- replicateM crowd $ do
                  done <- newEmptyMVar
                  due <- soon
                  let use response = do
                        n <- atomicModifyIORef' begun (\n -> (n + 1, n + 1))
                        when (n == crowd) (putMVar proceed ())
                        readMVar proceed
                        drained response
                  done <$ forkFinally (withResponse client due (getRequest (url port "/")) use) (putMVar done)
                forM dones $ \done -> within (takeMVar done) >>= either throwIO pure
          _ <- evaluate largeResponse
          together >>= (@?= replicate crowd 0)
          before <- liveBytes
          -- The second one of a connection is received whole, into memory of its own.
          replicateM_ 2 (together >>= (@?= replicate crowd (B.length large)))
          later <- liveBytes
          counts <- map snd <$> clientCounts client
          map countIdle counts @?= [crowd]
          let more = later - before
          assertBool (show more <> " bytes") (more < crowd * B.length large `div` 3),
    testCase "requests one after the other share a connection" $
      withPeer counting $ \port -> withClient defaultClientSettings $ \client ->
        replicateM 5 (get client port) >>= (@?= [C.pack (show (0 :: Int, i)) | i <- [0 .. 4 :: Int]]),
    testCase "bytes behind a response end the connection and are not the next response" $ do
      let script n c = do
            void (hearRequest c)
            say c (plain (C.pack (show n)) <> "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")
            heardEnd c
      withPeer script $ \port -> withClient defaultClientSettings $ \client ->
        replicateM 3 (get client port) >>= (@?= ["0", "1", "2"]),
    testCase "bytes that come later end the connection and are not the next response" $ do
      sent <- newEmptyMVar
      let script n c = do
            void (hearRequest c)
            say c (plain (C.pack (show n)))
            threadDelay 20000
            say c "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"
            putMVar sent ()
            heardEnd c
      withPeer script $ \port -> withClient defaultClientSettings $ \client ->
        forM_ ["0", "1", "2"] $ \expected -> do
          get client port >>= (@?= expected)
          within (takeMVar sent)
          -- They are in the socket now; the manager has to have noticed.
          threadDelay 1000000,
    testCase "connections that are not kept" $
      forM_
        [ "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
          "HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n",
          "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nHTTP/1.1 408 Request Timeout\r\n\r\n"
        ]
        $ \bytes -> do
          ended <- newEmptyMVar
          withPeer (\n c -> hearRequest c >> say c bytes >> heardEnd c >> putMVar ended n) $ \port ->
            withClient defaultClientSettings $ \client -> forM_ [0, 1 :: Int] $ \n -> do
              get client port >>= (@?= "")
              within (takeMVar ended) >>= (@?= n),
    testCase "a body that is not read is not taken for the next response" $ do
      let script n c = do
            void (hearRequest c)
            say c ("HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" <> C.replicate 10 'x')
            threadDelay 50000
            say c (plain (C.pack (show n)))
            heardEnd c
      withPeer script $ \port -> withClient defaultClientSettings $ \client -> do
        due <- soon
        forM_ [1 .. 3 :: Int] $ \_ ->
          withResponse client due (getRequest (url port "/")) (pure . statusCode . responseStatus) >>= (@?= 200),
    testCase "a body that was received and not read costs no connection" $
      withPeer (\n c -> forever (hearRequest c >> say c (plain (C.pack (show n))))) $ \port ->
        withClient defaultClientSettings $ \client -> do
          due <- soon
          forM_ [1 .. 5 :: Int] $ \_ -> withResponse client due (getRequest (url port "/")) (\r -> void (responsePiece r))
          get client port >>= (@?= "0"),
    testCase "no more connections than allowed, and requests wait for one" $ do
      open <- newIORef (0 :: Int, 0 :: Int)
      let script _ c =
            bracket_
              (atomicModifyIORef' open (\(n, most) -> ((n + 1, max most (n + 1)), ())))
              (atomicModifyIORef' open (\(n, most) -> ((n - 1, most), ())))
              (forever (hearRequest c >> threadDelay 5000 >> say c (plain "x")))
      withPeer script $ \port -> withClient defaultClientSettings {clientMostPerServer = 3} $ \client -> do
        dones <- forM [1 .. 20 :: Int] $ \_ -> do
          done <- newEmptyMVar
          done <$ forkIO (try (get client port) >>= putMVar done)
        forM_ dones $ \done -> within (takeMVar done) >>= either (\e -> throwIO (e :: SomeException)) (@?= "x")
        counts <- clientCounts client
        map (countTotal . snd) counts @?= [3]
      (_, most) <- readIORef open
      assertBool (show most) (most <= 3),
    testCase "waiting for a connection has the request's deadline" $ do
      withPeer (\_ c -> hearRequest c >> heardEnd c) $ \port -> withClient defaultClientSettings {clientMostPerServer = 1, clientQueueTime = milliseconds 700} $ \client -> do
        far <- soon
        t <- forkIO (void (request client far (getRequest (url port "/"))) `catch` \e -> const (pure ()) (e :: SomeException))
        eventually "no connection" (any ((== 1) . countTotal . snd) <$> clientCounts client)
        near <- deadlineIn (milliseconds 100)
        -- The deadline, and the limit of the phase.
        forM_ [near, far] $ \due -> do
          (phase, cause) <- causeOf (request client due (getRequest (url port "/")))
          (phase, show cause) @?= (Queueing, "TimedOut")
        killThread t,
    testCase "the pool of a server that is not used any more is removed, and made again" $
      withPeer (\n c -> forever (hearRequest c >> say c (plain (C.pack (show n))))) $ \port ->
        withClient defaultClientSettings {clientIdleTime = milliseconds 50} $ \client -> do
          get client port >>= (@?= "0")
          eventually "it is still there" (null <$> clientCounts client)
          get client port >>= (@?= "1")
  ]

repeating :: [TestTree]
repeating =
  [ testCase "a kept connection that the server has ended is not used" $
      withPeer (\n c -> hearRequest c >> say c (plain (C.pack (show n)))) $ \port -> withClient defaultClientSettings $ \client ->
        forM_ ["0", "1", "2"] $ \expected -> do
          due <- soon
          -- A method that could not be repeated.
          (answerBody <$> request client due (Request "POST" (url port "/") [] EmptyBody)) `gives` expected
          threadDelay 1000000,
    testCase "a request on a kept connection that ends without an answer is sent again, if it can be" $
      forM_ [("GET", EmptyBody), ("PUT", BytesBody "abc"), ("HEAD", EmptyBody), ("DELETE", EmptyBody)] $ \(method, body) ->
        forM_ [hangUp, reset] $ \end ->
          withPeer (dropsSecond end) $ \port -> withClient defaultClientSettings $ \client -> do
            due <- soon
            _ <- request client due (getRequest (url port "/"))
            (statusCode . answerStatus <$> request client due (Request method (url port "/") [] body)) `gives` 200,
    testCase "one that cannot be repeated is not sent again" $ do
      forM_ [("POST", BytesBody "abc"), ("PATCH", BytesBody "abc"), ("POST", EmptyBody), ("PUT", StreamBody (Just 0) (pure ""))] $ \(method, body) -> do
        requests <- newIORef (0 :: Int)
        withPeer (\n c -> dropsSecondCounting requests n c) $ \port -> withClient defaultClientSettings $ \client -> do
          due <- soon
          _ <- request client due (getRequest (url port "/"))
          (_, cause) <- causeOf (request client due (Request method (url port "/") [] body))
          case cause of
            NoAnswer _ -> pure ()
            _ -> assertFailure (show cause)
        readIORef requests >>= (@?= 2),
    testCase "a request on a new connection is not sent again, nor one after a part of the answer" $ do
      requests <- newIORef (0 :: Int)
      withPeer (\_ c -> hearRequest c >> modifyIORef' requests (+ 1)) $ \port -> withClient defaultClientSettings $ \client -> do
        due <- soon
        (_, cause) <- causeOf (request client due (getRequest (url port "/")))
        case cause of
          NoAnswer _ -> pure ()
          _ -> assertFailure (show cause)
      readIORef requests >>= (@?= 1)
      let script _ c = hearRequest c >> say c (plain "") >> hearRequest c >> modifyIORef' requests (+ 1) >> say c "H"
      withPeer script $ \port -> withClient defaultClientSettings $ \client -> do
        due <- soon
        _ <- request client due (getRequest (url port "/"))
        (phase, cause) <- causeOf (request client due (getRequest (url port "/")))
        (phase, show cause) @?= (Answering, "EndedEarly")
      readIORef requests >>= (@?= 2)
  ]
  where
    dropsSecond end n c
      | n == (0 :: Int) = hearRequest c >> say c (plain "") >> hearRequest c >> end c
      | otherwise = counting n c
    dropsSecondCounting requests _ c = do
      void (hearRequest c) >> modifyIORef' requests (+ 1)
      say c (plain "")
      void (hearRequest c) >> modifyIORef' requests (+ (1 :: Int))

expecting :: [TestTree]
expecting =
  [ testCase "the body is sent when the server asks for it" $ do
      order <- newMVar []
      let note what = modifyMVar_ order (pure . (what :))
          script _ c = do
            void (hearRequest c)
            note "head"
            threadDelay 100000
            note "continue"
            say c "HTTP/1.1 100 Continue\r\n\r\n"
            body <- hearBytes c 4
            note body
            say c (plain "done")
      withPeer script $ \port -> withClient defaultClientSettings {clientContinueTime = seconds 60} $ \client -> do
        due <- soon
        (answerBody <$> request client due (Request "PUT" (url port "/") [("Expect", "100-continue")] (BytesBody "body"))) `gives` "done"
      readMVar order >>= (@?= ["head", "continue", "body"]) . reverse,
    testCase "the body is not sent after a final answer, and the connection is not used again" $ do
      pulled <- newIORef False
      later <- newEmptyMVar
      let script _ c = do
            void (hearRequest c)
            say c "HTTP/1.1 417 No\r\nContent-Length: 0\r\n\r\n"
            (hearBytes c 1 >>= putMVar later . Right) `catch` \e -> putMVar later (Left (show (e :: IOException)))
      withPeer script $ \port -> withClient defaultClientSettings {clientContinueTime = seconds 60} $ \client -> do
        due <- soon
        let body = StreamBody (Just 4) (writeIORef pulled True >> pure "body")
        (statusCode . answerStatus <$> request client due (Request "PUT" (url port "/") [("Expect", "100-continue")] body)) `gives` 417
        within (takeMVar later) >>= either (const (pure ())) (assertFailure . show)
      readIORef pulled >>= (@?= False),
    testCase "the body is sent after a while to a server that does not know the field" $
      withPeer (\_ c -> hearRequest c >> hearBytes c 4 >>= say c . plain) $ \port ->
        withClient defaultClientSettings {clientContinueTime = milliseconds 50} $ \client -> do
          due <- soon
          (answerBody <$> request client due (Request "PUT" (url port "/") [("Expect", "100-continue")] (BytesBody "body"))) `gives` "body",
    testCase "interim responses are passed over, and bounded; a switch of protocols is refused" $ do
      let answering bytes = withPeer (\_ c -> hearRequest c >> say c bytes >> heardEnd c) $ \port ->
            withClient defaultClientSettings $ \client -> do
              due <- soon
              try (answerBody <$> request client due (getRequest (url port "/")))
          early n = B.concat (replicate n "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n")
          outcome = either (\e -> Left (show (errorCause e))) Right
      (outcome <$> answering (early 3 <> plain "x")) `gives` Right "x"
      (outcome <$> answering (early 100 <> plain "x")) `gives` Left "NotHttp TooManyInterim"
      (outcome <$> answering ("HTTP/1.1 101 Switching Protocols\r\n\r\n" <> plain "x")) `gives` Left "NotHttp UnaskedUpgrade"
  ]

limiting :: [TestTree]
limiting =
  [ testCase "a peer that never answers, one that stops in the head, one that drips it" $
      forM_ [\_ -> pure (), \c -> say c "HTTP/1.1 200", \c -> forM_ [0 :: Int ..] (\_ -> say c "HTTP/1.1 103 Early Hints\r\n\r\n" >> threadDelay 100000)] $ \talk -> do
        withPeer (\_ c -> hearRequest c >> talk c >> heardEnd c) $ \port ->
          withClient defaultClientSettings {clientAnswerTime = milliseconds 300} $ \client -> do
            due <- soon
            (phase, cause) <- causeOf (request client due (getRequest (url port "/")))
            (phase, show cause) @?= (Answering, "TimedOut"),
    testCase "the same with a streamed request" $
      withPeer (\_ c -> hearRequest c >> heardEnd c) $ \port ->
        withClient defaultClientSettings {clientAnswerTime = milliseconds 300} $ \client -> do
          due <- soon
          pieces <- newIORef ["a", "b", ""]
          (phase, cause) <- causeOf (request client due (Request "POST" (url port "/") [] (StreamBody Nothing (pop pieces))))
          (phase, show cause) @?= (Answering, "TimedOut"),
    testCase "a body that stops has the time limit of a piece, one that drips the deadline" $
      forM_ [(\_ -> pure (), defaultClientSettings {clientReadTime = milliseconds 300}, seconds 80), (\c -> forever (say c "x" >> threadDelay 20000), defaultClientSettings, milliseconds 400)] $ \(talk, settings, time) ->
        withPeer (\_ c -> hearRequest c >> say c "HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\nx" >> talk c >> heardEnd c) $ \port ->
          withClient settings $ \client -> do
            due <- deadlineIn time
            (phase, cause) <- causeOf (request client due (getRequest (url port "/")))
            (phase, show cause) @?= (Receiving, "TimedOut"),
    testCase "a peer that takes nothing" $
      withPeer (\_ _ -> threadDelay 80000000) $ \port ->
        withClient defaultClientSettings {clientSendTime = milliseconds 300} $ \client -> do
          due <- soon
          (phase, cause) <- causeOf (request client due (Request "POST" (url port "/") [] (BytesBody (B.replicate 50000000 0))))
          (phase, show cause) @?= (Sending, "TimedOut")
  ]
  where
    pop ref = atomicModifyIORef' ref (\ps -> (drop 1 ps, B.concat (take 1 ps)))

bodies :: [TestTree]
bodies =
  [ testCase "streams in both directions at the same time, with back-pressure" $ do
      let echo _ c = do
            void (hearRequest c)
            say c "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
            let go = do
                  -- The client's pieces have four bytes.
                  piece <- hearBytes c 3
                  if piece == "0\r\n"
                    then hearBytes c 2 >> say c "0\r\nDone: yes\r\n\r\n"
                    else hearBytes c 6 >>= \rest -> say c (piece <> rest) >> go
            go
      withPeer echo $ \port -> withClient defaultClientSettings $ \client -> do
        due <- soon
        -- Each piece is given when the last one has come back.
        turn <- newMVar (0 :: Int)
        let next = do
              n <- takeMVar turn
              pure (if n < 50 then "abc" <> C.singleton (toEnum (48 + n)) else "")
        (pieces, trailers) <- withResponse client due (Request "POST" (url port "/") [] (StreamBody Nothing next)) $ \r -> do
          let go n acc = do
                piece <- responsePiece r
                if B.null piece then pure (B.concat (reverse acc)) else putMVar turn (n + 1) >> go (n + 1) (piece : acc)
          (,) <$> go 0 [] <*> responseTrailers r
        B.length pieces @?= 200
        trailers @?= [("Done", "yes")],
    testCase "a stream of another length than announced ends the request" $
      forM_ [["abc", ""], ["abc", "de", ""], [""]] $ \pieces ->
        withPeer (\_ c -> hearRequest c >> heardEnd c) $ \port -> withClient defaultClientSettings $ \client -> do
          due <- soon
          left <- newIORef pieces
          (phase, cause) <- causeOf (request client due (Request "PUT" (url port "/") [] (StreamBody (Just 4) (atomicModifyIORef' left (\ps -> (drop 1 ps, B.concat (take 1 ps)))))))
          (phase, show cause) @?= (Sending, "WrongLength"),
    testCase "an exception of the stream is thrown" $
      withPeer (\_ c -> hearRequest c >> heardEnd c) $ \port -> withClient defaultClientSettings $ \client -> do
        due <- soon
        r <- try (request client due (Request "PUT" (url port "/") [] (StreamBody Nothing (throwIO (userError "mine")))))
        either (\e -> show (e :: IOException) @?= "user error (mine)") (const (assertFailure "a response")) r,
    testCase "a server may answer without reading the body, and end the connection" $
      forM_ [BytesBody (B.replicate 3000000 0), StreamBody Nothing (pure (B.replicate 10000 0))] $ \body ->
        withPeer (\_ c -> hearRequest c >> say c "HTTP/1.1 413 No\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno" >> threadDelay 300000) $ \port ->
          withClient defaultClientSettings $ \client -> do
            due <- soon
            (statusCode . answerStatus <$> request client due (Request "POST" (url port "/") [] body)) `gives` 413,
    testCase "a body that is returned has a limit" $
      withPeer (\_ c -> forever (hearRequest c >> say c (plain (C.replicate 1000 'x')))) $ \port -> do
        due <- soon
        withClient defaultClientSettings {clientBodyLimit = 1000} $ \client -> (B.length . answerBody <$> request client due (getRequest (url port "/"))) `gives` 1000
        withClient defaultClientSettings {clientBodyLimit = 999} $ \client -> do
          (_, cause) <- causeOf (request client due (getRequest (url port "/")))
          show cause @?= "BodyTooLarge 999",
    testCase "a body that ends early is an error, also at the second reading" $
      forM_ ["Content-Length: 4\r\n\r\nabc", "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"] $ \rest ->
        withPeer (\_ c -> hearRequest c >> say c ("HTTP/1.1 200 OK\r\n" <> rest)) $ \port -> withClient defaultClientSettings $ \client -> do
          due <- soon
          causes <- withResponse client due (getRequest (url port "/")) $ \r -> do
            responsePiece r >>= (@?= "abc")
            replicateM 2 (snd <$> causeOf (responsePiece r))
          map show causes @?= ["EndedEarly", "EndedEarly"]
  ]
