-- |
-- Description : Folders of files for servers
--
-- Made in the scratch directory when they are first asked for.
module Weft.Tools.Bench.Site
  ( smallSite,
  )
where

import Control.Monad (unless)
import qualified Data.ByteString as B
import System.Directory (createDirectory, doesDirectoryExist, renameDirectory)
import System.FilePath ((</>))
import Weft.Tools.Bench.Types

-- | A folder with the files @1k@ and @16k@, of 1 and 16 KiB.
smallSite :: Env -> IO FilePath
smallSite env = site env "small" [("1k", 1024), ("16k", 16384)]

-- | A folder of this name with files of these sizes in bytes. It gets its name when it is complete.
site :: Env -> FilePath -> [(FilePath, Int)] -> IO FilePath
site env name files = do
  there <- doesDirectoryExist folder
  unless there $ do
    createDirectory unfinished
    mapM_ (\(file, size) -> B.writeFile (unfinished </> file) (B.replicate size 120)) files
    renameDirectory unfinished folder
  pure folder
  where
    folder = envScratch env </> name
    unfinished = folder ++ ".unfinished"
