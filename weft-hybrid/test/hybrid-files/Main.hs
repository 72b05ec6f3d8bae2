-- |
-- The suite @hybrid-files@: "Weft.Hybrid.File" with each engine of "Weft.File", and with 1, 2
-- and 4 loops. @WEFT_TEST_SCALE@ multiplies repetitions.
module Main (main) where

import Control.Concurrent (forkOn, getNumCapabilities, newEmptyMVar, putMVar, setNumCapabilities, takeMVar)
import Control.Monad (forM_, when)
import qualified Files.Killed
import qualified Files.Use
import System.Environment (setEnv)
import Test.Tasty hiding (defaultMain)
import Weft.File (FileEngine (..), filesChoice, preferFiles, stopRings)
import Weft.Hybrid.Scheduler
import Weft.Test.Configurations (configurations)
import Weft.Test.Main (defaultMain)
import Weft.Test.Skip (skipAll)

main :: IO ()
main = do
  setEnv "TASTY_NUM_THREADS" "1"
  noRings <- preferFiles Rings >> snd <$> filesChoice <* stopRings
  chosen <- configurations (== (2, Adaptive)) [(n, engine) | n <- [1, 2, 4], engine <- [Adaptive, Rings, Threads]]
  defaultMain . localOption (mkTimeout 120000000) . testGroup "hybrid-files" $
    [needing engine noRings (group engine n) | (n, engine) <- chosen]
  where
    needing Rings (Just why) = skipAll (show Rings) why
    needing _ _ = id

group :: FileEngine -> Int -> TestTree
group engine n =
  withResource begin (\s -> stopScheduler s >> stopRings) $ \scheduler ->
    testGroup (show engine <> " -N" <> show n) [Files.Use.tests scheduler, Files.Killed.tests scheduler]
  where
    begin = do
      preferFiles engine
      caps <- getNumCapabilities
      when (caps /= n) (setNumCapabilities n)
      -- The rings of all capabilities now: tests count descriptors, and it is a matter of luck which loops they use.
      forM_ [0 .. n - 1] $ \cap -> do
        opened <- newEmptyMVar
        _ <- forkOn cap (filesChoice >> putMVar opened ())
        takeMVar opened
      startScheduler defaultSettings {settingsOnException = \_ _ -> pure ()}
