-- |
-- Description : What hybrid threads cost: sleeping, FIFO pairs, idle sessions, sharing
module Main (main) where

import Control.Concurrent (getNumCapabilities, newEmptyMVar, putMVar, runInUnboundThread, takeMVar, threadDelay)
import qualified Control.Concurrent as GHC
import Control.Monad (forM, forM_, replicateM, replicateM_, void, when)
import qualified Data.ByteString.Char8 as B
import Data.Word (Word8)
import Foreign.C.Types (CInt (..))
import Foreign.Marshal.Alloc (mallocBytes)
import Foreign.Ptr (Ptr, plusPtr)
import GHC.Clock (getMonotonicTime)
import System.Environment (getArgs)
import System.Mem (performMajorGC)
import System.Posix.IO (createPipe)
import System.Posix.Types (Fd (..))
import Weft.Hybrid.Bridge
import Weft.Hybrid.Descriptor
import Weft.Hybrid.Monad
import Weft.Hybrid.Pipe
import Weft.Hybrid.Socket
import Weft.Hybrid.Timer
import qualified Weft.Socket as GHC
import Weft.Sys (Cells, addCell, newCells, peekCell)

foreign import ccall unsafe "fcntl" c_fcntl :: CInt -> CInt -> CInt -> IO CInt

main :: IO ()
main = runInUnboundThread $ do
  args <- getArgs
  run (pure ())
  case args of
    ["fork", n] -> forks (read n)
    ["sleep", n] -> sleeps (read n)
    ["fifo", pairs, idlers, s] -> fifo (read pairs) (read idlers) (read s)
    ["idle", n, active, s] -> idle (read n) (read active) (read s)
    ["steal", n] -> steal (read n)
    _ -> fail "usage: fork N | sleep N | fifo PAIRS IDLE SECONDS | idle N ACTIVE SECONDS | steal N"

-- | Counts down to a wake-up.
data Countdown = Countdown !Cells !(GHC.MVar ())

countdown :: Int -> IO Countdown
countdown n = do
  c <- newCells 1
  void (addCell c 0 n)
  Countdown c <$> newEmptyMVar

arrive :: Countdown -> IO ()
arrive (Countdown c done) = do
  before <- addCell c 0 (-1)
  when (before == 1) (putMVar done ())

await :: Countdown -> IO ()
await (Countdown _ done) = takeMVar done

timed :: String -> IO a -> IO Double
timed what act = do
  a <- getMonotonicTime
  _ <- act
  b <- getMonotonicTime
  putStrLn (what <> ": " <> show (b - a) <> " s")
  pure (b - a)

