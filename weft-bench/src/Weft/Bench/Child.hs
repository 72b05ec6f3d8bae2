{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : Child processes that are always terminated
--
-- Programs run with pipes for their standard input and output, their standard error in a file of the scratch directory,
-- and pinned to cores by @taskset@. 'withChild' terminates them on every exit path: first by SIGTERM, then by SIGKILL.
module Weft.Bench.Child
  ( Program (..),
    Child,
    childPid,
    processOf,
    withChild,
    hearLine,
    hearJson,
    hasEnded,
    sendLine,
    interrupt,
    locate,
  )
where

import Control.Concurrent (threadDelay)
import Control.Exception (IOException, bracket, try)
import Control.Monad (void, when)
import Data.Aeson (FromJSON, eitherDecodeStrict')
import qualified Data.ByteString.Char8 as B
import Data.List (intercalate)
import Data.Maybe (listToMaybe)
import Data.Text (Text)
import qualified Data.Text as T
import qualified Data.Text.Encoding as T
import qualified Data.Text.Encoding.Error as T
import System.Directory (doesFileExist, executable, getPermissions)
import System.Environment (getEnvironment)
import System.FilePath (takeFileName, (</>))
import System.IO (Handle, IOMode (WriteMode), hClose, hFlush, withFile)
import System.Posix.Signals (Signal, sigINT, sigKILL, signalProcess)
import System.Posix.Types (ProcessID)
import System.Process hiding (env)
import qualified System.Process as P
import System.Timeout (timeout)
import Weft.Bench.Types
import Weft.Tools.Surroundings (findProgram)

-- | The program to run.
data Program = Program
  { programPath :: !FilePath,
    programArguments :: ![String],
    -- | Added to the environment.
    programEnvironment :: ![(String, String)],
    -- | The cores that it may use; an empty list means all.
    programCores :: ![Int]
  }

-- | A running program.
data Child = Child
  { childPid :: !ProcessID,
    childName :: !Text,
    childInput :: !Handle,
    childOutput :: !Handle,
    childHandle :: !ProcessHandle,
    childErrors :: !FilePath
  }

-- | How to start a program: on its cores, and with its environment in addition to ours.
processOf :: Program -> IO CreateProcess
processOf program = do
  inherited <- getEnvironment
  pure command {P.env = Just (added ++ filter ((`notElem` map fst added) . fst) inherited)}
  where
    added = programEnvironment program
    command = case programCores program of
      [] -> proc (programPath program) (programArguments program)
      cores -> proc "taskset" (["-c", intercalate "," (map show cores), programPath program] ++ programArguments program)

-- | Run a program while an action runs.
withChild :: Env -> Program -> (Child -> IO a) -> IO a
withChild env program = bracket (start env program) stop

start :: Env -> Program -> IO Child
start env program = do
  command <- processOf program
  let name = takeFileName (programPath program)
      errors = envScratch env </> name ++ ".err"
  withFile errors WriteMode $ \errorHandle -> do
    started <-
      createProcess
        command
          { std_in = CreatePipe,
            std_out = CreatePipe,
            std_err = UseHandle errorHandle
          }
    case started of
      (Just input, Just output, _, handle) -> do
        pid <- getPid handle >>= maybe (failWith (T.pack name <> " ended at once")) pure
        pure (Child pid (T.pack name) input output handle errors)
      _ -> failWith ("no pipes to " <> T.pack name)

stop :: Child -> IO ()
stop child = do
  ignoring (hClose (childInput child))
  ignoring (terminateProcess (childHandle child))
  ended <- endsWithin 200 child
  when (not ended) $ do
    signal child sigKILL
    void (waitForProcess (childHandle child))
  ignoring (hClose (childOutput child))

-- | Whether the child ends within this many hundredths of a second.
endsWithin :: Int -> Child -> IO Bool
endsWithin hundredths child = getProcessExitCode (childHandle child) >>= maybe again (const (pure True))
  where
    again
      | hundredths <= 0 = pure False
      | otherwise = threadDelay 10000 >> endsWithin (hundredths - 1) child

ignoring :: IO () -> IO ()
ignoring action = void (try action :: IO (Either IOException ()))

-- | Send a signal, unless the process has ended.
signal :: Child -> Signal -> IO ()
signal child number = getPid (childHandle child) >>= mapM_ (ignoring . signalProcess number)

-- | Send SIGINT and wait for the child to end, for ten seconds at most.
interrupt :: Child -> IO ()
interrupt child = do
  signal child sigINT
  ended <- endsWithin 1000 child
  when (not ended) $ failWith (childName child <> " does not end on SIGINT")

-- | The next line of the child's output. Fails after this many seconds or, if the child has ended, with its error
-- output.
hearLine :: Double -> Child -> IO Text
hearLine seconds child = do
  heard <- timeout (ceiling (seconds * 1e6)) (try (B.hGetLine (childOutput child)))
  case heard of
    Just (Right line) -> pure (decode line)
    Nothing -> failWith (childName child <> " said nothing for " <> T.pack (show seconds) <> " s")
    Just (Left ended) -> do
      let _ = ended :: IOException
      failWith . ((childName child <> " ended: ") <>) =<< lastWords child
  where
    decode = T.decodeUtf8With T.lenientDecode

-- | The error output, if the child has ended.
hasEnded :: Child -> IO (Maybe Text)
hasEnded child = do
  code <- getProcessExitCode (childHandle child)
  maybe (pure Nothing) (const (Just <$> lastWords child)) code

-- | The most informative part of an ended child's error output: the first lines, or the last line of a traceback.
lastWords :: Child -> IO Text
lastWords child = do
  said <- T.decodeUtf8With T.lenientDecode <$> B.readFile (childErrors child)
  pure $ case filter (not . (":" `T.isSuffixOf`)) (filter (not . T.null) (map T.stripEnd (T.lines said))) of
    [] -> "it printed no error"
    written
      | "Traceback" `T.isPrefixOf` said -> last written
      | otherwise -> T.intercalate "; " (take 2 written)

-- | The next line of output as JSON.
hearJson :: FromJSON a => Double -> Child -> IO a
hearJson seconds child = do
  line <- hearLine seconds child
  case eitherDecodeStrict' (T.encodeUtf8 line) of
    Right value -> pure value
    Left problem -> failWith (childName child <> " printed " <> T.take 200 line <> ": " <> T.pack problem)

-- | Write a line to the child's input.
sendLine :: Child -> Text -> IO ()
sendLine child line = do
  B.hPutStrLn (childInput child) (T.encodeUtf8 line)
  hFlush (childInput child)

-- | An executable with this name in the search directories or else on the search path.
locate :: Env -> FilePath -> IO (Maybe FilePath)
locate env name = do
  found <- filterExecutable [directory </> name | directory <- envSearch env]
  maybe (findProgram name) (pure . Just) found
  where
    filterExecutable paths = listToMaybe . concat <$> mapM runnable paths
    runnable path = do
      there <- doesFileExist path
      allowed <- if there then executable <$> getPermissions path else pure False
      pure [path | allowed]
