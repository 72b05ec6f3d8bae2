-- |
-- The destination of a log's lines. A write waits for the kernel on a thread of its own, so that
-- a disk that hangs, or a pipe without a reader, blocks no capability.
module Weft.AccessLog.Sink
  ( Sink,
    openSink,
    closeSink,
    writeSink,
  )
where

import Control.Exception (throwIO, try)
import Data.Word (Word8)
import Foreign.C.Error (Errno (..), eAGAIN)
import Foreign.ForeignPtr (ForeignPtr, withForeignPtr)
import Foreign.Ptr (plusPtr)
import GHC.IO.Exception (IOException (ioe_errno))
import System.Posix.IO (fdWriteBuf, stdOutput)
import System.Posix.Types (Fd)
import Weft.Blocking (Pool, newPool, runIn)
import Weft.File
import Weft.Thread (threadWaitWrite)

-- | An open file, or the standard output, and the one thread that writes to it.
data Sink = Sink !Pool !(Maybe File)

-- | Open a file at whose end is written; it is made if it is missing, for its owner to read
-- and write and its group to read. @-@ is the standard output. Throws an 'IOError'.
openSink :: FilePath -> IO Sink
openSink path = do
  pool <- newPool 1
  Sink pool <$> if path == "-" then pure Nothing else Just <$> openFile mode path
  where
    mode = writing {openCreation = CreateIfMissing 0o640, openTruncate = False, openAppend = True}

-- | Close it, unless it is the standard output.
closeSink :: Sink -> IO ()
closeSink (Sink _ file) = mapM_ closeFile file

-- | Write this many bytes. Throws an 'IOError' if not all can be written. Interruptible; a
-- write that has begun continues and keeps the memory.
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
          -- Somebody else has made the standard output non-blocking.
          Left e
            | fmap Errno (ioe_errno e) == Just eAGAIN -> threadWaitWrite fd >> go done fd
            | otherwise -> throwIO e
