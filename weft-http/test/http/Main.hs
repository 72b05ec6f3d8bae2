-- |
-- Tests of the web server over the loopback interface. The clients are @curl@ and
-- sockets of the package @network@. Most tests run in each configuration of
-- "Configurations".
module Main (main) where

import Configurations (Configuration, allConfigurations, configurationName, limiting)
import qualified Spec.Bodies as Bodies
import qualified Spec.Clients as Clients
import qualified Spec.Compression as Compression
import qualified Spec.Connections as Connections
import qualified Spec.Ends as Ends
import qualified Spec.Files as Files
import qualified Spec.Forked as Forked
import qualified Spec.Framing as Framing
import qualified Spec.Fuzz as Fuzz
import qualified Spec.Grpc as Grpc
import qualified Spec.KeptFiles as KeptFiles
import qualified Spec.KeptStrings as KeptStrings
import qualified Spec.Limits as Limits
import qualified Spec.Lingering as Lingering
import qualified Spec.Listings as Listings
import qualified Spec.Logs as Logs
import qualified Spec.Metrics as Metrics
import qualified Spec.Misses as Misses
import qualified Spec.Parser as Parser
import qualified Spec.Refused as Refused
import qualified Spec.Requests as Requests
import qualified Spec.Responses as Responses
import qualified Spec.Rude as Rude
import qualified Spec.Secure as Secure
import qualified Spec.Setters as Setters
import qualified Spec.Settings as Settings
import qualified Spec.Shutdown as Shutdown
import qualified Spec.Slow as Slow
import qualified Spec.Static as Static
import qualified Spec.Tunnels as Tunnels
import System.Environment (setEnv)
import Test.Tasty hiding (defaultMain)
import Weft.Test.Main (defaultMain)
import Weft.Test.Skip (skipAll)

main :: IO ()
main = do
  -- A configuration is global to the process, so tests run one after the other.
  setEnv "TASTY_NUM_THREADS" "1"
  configurations <- allConfigurations
  defaultMain
    . localOption (mkTimeout 280000000)
    . testGroup "http"
    $ Parser.tests :
    map underConfiguration configurations
      <> [group configuration | (configuration, _) <- take 1 (filter (limiting . fst) configurations), group <- [Fuzz.tests, Clients.tests, Grpc.further]]

underConfiguration :: (Configuration, Maybe String) -> TestTree
underConfiguration (configuration, refused) =
  maybe id (skipAll (configurationName configuration)) refused . testGroup (configurationName configuration) $
    map
      ($ configuration)
      [ Requests.tests,
        Responses.tests,
        Refused.tests,
        Bodies.tests,
        Framing.tests,
        Files.tests,
        Connections.tests,
        Lingering.tests,
        Ends.tests,
        Shutdown.tests,
        KeptFiles.tests,
        KeptStrings.tests,
        Settings.tests,
        Setters.tests,
        Rude.tests,
        Slow.tests,
        Static.tests,
        Compression.tests,
        Listings.tests,
        Limits.tests,
        Secure.tests,
        Grpc.tests,
        Tunnels.tests,
        Logs.tests,
        Forked.tests,
        Misses.tests,
        Metrics.tests
      ]