forks :: Int -> IO ()
forks n = do
  all' <- countdown n
  t <- timed "fork and end" (run (replicateM_ n (fork (nonBlocking (arrive all')))) >> await all')
  putStrLn (show (1e9 * t / fromIntegral n) <> " ns each")
  every <- countdown n
  t' <- timed "the same with forkIO" (replicateM_ n (GHC.forkIO (arrive every)) >> await every)
  putStrLn (show (1e9 * t' / fromIntegral n) <> " ns each, ratio " <> show (t / t'))

sleeps :: Int -> IO ()
sleeps n = do
  all' <- countdown n
  void . timed "sleep 1 ms" $ run (replicateM_ n (fork (sleep (milliseconds 1) >> nonBlocking (arrive all')))) >> await all'
  status <- readFile "/proc/self/status"
  mapM_ putStrLn (filter (\l -> take 5 l `elem` ["VmHWM", "VmRSS"]) (lines status))

turnBytes :: Int
turnBytes = 32768

-- | Figure 18: turns of 32 KiB each way through pipes of 4 KiB.
fifo :: Int -> Int -> Int -> IO ()
fifo pairs idlers s = do
  moved <- newCells 64
  buffers <- replicateM (2 * pairs) (mallocBytes turnBytes)
  ends <- forM (zip [0 ..] (couples buffers)) $ \(i, (b1, b2)) -> do
    (r1, w1) <- pipe
    (r2, w2) <- pipe
    pure (i, b1, b2, r1, w1, r2, w2)
  sleepers <- replicateM idlers pipe
  spare <- mallocBytes 64
  run $ do
    forM_ sleepers $ \(r, _) -> fork (void (readBuf r spare 1))
    forM_ ends $ \(i, b1, b2, r1, w1, r2, w2) -> do
      fork (talk moved i b1 r2 w1 True)
      fork (talk moved i b2 r1 w2 False)
  threadDelay 500000
  before <- total moved
  a <- getMonotonicTime
  threadDelay (s * 1000000)
  after' <- total moved
  b <- getMonotonicTime
  putStrLn (show (fromIntegral (after' - before) / (b - a) / 1e6) <> " MB/s")
  where
    couples (x : y : rest) = (x, y) : couples rest
    couples _ = []
    total c = sum <$> mapM (peekCell c) [0 .. 63]
    talk :: Cells -> Int -> Ptr Word8 -> Descriptor -> Descriptor -> Bool -> Hybrid ()
    talk moved i buf r w = go
      where
        go True = writeAllBuf w buf turnBytes >> go False
        go False = readAll 0 >> nonBlocking (void (addCell moved (i `mod` 64) turnBytes)) >> go True
        readAll n
          | n >= turnBytes = pure ()
          | otherwise = readBuf r (buf `plusPtr` n) (turnBytes - n) >>= \got -> readAll (n + got)

pipe :: IO (Descriptor, Descriptor)
pipe = do
  (r@(Fd n), w) <- createPipe
  _ <- c_fcntl n 1031 4096
  (,) <$> adopt r <*> adopt w

-- | Idle sessions beside active ones, all in this process: resident bytes an idle session (two ends).
idle :: Int -> Int -> Int -> IO ()
idle n active s = do
  served <- newCells 1
  pairsOf <- replicateM n pair
  performMajorGC
  threadDelay 200000
  before <- resident
  run
    ( forM_ pairsOf $ \(a, _) -> do
        sock <- fromSocket' a
        fork (session sock)
    )
  performMajorGC
  performMajorGC
  threadDelay 200000
  after' <- resident
  putStrLn ("resident bytes an idle session: " <> show (fromIntegral (after' - before) / fromIntegral n :: Double))
  busy <- replicateM active pair
  forM_ busy $ \(a, b) -> run $ do
    x <- fromSocket' a
    y <- fromSocket' b
    fork (session x)
    fork (client served y)
  a <- getMonotonicTime
  threadDelay (s * 1000000)
  b <- getMonotonicTime
  k <- peekCell served 0
  putStrLn (show (fromIntegral k / (b - a)) <> " requests/s")
  later <- resident
  putStrLn ("after the load: " <> show (fromIntegral (later - before) / fromIntegral n :: Double))
  mapM_ (\(x, y) -> GHC.close x >> GHC.close y) pairsOf
  where
    pair = GHC.socketPair GHC.AF_UNIX GHC.Stream 0
    fromSocket' = fromSocket
    session sock = do
      bytes <- recv sock 4096
      if B.null bytes then close sock else sendAll sock bytes >> session sock
    client served sock = do
      sendAll sock (B.pack "hello")
      _ <- recv sock 4096
      nonBlocking (void (addCell served 0 1))
      client served sock

resident :: IO Int
resident = do
  status <- readFile "/proc/self/status"
  pure (sum [1024 * read (words l !! 1) | l <- lines status, take 5 l == "VmRSS"])

-- | Unequal threads that compute: seconds, and how far from ideal.
steal :: Int -> IO ()
steal n = do
  caps <- getNumCapabilities
  every <- countdown n
  let costs = [((i * 7919) `mod` 100 + 1) * 20000 | i <- [1 .. n]]
  alone <- timed "one thread" (mapM_ (\c -> work c `seq` pure ()) costs)
  t <- timed "threads" (run (forM_ costs (\c -> fork (nonBlocking (work c `seq` arrive every)))) >> await every)
  putStrLn ("over ideal: " <> show (t / (alone / fromIntegral caps)))

work :: Int -> Int
work c = go c 0
  where
    go :: Int -> Int -> Int
    go 0 acc = acc
    go k acc = go (k - 1) (acc * 31 + k)
{-# NOINLINE work #-}
