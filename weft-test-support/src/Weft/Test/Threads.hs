-- |
-- What a program leaves running: the Haskell threads of the process that began after some moment and have not ended.
-- For suites whose tests run one after the other, since the threads of all tests are counted.
module Weft.Test.Threads
  ( noneLeft,
    threadsSince,
  )
where

import Control.Concurrent (forkIO, threadDelay)
import Control.Exception (mask_)
import Data.Word (Word64)
import Foreign.C.Types (CInt (..))
import Test.Tasty.HUnit (Assertion, assertFailure)
import Text.Read (readMaybe)
import Weft.Test.Limits (patience)

-- | Run an action, and fail if threads that began meanwhile go on after it. A thread that has woken the one which
-- waited for its end still has some instructions to run, so those that end within five seconds are accepted: what a
-- test is about has to take longer, or to be looked at by other means.
noneLeft :: String -> IO a -> IO a
noneLeft what act = do
  count <- threadsSince
  a <- act
  a <$ go count (round (patience * 50000))
  where
    go :: IO Int -> Int -> Assertion
    go count left = do
      n <- count
      case n of
        0 -> pure ()
        _
          | left <= 0 -> assertFailure (what <> ": " <> show n <> " threads are left")
          | otherwise -> threadDelay 100 >> go count (left - 1)

-- | Counts the threads that have begun since this was called, and have not ended; not the one that counts, which began
-- before.
threadsSince :: IO (IO Int)
threadsSince = mask_ $ do
  newest <- forkIO (pure ())
  -- "ThreadId 123"
  number <- maybe (ioError (userError ("no number in " <> show newest))) pure (readMaybe (last (words (show newest))))
  pure (fromIntegral <$> c_threads_above number)

foreign import ccall unsafe "weft_test_threads_above" c_threads_above :: Word64 -> IO CInt
