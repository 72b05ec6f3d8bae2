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

-- | The next bytes, at most so many; waits for at least one. Empty at the end.
-- Interruptible, and then nothing is lost: what the kernel had taken out of the
-- stream already is there for the next read. An error when the file is closed
-- meanwhile.
readNext :: File -> Count -> IO ByteString
readNext file (Count count)
  | count <= 0 = pure B.empty
  | otherwise = inside loc file $ \fd -> mask_ $ do
    left <- takeMVar (fileLeft file)
    if B.null left
      then fresh fd
      else do
        let (front, rest) = B.splitAt count left
        front <$ putMVar (fileLeft file) rest
  where
    loc = "Weft.File.readNext"
    -- The MVar is empty and nobody else fills it: putting does not block.
    fresh fd = do
      memory <- B.mallocByteString count
      late <- newRef B.empty
      let bytes n = B.fromForeignPtr memory 0 (fromIntegral n)
          manner = staying file (writeRef late . bytes) (touchForeignPtr memory)
      r <-
        runRequest manner (opRead fd (-1) (unsafeForeignPtrToPtr memory) count)
          `onException` (putMVar (fileLeft file) =<< readRef late)
      putMVar (fileLeft file) B.empty
      bytes <$> concluded loc file r

-- | Write all bytes; waits for room. When it is interrupted a part may have been
-- written.
writeNext :: File -> ByteString -> IO ()
writeNext file bytes = inside loc file $ \fd -> withMVar (fileTurn file) (\() -> go fd 0)
  where
    loc = "Weft.File.writeNext"
    (memory, start, size) = B.toForeignPtr bytes
    base = unsafeForeignPtrToPtr memory `plusPtr` start
    go fd done = when (done < size) $ do
      let op = opWrite fd (-1) (base `plusPtr` done) (size - done)
      n <- runRequest (staying file (const (pure ())) (touchForeignPtr memory)) op >>= concluded loc file
      when (n > 0) (go fd (done + n))

-- | An operation that waits for somebody else, perhaps for ever: it is never done by
-- a call that blocks, it ends when the file is closed, and its caller, interrupted,
-- sees it out, which cancelling makes short.
staying :: File -> (CInt -> IO ()) -> IO () -> RequestPolicy
staying file won keep =
  RequestPolicy
    { policyTry = True,
      policyBlock = False,
      policyStay = Just won,
      policyWatch = endedByClose file,
      policyKeep = keep,
      -- Its caller stays, inside.
      policyHold = pure (pure ()),
      policyDispose = const (pure ())
    }

-- | Enter a way to end an operation into the file's list, and look whether the file
-- was closed before that.
endedByClose :: File -> IO () -> IO (IO ())
endedByClose file end = do
  key <- newRef ()
  _ <- updateRef (fileWaiting file) ((key, end) :)
  open <- isFileOpen file
  unless open end
  pure (updateStrict key)
  where
    updateStrict key = do
      old <- readRef (fileWaiting file)
      let !rest = filter ((/= key) . fst) old
      ok <- casRef (fileWaiting file) old rest
      unless ok (updateStrict key)

-- | A result, where a cancelled operation is one on a closed file.
concluded :: String -> File -> CInt -> IO Int
concluded loc file r
  | r == errCancelled = ioError (closedError loc file)
  | otherwise = check loc (filePath file) r
