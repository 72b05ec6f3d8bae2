{-# LANGUAGE OverloadedStrings #-}

-- | HTTP\/2 responses of applications, over connections in memory: lazy bodies, parts of files, fields and exceptions.
module Spec.Responses
  ( tests,
  )
where

import Control.Concurrent
import Control.Exception (AsyncException (..), SomeException, finally, throwIO, try)
import Control.Monad (forM, forM_, when)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Data.ByteString.Builder (byteString)
import qualified Data.ByteString.Lazy as L
import qualified Data.CaseInsensitive as CI
import Data.List (nub)
import Data.Word (Word8)
import Network.HTTP.Types (ok200)
import Network.Socket (SockAddr (..))
import Network.Wai
import Spec.Http2 (framesUntil)
import System.IO.Unsafe (unsafeInterleaveIO, unsafePerformIO)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Duration (milliseconds, seconds)
import Weft.Http2 (defaultHttp2Settings, serveHttp2)
import Weft.Http2.Frame
import Weft.Timer (within)
import Weft.Transport

tests :: TestTree
tests =
  testGroup
    "Weft.Http2, responses"
    [ testCase "a lazy body that reads the request's body as it is sent" $
        withServed (\asked respond -> lazyRequestBody asked >>= respond . responseLBS ok200 []) $ \mine -> do
          send mine ([wideWindow, upload 1] <> replicate 3 (frame typeData 0 1 (B.replicate 16384 120)))
          first <- framesUntil mine ((>= 32768) . B.length . bodyOf 1)
          send mine [frame typeData flagEndStream 1 "end"]
          rest <- framesUntil mine (ended 1)
          B.length (bodyOf 1 (first <> rest)) @?= 49155,
      testCase "a lazy body whose next part is not there yet holds up no other stream" $ do
        there <- newEmptyMVar
        let application asked respond
              | rawPathInfo asked == "/lazy" = do
                rest <- unsafeInterleaveIO ([B.replicate 1000 122] <$ readMVar there)
                respond (responseLBS ok200 [] (L.fromChunks (replicate 3 (B.replicate 10000 120) <> rest)))
              | otherwise = respond (responseLBS ok200 [] "other")
        withServed application $ \mine -> do
          send mine [get 1 "/lazy"]
          first <- framesUntil mine ((>= 20000) . B.length . bodyOf 1)
          send mine [get 3 "/other"]
          other <- framesUntil mine (ended 3)
          bodyOf 3 other @?= "other"
          putMVar there ()
          rest <- framesUntil mine (ended 1)
          B.length (bodyOf 1 (first <> other <> rest)) @?= 31000,
      testCase "two threads that write a streamed body at once: one gets an error, and the stream is reset" $ do
        outcome <- newEmptyMVar
        let application _ respond = respond . responseStream ok200 [] $ \write flush -> do
              write "first" >> flush
              (gate, entered, over) <- (,,) <$> newEmptyMVar <*> newEmptyMVar <*> newEmptyMVar
              _ <- forkIO (write (unsafePerformIO (byteString "second" <$ (putMVar entered () >> readMVar gate))) >> putMVar over ())
              takeMVar entered
              try (write "third") >>= putMVar outcome . failure
              putMVar gate () >> takeMVar over
        isBrokenOff application
        takeMVar outcome >>= (@?= Just "user error (Weft.Http2: two threads write the body of a response at the same time)"),
      testCase "a write after one that was interrupted" $ do
        outcome <- newEmptyMVar
        let application _ respond = respond . responseStream ok200 [] $ \write flush -> do
              write "first" >> flush
              gate <- newEmptyMVar
              _ <- within (milliseconds 20) (write (unsafePerformIO (byteString "second" <$ readMVar gate)))
              try (write "third") >>= putMVar outcome . failure
              putMVar gate ()
        isBrokenOff application
        takeMVar outcome >>= (@?= Just "user error (Weft.Http2: an earlier write of this response was interrupted)"),
      testCase "a write after the response's end" $ do
        kept <- newEmptyMVar
        withServed (\_ respond -> respond (responseStream ok200 [] (\write _ -> write "all" >> putMVar kept write))) $ \mine -> do
          send mine [get 1 "/"]
          _ <- framesUntil mine (ended 1)
          write <- takeMVar kept
          try (write "more") >>= (@?= Just "user error (Weft.Http2: this response has ended)") . failure,
      testCase "an exception in a lazy body resets its stream only" $ do
        let application asked respond
              | rawPathInfo asked == "/lazy" = respond (responseLBS ok200 [] (L.fromChunks (replicate 40 (B.replicate 10000 120) <> [error "lazy"])))
              | otherwise = respond (responseLBS ok200 [] "other")
        withServed application $ \mine -> do
          send mine [wideWindow, get 1 "/lazy"]
          found <- framesUntil mine (any ((== typeReset) . frameType . fst))
          resets found @?= [(1, errorNumber InternalError)]
          send mine [get 3 "/other"]
          other <- framesUntil mine (ended 3)
          bodyOf 3 other @?= "other",
      testCase "a part that goes beyond the end of its file gives a 500 on its stream, and the connection continues" $ do
        let application asked respond
              | rawPathInfo asked == "/beyond" = respond (responseFile ok200 [] "weft-http.cabal" (Just (FilePart 0 2000000 2000000)))
              | otherwise = respond (responseLBS ok200 [] "other")
        withServed application $ \mine -> do
          send mine [get 1 "/beyond"]
          found <- framesUntil mine (ended 1)
          headsOf 1 found @?= [Just internalError]
          send mine [get 3 "/other"]
          other <- framesUntil mine (ended 3)
          bodyOf 3 other @?= "other",
      testCase "a response field whose name is not a token gives a 500" . forM_ ["Bad Name", "Bad:Name", ":status", "\228", ""] $ \name ->
        withServed (\_ respond -> respond (responseLBS ok200 [(CI.mk name, "v")] "body")) $ \mine -> do
          send mine [get 1 "/"]
          found <- framesUntil mine (ended 1)
          (name, headsOf 1 found) @?= (name, [Just internalError]),
      testCase "an exception of a streamed response before the first flush gives a 500" . forM_ [("", [Just internalError], []), ("/flush", [Just ok], [(1, errorNumber InternalError)])] $ \(path, heads, expected) -> do
        let application asked respond = respond . responseStream ok200 [] $ \write flush -> do
              write "hello"
              when (rawPathInfo asked == "/flush") flush
              throwIO (userError "thrown")
        withServed application $ \mine -> do
          send mine [get 1 (if B.null path then "/" else path)]
          found <- framesUntil mine (\fs -> ended 1 fs || not (null (resets fs)))
          (headsOf 1 found, resets found) @?= (heads, expected),
      testCase "an asynchronous exception of the application is no answer: its stream is reset, and the connection continues" . forM_ [ThreadKilled, StackOverflow] $ \thrown -> do
        let application asked respond
              | rawPathInfo asked == "/" = throwIO thrown
              | otherwise = respond (responseLBS ok200 [] "other")
        withServed application $ \mine -> do
          send mine [get 1 "/"]
          found <- framesUntil mine (\fs -> ended 1 fs || not (null (resets fs)))
          (headsOf 1 found, resets found) @?= ([], [(1, errorNumber InternalError)])
          send mine [get 3 "/other"]
          other <- framesUntil mine (ended 3)
          bodyOf 3 other @?= "other",
      testCase "the head of a streamed response is sent by the first flush, even if nothing was written" $ do
        over <- newEmptyMVar
        withServed (\_ respond -> respond (responseStream ok200 [] (\write flush -> flush >> takeMVar over >> write "body"))) $ \mine -> do
          send mine [get 1 "/"]
          begun <- framesUntil mine (not . null . headsOf 1)
          (headsOf 1 begun, ended 1 begun) @?= ([Just ok], False)
          putMVar over ()
          rest <- framesUntil mine (ended 1)
          (headsOf 1 rest, bodyOf 1 rest) @?= ([], "body"),
      testCase "the response fields Connection and TE are left out" $ do
        blocks <- forM [[], [("Connection", "close"), ("TE", "trailers")]] $ \fields -> do
          result <- newEmptyMVar
          withServed (\_ respond -> respond (responseLBS ok200 fields "body")) $ \mine -> do
            send mine [get 1 "/"]
            found <- framesUntil mine (ended 1)
            putMVar result [p | (h, p) <- found, frameType h == typeHeaders]
          takeMVar result
        length (nub blocks) @?= 1,
      testCase "headers on a stream that was passed over: PROTOCOL_ERROR of the connection; on one that has ended: STREAM_CLOSED of the stream" $
        withServed (\_ respond -> respond (responseLBS ok200 [] "body")) $ \mine -> do
          forM_ [1, 7] $ \n -> send mine [get n "/"] >> framesUntil mine (ended n)
          send mine [get 1 "/"]
          first <- framesUntil mine (not . null . resets)
          resets first @?= [(1, errorNumber StreamClosed)]
          send mine [get 3 "/"]
          rest <- framesUntil mine (const False)
          [B.drop 4 p | (h, p) <- rest, frameType h == typeGoAway] @?= [errorNumber ProtocolError]
    ]

-- | A server for a client that has sent its preface.
withServed :: Application -> (Connection -> IO ()) -> IO ()
withServed application act = do
  (mine, theirs) <- connectionPair 262144 (SockAddrUnix "") (SockAddrUnix "")
  over <- newEmptyMVar
  _ <- forkIO (serveHttp2 defaultHttp2Settings (const (pure ())) theirs application `finally` putMVar over ())
  send mine [connectionPreface, frame typeSettings 0 0 (settingsPayload [(4, 4000000)])]
  act mine
  connClose mine
  within (seconds 20) (takeMVar over) >>= (@?= Just ())

send :: Connection -> [ByteString] -> IO ()
send c = connSendMany c noDeadline

-- | The response on stream 1 is broken off, and does not end.
isBrokenOff :: Application -> Assertion
isBrokenOff application = withServed application $ \mine -> do
  send mine [get 1 "/"]
  found <- framesUntil mine (\fs -> ended 1 fs || any ((== typeReset) . frameType . fst) fs)
  (ended 1 found, map fst (resets found)) @?= (False, [1])

failure :: Either SomeException () -> Maybe String
failure = either (Just . show) (const Nothing)

-- | Four megabytes more for the whole connection.
wideWindow :: ByteString
wideWindow = frame typeWindowUpdate 0 0 (B.pack [0, 0x3d, 0x09, 0])

-- | A GET for a path, with http and a literal authority, in HPACK with its static table.
get :: Int -> ByteString -> ByteString
get n path = frame typeHeaders (flagEndHeaders + flagEndStream) n (B.concat [B.pack [0x82, 0x86, 0x04, fromIntegral (B.length path)], path, B.pack [0x41, 1, 0x61]])

-- | The head of a POST, http, / and a literal authority.
upload :: Int -> ByteString
upload n = frame typeHeaders flagEndHeaders n (B.pack [0x83, 0x86, 0x84, 0x41, 1, 0x61])

type Frames = [(FrameHeader, ByteString)]

bodyOf :: Int -> Frames -> ByteString
bodyOf n found = B.concat [p | (h, p) <- found, frameType h == typeData, frameStream h == n]

-- | The frame that ends the stream is there.
ended :: Int -> Frames -> Bool
ended n found = or [frameStream h == n && hasFlag flagEndStream h | (h, _) <- found, frameType h `elem` [typeData, typeHeaders]]

-- | The streams that were reset, with their codes.
resets :: Frames -> [(Int, ByteString)]
resets found = [(frameStream h, p) | (h, p) <- found, frameType h == typeReset]

-- | The first bytes of the heads of a stream.
headsOf :: Int -> Frames -> [Maybe Word8]
headsOf n found = [fst <$> B.uncons p | (h, p) <- found, frameType h == typeHeaders, frameStream h == n]

-- | @:status@ with 200 and with 500, in the static table of HPACK.
ok, internalError :: Word8
ok = 0x88
internalError = 0x8e
