-- |
-- The suite @tls@: "Weft.Tls" by the laws of connections, and asked by @openssl@ and @curl@.
module Main
  ( main,
  )
where

import qualified Spec.Tls
import Test.Tasty

main :: IO ()
main = defaultMain (localOption (mkTimeout 60000000) Spec.Tls.tests)
