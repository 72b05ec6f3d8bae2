{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : Files for servers and readers
--
-- Created in the scratch directory when first needed.
module Weft.Bench.Folders
  ( smallFolder,
    behindFolder,
    rudeFolder,
    bigFile,
    rootArguments,
    rootArgumentsOn,
    folderWith,
  )
where

import Control.Exception (onException)
import Control.Monad (replicateM_, unless)
import qualified Data.ByteString as B
import System.Directory (createDirectory, doesDirectoryExist, removePathForcibly, renameDirectory)
import System.FilePath ((</>))
import System.IO (IOMode (WriteMode), hFlush, withBinaryFile)
import Weft.Bench.Types

-- | A folder with the files @1k@, @16k@ and @1m@, of 1, 16 and 1024 KiB, and @4332@, which has that many bytes, like
-- the file of (2010, 9.1).
smallFolder :: Env -> IO FilePath
smallFolder env = folderOf env "small" [("1k", 1024), ("16k", 16384), ("1m", 1048576), ("4332", 4332)]

-- | A folder with the files @1k@ and @64k@, for the server behind a proxy.
behindFolder :: Env -> IO FilePath
behindFolder env = folderOf env "behind" [("1k", 1024), ("64k", 65536)]

-- | A folder with the files @1k@ and @large@, which has 16 MiB.
rudeFolder :: Env -> IO FilePath
rudeFolder env = folderOf env "rude" [("1k", 1024), ("large", 16777216)]

-- | The arguments that tell a static server of one core which folder to serve.
rootArguments :: Subject -> FilePath -> [String]
rootArguments = rootArgumentsOn 1

-- | 'rootArguments' for a number of cores, on which only @weft serve@ and nginx run.
rootArgumentsOn :: Int -> Subject -> FilePath -> [String]
rootArgumentsOn cores subject root
  | subjectName subject `elem` ["weft", "weft-serve"] = ["serve", root, "--cores", show cores, "--keep-alive-requests", "0"]
  | otherwise = ["--root", root] <> concat [["--workers", show cores] | cores > 1]

-- | A file of the given size in MiB, written to the disk, none of whose pages compresses to nothing.
bigFile :: Env -> Int -> IO FilePath
bigFile env size = do
  folder <- folderWith env ("big-" <> show size) $ \folder ->
    withBinaryFile (folder </> "file") WriteMode $ \handle -> do
      replicateM_ size (B.hPut handle block)
      hFlush handle
  pure (folder </> "file")
  where
    block = fst (B.unfoldrN 1048576 (\n -> Just (fromIntegral (n + n `div` 251), n + 1)) (0 :: Int))

-- | A folder with this name and with files of these sizes in bytes. It is renamed to that name when it is complete.
folderOf :: Env -> FilePath -> [(FilePath, Int)] -> IO FilePath
folderOf env name files = folderWith env name $ \folder ->
  mapM_ (\(file, size) -> B.writeFile (folder </> file) (B.replicate size 120)) files

-- | A folder with this name that an action fills. If that fails, nothing is left of it.
folderWith :: Env -> FilePath -> (FilePath -> IO ()) -> IO FilePath
folderWith env name make = do
  there <- doesDirectoryExist folder
  unless there $ do
    createDirectory unfinished
    -- Whoever needs it next begins anew.
    make unfinished `onException` removePathForcibly unfinished
    renameDirectory unfinished folder
  pure folder
  where
    folder = envScratch env </> name
    unfinished = folder ++ ".unfinished"
