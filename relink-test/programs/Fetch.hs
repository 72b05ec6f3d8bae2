-- |
-- http-client: a thousand connections at a time to the server whose address is given, and
-- a server that never answers.
module Main (main) where

import Control.Concurrent.Async
import Control.Exception
import Control.Monad
import qualified Data.ByteString.Lazy as L
import Data.List (foldl')
import Network.HTTP.Client
import qualified Network.Socket as N
import System.Environment

main :: IO ()
main = do
  [url] <- getArgs
  manager <- newManager defaultManagerSettings {managerConnCount = 1000, managerResponseTimeout = responseTimeoutMicro 20000000}
  request <- parseRequest (url <> "/file")
  -- None lets go of its connection before all have theirs.
  bodies <- forConcurrently [1 .. 1000 :: Int] $ \i -> withResponse request manager $ \response -> do
    body <- L.fromChunks <$> brConsume (responseBody response)
    pure (i, L.length body, foldl' (\n b -> (n * 31 + fromIntegral b) `mod` 1000003) (7 :: Int) (L.unpack body))
  say "fetched" (length bodies, sum [n | (_, n, _) <- bodies], foldl' max 0 [h | (_, _, h) <- bodies], foldl' min maxBound [h | (_, _, h) <- bodies])
  missing <- parseRequest (url <> "/missing")
  httpLbs missing manager >>= say "missing" . responseStatus
  -- It listens, and never accepts.
  bracket (N.socket N.AF_INET N.Stream N.defaultProtocol) N.close $ \l -> do
    N.bind l (N.SockAddrInet 0 (N.tupleToHostAddress (127, 0, 0, 1)))
    N.listen l 64
    number <- N.socketPort l
    deaf <- parseRequest ("http://127.0.0.1:" <> show number <> "/")
    ends <- replicateConcurrently 20 (try (httpLbs deaf {responseTimeout = responseTimeoutMicro 200000} manager))
    say "response timeouts" (length [() | Left (HttpExceptionRequest _ ResponseTimeout) <- map void ends])
  where
    say what x = putStrLn (what <> ": " <> show x)
