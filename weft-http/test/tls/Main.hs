-- |
-- The suite @tls@: the laws of connections for "Weft.Tls", and servers with @openssl@ and @curl@ as clients.
module Main
  ( main,
  )
where

import qualified Spec.Chains
import qualified Spec.Concurrent
import qualified Spec.Peers
import qualified Spec.Sessions
import qualified Spec.Tls
import qualified Spec.Validation
import Test.Tasty hiding (defaultMain)
import Weft.Test.Main (defaultMain)

main :: IO ()
main = defaultMain (localOption (mkTimeout 280000000) (testGroup "tls" [Spec.Tls.tests, Spec.Peers.tests, Spec.Chains.tests, Spec.Sessions.tests, Spec.Concurrent.tests, Spec.Validation.tests]))
