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
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Duration (milliseconds, seconds)
import Weft.Socket (SockAddr (..))
import Weft.Tools.Http
import Weft.Transport (Instant, Operations (..), deadlineIn, isTimeout)
import qualified Weft.Transport as Transport

client :: TestTree
client =
  testGroup
    "HTTP client"
    [ testCase "schemes in any case of letters; a user name is refused, and the error says so" $ do
        map (fmap (\t -> (hostAndPort t, targetPath t)) . parseTarget) ["HTTP://a/", "Https://a/b@c", "http://[::1]:80/x", "a:1/"] @?= map Right [("a:80", "/"), ("a:443", "/b@c"), ("[::1]:80", "/x"), ("a:1", "/")]
        map parseTarget ["http://user:pw@a/", "http://user@a/", "user:pw@a/"] @?= replicate 3 (Left "a user name or password in a URL is not supported"),
      testCase "lines may end with a single LF" $ do
        due <- deadlineIn (seconds 100)
        let size begins pieces = (\r -> (responseStatus r, responseBytes r, responseKept r)) <$> response due Measure begins pieces (pure ())
        size "HTTP/1.1 200 OK\nContent-Length: 2\n\nhi" [] >>= (@?= (200, 2, True))
        size "HTTP/1.1 200\nContent-Length: 2\r\n\nhi" [] >>= (@?= (200, 2, True))
        size "HTTP/1.1 200 OK\r\nContent-Length: 4\n\r\n\n\nhi" [] >>= (@?= (200, 4, True))
        size "HTTP/1.1 200 OK\r\nContent-Length: 4\n\n\r\nhi" [] >>= (@?= (200, 4, True))
        size "HTTP/1.1 200 OK\nContent-Length: 2\n" ["\nhi"] >>= (@?= (200, 2, True)),
      testCase "lengths that contradict each other are no HTTP; repetitions are" $ do
        due <- deadlineIn (seconds 100)
        let size fields = either (Left :: HttpError -> Either HttpError Int) (Right . responseBytes) <$> try (response due Measure ("HTTP/1.1 200 OK\r\n" <> fields <> "\r\nhihi") [] (pure ()))
        mapM size ["Content-Length: 2\r\nContent-Length: 4\r\n", "Content-Length: 4, 2\r\n", "Content-Length: 4,\r\n"] >>= (@?= replicate 3 (Left Malformed))
        mapM size ["Content-Length: 4\r\ncontent-length: 4\r\n", "Content-Length: 4, 4\r\n"] >>= (@?= replicate 2 (Right 4)),
      testCase "the time limit holds while bytes come without a pause" $ do
        due <- deadlineIn (milliseconds 30)
        -- Each piece takes a millisecond.
        answer <- try (response due Measure (plain 1000000000) (replicate 3000 "x") (threadDelay 1000))
        either (\e -> assertBool (show e) (isTimeout e)) (const (assertFailure "it has an end")) answer,
      testCase "a body that is kept has a limit, however it is framed" . forM_ bodies $ \(begins, ends) -> do
        due <- deadlineIn (seconds 100)
        let exact = replicate (largestKept `div` 32768) (B.replicate 32768 'x')
            size of' keep pieces = either (Left :: HttpError -> Either HttpError Int) (Right . of') <$> try (response due keep begins (pieces <> ends) (pure ()))
        size (B.length . responseBody) Keep exact >>= (@?= Right largestKept)
        size responseBytes Keep (take 1 exact <> exact) >>= (@?= Left TooLarge)
        size responseBytes Measure (take 1 exact <> exact) >>= (@?= Right (largestKept + 32768)),
      testCase "what follows a response keeps its connection from being used again" $ do
        due <- deadlineIn (seconds 100)
        let followed bytes = (\r -> (responseBytes r, responseKept r, responseSurplus r)) <$> response due Measure (plain 2 <> "hi" <> bytes) [] (pure ())
        mapM followed ["", "HTTP/1.1 200 OK\r\n", "HTTP/1.1 408 Request Timeout\r\n"] >>= (@?= [(2, True, False), (2, False, True), (2, False, False)]),
      testCase "close is one of the options of a field Connection" $ do
        map asksToClose [[], ["Connection: keep-alive"], ["Accept: close", "connection: Upgrade , Close"], ["Connection: closed"]] @?= [False, False, True, False]
        due <- deadlineIn (seconds 100)
        closed <- response due Measure "HTTP/1.1 204 No Content\r\nConnection: te, close\r\n\r\n" [] (pure ())
        responseKept closed @?= False
    ]
  where
    plain size = "HTTP/1.1 200 OK\r\nContent-Length: " <> B.pack (show (size :: Int)) <> "\r\n\r\n"
    bodies =
      [ ("HTTP/1.1 200 OK\r\n\r\n", []),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", ["0\r\n\r\n"])
      ]

-- | The response to a request on a connection that has these bytes, then these pieces, and then ends. The action is run
-- before each piece. If the bytes say that there are chunks, each piece but the last is one.
response :: Instant -> Body -> ByteString -> [ByteString] -> IO () -> IO Response
response due keep begins pieces pause = do
  left <- newIORef (begins : if "chunked" `B.isInfixOf` begins then map chunk (init pieces) <> [last pieces] else pieces)
  c <- overTransport (Transport.Connection operations {opReceive = \_ _ _ -> pause >> atomicModifyIORef' left next} ())
  exchange due c keep "GET / HTTP/1.1\r\n\r\n"
  where
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
      opSecurity = const Nothing,
      opKeepsStrings = const False
    }
