-- |
-- The smallest web server (O'Sullivan & Tibell 2010, section 9.1): answers every
-- request with the same five letters.
--
-- > pong [PORT] +RTS -N          curl http://127.0.0.1:PORT/
module Main (main) where

import Control.Monad (unless)
import qualified Data.ByteString.Char8 as B
import Port (serverOn)
import Weft.Socket.ByteString (recv, sendAll)

main :: IO ()
main = serverOn $ \sock ->
  let loop = do
        request <- recv sock 4096
        unless (B.null request) (sendAll sock answer >> loop)
   in loop

answer :: B.ByteString
answer = B.pack "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nPong!"
