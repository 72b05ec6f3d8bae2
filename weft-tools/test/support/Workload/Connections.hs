-- |
-- A record of the connections between the workload's clients and servers: what the server does with each, and the
-- kernel's state of both ends. For failure reports.
module Workload.Connections
  ( Connections,
    newConnections,
    open,
    serving,
    Serving,
    served,
    connectionState,
  )
where

import Control.Concurrent
import Control.Exception
import Control.Monad
import Data.IORef
import qualified Data.Map.Strict as Map
import Data.Maybe (fromMaybe)
import GHC.Conc (threadStatus)
import Numeric (readHex)

-- | Connections by the client's port: those that a server has now, and the last ones that ended.
data Connections = Connections (MVar (Map.Map Int Serving)) (IORef [(Int, String)])

-- | What the server is doing with a connection.
data Serving = Serving (IORef String) ThreadId

newConnections :: IO Connections
newConnections = Connections <$> newMVar Map.empty <*> newIORef []

-- | The number of a server's connections.
open :: Connections -> IO Int
open (Connections now _) = Map.size <$> readMVar now

-- | Serve a connection, or a request on it, on this thread.
serving :: Connections -> Int -> (Serving -> IO a) -> IO (Either IOException a)
serving (Connections now ended) port act = do
  s@(Serving doing _) <- Serving <$> newIORef "accepted" <*> myThreadId
  modifyMVar_ now (evaluate . Map.insert port s)
  r <- try (act s)
  was <- readIORef doing
  let end = (port, was <> ", then ended" <> either (\e -> " by " <> show (e :: SomeException)) (const "") r)
  void (evaluate (length (snd end)))
  atomicModifyIORef' ended (\es -> let es' = take 64 (end : es) in (length es' `seq` es', ()))
  modifyMVar_ now (evaluate . Map.update (\other@(Serving its _) -> if its == doing then Nothing else Just other) port)
  case r of
    Right a -> pure (Right a)
    Left e -> maybe (throwIO e) (pure . Left) (fromException e)

-- | Record what the server is doing with the connection now.
served :: Serving -> String -> IO ()
served (Serving doing _) = writeIORef doing

-- | Both sides of a connection from one port to another.
connectionState :: Connections -> Int -> Int -> IO [String]
connectionState (Connections now ended) from to = do
  current <- Map.lookup from <$> readMVar now
  before <- lookup from <$> readIORef ended
  server <- case current of
    Just (Serving doing thread) -> do
      what <- readIORef doing
      status <- threadStatus thread
      pure ("server: " <> what <> "; its thread: " <> show status)
    Nothing -> pure ("server: " <> maybe "knows nothing of the connection" ("has ended it: " <>) before)
  table <- try (readFile "/proc/self/net/tcp" >>= \s -> s <$ evaluate (length s)) :: IO (Either IOException String)
  let rows = either (const []) (concatMap row . drop 1 . lines) table
      row l = case words l of
        (_ : local : remote : state : queues : _) | (port local, port remote) `elem` [(from, to), (to, from)] -> ["kernel: " <> show (port local) <> " to " <> show (port remote) <> ", " <> stateName state <> ", bytes " <> queued queues]
        _ -> []
  pure (("connection: port " <> show from <> " to " <> show to) : server : if null rows then ["kernel: has no such connection"] else rows)
  where
    port = hex . drop 1 . dropWhile (/= ':')
    queued q = let (sent, got) = break (== ':') q in "to be sent or acknowledged " <> show (hex sent) <> ", to be read " <> show (hex (drop 1 got))
    stateName s = fromMaybe s (lookup (hex s) (zip [1 ..] ["ESTABLISHED", "SYN_SENT", "SYN_RECV", "FIN_WAIT1", "FIN_WAIT2", "TIME_WAIT", "CLOSE", "CLOSE_WAIT", "LAST_ACK", "LISTEN", "CLOSING"]))
    hex :: String -> Int
    hex s = case readHex s of
      [(n, _)] -> n
      _ -> 0
