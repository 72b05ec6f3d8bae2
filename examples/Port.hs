-- |
-- Shared by the examples: a server on the port of the command line, or on one
-- that the system chooses and the program prints.
module Port
  ( serverOn,
    portArgument,
  )
where

import System.Environment (getArgs)
import System.IO (hFlush, stdout)
import Weft.Socket

-- | Serve on the loopback interface until killed.
serverOn :: (Socket -> IO ()) -> IO ()
serverOn handler = do
  port <- portArgument
  serve settings {serverPort = port} (\sock _peer -> handler sock)
  where
    settings =
      defaultServerSettings
        { serverHost = Just "127.0.0.1",
          serverOnListen = \address -> putStrLn ("listening on " <> show address) >> hFlush stdout
        }

-- | The first argument, or \"0\".
portArgument :: IO String
portArgument = do
  args <- getArgs
  pure (case args of p : _ -> p; [] -> "0")
