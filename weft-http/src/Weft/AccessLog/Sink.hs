-- |
-- The destination of a log's lines. Writes run on a thread of their own, so that
-- a disk that hangs, or a pipe that is not read, blocks no capability.
module Weft.AccessLog.Sink
  ( Sink,
    openSink,
    closeSink,
    writeSink,
  )
where

import Control.Exception (catch, throwIO, try)
import Data.Word (Word8)
import Foreign.C.Error (Errno (..), eAGAIN, eNXIO)
import Foreign.ForeignPtr (ForeignPtr, withForeignPtr)
import Foreign.Ptr (plusPtr)
import GHC.IO.Exception (IOException (ioe_description, ioe_errno))
import System.Posix.IO (fdWriteBuf, stdOutput)
import System.Posix.Types (Fd)
import Weft.Blocking (Pool, newPool, runIn)
import Weft.File
import Weft.Thread (threadWaitWrite)

-- | An open file, or the standard output, and the one thread that writes to it.
data Sink = Sink !Pool !(Maybe File)

-- | Open a file for appending. It is created if it does not exist, readable and writable for its owner and readable for
-- its group. @-@ is the standard output. A named pipe must have a reader. Throws an 'IOError'.
openSink :: FilePath -> IO Sink
openSink path = do
  pool <- newPool 1
  Sink pool <$> if path == "-" then pure Nothing else Just <$> openFile mode path `catch` named
  where
    -- Otherwise a named pipe would open only when it has a reader.
    mode = writing {openCreation = CreateIfMissing 0o640, openTruncate = False, openAppend = True, openNonBlocking = True}
    named e
      | fmap Errno (ioe_errno e) == Just eNXIO = throwIO e {ioe_description = "it is a named pipe that no program reads, or a socket"}
      | otherwise = throwIO e

-- | Close the file, unless it is the standard output.
closeSink :: Sink -> IO ()
closeSink (Sink _ file) = mapM_ closeFile file

-- | Write the given number of bytes. Throws an 'IOError' if not all can be written. Interruptible; a
-- write in progress then continues and keeps the memory alive.
writeSink :: Sink -> ForeignPtr Word8 -> Int -> IO ()
writeSink (Sink pool file) memory size = maybe ($ stdOutput) withFileFd file (go 0)
  where
    go :: Int -> Fd -> IO ()
    go done fd
      | done >= size = pure ()
      | otherwise = do
        written <- try (runIn pool (withForeignPtr memory $ \p -> fdWriteBuf fd (p `plusPtr` done) (fromIntegral (size - done))))
        case written of
          Right n -> go (done + fromIntegral n) fd
          -- A pipe is full, or the standard output, which another process has made non-blocking.
          Left e
            | fmap Errno (ioe_errno e) == Just eAGAIN -> threadWaitWrite fd >> go done fd
            | otherwise -> throwIO e
