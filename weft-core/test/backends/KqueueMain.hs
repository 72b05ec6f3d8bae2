-- |
-- The laws of the back ends, run on kqueue: see @test\/backends\/with-libkqueue.sh@.
module Main (main) where

import Laws
import System.Environment (setEnv)
import Test.Tasty hiding (defaultMain)
import qualified Weft.Backend.Kqueue as Kqueue
import Weft.Test.Main (defaultMain)

main :: IO ()
main = do
  setEnv "TASTY_NUM_THREADS" "1"
  defaultMain (localOption (mkTimeout 60000000) (testGroup "back ends" [laws "kqueue" Kqueue.new]))
