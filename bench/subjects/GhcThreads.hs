-- |
-- Description : The same of GHC's own threads
--
-- A switch, and the whole life of one.
module Main (main) where

import Control.Concurrent (forkIO, runInUnboundThread, yield)
import Control.Monad (replicateM_)
import Countdown
import Measure
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
      ("yield", [n, m]) -> do
        over <- newCountdown n
        let go :: Int -> IO ()
            go 0 = arrive over
            go i = yield >> go (i - 1)
        spending (replicateM_ n (forkIO (go m)) >> await over) >>= report (n * m)
      ("fork", [n]) -> do
        over <- newCountdown n
        spending (replicateM_ n (forkIO (arrive over)) >> await over) >>= report n
      _ -> expected
    expected = usage "yield THREADS TIMES | fork N"

report :: Int -> Spent -> IO ()
report n spent =
  say
    [ ("ns_per_op", 1e9 * spentWall spent / fromIntegral n),
      ("alloc_bytes_per_op", spentBytes spent / fromIntegral n),
      ("wall_s", spentWall spent),
      ("cpu_s", spentCpu spent)
    ]
