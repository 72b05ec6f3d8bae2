-- | The suite @http2-core@: the pure core of HTTP\/2 connections, by rules of RFC 9113, 9218 and 8441, and by random
-- sequences of frames and events under a model of a client; and that of a client's connections. @WEFT_HTTP2_SEQUENCES@
-- is the number of sequences (10,000).
module Main
  ( main,
  )
where

import qualified Spec.Blocks
import qualified Spec.Client
import qualified Spec.ClientRandom
import qualified Spec.Drains
import qualified Spec.Ended
import qualified Spec.Flow
import qualified Spec.Priority
import qualified Spec.Random
import qualified Spec.Rules
import qualified Spec.Tunnels
import qualified Spec.Uploads
import Test.Tasty hiding (defaultMain)
import Weft.Test.Main (defaultMain)

main :: IO ()
main = do
  random <- Spec.Random.tests
  clientRandom <- Spec.ClientRandom.tests
  defaultMain (testGroup "http2-core" [Spec.Rules.tests, Spec.Blocks.tests, Spec.Ended.tests, Spec.Flow.tests, Spec.Uploads.tests, Spec.Priority.tests, Spec.Drains.tests, Spec.Tunnels.tests, random, Spec.Client.tests, clientRandom])
