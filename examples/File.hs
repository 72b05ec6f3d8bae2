-- |
-- The second server of O'Sullivan & Tibell 2010, section 9.1: opens a file of 4,332
-- bytes for each request and has the kernel send it.
--
-- > file [PORT] +RTS -N          curl http://127.0.0.1:PORT/
module Main (main) where

import Control.Exception (finally)
import Control.Monad (unless)
import qualified Data.ByteString.Char8 as B
import Port (serverOn)
import System.Directory (getTemporaryDirectory, removeFile)
import System.IO (hClose, openBinaryTempFile)
import Weft.Socket (sendFile)
import Weft.Socket.ByteString (recv, sendAll)

main :: IO ()
main = do
  (path, h) <- getTemporaryDirectory >>= (`openBinaryTempFile` "weft-example")
  B.hPut h (B.take size (B.concat (replicate size (B.pack "woven from events and threads\n"))))
  hClose h
  serverOn (answer path) `finally` removeFile path
  where
    answer path sock = do
      request <- recv sock 4096
      unless (B.null request) $ do
        sendAll sock (B.pack ("HTTP/1.1 200 OK\r\nContent-Length: " <> show size <> "\r\n\r\n"))
        sendFile sock path
        answer path sock
    size = 4332
