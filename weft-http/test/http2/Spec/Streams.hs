{-# LANGUAGE OverloadedStrings #-}

-- | HTTP\/2 over connections in memory: the order of frames, and bodies whose reader is interrupted.
module Spec.Streams
  ( tests,
    gated,
  )
where

import Control.Concurrent
import Control.Exception (finally, onException)
import Control.Monad (forM, forM_, replicateM_, void, when)
import qualified Data.ByteString as B
import qualified Data.ByteString.Builder as B (byteString, toLazyByteString, word8)
import qualified Data.ByteString.Builder.Extra as B (byteStringInsert, flush)
import qualified Data.ByteString.Char8 as B8
import qualified Data.ByteString.Lazy as L
import qualified Data.CaseInsensitive as CI
import Data.IORef (newIORef, readIORef, writeIORef)
import Data.List (sortOn)
import Foreign.C.Types (CInt (..), CUInt (..))
import GHC.Clock (getMonotonicTime)
import Network.HTTP.Types (created201, ok200, statusCode)
import Network.Socket (SockAddr (..))
import Network.Wai (Request, getRequestBodyChunk, requestHeaders, responseBuilder, responseFile, responseLBS, responseStream)
import Spec.Http2 (framesUntil)
import System.Timeout (timeout)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Duration (milliseconds, seconds)
import Weft.Http2 (Http2Control (..), Http2Limits (limitWait), Http2Settings (http2Limits, http2OnResponse), defaultHttp2Limits, defaultHttp2Settings, serveHttp2)
import Weft.Http2.Frame
import Weft.Http2.Hpack.Decoder (Decoded (..), decodeBlock, newDecoder)
import Weft.Timer (within)
import Weft.Transport

tests :: TestTree
tests =
  testGroup
    "Weft.Http2, streams"
    [ testCase "a drain that begins before the client's preface: SETTINGS come before GOAWAY" $ do
        (mine, theirs) <- connectionPair 65536 (SockAddrUnix "") (SockAddrUnix "")
        _ <- forkIO (serveHttp2 defaultHttp2Settings controlShutdown theirs (\_ respond -> respond (responseLBS ok200 [] L.empty)))
        found <- framesUntil mine (any ((== typeGoAway) . frameType . fst))
        map (frameType . fst) (take 1 found) @?= [typeSettings]
        connClose mine,
      testCase "a stream that begins as a drain does is refused or answered" . forM_ [1 .. 3000 :: Int] $ \i -> do
        (mine, theirs) <- connectionPair 65536 (SockAddrUnix "") (SockAddrUnix "")
        control <- newEmptyMVar
        _ <- forkIO (serveHttp2 defaultHttp2Settings (putMVar control) theirs (\_ respond -> respond (responseLBS ok200 [] "body")))
        send mine [connectionPreface, frame typeSettings 0 0 B.empty]
        drain <- takeMVar control
        begin <- newEmptyMVar
        _ <- forkIO (readMVar begin >> replicateM_ (i `mod` 20) yield >> controlShutdown drain)
        putMVar begin ()
        replicateM_ (i `mod` 7) yield
        send mine [request 1]
        before <- framesUntil mine (any ((== typePing) . frameType . fst))
        send mine [frame typePing flagAck 0 p | (h, p) <- before, frameType h == typePing]
        after' <- framesUntil mine (const False)
        let found = before <> after'
            accepted = last (0 : [B.foldl' (\n b -> n * 256 + fromIntegral b) (0 :: Int) (B.take 4 p) | (h, p) <- found, frameType h == typeGoAway])
            answered = [() | (h, _) <- found, frameType h == typeData, frameStream h == 1, hasFlag flagEndStream h]
        (i, length answered) @?= (i, if accepted >= 1 then 1 else 0)
        connClose mine,
      testCase "a response is reported even if the client resets its stream as soon as it has the last frame" . forM_ [responseLBS ok200 [] "body", responseStream ok200 [] (\write _ -> write "body"), responseFile ok200 [] "weft-http.cabal" Nothing] $ \response -> do
        (mine, theirs) <- connectionPair 65536 (SockAddrUnix "") (SockAddrUnix "")
        reported <- newEmptyMVar
        (returned, ended) <- (,) <$> newEmptyMVar <*> newEmptyMVar
        let settings = defaultHttp2Settings {http2OnResponse = \_ status _ -> putMVar reported status}
            -- Time enough for the exception to wait for the stream's thread.
            resetting = send mine [frame typeReset 0 1 (errorNumber Cancel)] >> threadDelay 30000
        _ <- forkIO (serveHttp2 settings (const (pure ())) (afterLastFrame resetting theirs) (\_ respond -> respond response >>= \r -> r <$ putMVar returned ()) `finally` putMVar ended ())
        send mine [connectionPreface, frame typeSettings 0 0 B.empty, request 1]
        within (seconds 10) (takeMVar reported) >>= (@?= Just ok200)
        -- The application is not interrupted.
        within (seconds 10) (takeMVar returned) >>= (@?= Just ())
        connClose mine
        within (seconds 10) (takeMVar ended) >>= (@?= Just ())
        -- Once.
        tryTakeMVar reported >>= (@?= Nothing),
      testCase "an application that goes on after its response is interrupted a second after the connection has ended" $ do
        (mine, theirs) <- connectionPair 65536 (SockAddrUnix "") (SockAddrUnix "")
        (interrupted, ended) <- (,) <$> newEmptyMVar <*> newEmptyMVar
        let application _ respond = do
              r <- respond (responseLBS ok200 [] "body")
              r <$ (threadDelay 60000000 `onException` putMVar interrupted ())
        _ <- forkIO (serveHttp2 defaultHttp2Settings (const (pure ())) theirs application `finally` putMVar ended ())
        send mine [connectionPreface, frame typeSettings 0 0 B.empty, request 1]
        _ <- framesUntil mine (any (\(h, _) -> frameType h == typeData && hasFlag flagEndStream h))
        connClose mine
        within (seconds 10) (takeMVar ended) >>= (@?= Just ())
        tryTakeMVar interrupted >>= (@?= Just ()),
      testCase "PRIORITY of another length than five bytes: an error of the stream, or of the connection on an idle stream" $ do
        (mine, theirs) <- connectionPair 65536 (SockAddrUnix "") (SockAddrUnix "")
        release <- newEmptyMVar
        _ <- forkIO (serveHttp2 defaultHttp2Settings (const (pure ())) theirs (\_ respond -> readMVar release >> respond (responseLBS ok200 [] L.empty)))
        send mine [connectionPreface, frame typeSettings 0 0 B.empty, upload 1, frame typePriority 0 1 (B.replicate 4 0)]
        first <- framesUntil mine (any ((== typeReset) . frameType . fst))
        [(frameStream h, p) | (h, p) <- first, frameType h == typeReset] @?= [(1, errorNumber FrameSizeError)]
        [() | (h, _) <- first, frameType h == typeGoAway] @?= []
        send mine [frame typePriority 0 3 (B.replicate 6 0)]
        rest <- framesUntil mine (any ((== typeGoAway) . frameType . fst))
        [frameStream h | (h, _) <- rest, frameType h == typeReset] @?= []
        [B.drop 4 p | (h, p) <- rest, frameType h == typeGoAway] @?= [errorNumber FrameSizeError]
        putMVar release ()
        connClose mine,
      testCase "headers that are too short for their priority: FRAME_SIZE_ERROR; more padding than payload: PROTOCOL_ERROR" . forM_ [(0x20, FrameSizeError), (0x08, ProtocolError)] $ \(flag, code) -> do
        (mine, theirs) <- connectionPair 65536 (SockAddrUnix "") (SockAddrUnix "")
        _ <- forkIO (serveHttp2 defaultHttp2Settings (const (pure ())) theirs (\_ respond -> respond (responseLBS ok200 [] L.empty)))
        send mine [connectionPreface, frame typeSettings 0 0 B.empty, frame typeHeaders (flagEndHeaders + flagEndStream + flag) 1 (B.pack [9, 0x86, 0x84, 0x82])]
        found <- framesUntil mine (const False)
        [B.drop 4 p | (h, p) <- found, frameType h == typeGoAway] @?= [errorNumber code]
        connClose mine,
      testCase "an application that reads a body waits for no send, and the body is whole" $ do
        (mine, theirs) <- connectionPair 262144 (SockAddrUnix "") (SockAddrUnix "")
        gate <- newMVar ()
        entered <- newEmptyMVar
        begin <- newEmptyMVar
        interrupted <- newEmptyMVar
        received <- newEmptyMVar
        let application asked respond = do
              takeMVar begin
              first <- timeout 20000000 (getRequestBodyChunk asked)
              putMVar interrupted (fmap B.length first)
              rest <- readAll asked
              putMVar received (maybe id (<>) first rest)
              respond (responseLBS ok200 [] L.empty)
            body = B.concat [B.replicate 16384 n | n <- [1, 2, 3]]
        _ <- forkIO (serveHttp2 defaultHttp2Settings (const (pure ())) (gated gate entered theirs) application)
        send mine ([connectionPreface, frame typeSettings 0 0 B.empty, upload 1] <> [frame typeData 0 1 (B.take 16384 (B.drop at body)) | at <- [0, 16384, 32768]] <> [ping])
        -- The answer to the ping shows that the body has been received.
        _ <- framesUntil mine (any ((== typePing) . frameType . fst))
        -- The answer to the next one does not get through, so the update of the window has to wait.
        takeMVar gate
        send mine [ping]
        within (seconds 30) (takeMVar entered) >>= (@?= Just ())
        putMVar begin ()
        within (seconds 30) (takeMVar interrupted) >>= (@?= Just (Just 16384))
        putMVar gate ()
        send mine [frame typeData flagEndStream 1 "end"]
        found <- within (seconds 30) (takeMVar received)
        fmap B.length found @?= Just (B.length body + 3)
        assertBool "the order of the pieces" (found == Just (body <> "end"))
        connClose mine,
      testCase "after a pause of the process, a client whose time is over is heard first" $ do
        let settings = defaultHttp2Settings {http2Limits = defaultHttp2Limits {limitWait = seconds 1}}
            attempt n = do
              (mine, theirs) <- connectionPair 65536 (SockAddrUnix "") (SockAddrUnix "")
              _ <- forkIO (serveHttp2 settings (const (pure ())) theirs (\_ respond -> respond (responseLBS ok200 [] "body")))
              send mine [connectionPreface, frame typeSettings 0 0 (settingsPayload [(4, 0)]), request 1]
              _ <- framesUntil mine (any ((== typeHeaders) . frameType . fst))
              together <- pause
              -- The timer has been late by now.
              threadDelay 300000
              send mine [frame typeWindowUpdate 0 1 (B.pack [0, 0, 0, 100])]
              found <- framesUntil mine (any (\(h, _) -> frameType h `elem` [typeData, typeReset, typeGoAway]))
              connClose mine
              let bodies = [p | (h, p) <- found, frameType h == typeData]
              -- Capabilities that were kept one after another were no pause of the process.
              if together || n == (1 :: Int) || bodies == ["body"] then bodies @?= ["body"] else attempt (n - 1)
        attempt 5,
      testCase "a call may be silent in both directions once the response has begun" $ do
        (mine, theirs) <- connectionPair 65536 (SockAddrUnix "") (SockAddrUnix "")
        let settings = defaultHttp2Settings {http2Limits = defaultHttp2Limits {limitWait = milliseconds 500}}
            application r respond = respond . responseStream ok200 [] $ \write flush -> do
              write "begun" >> flush
              getRequestBodyChunk r >>= write . B.byteString
        _ <- forkIO (serveHttp2 settings (const (pure ())) theirs application)
        send mine [connectionPreface, frame typeSettings 0 0 B.empty, upload 1]
        _ <- framesUntil mine (any ((== typeData) . frameType . fst))
        threadDelay 3000000
        send mine [frame typeData flagEndStream 1 "late"]
        found <- framesUntil mine (any (\(h, _) -> ends h || frameType h `elem` [typeReset, typeGoAway]))
        B.concat [p | (h, p) <- found, frameType h == typeData] @?= "late"
        connClose mine,
      testCase "a body of any size, of small and long strings: as the application has made it" . forM_ [0, 1, 100, 8192, 8193, 16384, 16385, 50000] $ \size -> do
        (mine, theirs) <- connectionPair 65536 (SockAddrUnix "") (SockAddrUnix "")
        let bytes = B.pack (take size (cycle [0 .. 250]))
            small = foldMap B.word8 (B.unpack bytes)
            bodies = [B.byteString bytes, B.byteStringInsert bytes, small, small <> B.byteStringInsert bytes <> small, B.byteStringInsert bytes <> B.flush <> small]
            application r respond = case lookup "n" (requestHeaders r) of
              Just n | [(i, "")] <- reads (B8.unpack n) -> respond (responseBuilder ok200 [] (bodies !! i))
              Just n | [(i, "s")] <- reads (B8.unpack n) -> respond (responseStream ok200 [] (\write _ -> write (bodies !! i)))
              _ -> respond (responseLBS ok200 [] "no number")
            asked n name = frame typeHeaders (flagEndHeaders + flagEndStream) n (B.pack [0x82, 0x86, 0x84, 0x41, 1, 0x61, 0x00, 1, 0x6e, fromIntegral (length name)] <> B8.pack name)
        _ <- forkIO (serveHttp2 defaultHttp2Settings (const (pure ())) theirs application)
        send mine [connectionPreface, frame typeSettings 0 0 (settingsPayload [(4, 1000000)]), frame typeWindowUpdate 0 0 (B.pack [0, 0x3c, 0x09, 0x01])]
        forM_ (zip [1, 3 ..] ([show i | i <- [0 .. length bodies - 1]] <> [show i <> "s" | i <- [0 .. length bodies - 1]])) $ \(n, name) -> do
          send mine [asked n name]
          found <- framesUntil mine (any (ends . fst))
          let body = bodies !! read (take 1 name)
          assertBool (name <> " of " <> show size) (B.concat [p | (h, p) <- found, frameType h == typeData] == L.toStrict (B.toLazyByteString body))
        connClose mine,
      testCase "the head of the response before does not become that of another one" $ do
        (mine, theirs) <- connectionPair 65536 (SockAddrUnix "") (SockAddrUnix "")
        let shared = [("x-a", "1")]
            answers = [(ok200, shared), (ok200, shared), (created201, shared), (ok200, [("x-a", "2")]), (ok200, shared), (created201, []), (ok200, shared)]
            application r respond = case lookup "n" (requestHeaders r) of
              Just n | [(i, "")] <- reads (B8.unpack n), (status, fields) <- answers !! i -> respond (responseBuilder status fields mempty)
              _ -> respond (responseLBS ok200 [] "no number")
            asked n i = frame typeHeaders (flagEndHeaders + flagEndStream) n (B.pack [0x82, 0x86, 0x84, 0x41, 1, 0x61, 0x00, 1, 0x6e, 1] <> B8.pack (show i))
        _ <- forkIO (serveHttp2 defaultHttp2Settings (const (pure ())) theirs application)
        -- All in one piece, so that the streams are open together.
        connSendBytes mine noDeadline (B.concat ([connectionPreface, frame typeSettings 0 0 B.empty] <> [asked n i | (n, i) <- zip [1, 3 ..] [0 .. length answers - 1]]))
        found <- framesUntil mine ((== length answers) . length . filter (ends . fst))
        decoder <- newIORef (newDecoder 4096)
        heads <- forM (filter ((== typeHeaders) . frameType . fst) found) $ \(h, block) ->
          readIORef decoder >>= either (assertFailure . show) (\(fields, next) -> (frameStream h, decodedFields fields) <$ writeIORef decoder next) . decodeBlock 65536 block
        sortOn fst heads
          @?= [(n, (":status", B8.pack (show (statusCode status))) : [(CI.foldedCase name, value) | (name, value) <- fields]) | (n, (status, fields)) <- zip [1, 3 ..] answers]
        connClose mine,
      testCase "a stream that is reset while it ends the connection does not keep others from writing" $ do
        (mine, theirs) <- connectionPair 65536 (SockAddrUnix "") (SockAddrUnix "")
        open <- newEmptyMVar
        entered <- newEmptyMVar
        ended <- newEmptyMVar
        let settings = defaultHttp2Settings {http2Limits = defaultHttp2Limits {limitWait = milliseconds 500}}
            application _ respond = respond (responseLBS ok200 [] "body")
        _ <- forkIO (serveHttp2 settings (const (pure ())) (holdingGoAway open entered theirs) application `finally` putMVar ended ())
        -- The client takes no byte of the response, so its stream ends the connection.
        send mine [connectionPreface, frame typeSettings 0 0 (settingsPayload [(4, 0)]), request 1]
        within (seconds 30) (takeMVar entered) >>= (@?= Just ())
        -- In one piece: the connection's thread finds the ping without looking whether the connection is ending.
        connSendBytes mine noDeadline (frame typeReset 0 1 (errorNumber Cancel) <> ping)
        within (seconds 30) (takeMVar ended) >>= (@?= Just ())
        connClose mine
    ]
  where
    send c = connSendMany c noDeadline
    ping = frame typePing 0 0 (B.replicate 8 0)
    -- The flag is that of an acknowledgement too.
    ends h = frameStream h > 0 && hasFlag flagEndStream h
    -- GET, http, / and a literal authority, in HPACK with its static table.
    request n = frame typeHeaders (flagEndHeaders + flagEndStream) n (B.pack [0x82, 0x86, 0x84, 0x41, 1, 0x61])
    -- The head of a POST, http, / and a literal authority, in HPACK with its static table.
    upload n = frame typeHeaders flagEndHeaders n (B.pack [0x83, 0x86, 0x84, 0x41, 1, 0x61])

-- | Keep every capability for 2.7 s, as if the process did not run. Returns whether each was kept through nearly all of
-- the same time: on a loaded machine one may begin late.
pause :: IO Bool
pause = do
  capabilities <- getNumCapabilities
  began <- getMonotonicTime
  kept <- forM [0 .. capabilities - 1] $ \i -> do
    over <- newEmptyMVar
    over <$ forkOn i (keepCapability 2700000 >> getMonotonicTime >>= putMVar over)
  ended <- mapM takeMVar kept
  pure (maximum ended - began < 3.2)

-- | Keep a capability for so many microseconds.
foreign import ccall unsafe "usleep" keepCapability :: CUInt -> IO CInt

readAll :: Request -> IO B.ByteString
readAll request = do
  piece <- getRequestBodyChunk request
  if B.null piece then pure piece else (piece <>) <$> readAll request

-- | A connection that sends nothing while the first variable is empty. The second one is then filled by a send.
gated :: MVar () -> MVar () -> Connection -> Connection
gated gate entered (Connection ops state) = Connection ops {opSendMany = sending} state
  where
    sending s deadline strings = do
      open <- tryReadMVar gate
      maybe (void (tryPutMVar entered ())) pure open
      readMVar gate
      opSendMany ops s deadline strings

-- | A connection that runs the action after each send that ends with the last frame of a stream, or with part of a
-- file.
afterLastFrame :: IO () -> Connection -> Connection
afterLastFrame act (Connection ops state) = Connection ops {opSendMany = sending, opSendFile = \s deadline strings range -> opSendFile ops s deadline strings range >> act} state
  where
    sending s deadline strings = do
      opSendMany ops s deadline strings
      when (endsStream (B.concat strings)) act
    endsStream bytes = case parseFrameHeader bytes of
      Nothing -> False
      Just h -> (frameType h == typeData && hasFlag flagEndStream h) || endsStream (B.drop (9 + frameLength h) bytes)

-- | A connection on which a GOAWAY waits for the first variable, or until the connection is aborted. The second one is
-- filled when it begins to wait.
holdingGoAway :: MVar () -> MVar () -> Connection -> Connection
holdingGoAway open entered (Connection ops state) = Connection ops {opSendMany = sending, opAbort = \s -> tryPutMVar open () >> opAbort ops s} state
  where
    sending s deadline strings = do
      when (fmap frameType (parseFrameHeader (B.concat strings)) == Just typeGoAway) (void (tryPutMVar entered ()) >> readMVar open)
      opSendMany ops s deadline strings
