-- |
-- Sends back what it receives (the latency test of Voellmy, Wang, Hudak & Yamamoto 2013,
-- section 6.4), and closes a connection that is silent for a minute.
--
-- > echo [PORT] +RTS -N          nc 127.0.0.1 PORT
module Main (main) where

import Control.Monad (unless)
import qualified Data.ByteString as B
import Port (serverOn)
import Weft.Duration (seconds)
import Weft.Socket (Socket, deadlineIn, withDeadline)
import Weft.Socket.ByteString (recv, sendAll)

main :: IO ()
main = serverOn echo

echo :: Socket -> IO ()
echo sock = do
  minute <- deadlineIn (seconds 60)
  bytes <- recv (withDeadline minute sock) 4096
  unless (B.null bytes) (sendAll sock bytes >> echo sock)
