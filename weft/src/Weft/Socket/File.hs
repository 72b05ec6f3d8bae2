-- |
-- Sending files on sockets without copying them into the program's memory.
module Weft.Socket.File
  ( sendFile,
    sendFileRange,
    sendFileRangeWith,
  )
where

import Control.Exception (SomeException, bracket, catch, fromException, mask_, onException, throwIO)
import Control.Monad (unless, when)
import Data.Bits (bit)
import Data.Int (Int64)
import Foreign.C.Error (Errno (..), eINVAL, eNOSYS)
import GHC.IO.Exception (IOErrorType (EOF))
import System.IO.Error (catchIOError, ioeSetFileName, isEOFError, mkIOError)
import System.Posix.Types (Fd (..))
import Weft.Blocking (blockingOr)
import Weft.FFI.Errno
import Weft.FFI.Path (withPath)
import Weft.FFI.Socket
import Weft.Socket.Types

-- | Send a whole file, of the size that it has when it is opened. It is opened on a thread of "Weft.Blocking". Throws
-- the errors of open(2), and those of 'sendFileRange'.
sendFile :: Socket -> FilePath -> IO ()
sendFile s path = bracket open (\(Fd fd, _) -> cCloseFile fd) (\(fd, size) -> sendFileRange s fd 0 size)
  where
    open = blockingOr (\(Fd fd, _) -> cCloseFile fd) $
      withPath loc path $ \p -> do
        fd <- throwIfNegative loc (cOpenRead p) `catchIOError` (ioError . (`ioeSetFileName` path))
        size <- throwIfNegative loc (cFileSize fd) `onException` cCloseFile fd
        pure (Fd fd, size)
    loc = "Weft.Socket.sendFile"

-- | Send a range of an open file, given by offset and length in bytes. The file's own
-- position is neither used nor changed. Throws an end-of-file error if the file
-- ends before the range does; the peer has received a part then. If a deadline or an asynchronous exception cuts it off
-- after a part, further sends fail, as with 'Weft.Socket.ByteString.sendAll'. Data in the page cache is sent by an
-- @unsafe@ call; if the kernel has to read the disk, it is a @safe@ one, and other threads of the capability run.
sendFileRange :: Socket -> Fd -> Int64 -> Int64 -> IO ()
sendFileRange = sendFileRangeWith (const (pure ()))

-- | 'sendFileRange' with progress: the action is given the number of bytes each time the kernel has
-- taken some, as many as the socket had room for.
sendFileRangeWith :: (Int -> IO ()) -> Socket -> Fd -> Int64 -> Int64 -> IO ()
sendFileRangeWith sent s (Fd fd) offset count
  | offset < 0 || count < 0 = ioError (socketError loc eINVAL)
  | count == 0 = pure ()
  | otherwise = mask_ $ do
    -- Masked from the first part on; it is interruptible where it waits, and between parts.
    n <- part offset count
    (sent (fromIntegral n) >> rest (offset + n) (count - n)) `catch` \e -> unless (tooShort e) (cutOff s) >> throwIO e
  where
    rest at left = unless (left == 0) $ do
      betweenParts loc s
      n <- part at left
      sent (fromIntegral n)
      rest (at + n) (left - n)
    tooShort :: SomeException -> Bool
    tooShort e = maybe False isEOFError (fromException e)
    part at left = do
      n <- operate loc s Writing $ \sock -> do
        prompt <- cSendFileCached sock fd at (fromIntegral left)
        r <- if absent prompt then cSendFile sock fd at (fromIntegral (min left chunk)) else pure prompt
        if r > roomless then pure (Drained (fromIntegral (r - roomless))) else decodeResult r (pure . Done)
      when (n == 0) (ioError (mkIOError EOF loc Nothing Nothing))
      pure (fromIntegral n)
    loc = "Weft.Socket.sendFileRange"
    -- @ENOSYS@: not in the page cache. The second call is @safe@, which costs more.
    absent r = Errno (negate (fromIntegral r)) == eNOSYS
    roomless = bit 62
    -- A bound for one call: between calls it can be interrupted, and the deadline is checked.
    chunk = 1048576
