{-# LANGUAGE OverloadedStrings #-}

-- | Trailers of HTTP\/2 in both directions (RFC 9113, 8.1), and interim responses (RFC 8297), over connections in
-- memory.
module Spec.Trailers
  ( tests,
  )
where

import Control.Concurrent
import Control.Exception (finally)
import Control.Monad (forM_, unless)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import qualified Data.ByteString.Lazy as L
import qualified Data.CaseInsensitive as CI
import Data.Maybe (catMaybes)
import Network.HTTP.Types (ok200)
import Network.Socket (SockAddr (..))
import Network.Wai
import Spec.Http2 (framesUntil)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Duration (seconds)
import Weft.Http2 (HTTP2Data (..), NextTrailersMaker (..), connectionPreface, constantTrailers, defaultHTTP2Data, defaultHttp2Settings, getRequestTrailers, modifyHTTP2Data, sendEarlyHints, serveHttp2, setHTTP2Data)
import Weft.Http2.Frame hiding (connectionPreface)
import Weft.Timer (within)
import Weft.Transport

tests :: TestTree
tests =
  testGroup
    "Weft.Http2, trailers"
    [ testCase "trailers end a response, behind a body of each kind, and behind none" $
        forM_ [responseLBS ok200 [] "body", responseLBS ok200 [] (L.replicate 20000 120), responseStream ok200 [] (\write flush -> write "bo" >> flush >> write "dy"), responseFile ok200 [] "weft-http.cabal" Nothing, responseLBS ok200 [] ""] $ \response -> do
          let application asked respond = setHTTP2Data asked (Just defaultHTTP2Data {http2dataTrailers = constantTrailers [("X-Sum", "7")]}) >> respond response
          withServed application $ \mine -> do
            send mine [get 1]
            found <- framesUntil mine ended
            let heads = [(hasFlag flagEndStream h, p) | (h, p) <- found, frameType h == typeHeaders]
            map fst heads @?= [False, True]
            -- A literal, not Huffman-coded or so; the name is in lower case in any case.
            assertBool (show heads) (not ("X-Sum" `B.isInfixOf` B.concat (map snd heads)))
            [() | (h, _) <- found, frameType h == typeData, hasFlag flagEndStream h] @?= [],
      testCase "the maker of trailers sees all of the body, and its end" $ do
        seen <- newMVar []
        let maker part = do
              modifyMVar_ seen (pure . (part :))
              pure (maybe (Trailers [("x-end", "1")]) (const (NextTrailersMaker maker)) part)
            application asked respond = do
              modifyHTTP2Data asked (const (Just defaultHTTP2Data {http2dataTrailers = maker}))
              respond (responseStream ok200 [] (\write flush -> write "one" >> flush >> write "two" >> flush))
        withServed application $ \mine -> do
          send mine [get 1]
          _ <- framesUntil mine ended
          parts <- reverse <$> readMVar seen
          (B.concat (catMaybes parts), length (filter (== Nothing) parts), last parts) @?= ("onetwo", 1, Nothing),
      testCase "trailers with a name that is not a token break the response off" $ do
        let application asked respond = setHTTP2Data asked (Just defaultHTTP2Data {http2dataTrailers = constantTrailers [(CI.mk ":status", "200")]}) >> respond (responseStream ok200 [] (\write flush -> write "part" >> flush))
        withServed application $ \mine -> do
          send mine [get 1]
          found <- framesUntil mine (\fs -> ended fs || any ((== typeReset) . frameType . fst) fs)
          [p | (h, p) <- found, frameType h == typeReset] @?= [errorNumber InternalError],
      testCase "the trailers of a request are there when its body has ended" $ do
        result <- newEmptyMVar
        let application asked respond = do
              let rest = getRequestBodyChunk asked >>= \piece -> unless (B.null piece) rest
              before <- getRequestTrailers asked
              rest
              behind <- getRequestTrailers asked
              putMVar result (before, behind)
              respond (responseLBS ok200 [] "")
        withServed application $ \mine -> do
          send mine [post 1, frame typeData 0 1 "body"]
          threadDelay 50000
          send mine [frame typeHeaders (flagEndHeaders + flagEndStream) 1 (B.pack [0, 5] <> "x-sum" <> B.pack [1] <> "7")]
          within (seconds 20) (takeMVar result) >>= (@?= Just (Nothing, Just [("x-sum", "7")])),
      testCase "a request without trailers has none" $ do
        result <- newEmptyMVar
        withServed (\asked respond -> getRequestTrailers asked >>= putMVar result >> respond (responseLBS ok200 [] "")) $ \mine -> do
          send mine [get 1]
          within (seconds 20) (takeMVar result) >>= (@?= Just (Just [])),
      testCase "early hints come before the response, and not after it" $ do
        let application asked respond = do
              sendEarlyHints asked [("Link", "</style.css>; rel=preload")]
              -- Invalid ones are not sent.
              sendEarlyHints asked [("Link", "a\nb")]
              r <- respond (responseLBS ok200 [] (L.fromStrict (C.replicate 20000 'x')))
              r <$ sendEarlyHints asked [("Link", "</late.css>")]
        withServed application $ \mine -> do
          send mine [get 1, get 3]
          found <- framesUntil mine (\fs -> length (filter isEnd fs) == 2)
          [[hasFlag flagEndStream h | (h, _) <- found, frameType h == typeHeaders, frameStream h == n] | n <- [1, 3]] @?= [[False, False], [False, False]]
    ]
  where
    ended = any isEnd
    isEnd (h, _) = frameType h `elem` [typeData, typeHeaders] && hasFlag flagEndStream h

-- | A server for a client that has sent its preface.
withServed :: Application -> (Connection -> IO ()) -> IO ()
withServed application act = do
  (mine, theirs) <- connectionPair 262144 (SockAddrUnix "") (SockAddrUnix "")
  over <- newEmptyMVar
  _ <- forkIO (serveHttp2 defaultHttp2Settings (const (pure ())) theirs application `finally` putMVar over ())
  send mine [connectionPreface, frame typeSettings 0 0 "", frame typeSettings flagAck 0 ""]
  act mine
  connClose mine
  within (seconds 20) (takeMVar over) >>= (@?= Just ())

send :: Connection -> [ByteString] -> IO ()
send c = connSendMany c noDeadline

-- | The heads of a GET and a POST with http, / and a literal authority, in HPACK with its static table.
get, post :: Int -> ByteString
get n = frame typeHeaders (flagEndHeaders + flagEndStream) n (B.pack [0x82, 0x86, 0x84, 0x41, 1, 0x61])
post n = frame typeHeaders flagEndHeaders n (B.pack [0x83, 0x86, 0x84, 0x41, 1, 0x61])
