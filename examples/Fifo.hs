-- |
-- Pairs of threads that send 32 KiB back and forth through pipes, beside many threads that wait for idle
-- pipes (Li & Zdancewic 2007, figure 18).
--
-- > fifo [PAIRS [IDLE [SECONDS]]] +RTS -N
module Main (main) where

import Control.Monad (forM_, forever, replicateM_)
import qualified Data.ByteString as B
import Data.IORef
import System.Environment (getArgs)
import System.Posix.IO (createPipe)
import Weft.Hybrid

main :: IO ()
main = do
  args <- map read <$> getArgs
  let (pairs, idle, time) = case args ++ drop (length args) [128, 1000, 5] of
        p : i : s : _ -> (p, i, s)
        _ -> (128, 1000, 5)
  moved <- newIORef (0 :: Int)
  run $ do
    replicateM_ idle (pipe >>= \(end, _) -> fork (() <$ readBytes end 1))
    forM_ [1 .. pairs] $ \_ -> do
      (fromB, toA) <- pipe
      (fromA, toB) <- pipe
      fork (forever (writeBytes toB turn >> receive fromB))
      fork (forever (receive fromA >> count moved >> writeBytes toA turn))
    sleep (seconds (fromIntegral time))
  n <- readIORef moved
  putStrLn (show (2 * n * B.length turn `div` (time * 1000000)) <> " MB/s, " <> show idle <> " idle")
  where
    count moved = nonBlocking (atomicModifyIORef' moved (\n -> (n + 1, ())))

turn :: B.ByteString
turn = B.replicate 32768 0

-- | A new pipe: the read end and the write end.
pipe :: Hybrid (Descriptor, Descriptor)
pipe = nonBlocking (createPipe >>= \(r, w) -> (,) <$> adopt r <*> adopt w)

-- | Receive all bytes of a turn.
receive :: Descriptor -> Hybrid ()
receive end = go (B.length turn)
  where
    go 0 = pure ()
    go n = readBytes end n >>= \bytes -> go (n - B.length bytes)
