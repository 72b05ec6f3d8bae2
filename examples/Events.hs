-- |
-- An event-driven echo server that uses "Weft.Event" alone: the only thread is the one that runs the loop. It also
-- prints the number of connections every ten seconds.
--
-- > events [PORT]                nc 127.0.0.1 PORT
module Main (main) where

import Control.Concurrent (runInUnboundThread)
import Control.Exception (IOException, try)
import Control.Monad (void)
import qualified Data.ByteString as B
import Data.IORef
import qualified Network.Socket as N
import qualified Network.Socket.ByteString as N
import Port (portArgument)
import System.IO (hFlush, stdout)
import System.Posix.Types (Fd (..))
import Weft.Event

main :: IO ()
main = runInUnboundThread $ do
  manager <- new
  connected <- newIORef (0 :: Int)
  listener <- startListening
  address <- N.getSocketName listener
  putStrLn ("listening on " <> show address) >> hFlush stdout
  whenReadable manager listener $ \_ -> do
    (sock, _) <- N.accept listener
    modifyIORef' connected (+ 1)
    whenReadable manager sock (echo manager connected sock)
  report manager connected
  loop manager

startListening :: IO N.Socket
startListening = do
  port <- portArgument
  s <- N.socket N.AF_INET N.Stream N.defaultProtocol
  N.setSocketOption s N.ReuseAddr 1
  N.bind s (N.SockAddrInet (read port) (N.tupleToHostAddress (127, 0, 0, 1)))
  s <$ N.listen s 1024

whenReadable :: EventManager -> N.Socket -> (FdKey -> IO ()) -> IO ()
whenReadable manager sock act = do
  fd <- N.unsafeFdSocket sock
  registerFd_ manager (\key _events -> act key) (Fd fd) evtRead MultiShot

-- | Send the received bytes back. At the end of the stream, and after an error, the connection is closed. (A line fits
-- into the kernel's buffer. A program that sends more has to wait for evtWrite.)
echo :: EventManager -> IORef Int -> N.Socket -> FdKey -> IO ()
echo manager connected sock key = do
  got <- try (N.recv sock 4096 >>= \bytes -> bytes <$ N.sendAll sock bytes)
  case got :: Either IOException B.ByteString of
    Right bytes | not (B.null bytes) -> pure ()
    _ -> do
      modifyIORef' connected (subtract 1)
      closeFd manager (const (N.close sock)) (keyFd key)

report :: EventManager -> IORef Int -> IO ()
report manager connected = void . registerTimeout manager (seconds 10) $ do
  n <- readIORef connected
  putStrLn (show n <> " connected") >> hFlush stdout
  report manager connected
