{-# LANGUAGE OverloadedStrings #-}

-- |
-- A service between two others: what is in stock is in PostgreSQL, and another service says what it costs. A request
-- has two seconds; connections are kept for the next ones; at SIGTERM what is being answered is answered.
--
-- > shop 'host=/run/postgresql dbname=shop' http://prices.example:8081 8080
module Main (main) where

import Control.Exception
import Control.Monad (unless)
import qualified Data.ByteString.Char8 as B
import Data.Text (Text)
import Data.Text.Encoding (decodeUtf8, encodeUtf8)
import qualified Data.Text.Lazy as L
import qualified Data.Text.Lazy.Encoding as L
import qualified Database.PostgreSQL.Simple as P
import Network.HTTP.Types
import Network.Wai
import System.Environment (getArgs)
import System.Exit (die)
import System.IO
import Weft.Deadline
import Weft.Http
import Weft.Http.Client
import Weft.Pool
import Weft.Scope (concurrently)
import Weft.Signal

main :: IO ()
main =
  getArgs >>= \arguments -> case arguments of
    [database, prices, port] ->
      withSignals [sigTERM, sigINT] $ \signals ->
        withPool (connections database) $ \pool ->
          withClient defaultClientSettings $ \client ->
            withServer (setPort (read port) defaultSettings) (shop pool client prices) $ \server -> do
              hSetBuffering stdout LineBuffering
              putStrLn ("serving on " <> show (serverAddress server))
              _ <- waitSignal signals noDeadline
              ended <- drainServer server (seconds 30)
              unless ended (die "some requests were not answered within 30 s")
    _ -> die "usage: shop DATABASE PRICES PORT"

-- | At most eight. One that was idle is asked first whether it still works: the database may have been restarted.
connections :: String -> PoolSettings P.Connection
connections database =
  (poolOf (\soon -> inTime soon (P.connectPostgreSQL (B.pack database))) P.close)
    { poolMost = 8,
      poolValidate = \soon connection -> (== [P.Only (1 :: Int)]) <$> inTime soon (P.query_ connection "SELECT 1")
    }

shop :: Pool P.Connection -> Client -> String -> Application
shop pool client prices req respond = case pathInfo req of
  [name] -> do
    soon <- deadlineIn (seconds 2)
    -- Both are asked at once. If one fails, the other is given up.
    both <- try (concurrently (stock pool soon name) (price client soon prices name))
    respond $ case both of
      Right ([P.Only pieces], Just each) -> text ok200 (L.pack (show pieces) <> " pieces, " <> L.fromStrict each <> " each")
      Right _ -> text notFound404 "there is no such thing"
      Left e -> text (statusOf e) (L.pack (takeWhile (/= '\n') (show e)))
  _ -> respond (text notFound404 "there is nothing here")
  where
    text status line = responseLBS status [(hContentType, "text/plain; charset=utf-8")] (L.encodeUtf8 (line <> "\n"))

stock :: Pool P.Connection -> Instant -> Text -> IO [P.Only Int]
stock pool soon name = withResource pool soon $ \connection ->
  inTime soon (P.query connection "SELECT pieces FROM stock WHERE name = ?" (P.Only name))

price :: Client -> Instant -> String -> Text -> IO (Maybe Text)
price client soon prices name = do
  answer <- request client soon (getUrl (prices <> "/" <> B.unpack (urlEncode False (encodeUtf8 name))))
  pure (if answerStatus answer == ok200 then Just (decodeUtf8 (answerBody answer)) else Nothing)

-- | Late, the other service's fault, or the database's.
statusOf :: SomeException -> Status
statusOf e
  | Just late <- fromException e, isTimeout late = gatewayTimeout504
  | Just (ClientError _ _ TimedOut) <- fromException e = gatewayTimeout504
  | Just ClientError {} <- fromException e = badGateway502
  | otherwise = serviceUnavailable503
