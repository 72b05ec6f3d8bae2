-- | The size of rings: @WEFT_RING_ENTRIES@ in the environment. For tests that need full queues and overflowing
-- completions.
module Weft.FFI.RingEntries
  ( ringEntries,
    preferRingEntries,
  )
where

import Data.IORef
import Foreign.C.Types (CUInt)
import System.Environment (lookupEnv)
import System.IO.Unsafe (unsafePerformIO)
import Text.Read (readMaybe)

-- | The number of entries in the submission queue and in the completion queue of every ring that is made from now on;
-- 'Nothing' means the usual sizes. The kernel rounds up to a power of two. Throws a user error if the variable is not
-- a number from 1 to 4096.
ringEntries :: IO (Maybe CUInt)
ringEntries = readIORef preference >>= maybe fromEnvironment (pure . Just)

-- | Goes before the environment, which a program cannot change while other threads read it.
preferRingEntries :: Maybe CUInt -> IO ()
preferRingEntries = writeIORef preference

preference :: IORef (Maybe CUInt)
preference = unsafePerformIO (newIORef Nothing)
{-# NOINLINE preference #-}

fromEnvironment :: IO (Maybe CUInt)
fromEnvironment = do
  set <- lookupEnv "WEFT_RING_ENTRIES"
  case set of
    Nothing -> pure Nothing
    Just "" -> pure Nothing
    Just text -> case readMaybe text of
      Just n | n >= 1 && n <= (4096 :: Int) -> pure (Just (fromIntegral n))
      _ -> ioError (userError ("weft: WEFT_RING_ENTRIES is a number from 1 to 4096, not " <> show text))
