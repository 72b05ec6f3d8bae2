-- |
-- What the tests run on: a back end and a number of capabilities.
module Configurations
  ( Configuration,
    configurationName,
    allConfigurations,
    capabilities,
    testOn,
  )
where

import Control.Concurrent (setNumCapabilities)
import Control.Monad (filterM, unless)
import Data.IORef
import Data.Maybe (isNothing)
import System.IO.Unsafe (unsafePerformIO)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Backend (backendNames, preferBackend, whyUnavailable)
import Weft.Runtime (stopManagers)

-- | A back end and a number of capabilities.
data Configuration = Configuration String Int
  deriving (Eq)

configurationName :: Configuration -> String
configurationName (Configuration backend n) = backend <> " -N" <> show n

capabilities :: Configuration -> Int
capabilities (Configuration _ n) = n

-- | Those of this machine: every number of capabilities on the preferred back end,
-- and every back end on two.
allConfigurations :: IO [Configuration]
allConfigurations = do
  available <- filterM (fmap isNothing . whyUnavailable) backendNames
  pure $
    [Configuration backend n | backend <- take 1 available, n <- [1, 2, 4]]
      <> [Configuration backend 2 | backend <- drop 1 available]

-- | A test that runs under the configuration, which is put in place first if the
-- last test had another one.
testOn :: Configuration -> String -> Assertion -> TestTree
testOn wanted@(Configuration backend n) name act = testCase name $ do
  present <- readIORef current
  unless (present == Just wanted) $ do
    stopManagers
    preferBackend backend
    setNumCapabilities n
    writeIORef current (Just wanted)
  act

current :: IORef (Maybe Configuration)
current = unsafePerformIO (newIORef Nothing)
{-# NOINLINE current #-}
