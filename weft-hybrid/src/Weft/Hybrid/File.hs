-- |
-- Files for hybrid threads (Li and Zdancewic 2007, section 4.5: @sys_aio_read@): the functions of
-- "Weft.File". A thread that has to wait for a disk is parked, and its loop runs
-- others. Data in the page cache is returned at once. Other requests go to the io_uring of the
-- loop's capability, or, if the kernel refuses io_uring, to the pool of
-- "Weft.Blocking" (@WEFT_FILES@, 'Weft.File.preferFiles'). The loop's thread never makes a call that blocks.
--
-- > import Weft.Hybrid
-- > import Weft.Hybrid.File
-- >
-- > size :: FilePath -> Hybrid Offset
-- > size path = withFile reading path (fmap statusSize . statFile)
--
-- A 'File' is that of "Weft.File": one kind of thread may open it and the other use it.
-- Any number of threads may use it at once. For pipes and terminals, which have no offsets, see
-- "Weft.Hybrid.Pipe".
--
-- All functions are interruptible where they wait. A request's memory and descriptor stay valid until the kernel has
-- completed it. A request keeps its own memory (strings, paths) alive, also when its thread has gone. If the memory is
-- the caller's, the interrupted thread requests cancellation and waits for the completion. A file that is opened in
-- spite of the interruption is closed. Errors are those of "Weft.File", and name its functions.
--
-- @since 0.1.0
module Weft.Hybrid.File
  ( -- * Units
    Offset (..),
    Count (..),

    -- * Opening and closing
    File,
    filePath,
    withFile,
    openFile,
    closeFile,
    OpenMode (..),
    Access (..),
    Creation (..),
    Within (..),
    reading,
    writing,

    -- * Below a directory
    Directory,
    withDirectory,
    openDirectory,
    closeDirectory,
    withFileAt,
    openFileAt,
    withRawFileAt,
    openRawFileAt,
    foldNames,
    foldEntries,
    sameLocalDevice,

    -- * Reading and writing
    readAt,
    writeAt,
    writeManyAt,
    foldChunks,

    -- * Memory of one's own
    readBufAt,
    writeBufAt,
    readBufsAt,
    writeBufsAt,
    alignedBuffer,

    -- * Onto the disk
    sync,
    syncData,
    allocate,

    -- * Status
    FileStatus (..),
    FileType (..),
    statFile,
    openedStatus,
    statPath,
    statEntry,
  )
where

import Control.Exception (IOException, onException)
import Control.Monad (void, when)
import Data.ByteString (ByteString)
import Data.Word (Word8)
import Foreign.C.Types (CInt)
import Foreign.Ptr (Ptr)
import Weft.FFI.File (Op, errAgain, errInterrupted, tryOp)
import Weft.File (Access (..), Count (..), Creation (..), Directory, File, FileStatus (..), FileType (..), Offset (..), OpenMode (..), Within (..), alignedBuffer, filePath, openedStatus, reading, sameLocalDevice, writing)
import qualified Weft.File as GHC
import Weft.File.Engine (RequestPolicy (..), begin)
import qualified Weft.File.Names as Names
import qualified Weft.File.Open as Open
import qualified Weft.File.Status as Status
import Weft.File.ThreadOps
import qualified Weft.File.Transfer as Transfer
import Weft.File.Types (fileFd)
import Weft.Hybrid.ExternalCall
import Weft.Hybrid.Monad

-- Carrying out ------------------------------------------------------------------------

