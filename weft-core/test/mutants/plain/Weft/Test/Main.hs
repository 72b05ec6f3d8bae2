-- |
-- Replaces the module of @weft-test-support@ in programs that the suite @mutants@ builds by ghc alone.
module Weft.Test.Main
  ( defaultMain,
  )
where

import Test.Tasty (defaultMain)
