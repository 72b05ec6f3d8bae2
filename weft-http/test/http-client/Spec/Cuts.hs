{-# LANGUAGE OverloadedStrings #-}

-- |
-- Exchanges that are cut off: by the peer at each byte of its response, and by exceptions at any time.
module Spec.Cuts (tests) where

import Control.Concurrent
import Control.Monad
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import Peer
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Duration
import Weft.Http.Client
import Weft.Test.Descriptors (openCount)
import Weft.Transport (deadlineIn)

tests :: TestTree
tests =
  testGroup
    "cut off"
    [ testCase "a response that ends at any byte is an error, and the next request works" . forM_ [hangUp, reset] $ \end ->
        forM_ responses $ \response -> do
          let script n c = hearRequest c >> if even n then say c (B.take (n `div` 2) response) >> end c else say c response >> heardEnd c
          withPeer script $ \port -> withClient defaultClientSettings $ \client -> do
            due <- soon
            forM_ [0 .. B.length response - 1] $ \_ -> do
              (_, cause) <- causeOf (request client due (getRequest (url port "/")))
              case cause of
                NoAnswer _ -> pure ()
                EndedEarly -> pure ()
                ConnectionBroken _ -> pure ()
                _ -> assertFailure (show cause)
              -- Sent by a method that is not repeated, so that the numbers of connections stay in order.
              (answerBody <$> request client due (Request "POST" (url port "/") [("Connection", "close")] EmptyBody)) `gives` "abc",
      testCase "thousands of requests that are interrupted leave no descriptor and no thread's connection" $ do
        let script _ c = forever $ do
              void (hearRequest c)
              say c "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
              forM_ [1 .. 20 :: Int] $ \_ -> say c "3\r\nabc\r\n" >> yield
              say c "0\r\n\r\n"
        withPeer script $ \port -> do
          _ <- withClient defaultClientSettings $ \client -> soon >>= \due -> request client due (getRequest (url port "/"))
          before <- openCount
          withClient defaultClientSettings {clientMostPerServer = 8} $ \client -> do
            forM_ [1 .. 3000 :: Int] $ \i -> do
              done <- newEmptyMVar
              t <- flip forkFinally (putMVar done . void) $ do
                due <- deadlineIn (if i `mod` 3 == 0 then microseconds (i `mod` 700) else seconds 80)
                request client due (asked port i)
              replicateM_ (i `mod` 17) yield
              when (i `mod` 2 == 0) (threadDelay (i `mod` 400))
              killThread t
              void (within (takeMVar done))
            body <- within (goodAnswer client port)
            body @?= C.concat (replicate 20 "abc")
          eventually "descriptors are left" ((<= before) <$> openCount)
    ]
  where
    goodAnswer client port = do
      due <- soon
      answerBody <$> request client due (getRequest (url port "/"))
    asked port i
      | i `mod` 5 == 0 = Request "PUT" (url port "/") [("Expect", "100-continue")] (BytesBody "")
      | i `mod` 7 == 0 = Request "POST" (url port "/") [] (StreamBody (Just 0) (threadDelay (i `mod` 300) >> pure B.empty))
      | otherwise = getRequest (url port "/")

responses :: [ByteString]
responses =
  [ "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc",
    "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1;x=y\r\nc\r\n0\r\nA: b\r\n\r\n"
  ]
