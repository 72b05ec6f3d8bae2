-- |
-- Description : Files by wai-app-static
--
-- The usual way to serve a folder with Warp, as its documentation has it.
module Main (main) where

import Net (counters)
import NetWarp (serveApplication)
import Network.Wai.Application.Static (defaultFileServerSettings, staticApp)
import Setup (announce, folderSubject)

main :: IO ()
main = folderSubject counters $ \root port -> serveApplication port announce (staticApp (defaultFileServerSettings root))