-- | How hybrid threads carry out requests. A request holds the file while it runs; the thread itself does not, since
-- masking and a handler would be a dozen system calls for each read.
hybridThreads :: ThreadOps Hybrid
hybridThreads = ThreadOps {threadsRequest = carryOut, threadsWithFile = \_ file act -> act (fileFd file)}
{-# INLINE hybridThreads #-}

-- | Try at once if that does not block, else begin the request and park.
carryOut :: RequestPolicy -> Op -> Hybrid CInt
carryOut policy op = do
  r <- if policyTry policy then nonBlocking prompt else pure errAgain
  result <- if r == errAgain then await policy op else pure r
  if result == errInterrupted then carryOut policy op else pure result
  where
    prompt = do
      release <- policyAcquire policy
      r <- tryOp op
      policyOnDone policy
      r <$ release

-- | Begin the request and park until it is complete. 'policyOnWait', which is for streams, is ignored.
await :: RequestPolicy -> Op -> Hybrid CInt
await policy op = call $ \l ctx k -> outside l ctx k interrupted $ \promise -> do
  release <- policyAcquire policy
  begin (policyDirect policy) op (\r -> policyOnDone policy >> release >> void (fulfil promise (Right r))) `onException` release
  where
    interrupted = maybe (Leaves (won (policyDispose policy))) (Stays . won) (policyOnInterrupt policy)
    won act r = when (r >= 0) (act r)

-- Opening and closing -------------------------------------------------------------------

-- | 'GHC.openFile'. If it is interrupted, nothing stays open.
openFile :: OpenMode -> FilePath -> Hybrid File
openFile = Open.openFile hybridThreads

-- | Run an action with a file, which is closed when the action ends.
withFile :: OpenMode -> FilePath -> (File -> Hybrid a) -> Hybrid a
withFile = Open.withFile hybridThreads

-- | 'GHC.closeFile'.
closeFile :: File -> Hybrid ()
closeFile = nonBlocking . GHC.closeFile

-- | Open a directory.
openDirectory :: FilePath -> Hybrid Directory
openDirectory = Open.openDirectory hybridThreads

-- | Close a directory. Files that were opened from it stay open.
closeDirectory :: Directory -> Hybrid ()
closeDirectory = nonBlocking . GHC.closeDirectory

-- | Run an action with a directory, which is closed when the action ends.
withDirectory :: FilePath -> (Directory -> Hybrid a) -> Hybrid a
withDirectory = Open.withDirectory hybridThreads

-- | Open a file by a path that starts from a directory.
openFileAt :: Directory -> OpenMode -> FilePath -> Hybrid File
openFileAt = Open.openFileAt hybridThreads

-- | 'openFileAt', closed when the action ends.
withFileAt :: Directory -> OpenMode -> FilePath -> (File -> Hybrid a) -> Hybrid a
withFileAt = Open.withFileAt hybridThreads

-- | 'GHC.openRawFileAt'.
openRawFileAt :: Directory -> OpenMode -> ByteString -> Hybrid File
openRawFileAt = Open.openRawFileAt hybridThreads

-- | 'openRawFileAt', closed when the action ends.
withRawFileAt :: Directory -> OpenMode -> ByteString -> (File -> Hybrid a) -> Hybrid a
withRawFileAt = Open.withRawFileAt hybridThreads

-- | 'GHC.foldNames': fold over all names in a directory that was opened as a file.
foldNames :: File -> (a -> ByteString -> Hybrid a) -> a -> Hybrid a
foldNames = Names.foldNames hybridThreads

-- | 'GHC.foldEntries': fold over all names in a directory, with the status of each.
foldEntries :: File -> (a -> ByteString -> Either IOException FileStatus -> Hybrid a) -> a -> Hybrid a
foldEntries = Names.foldEntries hybridThreads

-- Reading and writing ---------------------------------------------------------------------

-- | Read bytes from an offset on: as many as asked for, fewer only at the end of the file.
-- (@sys_aio_read@)
readAt :: File -> Offset -> Count -> Hybrid ByteString
readAt = Transfer.readAt hybridThreads

-- | Write all bytes from an offset on. If it is interrupted, a part of them may
-- have been written, or may still be written afterwards.
writeAt :: File -> Offset -> ByteString -> Hybrid ()
writeAt = Transfer.writeAt hybridThreads

-- | Write several strings one after the other, by as few system calls as possible.
writeManyAt :: File -> Offset -> [ByteString] -> Hybrid ()
writeManyAt = Transfer.writeManyAt hybridThreads

-- | Fold over a file from an offset to its end, in chunks of that size. The last one may
-- be shorter.
foldChunks :: File -> Offset -> Count -> (a -> ByteString -> Hybrid a) -> a -> Hybrid a
foldChunks = Transfer.foldChunks hybridThreads

-- | Read into the caller's memory, which must stay valid until it returns. Returns the number of bytes:
-- fewer than asked for only at the end of the file. If it is interrupted, it waits until
-- the kernel no longer uses the memory before it raises.
readBufAt :: File -> Offset -> Ptr Word8 -> Count -> Hybrid Count
readBufAt = Transfer.readBufAt hybridThreads

-- | Write all of the caller's memory, which must stay valid until it returns.
writeBufAt :: File -> Offset -> Ptr Word8 -> Count -> Hybrid ()
writeBufAt = Transfer.writeBufAt hybridThreads

-- | Read into several pieces of memory, filled one after the other, by one request for
-- up to 1024 of them. Returns the number of bytes: fewer than there is room for only at the end
-- of the file.
readBufsAt :: File -> Offset -> [(Ptr Word8, Count)] -> Hybrid Count
readBufsAt = Transfer.readBufsAt hybridThreads

-- | Write several pieces of memory, one after the other, by one request for up to 1024 of them. The memory must stay
-- valid until it returns; it is interrupted as 'readBufAt' is. Returns the number of bytes, which is that of all
-- pieces: what a request leaves is written by the next one. If the device is full (@ENOSPC@) or the file may not grow
-- (@EFBIG@), that is thrown, and a part may have been written. With 'openAppend' each request appends; bytes of other
-- writers may come between those of two requests.
writeBufsAt :: File -> Offset -> [(Ptr Word8, Count)] -> Hybrid Count
writeBufsAt = Transfer.writeBufsAt hybridThreads

-- | Wait until written data is on the disk, with the file's size and times (fsync(2)).
sync :: File -> Hybrid ()
sync = Transfer.sync hybridThreads

-- | 'sync' without the metadata that reading the file again does not need (fdatasync(2)).
syncData :: File -> Hybrid ()
syncData = Transfer.syncData hybridThreads

-- | Reserve disk space for a range, given by offset and length. The file's size becomes at least the range's end
-- (fallocate(2)).
allocate :: File -> Offset -> Offset -> Hybrid ()
allocate = Transfer.allocate hybridThreads

-- Status -------------------------------------------------------------------------------------

-- | The status of an open file (statx(2)).
statFile :: File -> Hybrid FileStatus
statFile = Status.statFile hybridThreads

-- | The status of the file at a path (statx(2)).
statPath :: FilePath -> Hybrid FileStatus
statPath = Status.statPath hybridThreads

-- | 'GHC.statEntry': the status of the file with a name in a directory that was opened as a file.
statEntry :: File -> ByteString -> Hybrid FileStatus
statEntry = Status.statEntry hybridThreads
