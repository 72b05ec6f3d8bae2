{-# LANGUAGE OverloadedStrings #-}

-- |
-- Exchanges that are cut off: by the peer at each byte of its response, and by exceptions at any time.
module Spec.Cuts (tests) where

import Control.Concurrent
import Control.Monad
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import Data.Either (isLeft)
import Data.IORef
import Peer
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Duration
import Weft.Http.Client
import Weft.Pool (PoolCounts (..))
import Weft.Scope (race)
import Weft.Test.Descriptors (openCount, openCountAfter)
import Weft.Timer (sleep)
import Weft.Transport (Connection (..), Operations (..), deadlineIn)

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
      testCase "an exception while a kept connection is asked whether it is of use leaves no place and no connection" $ do
        let script _ c = forever (hearRequest c >> say c "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc")
            methods = [getRequest, \u -> Request "POST" u [] EmptyBody]
        withPeer script $ \port -> forM_ methods $ \toSend -> forM_ [True, False] $ \known -> do
          questioned <- newEmptyMVar
          ended <- newIORef (0 :: Int)
          let connect due u = asking known (putMVar questioned () >> newEmptyMVar >>= takeMVar) (modifyIORef' ended (+ 1)) <$> connectUrl defaultClientSettings due u
          withClient defaultClientSettings {clientMostPerServer = 1, clientConnect = Just connect} $ \client -> do
            due <- soon
            (answerBody <$> request client due (getRequest (url port "/"))) `gives` "abc"
            over <- newEmptyMVar
            t <- forkFinally (request client due (toSend (url port "/"))) (putMVar over . void)
            interrupted <- within (race (takeMVar questioned) (takeMVar over))
            -- A GET over a connection of which nothing was heard is sent without a question.
            if isLeft interrupted then killThread t >> void (within (takeMVar over)) else (requestMethod (toSend (url port "/")), known) @?= ("GET", True)
            when (isLeft interrupted) $ do
              readIORef ended `gives` 1
              (map (countTotal . snd) <$> clientCounts client) `gives` [0]
              (answerBody <$> request client due (getRequest (url port "/"))) `gives` "abc",
      testCase "thousands of requests that are interrupted leave no descriptor and no thread's connection" $ do
        let script _ c = forever $ do
              void (hearRequest c)
              say c "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
              forM_ [1 .. 20 :: Int] $ \_ -> say c "3\r\nabc\r\n" >> yield
              say c "0\r\n\r\n"
        withPeer script $ \port -> do
          _ <- withClient defaultClientSettings $ \client -> soon >>= \due -> request client due (getRequest (url port "/"))
          before <- openCountAfter (sleep (milliseconds 1))
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

-- | A connection that runs the first action when it is asked what has come without waiting, unless it is known that
-- nothing has, and the second one when it is ended.
asking :: Bool -> IO () -> IO () -> Connection -> Connection
asking known onAsked onEnd (Connection ops s) =
  Connection
    ops
      { opReceive = \t due most -> deadlineIn (nanoseconds 0) >>= \present -> when (due < present) onAsked >> opReceive ops t due most,
        opIsQuiet = \_ -> pure known,
        opClose = \t -> onEnd >> opClose ops t,
        opAbort = \t -> onEnd >> opAbort ops t
      }
    s

responses :: [ByteString]
responses =
  [ "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc",
    "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1;x=y\r\nc\r\n0\r\nA: b\r\n\r\n"
  ]
