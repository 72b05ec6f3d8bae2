-- |
-- Description : Random reads past the page cache
--
-- A given number of threads read blocks of 4 KiB at random offsets of a file (2007, figure 17), and share a given
-- number of reads: GHC's threads or hybrid ones, by the module @Disk@. Every thread has its own sequence of offsets,
-- which is the same in every run. At most a thousand buffers are used, as the benchmark measures the reads and not
-- the memory of waiting threads.
module Main (main) where

import Control.Concurrent (runInUnboundThread)
import Control.Monad (replicateM, when)
import Countdown
import Data.Array (Array, bounds, listArray, (!))
import Data.Bits (shiftL, shiftR, xor)
import Data.IORef
import Data.Word (Word64, Word8)
import Disk
import Foreign.ForeignPtr (ForeignPtr, touchForeignPtr)
import Foreign.ForeignPtr.Unsafe (unsafeForeignPtrToPtr)
import GHC.ForeignPtr (mallocPlainForeignPtrAlignedBytes)
import Measure
import System.Directory (listDirectory)
import System.Exit (die)
import System.Posix.Files (fileSize, getFileStatus)
import Text.Read (readMaybe)

main :: IO ()
main = do
  given <- arguments
  case given of
    [file, threads, reads']
      | Just n <- readMaybe threads, Just count <- readMaybe reads', n > 0, count > 0 -> runInUnboundThread (disk file n count)
    _ -> usage "FILE THREADS READS"

block :: Int
block = 4096

disk :: FilePath -> Int -> Int -> IO ()
disk file threads count = do
  size <- fromIntegral . fileSize <$> getFileStatus file
  when (size < block) (die "the file is too small")
  buffers <- replicateM (min 1024 threads) (mallocPlainForeignPtrAlignedBytes block block)
  failed <- newIORef (0 :: Int)
  withDisk file $ \readBlock -> do
    finished <- newCountdown threads
    let table = listArray (0, length buffers - 1) buffers :: Array Int (ForeignPtr Word8)
        one p place = do
          n <- readBlock (fromIntegral ((place `shiftR` 11) `mod` fromIntegral (size `div` block)) * fromIntegral block) p block
          when (n /= block) (plain (atomicModifyIORef' failed (\k -> (k + 1, ()))))
        -- A thread counts for itself: one counter for all would be what is measured.
        share i = count `div` threads + (if i < count `mod` threads then 1 else 0)
        thread i = do
          readSome (share i) (one (unsafeForeignPtrToPtr (table ! (i `mod` (snd (bounds table) + 1))))) (fromIntegral i * 0x9e3779b97f4a7c15 + 1)
          plain (arrive finished)
    spent <- spending (startAll (map thread [0 .. threads - 1]) >> await finished)
    mapM_ touchForeignPtr buffers
    osThreads <- length <$> listDirectory "/proc/self/task"
    wrong <- readIORef failed
    if wrong /= 0
      then die (show wrong ++ " reads were short")
      else
        say
          [ ("ops_per_s", fromIntegral count / spentWall spent),
            ("cpu_us_per_op", 1e6 * spentCpu spent / fromIntegral count),
            ("alloc_bytes_per_op", spentBytes spent / fromIntegral count),
            ("os_threads", fromIntegral osThreads),
            ("wall_s", spentWall spent),
            ("cpu_s", spentCpu spent)
          ]
  hear

-- | This many reads, at the places of a generator (xorshift).
readSome :: Int -> (Word64 -> Thread ()) -> Word64 -> Thread ()
readSome count one = go count
  where
    go 0 _ = pure ()
    go n x0 = do
      let x1 = x0 `xor` (x0 `shiftL` 13)
          x2 = x1 `xor` (x1 `shiftR` 7)
          x3 = x2 `xor` (x2 `shiftL` 17)
      one x3
      go (n - 1) x3
