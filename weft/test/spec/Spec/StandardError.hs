-- |
-- Lines on standard error, in a locale that can encode only ASCII.
module Spec.StandardError
  ( tests,
  )
where

import Control.Concurrent.Async (concurrently, forConcurrently_)
import Control.Exception (bracket)
import Control.Monad (forM_)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as B8
import Data.List (sort)
import GHC.IO.Handle (hDuplicate, hDuplicateTo)
import Harness
import System.IO
import System.Posix.IO (closeFd, createPipe, fdToHandle)
import System.Posix.Types (Fd)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.StandardError

tests :: TestTree
tests =
  testGroup
    "standard error"
    [ testCase "characters that the locale does not have, and bytes that are no text" $ do
        got <- errors (mapM_ reportLine ["caf\233 \8364 \128512", "name \xDCFF\xDCE4.", "half \xD800.", ""])
        B.split 10 got @?= [B.pack [99, 97, 102, 195, 169, 32, 226, 130, 172, 32, 240, 159, 152, 128], B8.pack "name \xff\xe4.", B8.pack "half \xef\xbf\xbd.", B.empty, B.empty],
      testCase "the lines of several threads are whole" $ do
        let line i k = concat (replicate 30 (show (i, k)))
            count = times 200
        got <- errors (forConcurrently_ [1 .. 8 :: Int] (\i -> forM_ [1 .. count] (reportLine . line i)))
        sort (B8.lines got) @?= sort [B8.pack (line i k) | i <- [1 .. 8 :: Int], k <- [1 .. count]],
      testCase "a reader that has gone is no error" $ do
        (r, w) <- createPipe
        closeFd r
        redirected w (mapM_ reportLine ["lost", "lost"])
    ]

-- | What an action writes on standard error.
errors :: IO () -> IO B.ByteString
errors act = do
  (r, w) <- createPipe
  reader <- fdToHandle r
  hSetBinaryMode reader True
  fst <$> finishes "writing" (concurrently (B.hGetContents reader) (redirected w act))

-- | Run an action while standard error is the descriptor, which is closed then.
redirected :: Fd -> IO a -> IO a
redirected fd act = bracket begin end (const act)
  where
    begin = do
      before <- hDuplicate stderr
      writer <- fdToHandle fd
      become writer
      hSetEncoding stderr =<< mkTextEncoding "ASCII"
      pure before
    end before = become before >> mkTextEncoding "UTF-8" >>= hSetEncoding stderr
    become h = do
      hDuplicateTo h stderr
      hSetBuffering stderr NoBuffering
      hClose h
