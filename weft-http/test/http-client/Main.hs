-- |
-- Tests of the HTTP client. Its peers are scripts that send bytes, over sockets of the package @network@, and servers
-- of other projects.
module Main (main) where

import qualified Spec.Chains as Chains
import qualified Spec.Cuts as Cuts
import qualified Spec.Exchange as Exchange
import qualified Spec.Forked as Forked
import qualified Spec.Gone as Gone
import qualified Spec.Parser as Parser
import qualified Spec.Peers as Peers
import qualified Spec.Proxy as Proxy
import qualified Spec.Shared as Shared
import qualified Spec.Upgrades as Upgrades
import qualified Spec.Urls as Urls
import Test.Tasty (DependencyType (AllFinish), TestTree, after, testGroup)
import Weft.Test.Main (defaultMain)

main :: IO ()
main = defaultMain (testGroup "HTTP client" [Parser.tests, Exchange.tests, Cuts.tests, Peers.tests, Proxy.tests, Chains.tests, Gone.tests, Upgrades.tests, Shared.tests, Urls.tests, forked])

-- | Alone: when a child's collector finds a handle of the parent that another test is writing to, it writes what the
-- handle holds, and the file has it twice.
forked :: TestTree
forked = after AllFinish "!/forked children/" Forked.tests
