-- |
-- What the tests run on: a back end and a number of capabilities, and whether the
-- server limits its clients.
module Configurations
  ( Configuration,
    configurationName,
    allConfigurations,
    capabilities,
    limiting,
    limited,
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

-- | A back end, a number of capabilities; does the server limit its clients?
data Configuration = Configuration String Int Bool
  deriving (Eq)

configurationName :: Configuration -> String
configurationName (Configuration backend n limits) = backend <> " -N" <> show n <> (if limits then " limited" else "")

capabilities :: Configuration -> Int
capabilities (Configuration _ n _) = n

limiting :: Configuration -> Bool
limiting (Configuration _ _ limits) = limits

-- | Does the server of the test that runs limit its clients?
limited :: IO Bool
limited = maybe False (\(Configuration _ _ limits) -> limits) <$> readIORef current

-- | Those of this machine: every number of capabilities on the preferred back end,
-- and every back end on two.
allConfigurations :: IO [Configuration]
allConfigurations = do
  available <- filterM (fmap isNothing . whyUnavailable) backendNames
  pure $
    [Configuration backend n limits | backend <- take 1 available, (n, limits) <- [(1, False), (2, False), (2, True), (4, False)]]
      <> [Configuration backend 2 True | backend <- drop 1 available]

-- | A test that runs under the configuration, which is put in place first if the
-- last test had another one.
testOn :: Configuration -> String -> Assertion -> TestTree
testOn wanted@(Configuration backend n _) name act = testCase name $ do
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
