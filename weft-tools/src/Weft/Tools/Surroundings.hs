-- |
-- Description : What the program finds around it
--
-- The search path, the folder for temporary files, and terminals. For all commands, from any thread.
module Weft.Tools.Surroundings
  ( findProgram,
    temporaryFolder,
    screenOn,
  )
where

import Control.Exception (catch, throwIO)
import Data.Maybe (listToMaybe)
import GHC.IO.Exception (IOException (ioe_description, ioe_filename, ioe_location))
import System.Directory (findExecutable, findExecutablesInDirectories, getTemporaryDirectory)
import System.Environment (lookupEnv)
import System.FilePath ((</>))
import System.IO (Handle, hIsTerminalDevice)
import System.Posix.Temp (mkdtemp)

-- | An executable on the search path. Without @PATH@ it is looked for in @\/bin@ and @\/usr\/bin@, as execvp(3) does.
findProgram :: String -> IO (Maybe FilePath)
findProgram name = do
  path <- lookupEnv "PATH"
  case path of
    Just _ -> findExecutable name
    Nothing -> listToMaybe <$> findExecutablesInDirectories ["/bin", "/usr/bin"] name

-- | A new folder below the one for temporary files, whose name begins so. Throws an 'IOError' that names that folder
-- and @TMPDIR@.
temporaryFolder :: String -> IO FilePath
temporaryFolder prefix = do
  parent <- getTemporaryDirectory
  mkdtemp (parent </> prefix) `catch` \e ->
    throwIO e {ioe_location = "", ioe_filename = Just parent, ioe_description = "no temporary folder can be made in it (TMPDIR names another): " <> ioe_description e}

-- | Whether it is a terminal that understands escape sequences: @TERM@ is set, and is not @dumb@.
screenOn :: Handle -> IO Bool
screenOn handle = do
  terminal <- hIsTerminalDevice handle
  kind <- lookupEnv "TERM"
  pure (terminal && kind `notElem` [Nothing, Just "", Just "dumb"])
