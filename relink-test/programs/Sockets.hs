-- |
-- The library @network@, as Debian built it: a server and a hundred clients in one
-- process.
module Main (main) where

import Control.Concurrent
import Control.Concurrent.Async
import Control.Exception
import Control.Monad
import qualified Data.ByteString.Char8 as B
import Network.Socket
import Network.Socket.ByteString (recv, sendAll)
import System.Timeout

main :: IO ()
main = withSocketsDo . bracket (socket AF_INET Stream defaultProtocol) close $ \l -> do
  bind l (SockAddrInet 0 (tupleToHostAddress (127, 0, 0, 1)))
  listen l 200
  address <- getSocketName l
  server <- async . forever $ do
    (s, _) <- accept l
    forkFinally (echo s) (const (close s))
  sums <- forConcurrently [1 .. 100 :: Int] $ \i -> bracket (socket AF_INET Stream defaultProtocol) close $ \s -> do
    connect s address
    fmap sum . forM [1 .. 50 :: Int] $ \j -> do
      sendAll s (B.pack (show (i * j) <> "\n"))
      read . B.unpack <$> recv s 100
  say "echoed" (sum sums :: Int)
  -- A reader with a time limit, and one whose socket is closed by another thread.
  bracket (socket AF_INET Stream defaultProtocol) close $ \s -> do
    connect s address
    timeout 30000 (recv s 10) >>= say "nothing comes"
    sendAll s (B.pack "still")
    recv s 10 >>= say "afterwards"
  s <- socket AF_INET Stream defaultProtocol
  connect s address
  waiting <- async (try (recv s 10))
  threadDelay 30000
  close s
  r <- wait waiting
  say "closed" (either (\e -> const "an IOException" (e :: IOException)) show r)
  cancel server
  where
    say what x = putStrLn (what <> ": " <> show x)
    echo s = recv s 4096 >>= \bs -> unless (B.null bs) (sendAll s bs >> echo s)
