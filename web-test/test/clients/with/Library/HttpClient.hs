{-# LANGUAGE OverloadedStrings #-}

-- |
-- The package @http-client@ as a client of "Weft.Http".
module Library.HttpClient
  ( tests,
  )
where

import Control.Concurrent.Async (mapConcurrently_)
import Control.Monad (forM_, replicateM_, when)
import qualified Data.ByteString as B
import Data.ByteString.Builder (byteString)
import qualified Data.ByteString.Char8 as C
import qualified Data.ByteString.Lazy as L
import Data.IORef
import Network.HTTP.Client
import Network.HTTP.Types
import Network.Wai (Application, getRequestBodyChunk, pathInfo, responseLBS, responseStream)
import Process (eventually, portIn)
import Test.Tasty.HUnit
import Weft.Http hiding (run)

-- | The tests by the names that "Libraries" lists.
tests :: [(String, IO ())]
tests =
  [ ("connections are kept", kept),
    ("many at once", many),
    ("streams in both directions", streams),
    ("a response that is left in the middle", left)
  ]

-- | Run an action with a manager, the address, the number of connections that were opened, and the number of open ones.
serving :: (Manager -> String -> IORef Int -> IO Int -> IO a) -> IO a
serving act = do
  opened <- newIORef 0
  let settings = setOnOpen (\_ -> True <$ atomicModifyIORef' opened (\n -> (n + 1, ()))) (setHost "127.0.0.1" (setPort 0 defaultSettings))
  withServer settings app $ \server -> do
    manager <- newManager (managerSetProxy noProxy defaultManagerSettings)
    act manager ("http://127.0.0.1:" <> show (portIn (serverAddress server))) opened (serverConnections server)

app :: Application
app request respond = case pathInfo request of
  ["hello"] -> respond (responseLBS ok200 [] "hello")
  ["count"] -> count 0 >>= respond . responseLBS ok200 [] . L.fromStrict . C.pack . show
  ["stream"] -> respond (responseStream ok200 [] (\send flush -> forM_ [1 .. 1000 :: Int] (\_ -> send (byteString (B.replicate 5000 120)) >> flush)))
  _ -> respond (responseLBS notFound404 [] "not here")
  where
    count :: Int -> IO Int
    count n = getRequestBodyChunk request >>= \piece -> if B.null piece then pure n else count (n + B.length piece)

kept :: Assertion
kept = serving $ \manager address opened _ -> do
  request <- parseRequest (address <> "/hello")
  replicateM_ 300 (httpLbs request manager >>= \r -> (statusCode (responseStatus r), responseBody r) @?= (200, "hello"))
  posted <- parseRequest ("POST " <> address <> "/count")
  replicateM_ 100 (httpLbs posted {requestBody = RequestBodyBS (B.replicate 9000 1)} manager >>= \r -> responseBody r @?= "9000")
  gone <- parseRequest (address <> "/nothing")
  httpLbs gone manager >>= \r -> statusCode (responseStatus r) @?= 404
  readIORef opened >>= (@?= 1)

many :: Assertion
many = serving $ \manager address _ _ -> do
  request <- parseRequest (address <> "/hello")
  flip mapConcurrently_ [1 .. 100 :: Int] $ \_ -> replicateM_ 20 (httpLbs request manager >>= \r -> responseBody r @?= "hello")

streams :: Assertion
streams = serving $ \manager address opened _ -> do
  posted <- parseRequest ("POST " <> address <> "/count")
  pieces <- newIORef (500 :: Int)
  let pop = atomicModifyIORef' pieces (\n -> if n > 0 then (n - 1, B.replicate 10000 1) else (n, B.empty))
  r <- httpLbs posted {requestBody = RequestBodyStreamChunked ($ pop)} manager
  responseBody r @?= "5000000"
  request <- parseRequest (address <> "/stream")
  forM_ [1, 2 :: Int] $ \_ -> do
    total <- withResponse request manager $ \response ->
      let go n = brRead (responseBody response) >>= \piece -> if B.null piece then pure n else go (n + B.length piece) in go 0
    total @?= 5000000
  readIORef opened >>= (@?= 1)

-- | The client closes its connection, and the server's goes too.
left :: Assertion
left = serving $ \manager address _ connections -> do
  request <- parseRequest (address <> "/stream")
  forM_ [1 .. 20 :: Int] $ \_ -> withResponse request manager $ \response -> do
    piece <- brRead (responseBody response)
    when (B.null piece) (assertFailure "nothing came")
  eventually "its connections end" ((<= 1) <$> connections)
