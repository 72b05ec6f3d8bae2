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
    -- An abandoned open may still create a file while the folder is being emptied.
    remove tries folder =
      removePathForcibly folder `catch` \e ->
        if tries > 0 then threadDelay 20000 >> remove (tries - 1) folder else throwIO (e :: IOException)

-- | A file in a new folder, on the disk, with this many bytes of 'marked'.
withBytes :: Int -> (FilePath -> IO a) -> IO a
withBytes n act = withFolder $ \folder -> do
  let path = folder </> "file"
  B.writeFile path (marked 0 n)
  bracket (openBinaryFile path AppendMode >>= handleToFd) closeFd fileSynchronise
  act path

-- | Bytes of a pattern that depends on the offset. Arguments: the offset, the number of bytes.
marked :: Int -> Int -> B.ByteString
marked from n = fst (B.unfoldrN n (\i -> Just (fromIntegral (i * 7 + i `div` 251), i + 1)) from)
