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

import Control.Exception (catch, evaluate, throwIO, try)
import qualified Data.ByteString as B
import Data.ByteString.Unsafe (unsafePackCStringLen)
import Data.IORef
import Data.Word (Word8)
import Foreign.C.Error (Errno (..), eAGAIN, eNXIO)
import Foreign.ForeignPtr (ForeignPtr, mallocForeignPtr, withForeignPtr)
import Foreign.Ptr (castPtr, plusPtr)
import Foreign.Storable (poke)
import GHC.IO.Exception (IOException (ioe_description, ioe_errno))
import System.Posix.IO (fdWriteBuf, stdOutput)
import System.Posix.Types (Fd)
import Weft.Blocking (Pool, newPool, runIn)
import Weft.File
import Weft.Thread (threadWaitWrite)

-- | An open file, or the standard output, the one thread that writes to it, and whether it ends in the middle of a line,
-- since a write failed after a part. The reference is changed by the thread that writes.
data Sink = Sink !Pool !(Maybe File) !(IORef Bool)

-- | Open a file for appending. It is created if it does not exist, readable and writable for its owner and readable for
-- its group. @-@ is the standard output. A named pipe must have a reader. Throws an 'IOError'.
openSink :: FilePath -> IO Sink
openSink path = do
  pool <- newPool 1
  Sink pool <$> (if path == "-" then pure Nothing else Just <$> openFile mode path `catch` named) <*> newIORef False
  where
    -- Otherwise a named pipe would open only when it has a reader.
    mode = writing {openCreation = CreateIfMissing 0o640, openTruncate = False, openAppend = True, openNonBlocking = True}
    named e
      | fmap Errno (ioe_errno e) == Just eNXIO = throwIO e {ioe_description = "it is a named pipe that no program reads, or a socket"}
      | otherwise = throwIO e

-- | Close the file, unless it is the standard output.
closeSink :: Sink -> IO ()
closeSink (Sink _ file _) = mapM_ closeFile file

-- | Write the given number of bytes, which are whole lines. Returns how many of the lines were written, and the error if
-- not all were. The next write first ends a line of which only a part was written. Interruptible; a write in progress
-- then continues and keeps the memory alive.
writeSink :: Sink -> ForeignPtr Word8 -> Int -> IO (Int, Maybe IOException)
writeSink (Sink pool file cut) memory size = maybe ($ stdOutput) withFileFd file $ \fd -> do
  before <- readIORef cut
  ended <- if before then newline >>= \end -> snd <$> put fd end 1 0 else pure Nothing
  case ended of
    Just e -> pure (0, Just e)
    Nothing -> do
      -- Should this be interrupted, a part of a line may have been written.
      writeIORef cut True
      (done, failure) <- put fd memory size 0
      withForeignPtr memory $ \p -> do
        written <- unsafePackCStringLen (castPtr p, done)
        writeIORef cut $! not (B.null written || B.last written == 10)
        (\lines' -> (lines', failure)) <$> evaluate (B.count 10 written)
  where
    newline = mallocForeignPtr >>= \end -> end <$ withForeignPtr end (`poke` 10)
    put :: Fd -> ForeignPtr Word8 -> Int -> Int -> IO (Int, Maybe IOException)
    put fd from most done
      | done >= most = pure (done, Nothing)
      | otherwise = do
        outcome <- try (runIn pool (withForeignPtr from $ \p -> fdWriteBuf fd (p `plusPtr` done) (fromIntegral (most - done))))
        case outcome of
          Right n -> put fd from most (done + fromIntegral n)
          -- A pipe is full, or the standard output, which another process has made non-blocking.
          Left e
            | fmap Errno (ioe_errno e) == Just eAGAIN -> threadWaitWrite fd >> put fd from most done
            | otherwise -> pure (done, Just e)
