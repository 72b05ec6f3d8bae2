{-# LANGUAGE BangPatterns #-}
{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : The pong server
--
-- Answers every request head with the same few bytes: one blocking thread a connection, one @recv@ and one
-- @sendAll@ a request. Requests may come in pieces or several at a time.
module Main (main) where

import Control.Monad (unless)
import Data.Bits (shiftL, shiftR, (.&.))
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Data.Word (Word8)
import Net (Socket, counters, recv, sendAll, serve)
import Setup (announce, subject)

main :: IO ()
main = subject counters $ \port -> serve port announce pong

pong :: Socket -> IO ()
pong socket = loop 0
  where
    loop !seen = do
      bytes <- recv socket 4096
      unless (B.null bytes) $ do
        let scanned = scan seen bytes
        answer (scanned `shiftR` 2)
        loop (scanned .&. 3)
    answer :: Int -> IO ()
    answer heads
      | heads == 1 = sendAll socket response
      | heads > 1 = sendAll socket (B.concat (replicate heads response))
      | otherwise = pure ()

response :: ByteString
response = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nPong!"

-- | How many heads end in these bytes, and how much of the next one's end mark (CR LF CR LF) they end with: the
-- count is shifted left by two bits, the low two bits are the part of the mark. The argument is the part seen before.
scan :: Int -> ByteString -> Int
scan = B.foldl' step
  where
    step :: Int -> Word8 -> Int
    step !state byte
      | byte == expected = state + 1 -- after the fourth byte this carries into the count
      | byte == cr = heads + 1
      | otherwise = heads
      where
        part = state .&. 3
        heads = (state `shiftR` 2) `shiftL` 2
        expected = if even part then cr else lf
    cr = 13
    lf = 10
