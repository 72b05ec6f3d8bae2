-- |
-- The web server, tried by real clients over the loopback interface: @curl@ and
-- sockets of the @network@ package. Everything runs under each configuration of
-- "Configurations".
module Main (main) where

import Configurations (Configuration, allConfigurations, configurationName, limiting)
import qualified Spec.Bodies as Bodies
import qualified Spec.Clients as Clients
import qualified Spec.Connections as Connections
import qualified Spec.Ending as Ending
import qualified Spec.Figures as Figures
import qualified Spec.Files as Files
import qualified Spec.Framing as Framing
import qualified Spec.Fuzz as Fuzz
import qualified Spec.Limits as Limits
import qualified Spec.Logs as Logs
import qualified Spec.Misses as Misses
import qualified Spec.Parser as Parser
import qualified Spec.Refused as Refused
import qualified Spec.Requests as Requests
import qualified Spec.Secure as Secure
import qualified Spec.Settings as Settings
import qualified Spec.Slow as Slow
import qualified Spec.Static as Static
import System.Environment (setEnv)
import Test.Tasty
import Weft.Test.Skip (skipAll)

main :: IO ()
main = do
  -- The configuration belongs to the process.
  setEnv "TASTY_NUM_THREADS" "1"
  configurations <- allConfigurations
  defaultMain
    . localOption (mkTimeout 60000000)
    . testGroup "http"
    $ Parser.tests :
    map underConfiguration configurations
      <> [group configuration | (configuration, _) <- take 1 (filter (limiting . fst) configurations), group <- [Fuzz.tests, Clients.tests]]

underConfiguration :: (Configuration, Maybe String) -> TestTree
underConfiguration (configuration, refused) =
  maybe id (skipAll (configurationName configuration)) refused . testGroup (configurationName configuration) $
    map
      ($ configuration)
      [ Requests.tests,
        Refused.tests,
        Bodies.tests,
        Framing.tests,
        Files.tests,
        Connections.tests,
        Ending.tests,
        Settings.tests,
        Slow.tests,
        Static.tests,
        Limits.tests,
        Secure.tests,
        Logs.tests,
        Misses.tests,
        Figures.tests
      ]
