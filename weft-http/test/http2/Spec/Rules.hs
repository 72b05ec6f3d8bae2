{-# LANGUAGE OverloadedStrings #-}

-- | Rules of "Weft.Http2.Core" that the engine keeps, over connections in memory: frames on streams that have ended,
-- windows of uploads, and the charge for resets.
module Spec.Rules
  ( tests,
  )
where

import Control.Concurrent
import Control.Exception (finally)
import Control.Monad (forM_, unless, when)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Network.HTTP.Types (methodPost, ok200)
import Network.Socket (SockAddr (..))
import Network.Wai (Application, getRequestBodyChunk, requestMethod, responseLBS)
import Spec.Http2 (framesUntil)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Duration (seconds)
import Weft.Http2 (Http2Limits (..), Http2Settings (http2Limits), Rate (..), defaultHttp2Limits, defaultHttp2Settings, serveHttp2)
import Weft.Http2.Frame
import Weft.Timer (within)
import Weft.Transport

tests :: TestTree
tests =
  testGroup
    "Weft.Http2, rules"
    [ testCase "frames after the end of a request, whose response is under way: STREAM_CLOSED" . forM_ [frame typeData 0 1 "more", trailers 1] $ \more ->
        withServed id sleeping $ \mine -> do
          send mine [get 1, more]
          found <- framesUntil mine (not . null . resets)
          resets found @?= [(1, errorNumber StreamClosed)],
      testCase "data of a stream that both sides have ended: STREAM_CLOSED, and the connection goes on" $
        withServed id answering $ \mine -> do
          send mine [get 1]
          _ <- framesUntil mine (ended 1)
          send mine [frame typeData 0 1 "more"]
          found <- framesUntil mine (not . null . resets)
          resets found @?= [(1, errorNumber StreamClosed)]
          send mine [get 3]
          other <- framesUntil mine (ended 3)
          goneAway other @?= [],
      testCase "data of a stream that the client has reset: STREAM_CLOSED" $
        withServed id sleeping $ \mine -> do
          send mine [post 1, frame typeReset 0 1 (errorNumber Cancel), frame typeData 0 1 "more"]
          found <- framesUntil mine (not . null . resets)
          resets found @?= [(1, errorNumber StreamClosed)],
      testCase "data of a stream that was passed over: PROTOCOL_ERROR of the connection" $
        withServed id answering $ \mine -> do
          send mine [get 7, frame typeData 0 3 "more"]
          found <- framesUntil mine (const False)
          goneAway found @?= [errorNumber ProtocolError],
      testCase "the window of an upload that is read grows, and those of all uploads leave half of the connection's window" $ do
        total <- newMVar 0
        withServed id (summing total) $ \mine -> do
          rooms <- mapM (upload mine total) [1, 3, 5]
          assertBool (show rooms) (maximum rooms >= 300000)
          assertBool (show rooms) (sum rooms - 3 * 65535 <= limitBodies defaultHttp2Limits `div` 2)
          -- What they had is there for others when they have ended.
          send mine [frame typeData flagEndStream n "" | n <- [1, 3, 5]]
          _ <- framesUntil mine (\fs -> all (`ended` fs) [1, 3, 5])
          again <- upload mine total 7
          assertBool (show again) (again >= 300000),
      testCase "a client that completes requests may reset some; one that only resets may not" $ do
        let few limits = limits {limitResets = Rate 1 10}
        withServed few mixed $ \mine -> do
          forM_ [1, 5 .. 161] $ \n -> do
            send mine [get n]
            found <- framesUntil mine (ended n)
            goneAway found @?= []
            send mine [post (n + 2), frame typeReset 0 (n + 2) (errorNumber Cancel)]
          send mine [get 501]
          found <- framesUntil mine (ended 501)
          goneAway found @?= []
        withServed few mixed $ \mine -> do
          send mine (concat [[post n, frame typeReset 0 n (errorNumber Cancel)] | n <- [1, 3 .. 161]])
          found <- framesUntil mine (const False)
          goneAway found @?= [errorNumber EnhanceYourCalm],
      testCase "streams above the limit are no resets as long as the client does not know the limit" $ do
        let few limits = limits {limitResets = Rate 1 10, limitStreams = 2}
        withServed few sleeping $ \mine -> do
          send mine (map get [1, 3 .. 99])
          found <- framesUntil mine ((>= 48) . length . resets)
          (resets found, goneAway found) @?= ([(n, errorNumber RefusedStream) | n <- [5, 7 .. 99]], [])
          send mine (frame typeSettings flagAck 0 "" : map get [101, 103 .. 199])
          rest <- framesUntil mine (const False)
          goneAway rest @?= [errorNumber EnhanceYourCalm]
    ]
  where
    answering _ respond = respond (responseLBS ok200 [] "body")
    sleeping _ respond = threadDelay 60000000 >> respond (responseLBS ok200 [] "late")
    mixed asked respond
      | requestMethod asked == methodPost = sleeping asked respond
      | otherwise = answering asked respond
    -- Adds what it has read to the total.
    summing total asked respond = do
      let rest = do
            piece <- getRequestBodyChunk asked
            modifyMVar_ total (pure . (+ B.length piece))
            unless (B.null piece) rest
      rest
      respond (responseLBS ok200 [] "read")
    -- Send two megabytes, and not the end, and wait until they were read. Returns the window that is then open.
    upload mine total n = do
      before <- readMVar total
      send mine [post n]
      room <- sending mine n 65535 size
      reached total (before + size)
      send mine [frame typePing 0 0 (B.replicate 8 0)]
      found <- framesUntil mine (any ((== typePing) . frameType . fst))
      pure (room + granted n found)
    size = 2000000
    sending mine n room left
      | left <= 0 = pure room
      | room < part = framesUntil mine ((> 0) . granted n) >>= \found -> sending mine n (room + granted n found) left
      | otherwise = send mine [frame typeData 0 n (B.replicate part 0)] >> sending mine n (room - part) (left - part)
      where
        part = min 16384 left
    reached total n = readMVar total >>= \k -> when (k < n) (threadDelay 10000 >> reached total n)
    granted n found = sum [fromIntegral (word32 p) | (h, p) <- found, frameType h == typeWindowUpdate, frameStream h == n] :: Int

-- | A server with these limits, for a client that has sent its preface.
withServed :: (Http2Limits -> Http2Limits) -> Application -> (Connection -> IO ()) -> IO ()
withServed limits application act = do
  (mine, theirs) <- connectionPair 262144 (SockAddrUnix "") (SockAddrUnix "")
  over <- newEmptyMVar
  _ <- forkIO (serveHttp2 defaultHttp2Settings {http2Limits = limits defaultHttp2Limits} (const (pure ())) theirs application `finally` putMVar over ())
  send mine [connectionPreface, frame typeSettings 0 0 ""]
  act mine
  connClose mine
  within (seconds 20) (takeMVar over) >>= (@?= Just ())

send :: Connection -> [ByteString] -> IO ()
send c = connSendMany c noDeadline

-- | The heads of a GET and a POST with http, / and a literal authority, in HPACK with its static table; trailers.
get, post, trailers :: Int -> ByteString
get n = frame typeHeaders (flagEndHeaders + flagEndStream) n (B.pack [0x82, 0x86, 0x84, 0x41, 1, 0x61])
post n = frame typeHeaders flagEndHeaders n (B.pack [0x83, 0x86, 0x84, 0x41, 1, 0x61])
trailers n = frame typeHeaders (flagEndHeaders + flagEndStream) n (B.pack [0, 1, 0x78, 1, 0x79])

type Frames = [(FrameHeader, ByteString)]

-- | The frame that ends the stream is there.
ended :: Int -> Frames -> Bool
ended n found = or [frameStream h == n && hasFlag flagEndStream h | (h, _) <- found, frameType h `elem` [typeData, typeHeaders]]

-- | The streams that were reset, with their codes.
resets :: Frames -> [(Int, ByteString)]
resets found = [(frameStream h, p) | (h, p) <- found, frameType h == typeReset]

-- | The codes of GOAWAY frames.
goneAway :: Frames -> [ByteString]
goneAway found = [B.drop 4 p | (h, p) <- found, frameType h == typeGoAway]
