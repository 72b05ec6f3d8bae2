-- |
-- Pipes, terminals and other files without offsets. One read and one write at a
-- time; further callers queue.
module Weft.File.Stream
  ( readNext,
    writeNext,
  )
where

import Control.Monad (unless, when)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Internal as B (fromForeignPtr, mallocByteString, toForeignPtr)
import Foreign.C.Types (CInt)
import Foreign.ForeignPtr (touchForeignPtr)
import Foreign.ForeignPtr.Unsafe (unsafeForeignPtrToPtr)
import Foreign.Ptr (plusPtr)
import Weft.FFI.File
import Weft.File.Engine
import Weft.File.Types
import Weft.File.Units
import Weft.Sys

-- | Read the next bytes of a stream, at most that number and at most 1 MiB; wait for at least one. Empty at the end.
-- As with read(2), a named pipe is at its end while no process has it open for writing, also if none has opened it yet
-- ('Weft.File.openNonBlocking'); it goes on if one opens it later. Interruptible; bytes that the kernel has already
-- taken out of the stream are kept for the next read then. Throws an error if the file is closed meanwhile.
readNext :: File -> Count -> IO ByteString
readNext file (Count count)
  | count <= 0 = pure B.empty
  | otherwise = withDescriptor loc file $ \fd -> mask_ $ do
    box <- streamLeft <$> streamState file
    left <- takeMVar box
    if B.null left
      then fresh fd box
      else do
        let (front, rest) = B.splitAt count left
        front <$ putMVar box rest
  where
    loc = "Weft.File.readNext"
    -- A request's length has 32 bits.
    size = min mostAtOnce count
    -- The MVar is empty and no other thread fills it: putting does not block.
    fresh fd box = do
      memory <- B.mallocByteString size
      late <- newRef B.empty
      let bytes n = B.fromForeignPtr memory 0 (fromIntegral n)
          policy = staying file (writeRef late . bytes) (touchForeignPtr memory)
      r <-
        runRequest policy (opRead fd (-1) (unsafeForeignPtrToPtr memory) size)
          `onException` (putMVar box =<< readRef late)
      putMVar box B.empty
      bytes <$> concluded loc file r

-- | Write all bytes to a stream; wait for room. If it is interrupted, a part may have been
-- written.
writeNext :: File -> ByteString -> IO ()
writeNext file bytes = withDescriptor loc file $ \fd -> do
  turn <- streamTurn <$> streamState file
  withMVar turn (\() -> go fd 0)
  where
    loc = "Weft.File.writeNext"
    (memory, start, size) = B.toForeignPtr bytes
    base = unsafeForeignPtrToPtr memory `plusPtr` start
    go fd done = when (done < size) $ do
      let op = opWrite fd (-1) (base `plusPtr` done) (min mostAtOnce (size - done))
      n <- runRequest (staying file (const (pure ())) (touchForeignPtr memory)) op >>= concluded loc file
      when (n > 0) (go fd (done + n))

-- | The policy of an operation that may wait for ever: no call that blocks is used, it ends when the file is closed,
-- and an interrupted caller cancels it and waits for its end.
staying :: File -> (CInt -> IO ()) -> IO () -> RequestPolicy
staying file won keep =
  RequestPolicy
    { policyTry = True,
      policyDirect = False,
      policyBlock = False,
      policyOnInterrupt = Just won,
      policyOnWait = endedByClose file,
      policyOnDone = keep,
      -- Its caller keeps the file open.
      policyAcquire = pure (pure ()),
      policyDispose = const (pure ())
    }

-- | Put an action that ends an operation into the file's list, and run it if the file
-- was closed before that.
endedByClose :: File -> IO () -> IO (IO ())
endedByClose file end = do
  key <- newRef ()
  waiting <- streamWaiting <$> streamState file
  _ <- updateRef waiting ((key, end) :)
  open <- isFileOpen file
  unless open end
  pure (remove waiting key)
  where
    remove waiting key = do
      old <- readRef waiting
      let !rest = filter ((/= key) . fst) old
      ok <- casRef waiting old rest
      unless ok (remove waiting key)

-- | The result of an operation. If it was cancelled, the file was closed.
concluded :: String -> File -> CInt -> IO Int
concluded loc file r
  | r == errCancelled = ioError (closedError loc file)
  | otherwise = check loc (filePath file) r
