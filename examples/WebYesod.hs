{-# LANGUAGE MultiParamTypeClasses #-}
{-# LANGUAGE OverloadedStrings #-}
{-# LANGUAGE QuasiQuotes #-}
{-# LANGUAGE TemplateHaskell #-}
{-# LANGUAGE TypeFamilies #-}
{-# LANGUAGE ViewPatterns #-}
{-# OPTIONS_GHC -Wno-unused-top-binds #-}

-- | A Yesod application on "Weft.Http". There are two changes for Weft: @run@ is imported from "Weft.Http" and not from
-- "Network.Wai.Handler.Warp", and the application is created by 'toWaiApp', since Yesod's own @warp@ runs Warp.
--
-- > yesod PORT FOLDER +RTS -N
module Main (main) where

import Data.Text (Text)
import qualified Data.Text as T
import System.Environment (getArgs)
import Weft.Http (run)
import Yesod.Core

data App = App

mkYesod
  "App"
  [parseRoutes|
/ HomeR GET
/visits VisitsR GET
/add/#Int/#Int AddR GET
/say SayR POST
|]

-- Sessions are kept in cookies. The key that encrypts them is in the folder.
instance Yesod App where
  makeSessionBackend _ = Just <$> (defaultClientSessionBackend 5 =<< keyFile)
    where
      keyFile = (\arguments -> arguments !! 1 <> "/client_session_key.aes") <$> getArgs

getHomeR :: Handler Html
getHomeR = defaultLayout [whamlet|<p>hello from @{HomeR}|]

-- | The number of visits of this client.
getVisitsR :: Handler Text
getVisitsR = do
  before <- maybe 0 (read . T.unpack) <$> lookupSession "visits"
  let now = before + 1 :: Int
  setSession "visits" (T.pack (show now))
  pure (T.pack (show now))

getAddR :: Int -> Int -> Handler Value
getAddR a b = returnJson (object ["sum" .= (a + b)])

postSayR :: Handler Text
postSayR = do
  word <- lookupPostParam "word"
  maybe (invalidArgs ["word"]) pure word

main :: IO ()
main = do
  port : _ <- getArgs
  toWaiApp App >>= run (read port)
