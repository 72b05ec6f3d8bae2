-- |
-- Counts what arrives at Weft from code that knows nothing of it: base's, and that of
-- prebuilt libraries.
module Main (main) where

import Control.Concurrent
import qualified Data.ByteString.Char8 as B
import GHC.Clock (getMonotonicTime)
import qualified GHC.Conc as C
import Network.Socket
import Network.Socket.ByteString (recv, sendAll)
import System.IO
import qualified System.Process as P
import System.Timeout
import Weft.Metrics

main :: IO ()
main = do
  counted "network's recv" metricsWaits $ do
    (a, b) <- socketPair AF_UNIX Stream defaultProtocol
    t <- forkIO (threadDelay 20000 >> sendAll a (B.pack "x"))
    _ <- recv b 10
    killThread t
    close a >> close b
  counted "a Handle's hGetLine" metricsWaits $ do
    (r, w) <- P.createPipe
    _ <- forkIO (threadDelay 20000 >> hPutStrLn w "x" >> hFlush w)
    _ <- hGetLine r
    hClose r >> hClose w
  counted "threadDelay" metricsTimersFired (threadDelay 20000)
  counted "registerDelay" metricsTimersFired (C.registerDelay 20000 >> threadDelay 30000)
  counted "timeout" metricsTimersFired (timeout 20000 (newEmptyMVar >>= takeMVar :: IO ()))
  where
    counted what metric act = do
      before <- total metric <$> readMetrics
      _ <- act
      -- A dispatcher counts after it has woken us, on a busy machine some time after; another delay would be counted
      -- too.
      end <- (+ 1) <$> getMonotonicTime
      let spin = do
            after <- total metric <$> readMetrics
            now <- getMonotonicTime
            if after > before || now > end then pure after else yield >> spin
      after <- spin
      putStrLn (what <> ": " <> show (after > before))
