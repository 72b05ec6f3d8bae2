{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : Files with results
--
-- A measurement may take an hour, so that the files for its results are checked before it begins. They are written to a
-- temporary file in the same folder that is renamed at the end: an earlier result is replaced only by a whole one.
module Weft.Tools.Output
  ( checkOutputs,
    writeOut,
    writeText,
    isSpecial,
    sameFile,
  )
where

import Control.Exception (bracketOnError, finally, try)
import Control.Monad (filterM, forM_, when)
import Data.ByteString.Builder (Builder, hPutBuilder)
import Data.Text (Text)
import qualified Data.Text as T
import qualified Data.Text.Encoding as T
import GHC.IO.Exception (IOException (ioe_description))
import System.Directory (canonicalizePath, doesDirectoryExist, removeFile, renameFile)
import System.Exit (ExitCode (..), exitWith)
import System.FilePath (equalFilePath, takeDirectory, takeFileName)
import System.IO (Handle, IOMode (WriteMode), hClose, openBinaryTempFileWithDefaultPermissions, withBinaryFile)
import System.IO.Error (ioeSetFileName, modifyIOError)
import System.Posix.Files (getFileStatus, isDirectory, isRegularFile)
import Weft.Tools.StandardError (reportText)

-- | Whether both names lead to the same file.
sameFile :: FilePath -> FilePath -> IO Bool
sameFile a b = equalFilePath <$> canonicalizePath a <*> canonicalizePath b

-- | End the program with status 2 if one of the files cannot be written, or is there twice. The first argument is the
-- command's name. The files stay as they are.
checkOutputs :: Text -> [FilePath] -> IO ()
checkOutputs command files = do
  forM_ files $ \file -> do
    tried <- try (check file)
    case tried of
      Right () -> pure ()
      Left e -> refuse ("cannot write " <> T.pack file <> ": " <> T.pack (ioe_description e))
  -- Of a device or a pipe nothing is replaced.
  regular <- filterM (fmap not . isSpecial) files
  places <- mapM canonicalizePath regular
  forM_ (zip3 [0 ..] regular places) $ \(i, file, place) ->
    when (any (equalFilePath place) (take i places)) $ refuse ("two results cannot both be in " <> T.pack file)
  where
    refuse why = reportText (command <> ": " <> why) >> exitWith (ExitFailure 2)
    check file = do
      folder <- doesDirectoryExist file
      when folder (ioError (userError "it is a folder"))
      special <- isSpecial file
      if special then pure () else temporaryFor file >>= discard

-- | Write a file. The 'IOError' of a failure has its name, and not that of the temporary file.
writeOut :: FilePath -> Builder -> IO ()
writeOut name content = modifyIOError (`ioeSetFileName` name) $ do
  special <- isSpecial name
  if special
    then withBinaryFile name WriteMode (`hPutBuilder` content)
    else do
      -- A symbolic link stays one.
      file <- canonicalizePath name
      bracketOnError (temporaryFor file) discard $ \(part, handle) -> do
        hPutBuilder handle content
        hClose handle
        renameFile part file

-- | Write a text in UTF-8.
writeText :: FilePath -> Text -> IO ()
writeText file = writeOut file . T.encodeUtf8Builder

-- | Whether it is something that a file must not replace, such as a device or a pipe. (@doesFileExist@ is true of them,
-- too.)
isSpecial :: FilePath -> IO Bool
isSpecial file = either absent (\status -> not (isRegularFile status || isDirectory status)) <$> try (getFileStatus file)
  where
    absent :: IOException -> Bool
    absent _ = False

temporaryFor :: FilePath -> IO (FilePath, Handle)
temporaryFor file = openBinaryTempFileWithDefaultPermissions (takeDirectory file) (takeFileName file <> ".new")

discard :: (FilePath, Handle) -> IO ()
discard (part, handle) = hClose handle `finally` removeFile part
