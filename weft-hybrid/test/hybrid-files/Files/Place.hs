-- |
-- Folders and files for tests.
module Files.Place
  ( withFolder,
    withBytes,
    marked,
    uncached,
    openDescriptors,
  )
where

import Control.Concurrent (threadDelay)
import Control.Exception (IOException, bracket, catch, throwIO)
import qualified Data.ByteString as B
import System.Directory (listDirectory, removePathForcibly)
import System.FilePath ((</>))
import System.Posix.Temp (mkdtemp)
import qualified Weft.File as GHC
import Weft.Hybrid.File

-- | A new folder, on a disk: a memory file system has nothing to wait for.
withFolder :: (FilePath -> IO a) -> IO a
withFolder = bracket (mkdtemp "/var/tmp/weft-hybrid-files-") (remove (50 :: Int))
  where
    -- An opening for which nobody waits any more may still make a file while the folder is being emptied.
    remove tries folder =
      removePathForcibly folder `catch` \e ->
        if tries > 0 then threadDelay 20000 >> remove (tries - 1) folder else throwIO (e :: IOException)

-- | A file with so many bytes of the marked, on the disk, in a new folder.
withBytes :: Int -> (FilePath -> IO a) -> IO a
withBytes n act = withFolder $ \folder -> do
  let path = folder </> "file"
  GHC.withFile writing path $ \file -> GHC.writeAt file 0 (marked 0 n) >> GHC.sync file
  act path

-- | So many bytes that tell where they stand, from an offset on.
marked :: Int -> Int -> B.ByteString
marked from n = fst (B.unfoldrN n (\i -> Just (fromIntegral (i * 7 + i `div` 251), i + 1)) from)

-- | Read past the page cache, so that every read waits for the disk.
uncached :: OpenMode
uncached = reading {openDirect = True}

-- | How many the process has.
openDescriptors :: IO Int
openDescriptors = length <$> listDirectory "/proc/self/fd"
