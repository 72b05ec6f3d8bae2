-- | The suite @http2@: clients that break one rule or exceed one limit each, and real clients. With @--server@ the
-- program is the server for these clients.
module Main
  ( main,
  )
where

import Http2Server
import qualified Spec.Ends
import qualified Spec.Engine
import qualified Spec.Hpack
import qualified Spec.Http2
import qualified Spec.Interrupted
import qualified Spec.Responses
import qualified Spec.Rules
import qualified Spec.Streams
import qualified Spec.Trailers
import qualified Spec.Tunnels
import System.Environment
import Test.Tasty hiding (defaultMain)
import Weft.Test.Main (defaultMain)

main :: IO ()
main = do
  arguments <- getArgs
  case arguments of
    "--server" : more -> runServer more
    _ -> defaultMain (localOption (mkTimeout 280000000) (testGroup "http2" [Spec.Hpack.tests, Spec.Http2.tests, Spec.Streams.tests, Spec.Interrupted.tests, Spec.Engine.tests, Spec.Trailers.tests, Spec.Tunnels.tests, Spec.Ends.tests, Spec.Responses.tests, Spec.Rules.tests]))
