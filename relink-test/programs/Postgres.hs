{-# LANGUAGE OverloadedStrings #-}

-- |
-- postgresql-simple against a PostgreSQL: the connection string is given.
module Main (main) where

import Control.Concurrent
import Control.Concurrent.Async
import Control.Exception
import Control.Monad
import qualified Data.ByteString.Char8 as B
import Database.PostgreSQL.Simple
import Database.PostgreSQL.Simple.Notification
import System.Environment
import System.Timeout

main :: IO ()
main = do
  [address] <- getArgs
  let connected = bracket (connectPostgreSQL (B.pack address)) close
  connected $ \c -> do
    _ <- execute_ c "SET client_min_messages = warning"
    _ <- execute_ c "DROP TABLE IF EXISTS numbers"
    _ <- execute_ c "CREATE TABLE numbers (n int NOT NULL)"
    pure ()
  forConcurrently_ [1 .. 10 :: Int] $ \i -> connected $ \c ->
    forM_ [1 .. 20 :: Int] $ \j -> execute c "INSERT INTO numbers VALUES (?)" (Only (100 * i + j))
  connected $ \c -> do
    [(count, total)] <- query_ c "SELECT count(*)::int, sum(n)::int FROM numbers" :: IO [(Int, Int)]
    say "inserted" (count, total)
    rows <- fold_ c "SELECT n FROM numbers ORDER BY n" (0 :: Int) (\n (Only k) -> pure (n + k))
    say "folded" rows
    -- Queries that take their time, at the same time.
    slow <- forConcurrently [1 .. 5 :: Int] (\i -> connected (\d -> query d "SELECT ?::int FROM pg_sleep(0.1)" (Only i))) :: IO [[Only Int]]
    say "slow" (map fromOnly (concat slow))
    r <- try (query_ c "SELECT 1/0" :: IO [Only Int])
    say "an error" (either (sqlState :: SqlError -> B.ByteString) (const "none") r)
    -- NOTIFY, waited for by a thread.
    _ <- execute_ c "LISTEN news"
    nothing <- timeout 100000 (getNotification c)
    say "no notification" (maybe "none" (const "one") nothing :: String)
    heard <- async (replicateM 3 (notificationData <$> getNotification c))
    threadDelay 50000
    connected $ \d -> forM_ ["a", "b", "c" :: String] $ \text -> query d "SELECT pg_notify('news', ?)" (Only text) :: IO [Only ()]
    wait heard >>= say "notifications"
  where
    say what x = putStrLn (what <> ": " <> show x)
