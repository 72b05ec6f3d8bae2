{-# LANGUAGE OverloadedStrings #-}

-- |
-- Applications that respond from several threads, or too late. A request gets one response.
module Spec.Responses (tests) where

import Application
import Client
import Configurations
import Control.Concurrent
import Control.Concurrent.Async (concurrently)
import Control.Exception (SomeException, fromException, throwIO, try)
import Control.Monad (replicateM_)
import qualified Data.ByteString as B
import Data.ByteString.Builder (Builder, byteString)
import Data.IORef
import Network.HTTP.Types (status200, status503)
import Network.Wai (Response, pathInfo, responseBuilder, responseFile, responseLBS, responseStream)
import Network.Wai.Internal (ResponseReceived)
import System.IO.Unsafe (unsafePerformIO)
import System.Timeout (timeout)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Http (ApplicationError (ResponseTwice), defaultSettings)

tests :: Configuration -> TestTree
tests on =
  testGroup
    "responses"
    [ testGroup
        "a thread that responds while another one prepares a response"
        [ testOn on "of one string" (overtaken (\gate -> responseBuilder status200 [("Content-Length", "5")] (waiting gate "first"))),
          testOn on "without a length" (overtaken (\gate -> responseBuilder status200 [] (waiting gate "first"))),
          testOn on "that is long" (overtaken (\gate -> responseBuilder status200 [] (waiting gate (byteString (B.replicate 100000 65))))),
          testOn on "that is a stream" (overtaken (\gate -> responseStream status200 [] (\write flush -> write "first" >> readMVar gate >> flush >> write "more"))),
          testOn on "that is a file" (overtaken (\gate -> responseFile status200 [("X-Slow", unsafePerformIO ("slow" <$ readMVar gate))] "weft-http.cabal" Nothing))
        ],
      testOn on "two threads that respond at once, 200 times" $ do
        let app _ respond = do
              let trying response = try (respond response)
              found <- concurrently (trying (responseLBS status200 [] "first")) (trying (responseLBS status503 [] "second"))
              case found of
                (Right r, Left e) | isTwice e -> pure r
                (Left e, Right r) | isTwice e -> pure r
                (Left e, Left _) -> throwIO e
                _ -> throwIO (userError "two responses, or another exception")
        withQuietServer defaultSettings app $ \_ port -> withClient port $ \client -> do
          replicateM_ 200 (ask client "/" [])
          replicateM_ 200 (hearAnswer client >>= \answer -> assertBool (show answer) (answerBody answer == (if answerStatus answer == 200 then "first" else "second")))
          say client "GET / HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n"
          hearEnd client >>= (@?= 1) . length . statusesIn,
      testOn on "a response to an earlier request" $ do
        earlier <- newEmptyMVar
        outcome <- newEmptyMVar
        let app request respond
              | pathInfo request == ["first"] = putMVar earlier respond >> respond (responseLBS status200 [] "first")
              | otherwise = do
                late <- takeMVar earlier
                try (late (responseLBS status503 [] "late")) >>= putMVar outcome . discarded
                respond (responseLBS status200 [] "second")
        withQuietServer defaultSettings app $ \_ port -> withClient port $ \client -> do
          get client "/first" >>= (@?= "first") . answerBody
          get client "/second" >>= (@?= "second") . answerBody
          takeMVar outcome >>= isRefused
          say client "GET /first HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n"
          hearEnd client >>= (@?= [200]) . statusesIn,
      testOn on "two threads that write a streamed body at once: one gets an error, and the response does not look complete" $ do
        outcome <- newEmptyMVar
        let app _ respond = respond . responseStream status200 [] $ \write flush -> do
              write "first" >> flush
              (gate, entered, over) <- (,,) <$> newEmptyMVar <*> newEmptyMVar <*> newEmptyMVar
              _ <- forkIO (write (unsafePerformIO (byteString "second" <$ (putMVar entered () >> readMVar gate))) >> putMVar over ())
              takeMVar entered
              try (write "third") >>= putMVar outcome . failed
              putMVar gate () >> takeMVar over
        withQuietServer defaultSettings app $ \_ port -> withClient port $ \client -> do
          ask client "/" []
          found <- hearEnd client
          (statusesIn found, B.isSuffixOf "0\r\n\r\n" found) @?= ([200], False)
          takeMVar outcome >>= (@?= Just "user error (Weft.Http: two threads write the body of a response at the same time)"),
      testOn on "a write after one that was interrupted, and one after the response's end" $ do
        outcome <- newEmptyMVar
        (kept, late) <- (,) <$> newEmptyMVar <*> newEmptyMVar
        let app request respond
              | pathInfo request == ["late"] = respond (responseStream status200 [] (\write _ -> write "all" >> putMVar kept write))
              | otherwise = respond . responseStream status200 [] $ \write flush -> do
                write "first" >> flush
                gate <- newEmptyMVar
                _ <- timeout 20000 (write (waiting gate "second"))
                try (write "third") >>= putMVar outcome . failed
                putMVar gate ()
        withQuietServer defaultSettings app $ \_ port -> do
          withClient port $ \client -> do
            ask client "/" []
            found <- hearEnd client
            (statusesIn found, B.isSuffixOf "0\r\n\r\n" found) @?= ([200], False)
            takeMVar outcome >>= (@?= Just "user error (Weft.Http: an earlier write of this response was interrupted)")
          withClient port $ \client -> do
            get client "/late" >>= (@?= "all") . answerBody
            write <- takeMVar kept
            try (write (byteString "more")) >>= putMVar late . failed
            takeMVar late >>= (@?= Just "user error (Weft.Http: this response has ended)")
    ]
  where
    discarded :: Either SomeException ResponseReceived -> Either SomeException ()
    discarded = fmap (const ())
    failed :: Either SomeException () -> Maybe String
    failed = either (Just . show) (const Nothing)
    isTwice e = fromException e == Just ResponseTwice
    isRefused = either (\e -> assertBool (show e) (isTwice e)) (const (assertFailure "it was sent"))
    -- The part of a body, which is made when the gate is open.
    waiting :: MVar () -> Builder -> Builder
    waiting gate b = unsafePerformIO (b <$ readMVar gate)
    -- A thread responds, and its response waits for the gate; then the application's thread responds.
    overtaken :: (MVar () -> Response) -> IO ()
    overtaken slowly = do
      (gate, outcome) <- (,) <$> newEmptyMVar <*> newEmptyMVar
      calls <- newIORef (0 :: Int)
      let app _ respond = do
            n <- atomicModifyIORef' calls (\k -> (k + 1, k))
            if n > 0
              then respond (responseLBS status200 [] "next")
              else do
                _ <- forkIO (try (respond (slowly gate)) >>= putMVar outcome . discarded)
                threadDelay 20000
                r <- respond (responseLBS status503 [] "overtook")
                putMVar gate ()
                readMVar outcome >>= isRefused
                pure r
      withQuietServer defaultSettings app $ \_ port -> withClient port $ \client -> do
        first <- get client "/"
        (answerStatus first, answerBody first) @?= (503, "overtook")
        get client "/" >>= (@?= "next") . answerBody
        readMVar outcome >>= isRefused
        say client "GET / HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n"
        hearEnd client >>= (@?= [200]) . statusesIn
