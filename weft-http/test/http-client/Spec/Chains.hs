{-# LANGUAGE OverloadedStrings #-}

-- |
-- The reverse proxy and those of others, nginx, HAProxy and Caddy, one behind the other, before an application that
-- says what it was asked: whatever the order, the client gets what the application has said, and a response that was
-- cut off is not taken for a whole one.
module Spec.Chains
  ( tests,
  )
where

import Control.Concurrent (threadDelay)
import Control.Exception
import Control.Monad
import qualified Data.ByteString as B
import qualified Data.ByteString.Builder as Builder
import qualified Data.ByteString.Char8 as C
import qualified Data.ByteString.Lazy as L
import Data.IORef
import Network.HTTP.Types
import Network.HTTP.Types.Header (hIfNoneMatch)
import qualified Network.Wai as Wai
import Spec.Servers
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Deadline
import Weft.Http (defaultSettings, setOnException, withApplicationSettings)
import Weft.Http.Client
import Weft.Http.Proxy

tests :: TestTree
tests =
  testGroup
    "one proxy behind another"
    [ testCase (if first then name <> " before Weft's" else name <> " behind Weft's") . serving application $ \origin -> do
        let ours upstream act = withProxy defaultProxySettings [url upstream "/"] $ \proxied -> serving proxied act
            between = if first then \act -> ours origin (\port -> theirs port act) else \act -> theirs origin (\port -> ours port act)
        between $ \port -> withClient defaultClientSettings $ \client -> mapM_ (\check -> check client (url port)) (checks <> [cutOff | tells])
      | -- Caddy 2.6 passes a response that was cut off on as a whole one.
        (name, theirs, tells) <- [("nginx", withNginxProxy, True), ("HAProxy", withHaproxy, True), ("Caddy", withCaddy, False)],
        first <- [True, False]
    ]

url :: Int -> B.ByteString -> Url
url port path = Url "127.0.0.1" (show port) Nothing path False

serving :: Wai.Application -> (Int -> IO a) -> IO a
serving app = withApplicationSettings (setOnException (\_ _ -> pure ()) defaultSettings) (pure app)

-- | What was asked, and the length and the last bytes of the body.
application :: Wai.Application
application req respond = case Wai.pathInfo req of
  ["large"] -> respond (Wai.responseLBS ok200 [("ETag", "\"one\"")] (L.fromStrict large))
  ["stream"] -> respond (Wai.responseStream ok200 [] (\write flush -> replicateM_ 30 (write (Builder.byteString (C.replicate 100000 's')) >> flush)))
  ["slow"] -> respond (Wai.responseStream ok200 [] (\write flush -> forM_ ["one ", "two ", "three"] (\piece -> write (Builder.byteString piece) >> flush >> threadDelay 20000)))
  ["cut"] -> respond (Wai.responseStream ok200 [] (\write flush -> write (Builder.byteString (C.replicate 100000 'c')) >> flush >> throwIO (userError "cut")))
  ["nothing"] -> respond (Wai.responseLBS noContent204 [] "")
  ["unchanged"] | Just "\"one\"" <- lookup hIfNoneMatch (Wai.requestHeaders req) -> respond (Wai.responseLBS notModified304 [("ETag", "\"one\"")] "")
  ["fail"] -> respond (Wai.responseLBS internalServerError500 [("X-Why", "asked to")] "failed as asked")
  _ -> do
    body <- L.toStrict <$> Wai.consumeRequestBodyStrict req
    respond . Wai.responseLBS ok200 [("X-Many", "1"), ("X-Many", "2")] . L.fromStrict $
      C.unwords [Wai.requestMethod req, Wai.rawPathInfo req <> Wai.rawQueryString req, C.pack (show (B.length body)), B.drop (B.length body - 3) body]

large :: B.ByteString
large = B.concat [C.pack (show n) <> "\n" | n <- [1 .. 300000 :: Int]]

checks :: [Client -> (B.ByteString -> Url) -> Assertion]
checks =
  [ \client u -> says client (Request "GET" (u "/a%20b/c?d=e%2Ff&g") [] EmptyBody) "GET /a%20b/c?d=e%2Ff&g 0 ",
    \client u -> says client (Request "POST" (u "/known") [] (BytesBody (C.replicate 2000000 'x' <> "end"))) "POST /known 2000003 end",
    \client u -> do
      left <- newIORef (replicate 20 (C.replicate 100000 'y') <> ["end", ""])
      let next = atomicModifyIORef' left (\pieces -> (drop 1 pieces, mconcat (take 1 pieces)))
      says client (Request "PUT" (u "/streamed") [] (StreamBody Nothing next)) "PUT /streamed 2000003 end",
    \client u -> says client (Request "POST" (u "/expected") [("Expect", "100-continue")] (BytesBody "small end")) "POST /expected 9 end",
    \client u -> says client (Request "DELETE" (u "/thing") [] EmptyBody) "DELETE /thing 0 ",
    \client u -> ask client (getRequest (u "/large")) >>= \answer -> assertBool "another body" (answerBody answer == large),
    \client u -> ask client (getRequest (u "/stream")) >>= \answer -> assertBool "another body" (answerBody answer == C.replicate 3000000 's'),
    \client u -> says client (getRequest (u "/slow")) "one two three",
    \client u -> do
      answer <- ask client (Request "HEAD" (u "/large") [] EmptyBody)
      (statusCode (answerStatus answer), answerBody answer) @?= (200, "")
      -- A length, if one is told, is that of the body.
      maybe (pure ()) (@?= C.pack (show (B.length large))) (lookup hContentLength (answerFields answer)),
    \client u -> ask client (getRequest (u "/nothing")) >>= (@?= noContent204) . answerStatus,
    \client u -> ask client (Request "GET" (u "/unchanged") [(hIfNoneMatch, "\"one\"")] EmptyBody) >>= (@?= notModified304) . answerStatus,
    \client u -> do
      answer <- ask client (getRequest (u "/fail"))
      (statusCode (answerStatus answer), answerBody answer, lookup "X-Why" (answerFields answer)) @?= (500, "failed as asked", Just "asked to"),
    \client u -> do
      answer <- ask client (getRequest (u "/many"))
      [v | (name, v) <- answerFields answer, name == "X-Many"] @?= ["1", "2"],
    -- The connections are kept.
    \client u -> forM_ [1 .. 20 :: Int] $ \n -> says client (getRequest (u ("/again?" <> C.pack (show n)))) ("GET /again?" <> C.pack (show n) <> " 0 ")
  ]
  where
    says client asked expected = ask client asked >>= (@?= expected) . answerBody

-- | The application fails within its response.
cutOff :: Client -> (B.ByteString -> Url) -> Assertion
cutOff client u = do
  cut <- try (ask client (getRequest (u "/cut")))
  case cut of
    Left (ClientError _ Receiving _) -> pure ()
    other -> assertFailure ("a response that was cut off: " <> either show (show . B.length . answerBody) other)

ask :: Client -> Request -> IO Answer
ask client asked = deadlineIn (seconds 60) >>= \soon -> request client soon asked
