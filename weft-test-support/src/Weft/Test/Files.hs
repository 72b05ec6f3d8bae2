-- |
-- Folders and files for tests, on a disk.
module Weft.Test.Files
  ( withFolder,
    withBytes,
    marked,
  )
where

import Control.Concurrent (threadDelay)
import Control.Exception (IOException, bracket, catch, throwIO)
import qualified Data.ByteString as B
import System.Directory (removePathForcibly)
import System.FilePath ((</>))
import System.IO (IOMode (AppendMode), openBinaryFile)
import System.Posix.IO (closeFd, handleToFd)
import System.Posix.Temp (mkdtemp)
import System.Posix.Unistd (fileSynchronise)

-- | A new folder, on a disk: a memory file system has nothing to wait for.
withFolder :: (FilePath -> IO a) -> IO a
withFolder = bracket (mkdtemp "/var/tmp/weft-files-") (remove (50 :: Int))
  where
    -- An opening for which nobody waits any more may still make a file while the folder is being emptied.
    remove tries folder =
      removePathForcibly folder `catch` \e ->
        if tries > 0 then threadDelay 20000 >> remove (tries - 1) folder else throwIO (e :: IOException)

-- | A file with so many bytes of the marked, written to the disk, in a new folder.
withBytes :: Int -> (FilePath -> IO a) -> IO a
withBytes n act = withFolder $ \folder -> do
  let path = folder </> "file"
  B.writeFile path (marked 0 n)
  bracket (openBinaryFile path AppendMode >>= handleToFd) closeFd fileSynchronise
  act path

-- | So many bytes that tell where they stand, from an offset on.
marked :: Int -> Int -> B.ByteString
marked from n = fst (B.unfoldrN n (\i -> Just (fromIntegral (i * 7 + i `div` 251), i + 1)) from)
