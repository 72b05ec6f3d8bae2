-- |
-- Examples as processes. Each says on its first line on which port it listens.
module Running
  ( running,
    runningWith,
    started,
    built,
    isBuilt,
  )
where

import Control.Exception (bracket)
import Data.Char (isDigit)
import Data.Maybe (isJust)
import Network.Socket (PortNumber)
import System.Directory (doesFileExist, findExecutable)
import System.IO
import System.Process
import System.Timeout (timeout)

-- | Run an example on a port that the system chooses, and tell the port.
running :: String -> (PortNumber -> IO a) -> IO a
running name = runningWith name ["0"]

-- | With these arguments. It ends with the action.
runningWith :: String -> [String] -> (PortNumber -> IO a) -> IO a
runningWith name arguments = started name arguments . const

-- | With its process, too.
started :: String -> [String] -> (ProcessHandle -> PortNumber -> IO a) -> IO a
started name arguments act = bracket start stop $ \(_, out, _, process) -> do
  h <- maybe (fail "no output") pure out
  line <- timeout 60000000 (hGetLine h)
  -- The last number of the line.
  let digits = reverse (takeWhile isDigit (dropWhile (not . isDigit) (reverse (maybe "" id line))))
  case reads digits of
    [(n, "")] -> act process (fromInteger n)
    _ -> fail (name <> " said " <> show line)
  where
    start = do
      program <- built name
      (i, o, e, p) <- createProcess (proc program (arguments <> ["+RTS", "-N2"])) {std_out = CreatePipe}
      pure (i, o, e, p)
    stop (_, out, _, p) = do
      terminateProcess p
      _ <- waitForProcess p
      mapM_ hClose out

-- | Where `make build` puts programs; elsewhere they are on the PATH.
built :: String -> IO FilePath
built name = do
  there <- doesFileExist ("../bin/examples/" <> name)
  pure (if there then "../bin/examples/" <> name else name)

-- | Whether there is such an example: some need libraries that are not installed everywhere.
isBuilt :: String -> IO Bool
isBuilt name = do
  there <- doesFileExist ("../bin/examples/" <> name)
  if there then pure True else isJust <$> findExecutable name
