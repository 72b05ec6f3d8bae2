-- |
-- Description : What hybrid threads cost
--
-- Their memory, a switch, the whole life of one, a million that sleep, work that is shared by two loops, and pairs that
-- talk through pipes (2007, section 5.1). One line of figures each.
module Main (main) where

import Control.Concurrent (getNumCapabilities, threadDelay)
import Control.Monad (forM, forM_, replicateM, replicateM_, void, when)
import Countdown
import Data.Word (Word8)
import Foreign.C.Types (CInt (..))
import Foreign.Marshal.Alloc (mallocBytes)
import Foreign.Ptr (Ptr, plusPtr)
import GHC.Clock (getMonotonicTime)
import Measure
import System.Exit (die)
import System.Posix.IO (createPipe)
import System.Posix.Types (Fd (..))
import Weft.Hybrid (Descriptor, Hybrid, adopt, fork, milliseconds, newEmptyMVar, nonBlocking, putMVar, ret, run, sleep, takeMVar, yield)
import Weft.Hybrid.Pipe
import qualified Weft.Hybrid.Scope as Scope
import Weft.Sys (WordArray, addWord, newWordArray, peekWord)

main :: IO ()
main = modes "memory N | yield THREADS TIMES | fork N | await N | scope N | sleep N | share N | fifo PAIRS IDLE SECONDS" $ \what ns -> case (what, ns) of
  ("memory", [n]) -> begun (memory n)
  ("yield", [n, m]) -> begun (switches n m)
  ("fork", [n]) -> begun (forks n)
  ("await", [n]) -> begun (awaits n)
  ("scope", [n]) -> begun (scopes n)
  ("sleep", [n]) -> begun (sleeps n)
  ("share", [n]) -> begun (share n)
  ("fifo", [pairs, idle, time]) -> begun (fifo pairs idle time)
  _ -> Nothing
  where
    -- The loops are there before.
    begun act = Just (run (pure ()) >> act)

-- | Threads that loop on yield, each with a number of its own: what the collector counts, once all have had a turn.
memory :: Int -> IO ()
memory n = do
  empty <- liveBytes
  started <- newCountdown n
  let looping, begin :: Int -> Hybrid ()
      -- The number is compared, as it would not be kept otherwise.
      looping k = if k < 0 then ret else yield >> looping (k + 1)
      begin k = nonBlocking (arrive started) >> looping k
      -- By a tree: one thread alone would have its turn once in a round of all.
      tree from to
        | to - from <= 256 = forM_ [from .. to - 1] (fork . begin)
        | otherwise = let middle = (from + to) `div` 2 in fork (tree from middle) >> tree middle to
  run (fork (tree 0 n))
  await started
  full <- liveBytes
  say [("live_bytes_per_thread", (full - empty) / fromIntegral n)]

switches :: Int -> Int -> IO ()
switches n m = do
  over <- newCountdown n
  let go :: Int -> Hybrid ()
      go 0 = nonBlocking (arrive over)
      go i = yield >> go (i - 1)
  spent <- spending (run (replicateM_ n (fork (go m))) >> await over)
  say (perOperation (n * m) spent)

forks :: Int -> IO ()
forks n = do
  over <- newCountdown n
  spent <- spending (run (replicateM_ n (fork (nonBlocking (arrive over)))) >> await over)
  say (perOperation n spent)

-- | One thread after the other that returns at once and is waited for, by an MVar.
awaits :: Int -> IO ()
awaits n = do
  spent <- spending . run . replicateM_ n $ do
    box <- newEmptyMVar
    fork (putMVar box ())
    takeMVar box
  say (perOperation n spent)

-- | The same in a scope.
scopes :: Int -> IO ()
scopes n = do
  spent <- spending . run . Scope.withScope $ \scope -> replicateM_ n (Scope.fork scope (pure ()) >>= Scope.await)
  say (perOperation n spent)

sleeps :: Int -> IO ()
sleeps n = do
  over <- newCountdown n
  spent <- spending (run (replicateM_ n (fork (sleep (milliseconds 1) >> nonBlocking (arrive over)))) >> await over)
  say (perOperation n spent)

-- | Threads that compute for 0.025 to 2.5 ms: how much longer it takes than an equal part of the work for each core.
share :: Int -> IO ()
share n = do
  cores <- getNumCapabilities
  alone <- spending (mapM_ (\c -> work c `seq` pure ()) costs)
  over <- newCountdown n
  spent <- spending (run (forM_ costs (\c -> fork (nonBlocking (work c `seq` arrive over)))) >> await over)
  say (("over_ideal_ratio", spentWall spent * fromIntegral cores / spentWall alone) : perOperation n spent)
  where
    costs = [((i * 7919) `mod` 100 + 1) * 20000 | i <- [1 .. n]]

work :: Int -> Int
work = go 0
  where
    go :: Int -> Int -> Int
    go acc 0 = acc
    go acc k = go (acc * 31 + k) (k - 1)
{-# NOINLINE work #-}

turnBytes :: Int
turnBytes = 32768

-- | Pairs that pass turns of 32 KiB to each other through pipes of 4 KiB, beside readers of idle pipes.
fifo :: Int -> Int -> Int -> IO ()
fifo pairs idle time = do
  moved <- newWordArray 64
  sleepers <- replicateM idle pipe
  spare <- mallocBytes 64
  ends <- forM [0 .. pairs - 1] $ \i -> (,,,,) i <$> mallocBytes turnBytes <*> mallocBytes turnBytes <*> pipe <*> pipe
  run $ do
    forM_ sleepers $ \(r, _) -> fork (void (readBuf r spare 1))
    forM_ ends $ \(i, here, there, (r1, w1), (r2, w2)) -> do
      fork (talk moved i here r2 w1 True)
      fork (talk moved i there r1 w2 False)
  threadDelay 1000000
  before <- total moved
  begun <- getMonotonicTime
  threadDelay (time * 1000000)
  behind <- total moved
  ended <- getMonotonicTime
  when (behind == before) (die "nothing moved")
  say [("gbit_per_s", 8e-9 * fromIntegral (behind - before) / (ended - begun))]
  where
    total cells = sum <$> mapM (peekWord cells) [0 .. 63]

talk :: WordArray -> Int -> Ptr Word8 -> Descriptor -> Descriptor -> Bool -> Hybrid ()
talk moved i buffer from to = go
  where
    go True = writeAllBuf to buffer turnBytes >> go False
    go False = receive 0 >> nonBlocking (void (addWord moved (i `mod` 64) turnBytes)) >> go True
    receive n
      | n >= turnBytes = pure ()
      | otherwise = readBuf from (buffer `plusPtr` n) (turnBytes - n) >>= \got -> receive (n + got)

-- | A pipe of 4 KiB.
pipe :: IO (Descriptor, Descriptor)
pipe = do
  (r@(Fd fd), w) <- createPipe
  _ <- c_fcntl fd fSetPipeSize 4096
  (,) <$> adopt r <*> adopt w
  where
    fSetPipeSize = 1031

foreign import ccall unsafe "fcntl" c_fcntl :: CInt -> CInt -> CInt -> IO CInt
