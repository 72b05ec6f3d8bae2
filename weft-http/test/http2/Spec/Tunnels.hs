{-# LANGUAGE OverloadedStrings #-}

-- | WebSockets over HTTP\/2 (RFC 8441), given to applications as over HTTP\/1.1; by frames, over connections in memory.
module Spec.Tunnels
  ( tests,
  )
where

import Control.Concurrent
import Control.Exception
import Control.Monad
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import Data.IORef
import Data.List (sort, sortOn)
import Network.HTTP.Types
import Network.Socket (SockAddr (..))
import Network.Wai
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Duration (milliseconds, seconds)
import Weft.Http2 (Http2Control (..), Http2Limits (..), Http2Settings (..), connectionPreface, defaultHttp2Limits, defaultHttp2Settings, serveHttp2)
import Weft.Http2.Frame hiding (connectionPreface)
import Weft.Http2.Hpack.Decoder (Decoded (..), Decoder, decodeBlock, newDecoder)
import Weft.Http2.Hpack.Encoder (encodeBlock, newEncoder)
import Weft.Timer (within)
import Weft.Transport

tests :: TestTree
tests =
  testGroup
    "Weft.Http2, tunnels"
    [ testCase "the application gets the request of an upgrade, and its answer is translated" $ do
        seen <- newEmptyMVar
        let application r respond = putMVar seen r >> raw (\_ send -> accept send >> send "hello") r respond
        served application $ \peer -> do
          connect peer 1 [("sec-websocket-version", "13"), ("sec-websocket-key", "of the client"), ("x-own", "y")]
          found <- framesTo peer (over 1)
          r <- takeMVar seen
          (requestMethod r, rawPathInfo r, rawQueryString r, requestHeaderHost r) @?= ("GET", "/chat", "?a=b", Just "a.test")
          sort [(n, v) | (n, v) <- requestHeaders r, n /= "Host"]
            @?= [("Connection", "Upgrade"), ("Sec-WebSocket-Key", "AAAAAAAAAAAAAAAAAAAAAA=="), ("Sec-WebSocket-Version", "13"), ("Upgrade", "websocket"), ("x-own", "y")]
          getRequestBodyChunk r >>= (@?= "")
          answers 1 found @?= [[(":status", "200"), ("sec-websocket-protocol", "chat")]]
          bytesOf 1 found @?= "hello",
      testCase "an echo of 4 MB, as fast as the client takes it" $
        served (raw echo) $ \peer -> do
          connect peer 1 []
          let message = C.pack (take 4000000 (cycle "some bytes, which do not repeat at the size of a frame; "))
          -- It takes nothing: the application stops to read.
          (sent, early) <- upload peer 4000 1 message
          assertBool (show sent) (sent < 1500000)
          B.length (bytesOf 1 early) @?= 65535
          say peer [frame typeWindowUpdate 0 n (number (2 ^ (30 :: Int))) | n <- [0, 1]]
          (sent', more) <- upload peer 20000 1 (B.drop sent message)
          sent + sent' @?= B.length message
          rest <- if any (over 1 . pure) more then pure [] else say peer [frame typeData flagEndStream 1 ""] >> framesTo peer (over 1)
          B.concat (map (bytesOf 1) [early, more, rest]) @?= message,
      testCase "the client ends: the application hears it, and ends the other direction" $ do
        end <- newEmptyMVar
        served (raw (\receive send -> accept send >> receive >>= putMVar end >> receive >>= putMVar end >> send "last")) $ \peer -> do
          connect peer 1 []
          say peer [frame typeData 0 1 "one"]
          takeMVar end >>= (@?= "one")
          say peer [frame typeData flagEndStream 1 ""]
          takeMVar end >>= (@?= "")
          found <- framesTo peer (over 1)
          (bytesOf 1 found, resetsIn found) @?= ("last", [])
          works peer 3,
      testCase "the application ends, by returning or by an exception, and the client hears it" . forM_ [pure (), throwIO (userError "thrown")] $ \how -> do
        thrown <- newIORef (0 :: Int)
        let settings = defaultHttp2Settings {http2OnException = \_ _ -> modifyIORef' thrown (+ 1)}
        servedWith settings (raw (\_ send -> accept send >> send "last" >> how)) $ \peer _ -> do
          connect peer 1 []
          found <- framesTo peer (over 1)
          (bytesOf 1 found, resetsIn found) @?= ("last", [])
          say peer [frame typeData flagEndStream 1 ""]
          works peer 3,
      testCase "a reset interrupts the application" $ do
        interrupted <- newEmptyMVar
        begun <- newEmptyMVar
        served (raw (\receive send -> accept send >> putMVar begun () >> forever receive `finally` putMVar interrupted ())) $ \peer -> do
          connect peer 1 []
          takeMVar begun
          say peer [frame typeReset 0 1 (errorNumber Cancel)]
          within (seconds 20) (takeMVar interrupted) >>= (@?= Just ())
          works peer 3,
      testCase "a reset interrupts an application that sends more than the client takes" $ do
        interrupted <- newEmptyMVar
        served (raw (\_ send -> accept send >> forever (send (B.replicate 10000 120)) `finally` putMVar interrupted ())) $ \peer -> do
          connect peer 1 []
          _ <- framesTo peer ((== 65535) . B.length . bytesOf 1)
          say peer [frame typeReset 0 1 (errorNumber Cancel)]
          within (seconds 20) (takeMVar interrupted) >>= (@?= Just ())
          say peer [frame typeWindowUpdate 0 0 (number 65535)]
          works peer 3,
      testCase "an upgrade that the application refuses" $
        served (raw (\_ send -> send "HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\nX-Why: own\r\n\r\n" >> send "no")) $ \peer -> do
          connect peer 1 []
          found <- framesTo peer (over 1)
          (answers 1 found, bytesOf 1 found) @?= ([[(":status", "403"), ("content-length", "2"), ("x-why", "own")]], "no"),
      testCase "an application that does not know WebSockets: a success is answered 501, all else as it is" $
        forM_ [(ok200, "501"), (created201, "501"), (notFound404, "404"), (found302, "302")] $ \(status, expected) ->
          served (\_ respond -> respond (responseLBS status [] "plain")) $ \peer -> do
            connect peer 1 []
            found <- framesTo peer (over 1)
            map (take 1) (answers 1 found) @?= [[(":status", expected)]]
            bytesOf 1 found @?= (if expected == "501" then "" else "plain"),
      testCase "heads in pieces of one byte, and heads that are none" $ do
        let whole = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\nmore"
            status application = do
              result <- newEmptyMVar
              served (raw application) $ \peer -> do
                connect peer 1 []
                found <- framesTo peer (over 1)
                putMVar result (map (take 1) (answers 1 found), bytesOf 1 found)
              takeMVar result
        status (\_ send -> mapM_ (send . B.singleton) (B.unpack whole)) >>= (@?= ([[(":status", "200")]], "more"))
        forM_ ["what?\r\n\r\n", "HTTP/1.1 200 OK\r\n\r\n", "HTTP/1.1 404 Not Found\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "HTTP/1.1 101 Cut Off\r\n", "", C.replicate 100000 'x'] $ \bytes -> do
          (found, _) <- status (\_ send -> send bytes)
          (bytes, found) @?= (bytes, [[(":status", "500")]]),
      testCase "several threads send: what one sends is in one piece" $ do
        let senders = ['a' .. 'd']
            application _ send = do
              accept send
              dones <- forM senders $ \c -> do
                done <- newEmptyMVar
                done <$ forkIO (replicateM_ 500 (send (C.replicate 100 c)) `finally` putMVar done ())
              mapM_ takeMVar dones
        served (raw application) $ \peer -> do
          say peer [frame typeWindowUpdate 0 0 (number 1000000), frame typeSettings 0 0 (settingsPayload [(4, 1000000)])]
          connect peer 1 []
          found <- bytesOf 1 <$> framesTo peer (over 1)
          B.length found @?= 200000
          [c | run <- C.group found, let { c = B.length run }, c `mod` 100 /= 0] @?= [],
      testCase "a stranger opens as many as it may: they are ended when they are silent, and others are served" $ do
        running <- newIORef (0 :: Int)
        let settings = defaultHttp2Settings {http2Limits = defaultHttp2Limits {limitStreams = 50, limitWait = seconds 2}}
            count k = atomicModifyIORef' running (\n -> (n + k, ()))
            talk receive send = bracket_ (count 1) (count (-1)) (accept send >> forever receive)
        servedWith settings (raw talk) $ \peer _ -> do
          say peer (concatMap (\n -> connecting n []) [1, 3 .. 199])
          found <- framesTo peer ((>= 100) . length . resetsIn)
          sortOn fst (resetsIn found) @?= [(n, Cancel) | n <- [1, 3 .. 99]] <> [(n, RefusedStream) | n <- [101, 103 .. 199]]
          left <- within (seconds 20) (let go = readIORef running >>= \n -> unless (n == 0) (threadDelay 10000 >> go) in go)
          left @?= Just ()
          works peer 201,
      testCase "one that sends is not ended, however long it takes" $ do
        let settings = defaultHttp2Settings {http2Limits = defaultHttp2Limits {limitWait = seconds 4}}
        servedWith settings (raw echo) $ \peer _ -> do
          connect peer 1 []
          forM_ [1 .. 12 :: Int] $ \_ -> do
            threadDelay 500000
            say peer [frame typeData 0 1 "x"]
          say peer [frame typeData flagEndStream 1 ""]
          found <- framesTo peer (over 1)
          (bytesOf 1 found, resetsIn found) @?= (C.replicate 12 'x', []),
      testCase "a drain waits for a tunnel, and then ends the connection" $
        servedWith defaultHttp2Settings (raw echo) $ \peer control -> do
          connect peer 1 []
          _ <- framesTo peer (not . null . answers 1)
          controlShutdown control
          _ <- framesTo peer (any ((== typeGoAway) . frameType . fst . fst))
          say peer [frame typeData 0 1 "still"]
          found <- framesTo peer ((== "still") . bytesOf 1)
          bytesOf 1 found @?= "still"
          say peer [frame typeData flagEndStream 1 ""]
          rest <- framesTo peer (const False)
          assertBool "no end" (over 1 rest)
    ]

-- Applications ---------------------------------------------------------------------------

raw :: (IO ByteString -> (ByteString -> IO ()) -> IO ()) -> Application
raw talk r respond
  | pathInfo r == ["plain"] = respond (responseLBS ok200 [] "works")
  | otherwise = respond (responseRaw talk (responseLBS internalServerError500 [] "not raw"))

accept :: (ByteString -> IO ()) -> IO ()
accept send = send "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: own\r\nSec-WebSocket-Protocol: chat\r\n\r\n"

echo :: IO ByteString -> (ByteString -> IO ()) -> IO ()
echo receive send = accept send >> go
  where
    go = receive >>= \bytes -> unless (B.null bytes) (send bytes >> go)

-- The client -----------------------------------------------------------------------------

-- | A client: its connection, the bytes of a frame that is not complete, the decoder of heads, and how much it may
-- send.
data Peer = Peer Connection (IORef ByteString) (IORef Decoder) (IORef (Int, Int))

-- | A frame, and the fields of one that is a head.
type Got = ((FrameHeader, ByteString), [(ByteString, ByteString)])

served :: Application -> (Peer -> IO ()) -> IO ()
served application act = servedWith defaultHttp2Settings application (const . act)

-- | A server for a client that has sent its preface. The server ends with the client.
servedWith :: Http2Settings -> Application -> (Peer -> Http2Control -> IO ()) -> IO ()
servedWith settings application act = do
  (mine, theirs) <- connectionPair 262144 (SockAddrUnix "") (SockAddrUnix "")
  control <- newEmptyMVar
  ended <- newEmptyMVar
  _ <- forkIO (serveHttp2 settings (putMVar control) theirs application `finally` putMVar ended ())
  peer <- Peer mine <$> newIORef "" <*> newIORef (newDecoder 4096) <*> newIORef (65535, 65535)
  say peer [connectionPreface, frame typeSettings 0 0 "", frame typeSettings flagAck 0 ""]
  -- With its window for each stream.
  _ <- framesTo peer (any ((== typeSettings) . frameType . fst . fst))
  takeMVar control >>= act peer
  connClose mine
  within (seconds 20) (takeMVar ended) >>= (@?= Just ())

say :: Peer -> [ByteString] -> IO ()
say (Peer c _ _ _) = connSendMany c noDeadline

-- | An extended CONNECT.
connect :: Peer -> Int -> [(ByteString, ByteString)] -> IO ()
connect peer n more = say peer (connecting n more)

connecting :: Int -> [(ByteString, ByteString)] -> [ByteString]
connecting n more = headed n False ([(":method", "CONNECT"), (":protocol", "websocket"), (":scheme", "https"), (":path", "/chat?a=b"), (":authority", "a.test")] <> more)

-- | Each block has an encoder of its own, as the server's table stays empty when there is nothing to index.
headed :: Int -> Bool -> [(ByteString, ByteString)] -> [ByteString]
headed n final fields = headerFrames (if final then flagEndStream else 0) n 16384 (fst (encodeBlock fields (newEncoder 0)))

-- | The connection serves another request.
works :: Peer -> Int -> IO ()
works peer n = do
  say peer (headed n True [(":method", "GET"), (":scheme", "https"), (":path", "/plain"), (":authority", "a.test")])
  found <- framesTo peer (over n)
  bytesOf n found @?= "works"

-- | The next frame, or nothing at the end of the connection, or after that time.
nextFrame :: Peer -> Int -> IO (Maybe Got)
nextFrame peer@(Peer c rest decoder windows) ms = do
  have <- readIORef rest
  case parseFrameHeader have of
    Just h | B.length have >= 9 + frameLength h -> do
      let payload = B.take (frameLength h) (B.drop 9 have)
      writeIORef rest (B.drop (9 + frameLength h) have)
      when (frameType h == typeSettings && not (hasFlag flagAck h)) . modifyIORef' windows $ \(whole, own) ->
        (whole, last (own : [own + fromIntegral value - 65535 | Just parameters <- [parseSettings payload], (4, value) <- parameters]))
      when (frameType h == typeWindowUpdate) . modifyIORef' windows $ \(whole, own) ->
        let by = fromIntegral (word32 payload) in if frameStream h == 0 then (whole + by, own) else (whole, own + by)
      fields <- if frameType h /= typeHeaders then pure [] else readIORef decoder >>= either (assertFailure . const "a head") (\(Decoded found _, next) -> found <$ writeIORef decoder next) . decodeBlock 65536 payload
      pure (Just ((h, payload), fields))
    _ -> do
      deadline <- deadlineIn (milliseconds ms)
      more <- connReceive c deadline 65536 `catch` \e -> if isTimeout e then pure "" else throwIO e
      if B.null more then pure Nothing else modifyIORef' rest (<> more) >> nextFrame peer ms

-- | Frames until the condition holds for them, or the connection ends.
framesTo :: Peer -> ([Got] -> Bool) -> IO [Got]
framesTo peer enough = go []
  where
    go found
      | enough (reverse found) = pure (reverse found)
      | otherwise = nextFrame peer 20000 >>= maybe (pure (reverse found)) (\f -> go (f : found))

-- | Send as much of a string as the server's windows allow, until it grants nothing for that time; what came meanwhile.
upload :: Peer -> Int -> Int -> ByteString -> IO (Int, [Got])
upload peer@(Peer _ _ _ windows) ms n message = go 0 []
  where
    go sent found = do
      (whole, own) <- readIORef windows
      let size = minimum [16384, whole, own, B.length message - sent]
      if size > 0
        then do
          writeIORef windows (whole - size, own - size)
          say peer [frame typeData 0 n (B.take size (B.drop sent message))]
          go (sent + size) found
        else if sent == B.length message then pure (sent, reverse found) else nextFrame peer ms >>= maybe (pure (sent, reverse found)) (\f -> go sent (f : found))

over :: Int -> [Got] -> Bool
over n = any (\((h, _), _) -> frameStream h == n && (frameType h == typeReset || (frameType h `elem` [typeData, typeHeaders] && hasFlag flagEndStream h)))

answers :: Int -> [Got] -> [[(ByteString, ByteString)]]
answers n found = [fields | ((h, _), fields) <- found, frameType h == typeHeaders, frameStream h == n]

bytesOf :: Int -> [Got] -> ByteString
bytesOf n found = B.concat [p | ((h, p), _) <- found, frameType h == typeData, frameStream h == n]

resetsIn :: [Got] -> [(Int, ErrorCode)]
resetsIn found = [(frameStream h, code) | ((h, p), _) <- found, frameType h == typeReset, code <- [Cancel, RefusedStream, NoError, InternalError, ProtocolError], errorNumber code == p]

number :: Int -> ByteString
number n = B.drop 5 (frameHead 0 0 n 0)
