-- |
-- Files that the page cache does not have, wholly or in part.
module Files.Cold
  ( tests,
  )
where

import Control.Monad (forM_, unless)
import qualified Data.ByteString as B
import Harness
import System.FilePath ((</>))
import System.Posix.Fcntl (Advice (..), fileAdvise)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.File
import Weft.Test.Files

tests :: TestTree
tests =
  testGroup
    "cold"
    [ testCase "cold, warm and half warm files have the same bytes" same,
      testCase "many threads open and read cold files" many
    ]

-- | Have the page cache forget a range; to the end of the file with a count of 0.
forget :: FilePath -> Int -> Int -> IO ()
forget path from count = withFile reading path $ \file -> withFileFd file $ \fd ->
  fileAdvise fd (fromIntegral from) (fromIntegral count) AdviceDontNeed

same :: Assertion
same = withBytes size $ \path -> forM_ (take (times 20) (cycle ranges)) $ \(from, count) -> do
  forget path from count
  withFile reading {openNonBlocking = True} path $ \file -> do
    status <- statFile file
    status @?= openedStatus file
    forM_ [(0, size), (0, size + 10), (5, 70000), (size - 3, 10)] $ \(at, n) -> do
      got <- readAt file (fromIntegral at) (fromIntegral n)
      unless (got == marked at (min n (size - at))) (assertFailure (show (at, n, B.length got)))
  where
    size = 300001
    -- All, the beginning, the middle, the end, nothing.
    ranges = [(0, 0), (0, 8192), (65536, 65536), (200000, 0), (size, 0)]

many :: Assertion
many = withFolder $ \folder -> withDirectory folder $ \dir -> do
  forM_ [0 .. 63 :: Int] $ \i -> do
    withFile writing (folder </> show i) (\file -> writeAt file 0 (marked i 20000) >> sync file)
    forget (folder </> show i) 0 0
  within 50 "cold files" . parallel 32 $ \i -> forM_ [1 .. times 40] $ \k -> do
    let n = (i * 7 + k * 11) `mod` 64
    got <- withFileAt dir reading {openResolve = Beneath, openNonBlocking = True} (show n) $ \file -> readAt file 0 30000
    unless (got == marked n 20000) (assertFailure ("wrong bytes in " <> show n))
    forget (folder </> show n) 0 0
