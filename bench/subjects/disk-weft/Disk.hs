-- |
-- Description : Reading a file with Weft
module Disk
  ( withDisk,
    Thread,
    plain,
    startAll,
  )
where

import Control.Concurrent (forkOn)
import Control.Monad (zipWithM_)
import Data.Int (Int64)
import Data.Word (Word8)
import Foreign.Ptr (Ptr)
import Weft.File

type Thread = IO

-- | An action that does not wait.
plain :: IO a -> Thread a
plain = id

-- | Pinned: a disk answers several reads at once, and GHC would move half of the threads that are ready then to the
-- other capability, each time.
startAll :: [Thread ()] -> IO ()
startAll = zipWithM_ forkOn [0 ..]

-- | Run with a function that reads from an offset into a buffer, past the page cache: how many bytes.
withDisk :: FilePath -> ((Int64 -> Ptr Word8 -> Int -> Thread Int) -> IO a) -> IO a
withDisk path act = withFile reading {openDirect = True} path $ \file ->
  act (\at p n -> countBytes <$> readBufAt file (Offset at) p (Count n))
