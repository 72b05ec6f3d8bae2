-- |
-- The server of Voellmy, Wang, Hudak & Yamamoto 2013, figure 4: requests of a fixed
-- length, one thread for each client, written with the names of the @network@
-- package alone.
--
-- > SimpleServer [PORT] +RTS -N
module Main (main) where

import Control.Concurrent (forkIO, runInUnboundThread)
import Control.Exception (finally)
import Control.Monad (forever, unless, void)
import qualified Data.ByteString.Char8 as B
import Port (portArgument)
import System.IO (hFlush, stdout)
import Weft.Socket
import Weft.Socket.ByteString (recv, sendAll)

main :: IO ()
main = runInUnboundThread $ do
  listener <- startListening
  address <- getSocketName listener
  putStrLn ("listening on " <> show address) >> hFlush stdout
  forever $ do
    (sock, _) <- accept listener
    void (forkIO (worker sock `finally` close sock))

startListening :: IO Socket
startListening = do
  port <- portArgument
  s <- socket AF_INET Stream defaultProtocol
  setSocketOption s ReuseAddr 1
  bind s (SockAddrInet (read port) (tupleToHostAddress (127, 0, 0, 1)))
  listen s 1024
  pure s

-- | Send a response for each complete request.
worker :: Socket -> IO ()
worker sock = loop requestLength
  where
    loop 0 = sendAll sock reply >> loop requestLength
    loop left = do
      bytes <- recv sock left
      unless (B.null bytes) (loop (left - B.length bytes))
    requestLength = 16

reply :: B.ByteString
reply = B.pack "sixteen bytes...\n"
