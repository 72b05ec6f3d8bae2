-- |
-- Description : The echo server
--
-- Sends back whatever comes, one blocking thread a connection.
module Main (main) where

import Control.Monad (unless)
import qualified Data.ByteString as B
import Net (Socket, counters, recv, sendAll, serve)
import Setup (announce, subject)

main :: IO ()
main = subject counters $ \port -> serve port announce echo

echo :: Socket -> IO ()
echo socket = do
  bytes <- recv socket 4096
  unless (B.null bytes) $ sendAll socket bytes >> echo socket
