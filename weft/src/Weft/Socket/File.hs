-- |
-- Files to sockets without passing through the program's memory.
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
import Foreign.C.String (withCString)
import GHC.IO.Exception (IOErrorType (EOF))
import System.IO.Error (catchIOError, ioeSetFileName, isEOFError, mkIOError)
import System.Posix.Types (Fd (..))
import Weft.Blocking (blockingOr)
import Weft.FFI.Errno
import Weft.FFI.Socket
import Weft.Socket.Types

-- | Send a whole file, as long as it is when it is opened, which happens on the
-- pool of "Weft.Blocking". Throws as opening does, and as 'sendFileRange'.
sendFile :: Socket -> FilePath -> IO ()
sendFile s path = bracket open (\(Fd fd, _) -> cClose fd) (\(fd, size) -> sendFileRange s fd 0 size)
  where
    open = blockingOr (\(Fd fd, _) -> cClose fd) $
      withCString path $ \p -> do
        fd <- throwIfNegative loc (cOpenRead p) `catchIOError` (ioError . (`ioeSetFileName` path))
        size <- throwIfNegative loc (cFileSize fd) `onException` cClose fd
        pure (Fd fd, size)
    loc = "Weft.Socket.sendFile"

-- | Send a range of an open file, given by offset and length in bytes. The file's own
-- position is neither used nor changed. Throws an end-of-file error when the file
-- ends before the range does; the peer has then got a part. Cut off after a part, by a deadline or an
-- asynchronous exception, it leaves the socket as 'Weft.Socket.ByteString.sendAll' does. While the kernel waits
-- for the disk other threads of the capability run; what is in the page cache is sent
-- without letting them.
sendFileRange :: Socket -> Fd -> Int64 -> Int64 -> IO ()
sendFileRange = sendFileRangeWith (const (pure ()))

-- | 'sendFileRange' with progress: the action is given the number of bytes each time the kernel has
-- taken some: as many as the socket had room for, two MiB at most.
sendFileRangeWith :: (Int -> IO ()) -> Socket -> Fd -> Int64 -> Int64 -> IO ()
sendFileRangeWith sent s (Fd fd) offset count
  | offset < 0 || count < 0 = ioError (socketError loc eINVAL)
  | count == 0 = pure ()
  | otherwise = mask_ $ do
    -- Masked from the first part on; it is interruptible where it waits.
    n <- part offset count
    unless (n == count) (rest (offset + n) (count - n) `catch` \e -> unless (tooShort e) (cutOff s) >> throwIO e)
  where
    rest at left = unless (left == 0) (part at left >>= \n -> rest (at + n) (left - n))
    tooShort :: SomeException -> Bool
    tooShort e = maybe False isEOFError (fromException e)
    part at left = do
      n <- operate loc s Writing $ \sock -> do
        prompt <- cSendFileCached sock fd at (fromIntegral left)
        r <- if absent prompt then cSendFile sock fd at (fromIntegral (min left chunk)) else pure prompt
        if r > roomless then pure (Drained (fromIntegral (r - roomless))) else answer r (pure . Done)
      when (n == 0) (ioError (mkIOError EOF loc Nothing Nothing))
      fromIntegral n <$ sent n
    loc = "Weft.Socket.sendFileRange"
    -- It may have to come from the disk: a call that lets others run, and costs the more.
    absent r = Errno (negate (fromIntegral r)) == eNOSYS
    roomless = bit 62
    -- So that a deadline is looked at now and then.
    chunk = 1048576
