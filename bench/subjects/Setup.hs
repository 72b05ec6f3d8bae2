-- |
-- Description : The command line of a benchmark subject
--
-- What every subject does before it serves: it reads @--port P@ (0, the default: the system chooses) and
-- @--backend NAME@ (Weft's back end, ignored by GHC's own manager), a server of files also @--root DIR@, installs the report on @SIGUSR1@, and once it
-- listens says so on standard output, where the benchmark waits for it.
module Setup
  ( Port,
    subject,
    folderSubject,
    announce,
  )
where

import Report (installReport)
import System.Environment (getArgs, getProgName, setEnv)
import System.Exit (ExitCode (ExitFailure), exitWith)
import System.IO (hFlush, hPutStrLn, stderr, stdout)
import Text.Read (readMaybe)

-- | A TCP port; 0 asks the system for a free one.
type Port = Int

-- | Run a server with the port that the command line names. The first argument reads the counters of the I/O
-- manager for the report.
subject :: IO [(String, Integer)] -> (Port -> IO ()) -> IO ()
subject counters server = folderSubject counters (const server)

-- | The same for a server of the files below a folder; the working directory unless the command line names one.
folderSubject :: IO [(String, Integer)] -> (FilePath -> Port -> IO ()) -> IO ()
folderSubject counters server = do
  (root, port) <- getArgs >>= options (".", 0)
  installReport counters
  server root port

-- | Say where the server listens.
announce :: Port -> IO ()
announce port = putStrLn ("listening on " ++ show port) >> hFlush stdout

options :: (FilePath, Port) -> [String] -> IO (FilePath, Port)
options (root, port) arguments = case arguments of
  [] -> pure (root, port)
  "--port" : text : rest | Just number <- readMaybe text -> options (root, number) rest
  "--root" : folder : rest -> options (folder, port) rest
  "--backend" : name : rest -> setEnv "WEFT_BACKEND" name >> options (root, port) rest
  _ -> do
    name <- getProgName
    hPutStrLn stderr ("usage: " ++ name ++ " [--port P] [--root DIR] [--backend NAME]")
    exitWith (ExitFailure 2)
