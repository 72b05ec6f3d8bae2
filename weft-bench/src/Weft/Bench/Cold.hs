{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : Many files that are not in the page cache
--
-- Creating the files takes a minute, so they are kept between runs, in the user's cache directory (@XDG_CACHE_HOME@,
-- usually @~/.cache@), which must be on a disk.
module Weft.Bench.Cold
  ( manyFiles,
    forgetFiles,
  )
where

import Control.Exception (IOException, bracket, try)
import Control.Monad (forM_, unless, when)
import qualified Data.ByteString as B
import qualified Data.Text as T
import System.Directory
import System.FilePath ((</>))
import System.IO (IOMode (ReadMode), openBinaryFile)
import System.Posix.Fcntl (Advice (AdviceDontNeed), fileAdvise)
import System.Posix.IO (closeFd, handleToFd)
import System.Process (callProcess, readProcess)
import Text.Read (readMaybe)
import Weft.Bench.Types
import Weft.Tools.StandardError (reportLine)

-- | A folder with the given number of files of the given size in KiB, called @f0@ and so on, all written to the disk.
-- Created if it does not exist; refused if less than a tenth of the needed space would remain free.
manyFiles :: Int -> Int -> IO FilePath
manyFiles count kib = do
  cache <- getXdgDirectory XdgCache "weft"
  let folder = cache </> "files-" <> show count <> "x" <> show kib <> "k"
      unfinished = folder <> ".unfinished"
  there <- doesDirectoryExist folder
  unless there $ do
    createDirectoryIfMissing True cache
    -- The file system has blocks of 4 KiB, and needs some space for each file's metadata.
    checkRoom cache (count * (kib + 1) * 1024)
    say ("making " <> show count <> " files of " <> show kib <> " KiB in " <> folder <> " (they are kept there)")
    removePathForcibly unfinished
    createDirectory unfinished
    forM_ [0 .. count - 1] $ \i -> do
      B.writeFile (unfinished </> "f" <> show i) (contents i)
      when (i `mod` 16384 == 16383) (say (show (i + 1) <> " of " <> show count <> " files"))
    callProcess "sync" []
    renameDirectory unfinished folder
  pure folder
  where
    contents i = fst (B.unfoldrN (1024 * kib) (\n -> Just (fromIntegral (n + n `div` 251), n + 1)) i)

checkRoom :: FilePath -> Int -> IO ()
checkRoom folder needed = do
  said <- readProcess "df" ["--output=avail", "-B1", folder] ""
  case mapM readMaybe (drop 1 (lines said)) of
    Just [free]
      | free >= needed + needed `div` 10 -> pure ()
      | otherwise -> failWith ("the files need " <> gigabytes needed <> " in " <> T.pack folder <> ", where " <> gigabytes free <> " are free")
    _ -> pure ()
  where
    gigabytes n = T.pack (show (fromIntegral (n `div` 10000000) / 100 :: Double)) <> " GB"

-- | Evict the files from the page cache: by dropping the whole cache if permitted
-- (proc_sys_vm(5)), or else file by file (posix_fadvise(2)), which keeps the cached names and sizes.
forgetFiles :: FilePath -> Int -> IO ()
forgetFiles folder count = do
  dropped <- try (writeFile "/proc/sys/vm/drop_caches" "3\n")
  case dropped of
    Right () -> pure ()
    Left e -> const (forM_ [0 .. count - 1] forget) (e :: IOException)
  where
    forget i = bracket (openBinaryFile (folder </> "f" <> show i) ReadMode >>= handleToFd) closeFd $ \fd ->
      fileAdvise fd 0 0 AdviceDontNeed

say :: String -> IO ()
say = reportLine . ("weft-bench: " <>)
