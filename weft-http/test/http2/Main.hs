-- |
-- The suite @http2@: clients that break one limit each, and real ones. With @--server@ it is the server that
-- these clients ask.
module Main
  ( main,
  )
where

import Http2Server
import qualified Spec.Http2
import System.Environment
import Test.Tasty

main :: IO ()
main = do
  arguments <- getArgs
  case arguments of
    "--server" : more -> runServer more
    _ -> defaultMain (localOption (mkTimeout 60000000) Spec.Http2.tests)
