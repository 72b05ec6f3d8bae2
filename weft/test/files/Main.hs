-- | The suite @files@: "Weft.File" with each of its engines, on 1, 2 and 4 capabilities, and on a kernel that refuses
-- what is tried first. @WEFT_TEST_SCALE@ multiplies the number of repetitions.
module Main
  ( main,
  )
where

import Control.Concurrent (setNumCapabilities)
import qualified Files.Cancelling
import qualified Files.Cold
import qualified Files.Contents
import qualified Files.Folders
import qualified Files.Life
import qualified Files.Limits
import Files.Older
import qualified Files.Opening
import qualified Files.Sending
import qualified Files.Streams
import Harness (scale)
import System.Environment (setEnv)
import Test.Tasty hiding (defaultMain)
import Test.Tasty.HUnit
import Weft.File
import Weft.Runtime (stopManagers)
import Weft.Test.Configurations (configurations)
import Weft.Test.Main (defaultMain)
import Weft.Test.Skip (skipAll)

main :: IO ()
main = do
  setEnv "TASTY_NUM_THREADS" "1"
  noRings <- preferFiles Rings >> snd <$> filesChoice <* stopRings
  chosen <- configurations (== ((2, False), Adaptive)) [(c, engine) | c <- [(1, False), (2, False), (2, True), (4, False)], engine <- [Adaptive, Rings, Threads]]
  defaultMain . localOption (mkTimeout (round (60e6 * max 1 scale))) . testGroup "files" $
    [ needing engine noRings name . withResource (enter engine n older) (const (onOlder False >> stopRings >> stopManagers)) $ \_ ->
        testGroup
          name
          ( [ Files.Contents.tests,
              Files.Cold.tests,
              Files.Opening.tests,
              Files.Folders.tests older,
              Files.Sending.tests
            ]
              <> [t | not older, t <- [Files.Streams.tests, Files.Cancelling.tests, Files.Life.tests engine, Files.Limits.tests engine]]
              <> [testCase "was refused" (refusals >>= \r -> assertBool "nothing was refused" (r > 0)) | older]
          )
      | ((n, older), engine) <- chosen,
        let name = show engine <> " -N" <> show n <> (if older then " older kernel" else "")
    ]
  where
    needing Rings (Just why) name = skipAll name why
    needing _ _ _ = id

enter :: FileEngine -> Int -> Bool -> IO ()
enter engine n older = onOlder older >> preferFiles engine >> setNumCapabilities n
