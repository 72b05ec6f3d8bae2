-- |
-- Description : What a client does, by GHC's own manager
--
-- Requests by @http-client@, and threads whose results are awaited, by 'forkFinally' and an MVar.
module Main (main) where

import ClientWork
import Control.Concurrent (forkFinally, newEmptyMVar, putMVar, takeMVar)
import Control.Exception (throwIO)
import Measure
import Network.HTTP.Client (defaultManagerSettings)

main :: IO ()
main = modes "http-client PORT SIZE CONNECTIONS REQUESTS | await N" $ \what ns -> case (what, ns) of
  ("http-client", [port, size, threads, each]) -> Just (httpClient defaultManagerSettings port size threads each)
  ("await", [n]) -> Just (awaited n forkAndAwait)
  _ -> Nothing

forkAndAwait :: IO ()
forkAndAwait = do
  box <- newEmptyMVar
  _ <- forkFinally (pure ()) (putMVar box)
  takeMVar box >>= either throwIO pure
