{-# LANGUAGE CPP #-}
{-# LANGUAGE OverloadedStrings #-}

-- | A Scotty application on "Weft.Http". There are two changes for Weft: @run@ is imported from "Weft.Http" and not
-- from "Network.Wai.Handler.Warp", and the application is created by 'scottyApp', since @scotty@ itself runs Warp.
--
-- > scotty PORT +RTS -N
module Main (main) where

import Control.Monad.IO.Class (liftIO)
import qualified Data.ByteString.Lazy as L
import Data.IORef
import qualified Data.Text.Lazy as T
import Network.HTTP.Types (created201)
import System.Environment (getArgs)
import Web.Scotty
import Weft.Http (run)

main :: IO ()
main = do
  port : _ <- map read <$> getArgs
  notes <- newIORef []
  scottyApp (routes notes) >>= run port

-- | A list of notes.
routes :: IORef [T.Text] -> ScottyM ()
routes notes = do
  get "/" (html "<p>notes</p>")
  get "/notes" (liftIO (readIORef notes) >>= json . reverse)
  post "/notes" $ do
    text' <- named "text"
    liftIO (atomicModifyIORef' notes (\ns -> (text' : ns, ())))
    status created201
  get "/greet/:name" $ do
    name <- captured "name"
    setHeader "X-Greeted" name
    text ("hello, " <> name)
  post "/length" (body >>= text . T.pack . show . L.length)
  get "/fail" (liftIO (ioError (userError "on purpose")))
  notFound (text "no such page")

-- | A captured part of the path, and a field of a form, by name.
captured, named :: T.Text -> ActionM T.Text
#if MIN_VERSION_scotty(0,20,0)
captured = captureParam
named = formParam
#else
captured = param
named = param
#endif
