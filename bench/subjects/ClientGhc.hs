-- |
-- Description : What a client does, by GHC's own manager
--
-- Requests by @http-client@, and threads whose results are awaited, by 'forkFinally' and an MVar.
module Main (main) where

import ClientWork
import Control.Concurrent (forkFinally, newEmptyMVar, putMVar, runInUnboundThread, takeMVar)
import Control.Exception (throwIO)
import Measure
import Network.HTTP.Client (defaultManagerSettings)
import Text.Read (readMaybe)

main :: IO ()
main = do
  given <- arguments
  case given of
    what : numbers | Just ns <- mapM readMaybe numbers -> runInUnboundThread (measure what ns)
    _ -> expected
  hear
  where
    measure what ns = case (what, ns) of
      ("http-client", [port, size, threads, each]) -> httpClient defaultManagerSettings port size threads each
      ("await", [n]) -> awaited n forkAndAwait
      _ -> expected
    expected = usage "http-client PORT SIZE CONNECTIONS REQUESTS | await N"

forkAndAwait :: IO ()
forkAndAwait = do
  box <- newEmptyMVar
  _ <- forkFinally (pure ()) (putMVar box)
  takeMVar box >>= either throwIO pure
