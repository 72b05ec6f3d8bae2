-- |
-- Tests of the rules of RFC 9293 and its companions one by one, and of possible attacks, with one connection and
-- handmade segments. The names state the rules; doc/tcp.md refers to them.
module Spec.Rfc (tests) where

import qualified Spec.Rfc.Attacks
import qualified Spec.Rfc.Closing
import qualified Spec.Rfc.Receiving
import qualified Spec.Rfc.Reordering
import qualified Spec.Rfc.Sending
import Test.Tasty

tests :: TestTree
tests = testGroup "rfc" (Spec.Rfc.Receiving.groups ++ Spec.Rfc.Sending.groups ++ Spec.Rfc.Reordering.groups ++ Spec.Rfc.Closing.groups ++ Spec.Rfc.Attacks.groups)
