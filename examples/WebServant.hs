{-# LANGUAGE DataKinds #-}
{-# LANGUAGE DeriveGeneric #-}
{-# LANGUAGE OverloadedStrings #-}
{-# LANGUAGE TypeOperators #-}

-- | A Servant application on "Weft.Http". There is one change for Weft: @run@ is imported from "Weft.Http" and not from
-- "Network.Wai.Handler.Warp".
--
-- > servant PORT +RTS -N
module Main (main) where

import Control.Monad.IO.Class (liftIO)
import Data.Aeson (FromJSON, ToJSON)
import Data.IORef
import GHC.Generics (Generic)
import Servant
import qualified Servant.Types.SourceT as Source
import System.Environment (getArgs)
import Weft.Http (run)

-- | A point of the plane.
data Point = Point {x :: Int, y :: Int}
  deriving (Generic, Show)

instance FromJSON Point

instance ToJSON Point

type Api =
  "points" :> Get '[JSON] [Point]
    :<|> "points" :> ReqBody '[JSON] Point :> PostCreated '[JSON] Int
    :<|> "points" :> Capture "number" Int :> Get '[JSON] Point
    :<|> "sum" :> QueryParams "n" Int :> Get '[PlainText] String
    :<|> "count" :> Capture "to" Int :> StreamGet NewlineFraming PlainText (SourceIO String)
    :<|> "secret" :> BasicAuth "points" String :> Get '[PlainText] String

main :: IO ()
main = do
  port : _ <- map read <$> getArgs
  points <- newIORef []
  run port (serveWithContext api (BasicAuthCheck check :. EmptyContext) (server points))
  where
    api = Proxy :: Proxy Api
    check :: BasicAuthData -> IO (BasicAuthResult String)
    check (BasicAuthData name password)
      | (name, password) == ("ada", "engine") = pure (Authorized "ada")
      | otherwise = pure Unauthorized

server :: IORef [Point] -> Server Api
server points = list :<|> add :<|> point :<|> total :<|> count :<|> secret
  where
    list = liftIO (readIORef points)
    add p = liftIO (atomicModifyIORef' points (\ps -> (ps <> [p], length ps)))
    point n = list >>= \ps -> if n >= 0 && n < length ps then pure (ps !! n) else throwError err404
    total = pure . show . sum
    count to = pure (Source.source (map show [1 .. to]))
    secret name = pure ("hello, " <> name)
