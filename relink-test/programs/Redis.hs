{-# LANGUAGE OverloadedStrings #-}

-- |
-- hedis against a Redis on the port that is given.
module Main (main) where

import Control.Concurrent
import Control.Concurrent.Async
import Control.Monad
import Control.Monad.IO.Class (liftIO)
import qualified Data.ByteString.Char8 as B
import Database.Redis hiding (wait)
import System.Environment
import System.Timeout

main :: IO ()
main = do
  [port] <- getArgs
  conn <- checkedConnect defaultConnectInfo {connectPort = PortNumber (fromIntegral (read port :: Int)), connectMaxConnections = 60}
  _ <- runRedis conn flushall
  runRedis conn (set "key" "value" >> get "key") >>= say "get" . either show show
  _ <- forConcurrently [1 .. 50 :: Int] (\_ -> runRedis conn (replicateM_ 100 (incr "count")))
  runRedis conn (get "count") >>= say "5,000 increments" . either show show
  -- A reply that is waited for, in vain and not.
  runRedis conn (blpop ["queue"] 1) >>= say "nothing to pop" . either show show
  popped <- async (runRedis conn (blpop ["queue"] 10))
  threadDelay 50000
  _ <- runRedis conn (rpush "queue" ["pushed"])
  wait popped >>= say "popped" . either show show
  late <- timeout 50000 (runRedis conn (blpop ["nobody"] 10))
  say "given up" (maybe "yes" (const "no") late)
  heard <- newEmptyMVar
  listener <- async . runRedis conn $ pubSub (subscribe ["news"]) (\m -> putMVar heard (msgMessage m) >> pure mempty)
  let publishing = runRedis conn (publish "news" "hello") >>= \n -> when (n == Right 0) (threadDelay 1000 >> publishing)
  publishing
  takeMVar heard >>= say "published" . B.unpack
  cancel listener
  pipelined <- runRedis conn (replicateM_ 200 (set "p" "q") >> liftIO (pure ()) >> get "p")
  say "pipelined" (either show show pipelined)
  where
    say what x = putStrLn (what <> ": " <> x)
