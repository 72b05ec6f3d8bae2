{-# LANGUAGE OverloadedStrings #-}

-- | HTTP\/2 streams whose threads are interrupted or that come to a stop: what is sent then, what is reported, and what
-- becomes of the other streams. Most connections are in memory.
module Spec.Interrupted
  ( tests,
  )
where

import Control.Concurrent
import Control.Exception (SomeException, catch, finally, fromException, throwIO, try)
import Control.Monad (forM_, replicateM_, when)
import qualified Data.ByteString as B
import Data.ByteString.Builder (byteString)
import qualified Data.ByteString.Char8 as C
import qualified Data.ByteString.Lazy as L
import Data.IORef
import Network.HTTP.Types (ok200, serviceUnavailable503, statusCode)
import Network.Socket (SockAddr (..), tupleToHostAddress)
import Network.Wai (getRequestBodyChunk, requestHeaders, responseLBS, responseStream)
import Spec.Http2 (framesUntil)
import Spec.Streams (gated)
import System.Timeout (timeout)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Duration (milliseconds, seconds)
import Weft.Http (ApplicationError (ResponseTwice), RequestError (BodyIncomplete))
import Weft.Http2 (Http2Control (..), Http2Limits (limitFrame, limitIdle, limitWait), Http2Settings (http2Limits, http2OnResponse), defaultHttp2Limits, defaultHttp2Settings, serveHttp2)
import Weft.Http2.Frame
import Weft.Timer (within)
import Weft.Transport

tests :: TestTree
tests =
  testGroup
    "Weft.Http2, interruptions"
    [ testCase "an upload that has stalled does not end another one, which goes on" $ do
        let settings = defaultHttp2Settings {http2Limits = defaultHttp2Limits {limitWait = milliseconds 400}}
            application asked respond = do
              let rest n = getRequestBodyChunk asked >>= \piece -> if B.null piece then pure (n :: Int) else rest (n + B.length piece)
              n <- rest 0
              respond (responseLBS ok200 [] (L.fromStrict (C.pack (show n))))
        withServed settings application $ \mine _ -> do
          send mine [connectionPreface, frame typeSettings 0 0 B.empty, upload 1, upload 3]
          replicateM_ 12 $ threadDelay 100000 >> send mine [frame typeData 0 1 (B.replicate 1000 0)]
          send mine [frame typeData flagEndStream 1 B.empty]
          found <- framesUntil mine (any (\(h, _) -> frameStream h == 1 && frameType h == typeData))
          [p | (h, p) <- found, frameStream h == 1, frameType h == typeData] @?= ["12000"]
          [(frameStream h, p) | (h, p) <- found, frameType h == typeReset] @?= [(3, errorNumber Cancel)]
          [() | (h, _) <- found, frameType h == typeGoAway] @?= [],
      testCase "a Huffman-coded value of 9,000 and 30,000 bytes" $ do
        let application asked respond = respond (responseLBS ok200 [] (L.fromStrict (C.pack (show (maybe 0 B.length (lookup "x" (requestHeaders asked)), lookup "y" (requestHeaders asked))))))
            -- The code of 'a' has five bits: 00011.
            coded n = integer (0x80 :: Int) (n * 5 `div` 8) <> B.concat (replicate (n `div` 8) (B.pack [0x18, 0xc6, 0x31, 0x8c, 0x63]))
            integer flags n
              | n < 127 = B.pack [fromIntegral (flags + n)]
              | otherwise = B.pack (fromIntegral (flags + 127) : groups (n - 127))
            groups n = if n < 128 then [fromIntegral n] else fromIntegral (n `mod` 128 + 128) : groups (n `div` 128)
            basic = B.pack [0x82, 0x86, 0x84, 0x41, 1, 0x61]
            -- Neither is added to the table; then y, which is.
            long n = B.concat [basic, B.pack [0, 1, 0x78], coded n, B.pack [0x40, 1, 0x79, 1, 0x7a]]
            -- The fields that were added last: y, then the authority of the request before.
            short = B.pack [0x82, 0x86, 0x84, 0xbf, 0xbe]
            headers n block = [frame typeHeaders (flagEndStream + (if B.length block <= 16384 then flagEndHeaders else 0)) n (B.take 16384 block)] <> [frame typeContinuation flagEndHeaders n (B.drop 16384 block) | B.length block > 16384]
            answer mine n = do
              found <- framesUntil mine (any (\(h, _) -> frameStream h == n && hasFlag flagEndStream h))
              pure (B.concat [p | (h, p) <- found, frameStream h == n, frameType h == typeData], [() | (h, _) <- found, frameType h == typeGoAway])
        forM_ [9000, 30000] $ \n -> withServed defaultHttp2Settings application $ \mine _ -> do
          send mine ([connectionPreface, frame typeSettings 0 0 B.empty] <> headers 1 (long n))
          answer mine 1 >>= (@?= (C.pack (show (n, Just ("z" :: String))), []))
          send mine (headers 3 short)
          answer mine 3 >>= (@?= (C.pack (show (0 :: Int, Just ("z" :: String))), [])),
      testCase "a response that is interrupted as it is sent counts against the connection's window" $ do
        (gate, entered) <- (,) <$> newMVar () <*> newEmptyMVar
        calls <- newIORef (0 :: Int)
        interrupted <- newEmptyMVar
        let application _ respond = do
              n <- atomicModifyIORef' calls (\k -> (k + 1, k))
              if n > 0
                then respond (responseLBS ok200 [] (L.replicate 200000 0))
                else timeout 50000 (respond (responseLBS ok200 [] (L.replicate 30000 0))) >>= putMVar interrupted . (() <$) >> throwIO (userError "interrupted")
        withServedOn (gated gate entered) defaultHttp2Settings application $ \mine _ -> do
          send mine [connectionPreface, frame typeSettings 0 0 (settingsPayload [(4, 1000000)])]
          _ <- framesUntil mine (any (\(h, _) -> frameType h == typeSettings && hasFlag flagAck h))
          takeMVar gate
          send mine [request 1]
          within (seconds 10) (takeMVar entered) >>= (@?= Just ())
          threadDelay 200000
          putMVar gate ()
          within (seconds 10) (takeMVar interrupted) >>= (@?= Just Nothing)
          send mine [request 3]
          -- The window of the connection is never enlarged: 65,535 bytes.
          found <- framesUntil mine (\fs -> sum [frameLength h | (h, _) <- fs, frameType h == typeData] >= 65535)
          threadDelay 200000
          send mine [frame typePing 0 0 (B.replicate 8 0)]
          more <- framesUntil mine (any ((== typePing) . frameType . fst))
          sum [frameLength h | (h, _) <- found <> more, frameType h == typeData] @?= 65535,
      testCase "an early response to an upload that the client then resets is reported, and not interrupted" $ do
        (reported, returned) <- (,) <$> newEmptyMVar <*> newEmptyMVar
        let settings = defaultHttp2Settings {http2OnResponse = \_ status _ -> putMVar reported (statusCode status)}
            application _ respond = respond (responseLBS ok200 [] "early") >>= \r -> r <$ putMVar returned ()
        withServed settings application $ \mine _ -> do
          send mine [connectionPreface, frame typeSettings 0 0 B.empty, upload 1]
          _ <- framesUntil mine (any (\(h, _) -> frameType h == typeData && hasFlag flagEndStream h))
          send mine [frame typeReset 0 1 (errorNumber Cancel)]
          within (seconds 10) (takeMVar reported) >>= (@?= Just 200)
          within (seconds 10) (takeMVar returned) >>= (@?= Just ()),
      testCase "what reads a body whose stream the client resets behind the response gets BodyIncomplete, as over HTTP/1" $ do
        thrown <- newEmptyMVar
        let application asked respond = do
              received <- respond (responseLBS ok200 [] "early")
              received <$ (try (getRequestBodyChunk asked) >>= putMVar thrown)
        withServed defaultHttp2Settings application $ \mine _ -> do
          send mine [connectionPreface, frame typeSettings 0 0 B.empty, upload 1]
          _ <- framesUntil mine (any (\(h, _) -> frameType h == typeData && hasFlag flagEndStream h))
          send mine [frame typeReset 0 1 (errorNumber Cancel)]
          within (seconds 10) (takeMVar thrown) >>= (@?= Just (Left BodyIncomplete)),
      testCase "an application that handles the exception of a reset stream sends and reports nothing" $ do
        (begun, answered) <- (,) <$> newEmptyMVar <*> newEmptyMVar
        reports <- newIORef (0 :: Int)
        let settings = defaultHttp2Settings {http2OnResponse = \_ _ _ -> modifyIORef' reports (+ 1)}
            application _ respond = do
              (putMVar begun () >> threadDelay 60000000) `catch` \e -> const (pure ()) (e :: SomeException)
              respond (responseLBS serviceUnavailable503 [] "interrupted") `finally` putMVar answered ()
        withServed settings application $ \mine _ -> do
          send mine [connectionPreface, frame typeSettings 0 0 B.empty, request 1]
          within (seconds 10) (takeMVar begun) >>= (@?= Just ())
          send mine [frame typeReset 0 1 (errorNumber Cancel)]
          within (seconds 10) (takeMVar answered) >>= (@?= Just ())
          send mine [frame typePing 0 0 (B.replicate 8 0)]
          found <- framesUntil mine (any ((== typePing) . frameType . fst))
          [frameType h | (h, _) <- found, frameStream h == 1] @?= []
          readIORef reports >>= (@?= 0),
      testCase "a streamed response with an interrupted write does not end as if it were complete" $ do
        let application _ respond = respond . responseStream ok200 [] $ \write flush -> do
              -- The client's window is closed. A small part would wait in the server, and not here.
              timeout 50000 (write (byteString (B.replicate 100000 120)) >> flush) >>= \r -> when (r /= Nothing) (throwIO (userError "sent"))
        withServed defaultHttp2Settings application $ \mine _ -> do
          send mine [connectionPreface, frame typeSettings 0 0 (settingsPayload [(4, 0)]), request 1]
          _ <- framesUntil mine (any ((== typeHeaders) . frameType . fst))
          threadDelay 200000
          send mine [frame typeWindowUpdate 0 1 (B.pack [0, 0, 16, 0])]
          found <- framesUntil mine (any (\(h, _) -> frameStream h == 1 && (frameType h == typeReset || hasFlag flagEndStream h)))
          [p | (h, p) <- found, frameStream h == 1, frameType h == typeReset] @?= [errorNumber InternalError],
      testCase "a response that is given up before anything was sent can be replaced" $ do
        (gate, entered) <- (,) <$> newMVar () <*> newEmptyMVar
        calls <- newIORef (0 :: Int)
        gaveUp <- newEmptyMVar
        let application _ respond = do
              n <- atomicModifyIORef' calls (\k -> (k + 1, k))
              if n == 0
                then respond (responseLBS ok200 [] "first")
                else do
                  -- So much that the application waits until it is sent.
                  r <- timeout 50000 (respond (responseLBS ok200 [] (L.replicate 100000 120)))
                  putMVar gaveUp ()
                  maybe (respond (responseLBS serviceUnavailable503 [] "too late")) pure r
        withServedOn (gated gate entered) defaultHttp2Settings application $ \mine _ -> do
          send mine [connectionPreface, frame typeSettings 0 0 B.empty]
          _ <- framesUntil mine (any (\(h, _) -> frameType h == typeSettings && hasFlag flagAck h))
          takeMVar gate
          send mine [request 1]
          -- Its response is being sent.
          within (seconds 10) (takeMVar entered) >>= (@?= Just ())
          send mine [request 3]
          within (seconds 10) (takeMVar gaveUp) >>= (@?= Just ())
          putMVar gate ()
          found <- framesUntil mine (any (\(h, _) -> frameStream h == 3 && hasFlag flagEndStream h))
          [p | (h, p) <- found, frameStream h == 3, frameType h == typeData] @?= ["too late"],
      testCase "a thread responds while another one has part of a stream ready: one response" $ do
        (gate, outcome) <- (,) <$> newEmptyMVar <*> newEmptyMVar
        let application _ respond = do
              let slowly = respond (responseStream ok200 [] (\write flush -> write "first" >> readMVar gate >> flush >> write "more"))
              _ <- forkIO (try slowly >>= putMVar outcome . either (\e -> Left (e :: SomeException)) (const (Right ())))
              threadDelay 20000
              respond (responseStream serviceUnavailable503 [] (\write flush -> write "overtook" >> flush >> putMVar gate () >> () <$ readMVar outcome))
        withServed defaultHttp2Settings application $ \mine _ -> do
          send mine [connectionPreface, frame typeSettings 0 0 B.empty, request 1]
          loser <- within (seconds 10) (readMVar outcome)
          fmap (either fromException (const Nothing)) loser @?= Just (Just ResponseTwice)
          found <- framesUntil mine (any (\(h, _) -> frameStream h == 1 && hasFlag flagEndStream h))
          [frameType h | (h, _) <- found, frameStream h == 1, frameType h /= typeData] @?= [typeHeaders]
          B.concat [p | (h, p) <- found, frameType h == typeData] @?= "overtook",
      testCase "a connection whose client reads nothing can be ended, also without time limits" $ do
        -- The first frames do not fit.
        (mine, theirs) <- connectionPair 16 (SockAddrUnix "") (SockAddrUnix "")
        ended <- newEmptyMVar
        let settings = defaultHttp2Settings {http2Limits = defaultHttp2Limits {limitWait = maxBound, limitFrame = maxBound, limitIdle = maxBound}}
        server <- forkIO (serveHttp2 settings (const (pure ())) theirs (\_ respond -> respond (responseLBS ok200 [] "")) `finally` putMVar ended ())
        threadDelay 100000
        _ <- forkIO (killThread server)
        within (seconds 10) (takeMVar ended) >>= (@?= Just ())
        connClose mine,
      testCase "a connection that drains is not reset before a slow client has everything" $ do
        l <- transportListen socketTransport (SockAddrInet 0 (tupleToHostAddress (127, 0, 0, 1)))
        (drains, ended) <- (,) <$> newEmptyMVar <*> newEmptyMVar
        let size = 500000
        _ <- forkIO $ do
          c <- listenerAccept l
          serveHttp2 defaultHttp2Settings (putMVar drains . controlShutdown) c (\_ respond -> respond (responseLBS ok200 [] (L.replicate size 0))) `finally` putMVar ended ()
        soon <- deadlineIn (seconds 10)
        mine <- transportConnect socketTransport soon (listenerAddress l)
        -- All of the response fits into the windows, and so into the kernel's buffers.
        send mine [connectionPreface, frame typeSettings 0 0 (settingsPayload [(4, 10000000)]), frame typeWindowUpdate 0 0 (B.pack [0, 0x98, 0, 0]), request 1]
        drain <- takeMVar drains
        threadDelay 300000
        drain
        threadDelay 1300000
        -- A frame that arrives after the end, as the updates of windows do.
        send mine [frame typeWindowUpdate 0 0 (B.pack [0, 0, 1, 0])]
        found <- framesUntil mine (const False)
        sum [frameLength h | (h, _) <- found, frameType h == typeData] @?= fromIntegral size
        connClose mine
        within (seconds 10) (takeMVar ended) >>= (@?= Just ())
        listenerClose l
    ]
  where
    withServed = withServedOn id
    -- The client's end, and what is filled when the server has ended.
    withServedOn wrapped settings application act = do
      (mine, theirs) <- connectionPair 262144 (SockAddrUnix "") (SockAddrUnix "")
      ended <- newEmptyMVar
      _ <- forkIO (serveHttp2 settings (const (pure ())) (wrapped theirs) application `finally` putMVar ended ())
      () <- act mine ended
      connClose mine
      within (seconds 20) (takeMVar ended) >>= (@?= Just ())
    send c = connSendMany c noDeadline
    -- GET, http, / and a literal authority, in HPACK with its static table.
    request n = frame typeHeaders (flagEndHeaders + flagEndStream) n (B.pack [0x82, 0x86, 0x84, 0x41, 1, 0x61])
    upload n = frame typeHeaders flagEndHeaders n (B.pack [0x83, 0x86, 0x84, 0x41, 1, 0x61])
