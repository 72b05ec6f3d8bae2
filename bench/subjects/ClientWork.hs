-- |
-- Description : The work of a client
--
-- What the subjects of the benchmark @client@ share: many threads that make requests over kept connections, such
-- requests by the package @http-client@, and threads that are awaited one after the other.
module ClientWork
  ( requests,
    together,
    counted,
    httpClient,
    awaited,
  )
where

import Control.Concurrent (forkIO)
import Control.Monad (forM_, replicateM_, unless, void)
import Countdown
import qualified Data.ByteString.Lazy as L
import Measure
import Network.HTTP.Client hiding (port)
import System.Exit (die)

-- | So many threads make a request so many times each, after some that do not count. The request returns the number of
-- bytes of its answer's body, which is known.
requests :: Int -> Int -> Int -> IO Int -> IO ()
requests size threads each ask = counted (threads * each) (run 50) (run each)
  where
    run n = together threads (const (replicateM_ n once))
    once = do
      got <- ask
      unless (got == 1024 * size) (die "not the answer that was expected")

-- | Run an action in so many threads at once, which it gets the number of, and wait for their ends.
together :: Int -> (Int -> IO ()) -> IO ()
together threads act = do
  over <- newCountdown threads
  forM_ [0 .. threads - 1] (\i -> void (forkIO (act i >> arrive over)))
  await over

-- | Run what does not count, then what is so many operations, and say what each of them took.
counted :: Int -> IO () -> IO () -> IO ()
counted n warm act = do
  warm
  spent <- spending act
  let count = fromIntegral n
  say
    [ ("wall_s", spentWall spent),
      ("cpu_s", spentCpu spent),
      ("ops_per_s", count / spentWall spent),
      ("cpu_us_per_op", 1e6 * spentCpu spent / count),
      ("alloc_bytes_per_op", spentBytes spent / count)
    ]

-- | The same by @http-client@, with these settings.
httpClient :: ManagerSettings -> Int -> Int -> Int -> Int -> IO ()
httpClient settings port size threads each = do
  manager <- newManager settings {managerConnCount = threads, managerIdleConnectionCount = threads}
  request <- parseRequest ("http://127.0.0.1:" ++ show port ++ "/" ++ show size ++ "k")
  requests size threads each (fromIntegral . L.length . responseBody <$> httpLbs request manager)

-- | Run an action so many times, which forks a thread and awaits it.
awaited :: Int -> IO () -> IO ()
awaited n act = spending (replicateM_ n act) >>= say . perOperation n
