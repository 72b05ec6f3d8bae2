-- |
-- The suite @files@: "Weft.File" with each of its engines, on 1, 2 and 4
-- capabilities. @WEFT_TEST_SCALE@ multiplies the number of repetitions.
module Main
  ( main,
  )
where

import Control.Concurrent (setNumCapabilities)
import qualified Files.Cancelling
import qualified Files.Contents
import qualified Files.Life
import qualified Files.Opening
import qualified Files.Streams
import Harness (scale)
import System.Environment (setEnv)
import Test.Tasty
import Weft.File
import Weft.Runtime (stopManagers)

main :: IO ()
main = do
  setEnv "TASTY_NUM_THREADS" "1"
  defaultMain . localOption (mkTimeout (round (60e6 * max 1 scale))) . testGroup "files" $
    [ withResource (enter engine n) (const (stopLanes >> stopManagers)) $ \_ ->
        testGroup
          (show engine <> " -N" <> show n)
          [ Files.Contents.tests,
            Files.Opening.tests,
            Files.Streams.tests,
            Files.Cancelling.tests,
            Files.Life.tests engine
          ]
      | n <- [1, 2, 4],
        engine <- [Adaptive, Rings, Threads]
    ]

enter :: FileEngine -> Int -> IO ()
enter engine n = preferFiles engine >> setNumCapabilities n
