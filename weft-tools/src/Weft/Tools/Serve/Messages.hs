-- |
-- Description : Messages of a server to its operator
--
-- Lines on standard output and standard error. If they are a pipe that nobody reads, it is full after 64 KiB. A line
-- is therefore dropped if it cannot be written within a second, so that the server continues and can shut down. The
-- handles of "System.IO" are not used, since the end of a program waits until they are flushed. A text may contain the
-- name of a file that a client asked for, so control characters are replaced by blanks: no name ends a line.
--
-- Any thread may call these functions. They throw no 'IOException', except 'writeError'.
module Weft.Tools.Serve.Messages
  ( logInfo,
    logWarning,
    logError,
    explained,

    -- * For logs with a thread of their own
    lineOf,
    writeError,
  )
where

import Control.Exception (try)
import Control.Monad (void)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Unsafe as B
import Data.Char (isControl)
import Foreign.C.Error (Errno (..), eAGAIN)
import Foreign.Ptr (castPtr)
import GHC.IO.Exception (IOException (ioe_description, ioe_errno, ioe_filename))
import System.IO.Unsafe (unsafePerformIO)
import System.Posix.IO (fdWriteBuf, stdError, stdOutput)
import System.Posix.Types (Fd)
import Weft.Blocking (Pool, PoolStatus (..), newPool, runIn, statusOf)
import Weft.Duration (seconds)
import Weft.StandardError (encoded)
import Weft.Thread (threadWaitWrite)
import Weft.Timer (within)

-- | Print a line on standard output.
logInfo :: String -> IO ()
logInfo = writeTo outputs stdOutput

-- | Print a line on standard error, with the program's name.
logWarning :: String -> IO ()
logWarning text = writeTo errors stdError ("weft serve: " <> text)

-- | Print a line on standard error.
logError :: String -> IO ()
logError = writeTo errors stdError

-- | The message for an error, with the name of its file.
explained :: IOException -> String
explained e = maybe "" (<> ": ") (ioe_filename e) <> ioe_description e

-- | A pool of one thread for each descriptor, so that lines are not mixed.
outputs, errors :: Pool
outputs = unsafePerformIO (newPool 1)
{-# NOINLINE outputs #-}
errors = unsafePerformIO (newPool 1)
{-# NOINLINE errors #-}

-- | Write a line with a time limit, or drop it.
writeTo :: Pool -> Fd -> String -> IO ()
writeTo pool fd text = do
  waiting <- poolQueued <$> statusOf pool
  -- If the pool's queue is full, because nobody reads, the line is dropped at once.
  if waiting > 50 then pure () else void (try (within (seconds 1) (writeAll pool fd (lineOf text))) :: IO (Either IOException (Maybe ())))

-- | Write bytes on standard error, however long that takes. Throws an 'IOException'.
writeError :: ByteString -> IO ()
writeError = writeAll errors stdError

-- | A line, with its end, in which control characters are replaced by blanks. Bytes that are no text stay as they are.
lineOf :: String -> ByteString
lineOf text = encoded (map visible text <> "\n")
  where
    visible c = if isControl c || isControlByte c then ' ' else c
    -- A byte that is no text, and that some terminals take for a control character (ISO 6429, C1).
    isControlByte c = c >= '\xDC80' && c <= '\xDC9F'

writeAll :: Pool -> Fd -> ByteString -> IO ()
writeAll pool fd = go
  where
    go bytes
      | B.null bytes = pure ()
      | otherwise = do
        written <- try (runIn pool (B.unsafeUseAsCStringLen bytes (\(p, n) -> fdWriteBuf fd (castPtr p) (fromIntegral n))))
        case written of
          Right n -> go (B.drop (fromIntegral n) bytes)
          -- Another process has made the descriptor non-blocking.
          Left e
            | fmap Errno (ioe_errno e) == Just eAGAIN -> threadWaitWrite fd >> go bytes
            | otherwise -> ioError e
