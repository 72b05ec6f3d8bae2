{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : Many files, and a page cache without them
--
-- A set of files takes a minute to make and is kept between runs, in the user's directory for caches (@XDG_CACHE_HOME@,
-- usually @~/.cache@), which must be on a disk.
module Weft.Tools.Bench.Cold
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
import System.IO (IOMode (ReadMode), hPutStrLn, openBinaryFile, stderr)
import System.Posix.Fcntl (Advice (AdviceDontNeed), fileAdvise)
import System.Posix.IO (closeFd, handleToFd)
import System.Process (callProcess, readProcess)
import Text.Read (readMaybe)
import Weft.Tools.Bench.Types

-- | A folder with so many files of so many KiB, called @f0@ and so on, all on the disk. Made if it is not there;
-- refused when that would leave the disk without a tenth more.
manyFiles :: Int -> Int -> IO FilePath
manyFiles count kib = do
  cache <- getXdgDirectory XdgCache "weft"
  let folder = cache </> "files-" <> show count <> "x" <> show kib <> "k"
      unfinished = folder <> ".unfinished"
  there <- doesDirectoryExist folder
  unless there $ do
    createDirectoryIfMissing True cache
    -- The file system has blocks of 4 KiB, and something to note about each file.
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

-- | Have the page cache forget the files: with everything else in it, where we may say so to the kernel
-- (proc_sys_vm(5)), else file by file (posix_fadvise(2)), which leaves it their names and sizes.
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
say = hPutStrLn stderr . ("weft bench: " <>)
