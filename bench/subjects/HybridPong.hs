{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : The pong server on hybrid threads
--
-- As "Pong", with a hybrid thread a connection. It serves requests that come one at a time and in one piece, which
-- is what the load generator sends.
module Main (main) where

import Control.Monad (forever, unless)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Setup (announce, subject)
import Weft.Hybrid
import qualified Weft.Socket as Weft

main :: IO ()
main = subject (pure []) $ \port -> do
  listening <- Weft.socket Weft.AF_INET Weft.Stream Weft.defaultProtocol
  Weft.setSocketOption listening Weft.ReuseAddr 1
  Weft.bind listening (SockAddrInet (fromIntegral port) (Weft.tupleToHostAddress (127, 0, 0, 1)))
  Weft.listen listening 4096
  Weft.socketPort listening >>= announce . fromIntegral
  run $ do
    listener <- fromSocket listening
    forever (accept listener >>= \(sock, _) -> fork (pong sock))

pong :: Socket -> Hybrid ()
pong sock = (serve `catch` gone) >> close sock
  where
    gone :: IOError -> Hybrid ()
    gone _ = pure ()
    serve = do
      bytes <- recv sock 4096
      unless (B.null bytes) (sendAll sock response >> serve)

response :: ByteString
response = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nPong!"
