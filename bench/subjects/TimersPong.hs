-- |
-- Description : The pong server with timers
--
-- As "Pong", but for requests that come one at a time and in one piece. Each request arms a timer and cancels it, runs
-- an action with a limit of time, resets the connection's deadline, and waits for a tenth of a millisecond.
module Main (main) where

import Clock (IdleTimer, cancel, newIdleTimer, reset, schedule, threadDelay, timeout)
import Control.Monad (unless)
import Data.ByteString (ByteString)
import qualified Data.ByteString.Char8 as B
import Net (Socket, counters, recv, sendAll, serve)
import Setup (announce, subject)

main :: IO ()
main = subject counters $ \port -> serve port announce $ \socket -> newIdleTimer aMinute (pure ()) >>= pong socket

pong :: Socket -> IdleTimer -> IO ()
pong socket deadline = do
  bytes <- recv socket 4096
  unless (B.null bytes) $ do
    reset deadline
    schedule aMinute (pure ()) >>= cancel
    _ <- timeout aMinute (pure ())
    threadDelay 100
    sendAll socket response
    pong socket deadline

-- | In microseconds.
aMinute :: Int
aMinute = 60000000

response :: ByteString
response = B.pack "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nPong!"
