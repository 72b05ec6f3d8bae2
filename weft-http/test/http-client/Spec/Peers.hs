{-# LANGUAGE OverloadedStrings #-}

-- |
-- nginx and Python's server, over TCP, Unix sockets and TLS.
module Spec.Peers (tests) where

import Control.Monad
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import Data.IORef
import Data.Maybe (listToMaybe)
import Network.HTTP.Types
import Peer (causeOf, gives, soon)
import Spec.Servers
import System.FilePath ((</>))
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Http.Client
import Weft.Tls (TlsClientSettings (..), Trust (..), defaultTlsClientSettings)

tests :: TestTree
tests =
  testGroup
    "servers"
    [ testCase "nginx: files, uploads, HEAD, errors, a Unix socket, and connections that are kept" . withNginx $ \nginx ->
        withClient defaultClientSettings $ \client -> do
          due <- soon
          let u path = Url "127.0.0.1" (show (nginxPort nginx)) Nothing path False
              large = C.replicate 3000000 'x'
          request client due (Request "PUT" (u "/up/large") [] (BytesBody large)) >>= (@?= 201) . statusCode . answerStatus
          (answerBody <$> request client due (getRequest (u "/up/large"))) `gives` large
          left <- newIORef (replicate 30 (C.replicate 100000 'y') <> [""])
          request client due (Request "PUT" (u "/up/streamed") [("Expect", "100-continue")] (StreamBody Nothing (atomicModifyIORef' left (\ps -> (drop 1 ps, B.concat (take 1 ps)))))) >>= (@?= 201) . statusCode . answerStatus
          (answerBody <$> request client due (getRequest (u "/up/streamed"))) `gives` C.replicate 3000000 'y'
          h <- request client due (Request "HEAD" (u "/up/large") [] EmptyBody)
          (answerBody h, lookup hContentLength (answerFields h)) @?= ("", Just "3000000")
          (statusCode . answerStatus <$> request client due (getRequest (u "/nothing"))) `gives` 404
          (statusCode . answerStatus <$> request client due (getRequest (u "/gone"))) `gives` 204
          let unix = either error id (parseUrlOrSocket ("unix:" <> nginxFolder nginx </> "socket:/pong"))
          (answerBody <$> request client due (getRequest unix)) `gives` "Pong!"
          -- connection_requests counts the requests of a connection.
          counts <- replicateM 20 (answerBody <$> request client due (getRequest (u "/count")))
          assertBool (show counts) (map (read . C.unpack) counts == take 20 (maybe [] (\n -> [n ..]) (listToMaybe (map (read . C.unpack) counts)) :: [Int])),
      testCase "nginx over TLS: the name of the host is checked, and connections are kept" . withNginx $ \nginx -> do
        due <- soon
        let u host = Url host (show (nginxTlsPort nginx)) Nothing "/count" True
            trusting = defaultClientSettings {clientTls = defaultTlsClientSettings {tlsTrust = TrustAuthorities (nginxFolder nginx </> "cert.pem")}}
        withClient trusting $ \client -> do
          counts <- replicateM 3 (answerBody <$> request client due (getRequest (u "localhost")))
          counts @?= ["1", "2", "3"]
          (phase, _) <- causeOf (request client due (getRequest (u "127.0.0.1")))
          phase @?= Connecting
        withClient defaultClientSettings $ \client -> do
          (phase, _) <- causeOf (request client due (getRequest (u "localhost")))
          phase @?= Connecting,
      testCase "nginx is stopped and started again: kept connections that have ended are not used" . withNginx $ \nginx ->
        withClient defaultClientSettings $ \client -> do
          due <- soon
          let u = Url "127.0.0.1" (show (nginxPort nginx)) Nothing "/count" False
          forM_ [1 :: Int, 2] $ \_ -> do
            (answerBody <$> request client due (Request "POST" u [] EmptyBody)) `gives` "1"
            nginxRestart nginx,
      testCase "Python's server of HTTP/1.0" $
        withPython $ \port -> withClient defaultClientSettings $ \client -> do
          due <- soon
          forM_ [1 .. 3 :: Int] $ \_ -> do
            a <- request client due (getRequest (Url "localhost" (show port) Nothing "/page" False))
            (statusCode (answerStatus a), answerBody a) @?= (200, "a page\n")
    ]
