{-# LANGUAGE OverloadedStrings #-}

-- |
-- Warp as it is: a folder by wai-app-static, and a scotty application below @/app@. Prints
-- its port; ends with its standard input.
module Main (main) where

import Control.Concurrent
import Control.Exception
import Control.Monad
import Control.Monad.IO.Class (liftIO)
import qualified Data.Text.Lazy as T
import Network.Wai (pathInfo)
import Network.Wai.Application.Static
import Network.Wai.Handler.Warp
import System.Environment
import System.IO
import Web.Scotty (get, html, scottyApp, text)

main :: IO ()
main = do
  [folder] <- getArgs
  scotty <- scottyApp $ do
    get "/app/hello" (html "<p>hello</p>")
    get "/app/slow" (liftIO (threadDelay 100000) >> text "slowly")
    get "/app/large" (text (T.replicate 300000 "line\n"))
  let files = staticApp (defaultFileServerSettings folder)
      app request respond = case pathInfo request of
        "app" : _ -> scotty request respond
        _ -> files request respond
  (port, socket) <- openFreePort
  hSetBuffering stdout LineBuffering
  print port
  _ <- forkIO (runSettingsSocket (setTimeout 2 defaultSettings) socket app)
  -- Until the input ends.
  void (try (forever getLine) :: IO (Either IOException ()))
