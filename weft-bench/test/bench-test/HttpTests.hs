{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : Tests of the HTTP client, on connections that always have bytes
module HttpTests (client) where

import Control.Concurrent (threadDelay)
import Control.Exception (try)
import Control.Monad (forM_)
import Data.ByteString (ByteString)
import qualified Data.ByteString.Char8 as B
import Data.IORef
import Network.HTTP.Types (statusCode)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Bench.UrlLoad (asksToClose)
import Weft.Duration (milliseconds, seconds)
import Weft.Http.Client
import Weft.Http.Client.Connection
import Weft.Socket (SockAddr (..))
import Weft.Transport (Instant, Operations (..), deadlineIn)
import qualified Weft.Transport as Transport

client :: TestTree
client =
  testGroup
    "HTTP client"
    [ testCase "schemes in any case of letters; a user name is refused, and the error says so" $ do
        map (fmap (\t -> (hostAndPort t, urlPath t)) . parseUrlOrSocket) ["HTTP://a/", "Https://a/b@c", "http://[::1]:80/x", "a:1/"] @?= map Right [("a:80", "/"), ("a:443", "/b@c"), ("[::1]:80", "/x"), ("a:1", "/")]
        map parseUrlOrSocket ["http://user:pw@a/", "http://user@a/", "user:pw@a/"] @?= replicate 3 (Left "a user name or password in a URL is not supported"),
      testCase "lines that end with a single LF are no HTTP" $ do
        due <- deadlineIn (seconds 100)
        forM_ ["HTTP/1.1 200 OK\nContent-Length: 2\n\nhi", "HTTP/1.1 200\nContent-Length: 2\r\n\nhi", "HTTP/1.1 200 OK\r\nContent-Length: 4\n\r\n\n\nhi"] $ \begins ->
          refused due begins,
      testCase "several lengths are no HTTP, equal or not" $ do
        due <- deadlineIn (seconds 100)
        forM_ ["Content-Length: 2\r\nContent-Length: 4\r\n", "Content-Length: 4\r\ncontent-length: 4\r\n", "Content-Length: 4, 4\r\n", "Content-Length: 4,\r\n"] $ \fields ->
          refused due ("HTTP/1.1 200 OK\r\n" <> fields <> "\r\nhihi"),
      testCase "the time limit holds while bytes come without a pause" $ do
        due <- deadlineIn (milliseconds 30)
        -- Each piece takes a millisecond.
        answer <- try (measured due (plain 1000000000) (replicate 3000 "x") (threadDelay 1000))
        case errorCause <$> either Just (const Nothing) answer of
          Just TimedOut -> pure ()
          other -> assertFailure (show other),
      testCase "a body is measured however it is framed" . forM_ bodies $ \(begins, ends, state) -> do
        due <- deadlineIn (seconds 100)
        measured due begins (replicate 512 (B.replicate 32768 'x') <> ends) (pure ()) >>= (@?= (200, 16777216, state)),
      testCase "what follows a response keeps its connection from being used again" $ do
        due <- deadlineIn (seconds 100)
        let followed bytes = measured due (plain 2 <> "hi" <> bytes) [] (pure ())
        mapM followed ["", "HTTP/1.1 200 OK\r\n", "HTTP/1.1 408 Request Timeout\r\n"] >>= (@?= [(200, 2, Kept), (200, 2, Surplus), (200, 2, NotKept)]),
      testCase "close is one of the options of a field Connection" $ do
        map asksToClose [[], [("Connection", "keep-alive")], [("Accept", "close"), ("connection", "Upgrade , Close")], [("Connection", "closed")]] @?= [False, False, True, False]
        due <- deadlineIn (seconds 100)
        measured due "HTTP/1.1 204 No Content\r\nConnection: te, close\r\n\r\n" [] (pure ()) >>= (@?= (204, 0, NotKept))
    ]
  where
    refused due begins = do
      r <- try (measured due begins [] (pure ()))
      case errorCause <$> either Just (const Nothing) r of
        Just (NotHttp _) -> pure ()
        Just (OtherProtocol _) -> pure ()
        other -> assertFailure (show (begins, other))
    plain size = "HTTP/1.1 200 OK\r\nContent-Length: " <> B.pack (show (size :: Int)) <> "\r\n\r\n"
    bodies =
      [ ("HTTP/1.1 200 OK\r\n\r\n", [], NotKept),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", ["0\r\n\r\n"], Kept)
      ]

-- | Status, length and what becomes of the connection, for a request on a connection that has these bytes, then these
-- pieces, and then ends. The action is run before each piece. If the bytes say that there are chunks, each piece but
-- the last is one.
measured :: Instant -> ByteString -> [ByteString] -> IO () -> IO (Int, Int, After)
measured due begins pieces pause = do
  left <- newIORef (begins : if "chunked" `B.isInfixOf` begins then map chunk (init pieces) <> [last pieces] else pieces)
  c <- newHttpConnection (Transport.Connection operations {opReceive = \_ _ _ -> pause >> atomicModifyIORef' left next} ())
  ((status, size), state) <- exchange defaultClientSettings c due (getUrl "http://a/") $ \response ->
    (,) (statusCode (responseStatus response)) <$> sizeOf response 0
  pure (status, size, state)
  where
    sizeOf response n = do
      piece <- responsePiece response
      if B.null piece then pure n else sizeOf response $! n + B.length piece
    next list = case list of
      piece : others -> (others, piece)
      [] -> ([], B.empty)
    chunk bytes = "8000\r\n" <> bytes <> "\r\n"

-- | A connection that takes everything, and has ended.
operations :: Operations ()
operations =
  Operations
    { opReceive = \_ _ _ -> pure B.empty,
      opSend = \_ _ _ -> pure (),
      opSendMany = \_ _ _ -> pure (),
      opSendFile = \_ _ _ _ -> pure (),
      opShutdownSend = \_ _ -> pure (),
      opClose = const (pure ()),
      opAbort = const (pure ()),
      opPeer = const (SockAddrUnix ""),
      opLocal = const (pure (SockAddrUnix "")),
      opSendProgress = const (pure Nothing),
      opAwaitPeer = Nothing,
      opIsQuiet = const (pure False),
      opSecurity = const Nothing,
      opKeepsStrings = const False
    }
