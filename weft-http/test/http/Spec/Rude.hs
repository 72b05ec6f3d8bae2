{-# LANGUAGE OverloadedStrings #-}

-- |
-- Applications that break the rules of WAI or HTTP: what their clients see, what the server reports, and that the next
-- client is served.
module Spec.Rude (tests) where

import Application hiding (application)
import Client
import Configurations
import Control.Exception (ErrorCall (..), evaluate, throwIO, try)
import Control.Monad (replicateM_)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Data.ByteString.Builder (lazyByteString)
import qualified Data.ByteString.Char8 as C
import qualified Data.ByteString.Lazy as L
import Data.IORef
import Network.HTTP.Types
import Network.Wai
import Network.Wai.Internal (ResponseReceived (..))
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Http

tests :: Configuration -> TestTree
tests on =
  testGroup
    "applications that break the rules"
    $ testOn on "a body that breaks off does not look complete, to HTTP/1.1 and to HTTP/1.0" (telling brokenOff) :
    testOn on "a Content-Length that is not the file part's is replaced" (telling replaced) :
      [ testOn on (C.unpack path) . telling $ \reports port -> do
          withClient port $ \client -> do
            ask client ("/" <> path) []
            ask client "/good" ["Connection: close"]
            heard <- hearEndOrReset client
            (path, statuses heard) @?= (path, expected)
            assertBool (show heard) (not ("injected" `B.isInfixOf` heard))
          withClient port $ \client -> get client "/good" >>= (@?= "good") . answerBody
          readIORef reports >>= (@?= (path, reported)) . (,) path . length
        | (path, expected, reported) <- cases
      ]

brokenOff :: IORef [String] -> Int -> Assertion
brokenOff _ port = do
  withClient port $ \client -> do
    ask client "/late" []
    heard <- hearEndOrReset client
    assertBool (show heard) ("begun" `B.isInfixOf` heard && not ("\r\n0\r\n" `B.isInfixOf` heard))
  withClient port $ \client -> do
    say client "GET /late HTTP/1.0\r\n\r\n"
    -- An orderly end would make the body look complete.
    end <- try (hearEnd client) :: IO (Either IOError ByteString)
    either (const (pure ())) (\heard -> assertFailure ("an orderly end after " <> show heard)) end

replaced :: IORef [String] -> Int -> Assertion
replaced _ port = withClient port $ \client -> replicateM_ 2 $ do
  answer <- get client "/length-of-file"
  B.length (answerBody answer) @?= 20

-- | Run a server; the reference gets the exceptions that it reports.
telling :: (IORef [String] -> Int -> IO a) -> IO a
telling act = do
  reports <- newIORef []
  let settings = setOnException (\_ e -> atomicModifyIORef' reports (\es -> (show e : es, ())))
  withServer (settings (setHost "127.0.0.1" (setPort 0 defaultSettings))) rude $ \server -> act reports (portOf (serverAddress server))

-- | The path, the statuses of the answers to it and to a good request after it, and the number of reports.
cases :: [(ByteString, [Int], Int)]
cases =
  [ ("good", [200, 200], 0),
    ("none", [500, 200], 1),
    ("twice", [200, 200], 1),
    ("caught", [200, 200], 0),
    ("throws", [500, 200], 1),
    ("undefined", [500, 200], 1),
    ("undefined-response", [500, 200], 1),
    ("undefined-field", [500, 200], 1),
    ("undefined-body", [500, 200], 1),
    ("length-too-large", [200], 1),
    ("length-too-small", [500, 200], 1),
    ("length-too-large-stream", [200], 1),
    ("length-too-small-stream", [500, 200], 1),
    ("length-negative", [200, 200], 0),
    ("length-text", [200, 200], 0),
    ("length-twice", [200, 200], 0),
    ("length-of-file", [200, 200], 0),
    ("part-negative", [500, 200], 1),
    ("coding", [200, 200], 0),
    ("no-content-with-body", [204, 200], 0),
    ("reset-with-body", [205, 200], 0),
    ("reset-with-stream", [205, 200], 0),
    ("not-modified-with-body", [304, 200], 0),
    ("field-line-feed", [500, 200], 1),
    ("field-carriage-return", [500, 200], 1),
    ("field-zero", [500, 200], 1),
    ("field-name", [500, 200], 1),
    ("message-line-feed", [500, 200], 1),
    ("status-interim", [500, 200], 1),
    ("status-small", [500, 200], 1),
    ("status-large", [500, 200], 1),
    ("status-negative", [500, 200], 1),
    ("broken-builder", [500, 200], 1),
    ("broken-builder-length", [500, 200], 1),
    ("broken-builder-sent", [200], 1),
    ("late", [200], 1),
    ("late-without-flush", [500, 200], 1),
    ("after", [200, 200], 1)
  ]

rude :: Application
rude request respond = case rawPathInfo request of
  "/good" -> respond (plain "good")
  "/none" -> pure ResponseReceived
  "/twice" -> respond (plain "first") >> respond (plain "injected")
  "/caught" -> do
    received <- respond (plain "first")
    second <- try (respond (plain "injected"))
    either (\e -> const (pure received) (e :: ApplicationError)) pure second
  "/throws" -> throwIO (ErrorCall "on purpose")
  "/undefined" -> evaluate (error "on purpose")
  "/undefined-response" -> respond (error "on purpose")
  "/undefined-field" -> respond (responseLBS status200 [("X", error "on purpose")] "x")
  "/undefined-body" -> respond (responseLBS status200 [] (error "on purpose"))
  "/length-too-large" -> respond (sized "10" "five.")
  "/length-too-small" -> respond (sized "3" "five.injected")
  "/length-too-large-stream" -> respond (responseStream status200 [("Content-Length", "10")] (\write _ -> write "five."))
  "/length-too-small-stream" -> respond (responseStream status200 [("Content-Length", "3")] (\write _ -> write "five.injected"))
  "/length-negative" -> respond (sized "-5" "five.")
  "/length-text" -> respond (sized "five" "five.")
  "/length-twice" -> respond (responseLBS status200 [("Content-Length", "5"), ("Content-Length", "7")] "five.")
  "/length-of-file" -> respond (responseFile status200 [("Content-Length", "3")] "weft-http.cabal" (Just (FilePart 0 20 20)))
  "/part-negative" -> respond (responseFile status200 [] "weft-http.cabal" (Just (FilePart 10 (-5) 20)))
  "/coding" -> respond (responseLBS status200 [("Transfer-Encoding", "gzip"), ("Content-Length", "5")] "five.")
  "/no-content-with-body" -> respond (responseLBS status204 [] "injected")
  "/reset-with-body" -> respond (responseLBS status205 [("Content-Length", "8")] "injected")
  "/reset-with-stream" -> respond (responseStream status205 [] (\write _ -> write "injected"))
  "/not-modified-with-body" -> respond (responseLBS status304 [] "injected")
  "/field-line-feed" -> respond (field "X" "a\nX: injected")
  "/field-carriage-return" -> respond (field "X" "a\rinjected")
  "/field-zero" -> respond (field "X" "a\0injected")
  "/field-name" -> respond (field "X: a\r\ninjected" "b")
  "/message-line-feed" -> respond (responseLBS (Status 200 "OK\r\nX: injected") [] "x")
  "/status-interim" -> respond (responseLBS status101 [] "injected")
  "/status-small" -> respond (responseLBS (Status 99 "Small") [] "injected")
  "/status-large" -> respond (responseLBS (Status 1000 "Large") [] "injected")
  "/status-negative" -> respond (responseLBS (Status (-200) "Negative") [] "injected")
  "/broken-builder" -> respond (responseStream status200 [] goingOn)
  "/broken-builder-length" -> respond (responseStream status200 [("Content-Length", "10008")] goingOn)
  "/broken-builder-sent" -> respond . responseStream status200 [] $ \write _ -> do
    -- Parts of it have been sent when it throws.
    broken <- try (write (lazyByteString (L.fromChunks (replicate 100 (B.replicate 1000 120) <> error "on purpose"))))
    either (\e -> const (write "injected") (e :: ErrorCall)) pure broken
  "/late" -> respond . responseStream status200 [] $ \write flush -> write "begun" >> flush >> throwIO (ErrorCall "on purpose")
  "/late-without-flush" -> respond . responseStream status200 [] $ \write _ -> write "injected" >> throwIO (ErrorCall "on purpose")
  "/after" -> respond (plain "first") >> throwIO (ErrorCall "on purpose")
  _ -> respond (responseLBS status404 [] "not here")
  where
    plain = responseLBS status200 []
    sized n = responseLBS status200 [("Content-Length", n)]
    field name value = responseLBS status200 [(name, value)] "x"
    -- A builder throws behind a string that is queued, and the application handles that and writes on.
    goingOn write _ = do
      broken <- try (write (lazyByteString (L.fromChunks (B.replicate 10000 120 : error "on purpose"))))
      either (\e -> const (write "injected") (e :: ErrorCall)) pure broken

-- | The statuses of the answers in a stream.
statuses :: ByteString -> [Int]
statuses bytes = case B.breakSubstring "HTTP/1.1 " bytes of
  (_, "") -> []
  (_, rest) -> maybe 0 fst (C.readInt (B.drop 9 rest)) : statuses (B.drop 9 rest)
