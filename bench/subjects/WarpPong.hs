{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : The pong server as a WAI application
--
-- The application is the same for both builds; the Warp below it runs on Weft or on GHC's own manager.
module Main (main) where

import Net (counters)
import NetWarp (serveApplication)
import Network.HTTP.Types (status200)
import Network.Wai (Application, responseLBS)
import Setup (announce, subject)

main :: IO ()
main = subject counters $ \port -> serveApplication port announce pong

pong :: Application
pong _ respond =
  respond (responseLBS status200 [("Content-Type", "text/plain"), ("Content-Length", "5")] "Pong!")
