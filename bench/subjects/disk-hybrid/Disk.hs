-- |
-- Description : Reading a file in hybrid threads
module Disk
  ( withDisk,
    Thread,
    plain,
    startAll,
  )
where

import Control.Concurrent (forkOn, getNumCapabilities)
import Control.Monad (forM_)
import Data.Int (Int64)
import Data.Word (Word8)
import Foreign.Ptr (Ptr)
import qualified Weft.File as GHC
import Weft.Hybrid (Hybrid, fork, nonBlocking, run)
import Weft.Hybrid.File

type Thread = Hybrid

-- | An action that does not wait.
plain :: IO a -> Thread a
plain = nonBlocking

-- | An equal part of them on each loop.
startAll :: [Thread ()] -> IO ()
startAll threads = do
  loops <- getNumCapabilities
  forM_ [0 .. loops - 1] $ \i ->
    forkOn i (run (mapM_ fork [t | (k, t) <- zip [0 ..] threads, k `mod` loops == i]))

-- | Run with a function that reads from an offset into a buffer, past the page cache: how many bytes.
withDisk :: FilePath -> ((Int64 -> Ptr Word8 -> Int -> Thread Int) -> IO a) -> IO a
withDisk path act = GHC.withFile reading {openDirect = True} path $ \file ->
  act (\at p n -> countBytes <$> readBufAt file (Offset at) p (Count n))
