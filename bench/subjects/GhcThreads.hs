-- |
-- Description : The same of GHC's own threads
--
-- A switch, and the whole life of one.
module Main (main) where

import Control.Concurrent (forkIO, yield)
import Control.Monad (replicateM_)
import Countdown
import Measure

main :: IO ()
main = modes "yield THREADS TIMES | fork N" $ \what ns -> case (what, ns) of
  ("yield", [n, m]) -> Just $ do
    over <- newCountdown n
    let go :: Int -> IO ()
        go 0 = arrive over
        go i = yield >> go (i - 1)
    spending (replicateM_ n (forkIO (go m)) >> await over) >>= say . perOperation (n * m)
  ("fork", [n]) -> Just $ do
    over <- newCountdown n
    spending (replicateM_ n (forkIO (arrive over)) >> await over) >>= say . perOperation n
  _ -> Nothing
