-- |
-- Description : The command line of a benchmark subject
--
-- What every subject does before it serves: it reads @--port P@ (0, the default: the system chooses) and
-- @--backend NAME@ (Weft's back end, ignored by GHC's own manager), installs the report on @SIGUSR1@, and once it
-- listens says so on standard output, where the benchmark waits for it.
module Setup
  ( Port,
    subject,
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
subject counters server = do
  port <- getArgs >>= options 0
  installReport counters
  server port

-- | Say where the server listens.
announce :: Port -> IO ()
announce port = putStrLn ("listening on " ++ show port) >> hFlush stdout

options :: Port -> [String] -> IO Port
options port arguments = case arguments of
  [] -> pure port
  "--port" : text : rest | Just number <- readMaybe text -> options number rest
  "--backend" : name : rest -> setEnv "WEFT_BACKEND" name >> options port rest
  _ -> do
    name <- getProgName
    hPutStrLn stderr ("usage: " ++ name ++ " [--port P] [--backend NAME]")
    exitWith (ExitFailure 2)
