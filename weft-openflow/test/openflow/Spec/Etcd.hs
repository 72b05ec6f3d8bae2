{-# LANGUAGE OverloadedStrings #-}

-- |
-- What a member of a cluster says of an etcd that does not answer, answers with what is no answer, or is killed. It is a
-- server of these tests, except where it is killed.
module Spec.Etcd (tests) where

import Control.Concurrent (threadDelay)
import Control.Concurrent.Async (cancel, withAsync)
import Control.Exception (IOException, bracket, handle)
import Control.Monad (forM_, forever, replicateM, unless, void)
import qualified Data.ByteString.Char8 as B
import Data.IORef
import Data.List (isInfixOf, isPrefixOf)
import EtcdServer
import Peer
import Spec.Cluster hiding (tests)
import Test.Tasty
import Test.Tasty.HUnit hiding (testCase)
import Weft.OpenFlow.Cluster
import Weft.Socket hiding (close)
import qualified Weft.Socket as Socket
import Weft.Socket.ByteString (recv, sendAll)
import Weft.Test.Skip (needProgram, testCase)

tests :: TestTree
tests = localOption (mkTimeout 600000000) $ testGroup "what is said of an etcd" [faults, endless, manyFields, others, tokens, killed]

-- | A server that reads a request, and continues with the connection, and with the number of its request.
withScript :: (Int -> Socket -> B.ByteString -> IO ()) -> (String -> IO a) -> IO a
withScript script act = do
  numbers <- newIORef 0
  let talk client _ = handle (\e -> const (pure ()) (e :: IOException)) (next client)
      next client = do
        asked <- reading client B.empty
        unless (B.null asked) $ do
          n <- atomicModifyIORef' numbers (\n -> (n + 1, n))
          script n client asked
          next client
  withServer defaultServerSettings {serverHost = Just "127.0.0.1"} talk (\s -> act ("http://" <> show (serverAddress s)))
  where
    -- Bodies end with the request's JSON.
    reading client before
      | "}" `B.isSuffixOf` before, whole before = pure before
      | otherwise = recv client 65536 >>= \s -> if B.null s then pure s else reading client (before <> s)
    whole request = let (top, body) = B.breakSubstring "\r\n\r\n" request in B.length body - 4 == lengthOf top
    lengthOf top = case [n | line <- B.lines top, Just rest <- [B.stripPrefix "Content-Length: " line], Just (n, _) <- [B.readInt rest]] of
      n : _ -> n
      [] -> 0

-- | An answer of this status with this body.
answer :: B.ByteString -> B.ByteString -> B.ByteString
answer status body = "HTTP/1.1 " <> status <> "\r\nContent-Length: " <> B.pack (show (B.length body)) <> "\r\n\r\n" <> body

-- | What a member with leases of this many seconds says of etcd at first.
saidOf :: Int -> ClusterSettings -> IO String
saidOf life settings = do
  said <- newIORef []
  bracket (startMemberUntil (threadDelay maxBound) settings {clusterLease = life, clusterOnReach = \why -> atomicModifyIORef' said (\all' -> (why : all', ()))}) (cancel . memberThread) $ \_ -> do
    eventually "it says why" (not . null <$> readIORef said)
    maybe (assertFailure "it says that etcd answers") pure . last =<< readIORef said

-- | Leases of twelve seconds: etcd has three for an answer.
faults :: TestTree
faults =
  testGroup
    "one that"
    [ case' "does not answer" (\_ _ _ -> threadDelay maxBound) "etcd did not answer a request within 3.0 s (waiting for the response)",
      case' "begins an answer" (\_ c _ -> sendAll c "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{" >> threadDelay maxBound) "etcd did not answer a request within 3.0 s (receiving the response)",
      case' "sends a byte now and then" (\_ c _ -> sendAll c "HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n{" >> forever (sendAll c " " >> threadDelay 50000)) "etcd did not answer a request within 3.0 s (receiving the response)",
      case' "ends the connection" (\_ c _ -> shutdown c ShutdownBoth) "etcd does not answer: waiting for the response: the connection ended without a response",
      case' "ends the connection within an answer" (\_ c _ -> sendAll c "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{" >> shutdown c ShutdownBoth) "etcd's answer was not understood: receiving the response: the connection ended before the response did",
      case' "ends a connection, and answers on the next one" (\n c _ -> if even n then shutdown c ShutdownBoth else sendAll c (answer "503 Service Unavailable" "{\"error\":\"etcdserver: no leader\",\"code\":14}")) "etcd answered 503 Service Unavailable: etcdserver: no leader",
      case' "speaks another protocol" (\_ c _ -> sendAll c "SSH-2.0-OpenSSH_9.2p1\r\n") "etcd's answer was not understood: waiting for the response: the server does not speak HTTP",
      case' "answers without JSON" (\_ c _ -> sendAll c (answer "200 OK" "<html>")) "etcd's answer was not understood: ",
      case' "answers with other JSON" (\_ c _ -> sendAll c (answer "200 OK" "[1]")) "etcd's answer was not understood: ",
      case' "redirects" (\_ c _ -> sendAll c "HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n") "etcd answered 302 Found",
      case' "answers with an error" (\_ c _ -> sendAll c (answer "503 Service Unavailable" "{\"error\":\"etcdserver: no leader\",\"code\":14}")) "etcd answered 503 Service Unavailable: etcdserver: no leader",
      case' "answers with an error that has no text" (\_ c _ -> sendAll c (answer "500 Internal Server Error" "")) "etcd answered 500 Internal Server Error",
      testCase "accepts no connection" . bracket (socket AF_INET Stream defaultProtocol) Socket.close $ \listening -> do
        bind listening (SockAddrInet 0 (tupleToHostAddress (127, 0, 0, 1)))
        listen listening 0
        port <- socketPort listening
        -- Linux then takes no handshake further once its queue is full.
        bracket (replicateM 8 (socket AF_INET Stream defaultProtocol)) (mapM_ Socket.close) $ \fillers ->
          withAll [handle (\e -> const (pure ()) (e :: IOException)) (connect s (SockAddrInet port (tupleToHostAddress (127, 0, 0, 1)))) | s <- fillers] $ do
            threadDelay 200000
            let url = "http://127.0.0.1:" <> show port
            said <- saidOf 12 (defaultClusterSettings "one" [url])
            said @?= url <> ": etcd did not answer a request within 3.0 s (connecting)",
      testCase "does not shake hands" . withScript (\_ _ _ -> pure ()) $ \url -> do
        let secure = "https" <> drop 4 url
        said <- saidOf 12 (defaultClusterSettings "one" [secure]) {clusterUpgrade = \_ c -> c <$ threadDelay maxBound}
        said @?= secure <> ": etcd did not answer a request within 3.0 s (connecting)",
      testCase "needs a password that does not come" . withScript (\_ _ _ -> pure ()) $ \url -> do
        said <- saidOf 12 (defaultClusterSettings "one" [url]) {clusterUser = Just (EtcdUser "weft" ("" <$ threadDelay maxBound))}
        said @?= url <> ": etcd did not answer a request within 3.0 s (logging in)",
      testCase "is not a URL" $ do
        said <- saidOf 12 (defaultClusterSettings "one" ["127.0.0.1"])
        said @?= "127.0.0.1: not a URL such as http://127.0.0.1:8080/: 127.0.0.1"
    ]
  where
    withAll actions act = foldr (\a rest -> withAsync a (const rest)) act actions
    case' name script expected = testCase name . withScript script $ \url -> do
      said <- saidOf 12 (defaultClusterSettings "one" [url])
      assertBool said ((url <> ": " <> expected) `isPrefixOf` said)

-- | An answer that does not end. It is given up because of its size, long before its time, which is 25 seconds.
endless :: TestTree
endless = testCase "an answer that does not end is given up at 128 MiB" . withScript flood $ \url -> do
  said <- saidOf 100 (defaultClusterSettings "one" [url])
  said @?= url <> ": etcd's answer was not understood: receiving the response: the body has more than 134217728 bytes"
  where
    flood _ c _ = sendAll c "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" >> forever (sendAll c piece)
    piece = "100000\r\n" <> B.replicate 1048576 ' ' <> "\r\n"

-- | The head of an answer does not end.
manyFields :: TestTree
manyFields = testCase "the head of an answer that does not end is given up" . withScript flood $ \url -> do
  said <- saidOf 100 (defaultClusterSettings "one" [url])
  said @?= url <> ": etcd's answer was not understood: waiting for the response: the fields exceed the limits"
  where
    flood _ c _ = sendAll c "HTTP/1.1 200 OK\r\n" >> forever (sendAll c (B.concat (replicate 100 "X: y\r\n")))

-- | Each endpoint is named with its own reason, and one that answers is asked first from then on.
others :: TestTree
others = testCase "several endpoints: each has its reason" $ do
  port <- freePort
  let nobody = "http://127.0.0.1:" <> show port
  withScript (\_ c _ -> sendAll c (answer "500 Internal Server Error" "")) $ \failing -> do
    said <- saidOf 20 (defaultClusterSettings "one" [nobody, failing])
    assertBool said (all (`isInfixOf` said) [nobody <> ": etcd does not answer: Connection refused " <> failing <> ": etcd answered 500 Internal Server Error"])
    assertBool said (nobody `isPrefixOf` said)

-- | A token that is refused is replaced, once for each request; a new one that is refused as well is an error.
tokens :: TestTree
tokens = testCase "a token that is refused at once is asked for twice, and not for ever" $ do
  logIns <- newIORef (0 :: Int)
  let script _ c asked
        | "/v3/auth/authenticate" `B.isInfixOf` asked = do
          n <- atomicModifyIORef' logIns (\n -> (n + 1, n))
          sendAll c (answer "200 OK" ("{\"token\":\"t" <> B.pack (show n) <> "\"}"))
        | otherwise = sendAll c (answer "401 Unauthorized" "{\"error\":\"etcdserver: invalid auth token\",\"code\":16}")
  withScript script $ \url -> do
    said <- saidOf 100 (defaultClusterSettings "one" [url]) {clusterUser = Just (EtcdUser "weft" (pure "secret"))}
    said @?= url <> ": etcd answered 401 Unauthorized: etcdserver: invalid auth token"
    readIORef logIns >>= (@?= 2)

-- | Killed and started again and again: it is said that it does not answer, and that it answers.
killed :: TestTree
killed = testCase "an etcd that is killed and started again" $ do
  needProgram "etcd"
  withStoppableEtcd $ \url stop start -> do
    said <- newIORef []
    let settings = (defaultClusterSettings "one" [url]) {clusterLease = 4, clusterOnReach = \why -> atomicModifyIORef' said (\all' -> (why : all', ()))}
        answers m = do
          before <- clusterRounds (memberCluster m)
          eventually "it answers" ((\latest -> take 1 latest `elem` [[], [Nothing]]) <$> readIORef said)
          eventually "a round" ((> before) <$> clusterRounds (memberCluster m))
    bracket (startMemberUntil (threadDelay maxBound) settings) (cancel . memberThread) $ \m ->
      forM_ [1 .. 3 :: Int] $ \_ -> do
        answers m
        void stop
        eventually "it does not answer" ((\latest -> case latest of Just why : _ -> (url <> ": ") `isPrefixOf` why; _ -> False) <$> readIORef said)
        start
