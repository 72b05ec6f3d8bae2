-- |
-- Description : What a server says to its operator
--
-- Lines on the standard output and the standard error. Nobody may be reading them: a pipe takes 64 KiB and then no more. So a
-- line is waited for a second at most and given up then, by all who say something: a server goes on, and ends, when nobody
-- listens. The handles of "System.IO" are not used for this, as the end of a program waits until they are flushed.
--
-- Any thread may call these functions. They throw no 'IOException'.
module Weft.Tools.Serve.Say
  ( say,
    warn,
    complain,
  )
where

import Control.Exception (try)
import Control.Monad (void)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Unsafe as B
import qualified Data.Text as T
import qualified Data.Text.Encoding as T
import Foreign.C.Error (Errno (..), eAGAIN)
import Foreign.Ptr (castPtr)
import GHC.IO.Exception (IOException (ioe_errno))
import System.IO.Unsafe (unsafePerformIO)
import System.Posix.IO (fdWriteBuf, stdError, stdOutput)
import System.Posix.Types (Fd)
import Weft.Blocking (Pool, PoolStatus (..), newPool, runIn, statusOf)
import Weft.Duration (seconds)
import Weft.Thread (threadWaitWrite)
import Weft.Timer (within)

-- | A line on the standard output.
say :: String -> IO ()
say = tell outputs stdOutput

-- | A line on the standard error, with the program's name.
warn :: String -> IO ()
warn text = tell errors stdError ("weft serve: " <> text)

-- | A line on the standard error.
complain :: String -> IO ()
complain = tell errors stdError

-- | One thread for each, so that lines do not mix.
outputs, errors :: Pool
outputs = unsafePerformIO (newPool 1)
{-# NOINLINE outputs #-}
errors = unsafePerformIO (newPool 1)
{-# NOINLINE errors #-}

tell :: Pool -> Fd -> String -> IO ()
tell pool fd text = do
  waiting <- poolQueued <$> statusOf pool
  -- Nobody reads, and many have something to say: none of them waits.
  if waiting > 50 then pure () else void (try (within (seconds 1) (go (T.encodeUtf8 (T.pack (text <> "\n"))))) :: IO (Either IOException (Maybe ())))
  where
    go :: ByteString -> IO ()
    go bytes
      | B.null bytes = pure ()
      | otherwise = do
        written <- try (runIn pool (B.unsafeUseAsCStringLen bytes (\(p, n) -> fdWriteBuf fd (castPtr p) (fromIntegral n))))
        case written of
          Right n -> go (B.drop (fromIntegral n) bytes)
          -- Somebody else has made it non-blocking.
          Left e
            | fmap Errno (ioe_errno e) == Just eAGAIN -> threadWaitWrite fd >> go bytes
            | otherwise -> ioError e
