-- |
-- The configurations of the tests: a back end, a number of capabilities, and whether the
-- server limits its clients.
module Configurations
  ( Configuration,
    configurationName,
    allConfigurations,
    capabilities,
    limiting,
    limited,
    testOn,
    patientOn,
  )
where

import Control.Concurrent (setNumCapabilities)
import Control.Monad (unless)
import Data.IORef
import System.IO.Unsafe (unsafePerformIO)
import Test.Tasty
import Test.Tasty.HUnit (Assertion)
import Weft.Backend (backendNames, preferBackend, whyUnavailable)
import Weft.Runtime (stopManagers)
import Weft.Test.Configurations (configurations)
import Weft.Test.Skip (testCase)

-- | A back end, a number of capabilities, and whether the server limits its clients.
data Configuration = Configuration String Int Bool
  deriving (Eq)

configurationName :: Configuration -> String
configurationName (Configuration backend n limits) = backend <> " -N" <> show n <> (if limits then " limited" else "")

capabilities :: Configuration -> Int
capabilities (Configuration _ n _) = n

limiting :: Configuration -> Bool
limiting (Configuration _ _ limits) = limits

-- | True if the server of the current test limits its clients.
limited :: IO Bool
limited = maybe False (\(Configuration _ _ limits) -> limits) <$> readIORef current

-- | The preferred back end with each number of capabilities, and the other back ends with two. A back end that this
-- machine does not support comes with the reason. Where only one configuration is to run, it is one with limits.
allConfigurations :: IO [(Configuration, Maybe String)]
allConfigurations = mapM explained =<< configurations limiting wanted
  where
    explained c@(Configuration backend _ _) = (,) c <$> whyUnavailable backend
    wanted =
      [Configuration backend n limits | backend <- take 1 backendNames, (n, limits) <- [(1, False), (2, False), (2, True), (4, False)]]
        <> [Configuration backend 2 True | backend <- drop 1 backendNames]

-- | A test that runs in the configuration, which is set up first if the previous test had another one. The test may be
-- skipped ("Weft.Test.Skip").
testOn :: Configuration -> String -> Assertion -> TestTree
testOn wanted@(Configuration backend n _) name act = testCase name $ do
  present <- readIORef current
  unless (present == Just wanted) $ do
    stopManagers
    preferBackend backend
    setNumCapabilities n
    writeIORef current (Just wanted)
  act

-- | A test that mostly waits, for limits of seconds or for clocks of file systems. It runs once on each back end, with
-- limits.
patientOn :: Configuration -> String -> Assertion -> TestTree
patientOn wanted name act
  | limiting wanted = testOn wanted name act
  | otherwise = testGroup name []

current :: IORef (Maybe Configuration)
current = unsafePerformIO (newIORef Nothing)
{-# NOINLINE current #-}
