{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : A database for a benchmark
--
-- Starts a PostgreSQL of Debian's, with a table of 1,000 items, on a socket in a folder that is removed afterwards. As
-- root it runs as the user @postgres@. Its errors are in the scratch directory.
module Weft.Bench.Postgres
  ( withPostgres,
  )
where

import Control.Concurrent (threadDelay)
import Control.Exception (IOException, bracket, try)
import Control.Monad (unless, void, when)
import Data.List (sort)
import qualified Data.Text as T
import System.Directory (createDirectory, getTemporaryDirectory, listDirectory, removeFile, removePathForcibly)
import System.Exit (ExitCode (..))
import System.FilePath ((</>))
import System.IO (hClose, openTempFile)
import System.Posix.User (getEffectiveUserID)
import System.Process (callProcess, readProcessWithExitCode)
import Weft.Bench.Child
import Weft.Bench.Types

-- | Run an action with the folder of the database's socket; the database is on these cores. Fails if there is no
-- PostgreSQL.
withPostgres :: Env -> [Int] -> (FilePath -> IO a) -> IO a
withPostgres env cores act = do
  versions <- try (listDirectory installed) :: IO (Either IOException [FilePath])
  bin <- case either (const []) (reverse . sort) versions of
    version : _ -> pure (installed </> version </> "bin")
    [] -> failWith "missing: PostgreSQL (Debian's package postgresql)"
  bracket makeFolder (void . tried . removePathForcibly) $ \folder -> do
    -- It refuses to be root.
    root <- (== 0) <$> getEffectiveUserID
    when root (callProcess "chown" ["postgres", folder])
    let user program arguments
          | root = ("setpriv", ["--reuid", "postgres", "--regid", "postgres", "--clear-groups", program] <> arguments)
          | otherwise = (program, arguments)
        home = folder </> "data"
        step program arguments = do
          (code, _, err) <- uncurry readProcessWithExitCode (user (bin </> program) arguments) ""
          unless (code == ExitSuccess) (failWith (T.pack (program <> ": " <> err)))
    step "initdb" ["-D", home, "-U", "postgres", "--auth", "trust", "--no-sync", "-E", "UTF8", "--locale", "C"]
    let (server, arguments) = user (bin </> "postgres") ["-D", home, "-k", folder, "-h", "", "-F"]
    withChild env (Program server arguments [] cores) . const $ do
      ready (200 :: Int) (bin </> "pg_isready") folder
      step "psql" ["-q", "-h", folder, "-U", "postgres", "-v", "ON_ERROR_STOP=1", "-c", table]
      act folder
  where
    installed = "/usr/lib/postgresql"
    tried :: IO () -> IO (Either IOException ())
    tried = try
    makeFolder = do
      temporary <- getTemporaryDirectory
      (path, handle) <- openTempFile temporary "weft-bench-postgres"
      hClose handle >> removeFile path >> createDirectory path
      pure path
    ready 0 _ _ = failWith "PostgreSQL is not ready after 20 s"
    ready n program folder = do
      (code, _, _) <- readProcessWithExitCode program ["-q", "-h", folder] ""
      unless (code == ExitSuccess) (threadDelay 100000 >> ready (n - 1) program folder)
    table =
      "CREATE TABLE items (id int PRIMARY KEY, name text NOT NULL, category text NOT NULL, price int NOT NULL, quantity int NOT NULL, active bool NOT NULL); \
      \INSERT INTO items SELECT n, 'Item ' || n, (ARRAY['tools', 'garden', 'kitchen', 'other'])[1 + n % 4], 100 + 37 * n, n % 7, n % 2 = 0 FROM generate_series(1, 1000) AS n; \
      \CREATE INDEX ON items (price); ANALYZE items"
