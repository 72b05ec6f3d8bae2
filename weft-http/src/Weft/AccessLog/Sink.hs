{-# LANGUAGE OverloadedStrings #-}

-- |
-- The destination of a log's lines. Writes run on a thread of their own, so that
-- a disk that hangs, or a pipe that is not read, blocks no capability.
module Weft.AccessLog.Sink
  ( Sink,
    openSink,
    inheritedSink,
    closeSink,
    writeSink,
  )
where

import Control.Exception (catch, throwIO, try)
import Control.Monad (unless)
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

-- | An open file, or the standard output, the one thread that writes to it, and where the file ends. The reference is
-- used by the thread that holds the sink.
data Sink = Sink !Pool !(Maybe File) !(IORef End)

-- | Where a file ends.
data End
  = -- | Nothing has been written since it was opened.
    Unknown
  | LineEnd
  | -- | Only a part of a line was written: by this log, or by an earlier one before its disk was full.
    MidLine

-- | Open a file for appending. It is created if it does not exist, readable and writable for its owner and readable
-- for its group. @-@ is the standard output. A named pipe must have a reader. Throws an 'IOError'.
openSink :: FilePath -> IO Sink
openSink path = do
  pool <- newPool 1
  Sink pool <$> (if path == "-" then pure Nothing else Just <$> openFile mode path `catch` named) <*> newIORef Unknown
  where
    -- Otherwise a named pipe would open only when it has a reader.
    mode = writing {openCreation = CreateIfMissing 0o640, openTruncate = False, openAppend = True, openNonBlocking = True}
    named e
      | fmap Errno (ioe_errno e) == Just eNXIO = throwIO e {ioe_description = "it is a named pipe that no program reads, or a socket"}
      | otherwise = throwIO e

-- | The sink for a forked child: the same file, to which its parent goes on writing. It is open for appending, so that
-- what each of them writes by one call stays in one piece.
inheritedSink :: Sink -> IO Sink
inheritedSink (Sink pool file _) = Sink pool file <$> newIORef Unknown

-- | Close the file, unless it is the standard output.
closeSink :: Sink -> IO ()
closeSink (Sink _ file _) = mapM_ closeFile file

-- | Write the given number of bytes, which are whole lines, and return the error if not all were written. After each
-- write(2) the first function gets the number of lines that it completed, so that this is known when a later one fails
-- or is interrupted. If the file ends in the middle of a line, that line is ended first. Interruptible; a write in
-- progress then continues and keeps the memory alive.
writeSink :: (Int -> IO ()) -> Sink -> ForeignPtr Word8 -> Int -> IO (Maybe IOException)
writeSink completed sink@(Sink pool file end) memory size = maybe ($ stdOutput) withFileFd file $ \fd -> do
  cut <- endsInLine sink
  failure <- if cut then newline >>= \byte -> put fd (const (pure ())) byte 1 0 else pure Nothing
  maybe (put fd completed memory size 0) (pure . Just) failure
  where
    newline = mallocForeignPtr >>= \byte -> byte <$ withForeignPtr byte (`poke` lineFeed)
    put :: Fd -> (Int -> IO ()) -> ForeignPtr Word8 -> Int -> Int -> IO (Maybe IOException)
    put fd count from most done
      | done >= most = pure Nothing
      | otherwise = do
        before <- readIORef end
        -- Should this be interrupted, a part of a line may have been written.
        writeIORef end MidLine
        outcome <- try (runIn pool (withForeignPtr from $ \p -> fdWriteBuf fd (p `plusPtr` done) (fromIntegral (most - done))))
        case outcome of
          Right n -> note count from done (fromIntegral n) >> put fd count from most (done + fromIntegral n)
          Left e -> do
            writeIORef end before
            -- A pipe is full, or the standard output, which another process has made non-blocking.
            if fmap Errno (ioe_errno e) == Just eAGAIN
              then threadWaitWrite fd >> put fd count from most done
              else pure (Just e)
    note count from done n = withForeignPtr from $ \p -> do
      written <- unsafePackCStringLen (castPtr p `plusPtr` done, n)
      unless (B.null written) (writeIORef end $! if B.last written == lineFeed then LineEnd else MidLine)
      count $! B.count lineFeed written

-- | Does the file end in the middle of a line? One that cannot be read, or is not a regular file, does not, unless a
-- part of a line was written here.
endsInLine :: Sink -> IO Bool
endsInLine (Sink _ file end) = do
  known <- readIORef end
  case (known, file) of
    (LineEnd, _) -> pure False
    (Unknown, Nothing) -> pure False
    (MidLine, Nothing) -> pure True
    (Unknown, Just f) -> orElse False $ do
      size <- regularSize f
      case size of
        Just n | n > 0 -> withFile reading (filePath f) $ \same -> (`notElem` ["", "\n"]) <$> readAt same (n - 1) 1
        _ -> pure False
    -- Another program may have emptied it.
    (MidLine, Just f) -> orElse True (maybe True (> 0) <$> regularSize f)
  where
    orElse :: Bool -> IO Bool -> IO Bool
    orElse otherwise' act = either (const otherwise' :: IOException -> Bool) id <$> try act
    regularSize f = (\status -> if statusType status == RegularFile then Just (statusSize status) else Nothing) <$> statFile f

lineFeed :: Word8
lineFeed = 10
