-- | The suite @clients@: a server that is asked by programs of others, and libraries of others on "Weft.Http". With
-- @--server@ it is the server.
module Main
  ( main,
  )
where

import Server (runServer)
import qualified Spec.Libraries as Libraries
import qualified Spec.Pools as Pools
import qualified Spec.Programs as Programs
import qualified Spec.Rude as Rude
import System.Environment (getArgs)
import Test.Tasty hiding (defaultMain)
import Weft.Test.Main (defaultMain)

main :: IO ()
main = do
  arguments <- getArgs
  case arguments of
    "--server" : more -> runServer more
    _ -> defaultMain . localOption (mkTimeout 110000000) $ testGroup "clients" [Programs.tests, Rude.tests, Pools.tests, Libraries.tests]
