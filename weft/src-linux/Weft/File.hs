-- |
-- Files, read and written at offsets without blocking a capability. Data in the page cache is
-- returned at once; for anything else the thread waits as for a socket, while other threads run.
--
-- > import Weft.File
-- >
-- > main :: IO ()
-- > main = withFile reading "/etc/os-release" $ \file -> do
-- >   size <- statusSize <$> statFile file
-- >   begin <- readAt file 0 64
-- >   print (size, begin)
--
-- Requests that have to wait for a disk are blocking calls as long as at most three of them are in progress. Further
-- reads and writes of files that are open with 'openDirect' are submitted by io_submit(2), up to 64 of them; all others
-- go in batches to an io_uring, one for each capability. If the kernel refuses io_uring, they go to the pool of
-- "Weft.Blocking". The results are the same. @WEFT_FILES@ or 'preferFiles' forces the io_uring or the pool.
--
-- Many threads that read past the page cache take a fifth less CPU time if they are pinned to capabilities
-- ('Control.Concurrent.forkOn'): a disk answers several requests at once, and GHC then moves half of the threads that
-- are ready to another capability, each time.
--
-- 'withFile' and 'openFile' are names of "System.IO" too: import that module @hiding@ them, or one of the two
-- qualified.
--
-- Any thread may call these functions, and any number of threads may use
-- one file at once. They are interruptible while they wait in io_uring or for the pool. While at most
-- three operations run, one that has to wait for a disk may be a blocking call of its own thread, which is cheaper.
-- An exception then arrives when the disk has answered. After @preferFiles Rings@ there are no such calls.
-- 'Weft.Deadline.inTime' gives them a deadline.
-- Errors are 'IOError's
-- with the names of the function and the file, and of the same types as those of "System.IO".
--
-- Where the kernel has no openat2(2) (before Linux 5.6, and in some sandboxes), a path that has to stay below its
-- directory ('openResolve') may contain neither a symbolic link nor @..@.
--
-- Sources: 2007, section 4.5 (asynchronous I/O); io_uring(7), preadv2(2),
-- openat2(2), statx(2).
--
-- @since 0.1.0
module Weft.File
  ( -- * Units
    Offset (..),
    Count (..),

    -- * Opening and closing
    File,
    filePath,
    withFile,
    openFile,
    closeFile,
    fromDescriptor,
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

    -- * Without offsets: pipes, terminals and other devices such as @\/dev\/null@
    readNext,
    writeNext,
    withFileFd,

    -- * How it is done
    FileEngine (..),
    preferFiles,
    filesChoice,
    RingMetrics (..),
    readRingMetrics,
    DirectMetrics (..),
    readDirectMetrics,
    stopRings,
  )
where

import Control.Exception (IOException)
import Data.ByteString (ByteString)
import Data.Word (Word8)
import Foreign.Ptr (Ptr)
import System.Posix.Types (Fd)
import Weft.File.Aio (DirectMetrics (..))
import Weft.File.Attributes (FileStatus (..), FileType (..))
import Weft.File.Engine
import qualified Weft.File.Names as Names
import Weft.File.Open (Access (..), Creation (..), Directory, OpenMode (..), Within (..), closeDirectory, fromDescriptor, reading, sameLocalDevice, writing)
import qualified Weft.File.Open as Open
import Weft.File.Ring (RingMetrics (..))
import Weft.File.Status (openedStatus)
import qualified Weft.File.Status as Status
import Weft.File.Stream
import Weft.File.ThreadOps (ghcThreads)
import Weft.File.Transfer (alignedBuffer)
import qualified Weft.File.Transfer as Transfer
import Weft.File.Types
import Weft.File.Units

-- Opening and closing ---------------------------------------------------------------

-- | Open a file. Close it with 'closeFile', or use 'withFile' instead. Throws the errors of
-- 'System.IO.openFile'. If it is interrupted, nothing stays open.
openFile :: OpenMode -> FilePath -> IO File
openFile = Open.openFile ghcThreads

-- | Run an action with a file, which is closed when the action ends.
withFile :: OpenMode -> FilePath -> (File -> IO a) -> IO a
withFile = Open.withFile ghcThreads

-- | Open a directory.
openDirectory :: FilePath -> IO Directory
openDirectory = Open.openDirectory ghcThreads

-- | Run an action with a directory, which is closed when the action ends.
withDirectory :: FilePath -> (Directory -> IO a) -> IO a
withDirectory = Open.withDirectory ghcThreads

-- | Open a file by a path that starts from a directory.
openFileAt :: Directory -> OpenMode -> FilePath -> IO File
openFileAt = Open.openFileAt ghcThreads

-- | 'openFileAt', closed when the action ends.
withFileAt :: Directory -> OpenMode -> FilePath -> (File -> IO a) -> IO a
withFileAt = Open.withFileAt ghcThreads

-- | 'openFileAt' by a path in bytes, as the file system has it, without a conversion of its encoding. (The path in
-- error messages is converted.)
openRawFileAt :: Directory -> OpenMode -> ByteString -> IO File
openRawFileAt = Open.openRawFileAt ghcThreads

-- | 'openRawFileAt', closed when the action ends.
withRawFileAt :: Directory -> OpenMode -> ByteString -> (File -> IO a) -> IO a
withRawFileAt = Open.withRawFileAt ghcThreads

-- | Fold over all names in a directory that was opened as a file, for reading. They come in no order, without @.@
-- and @..@. Names that are created or removed meanwhile may be among them. A name shares a buffer of
-- 32 KiB with others: copy it to keep it. Two threads must not do this at once with one 'File', since
-- it has one position. Throws an 'IOError' (@ENOTDIR@) if it is not a directory.
foldNames :: File -> (a -> ByteString -> IO a) -> a -> IO a
foldNames = Names.foldNames ghcThreads

-- | 'foldNames' with the status of each name, as 'statEntry' reads it: of a link, the link's own. 'Left' has the error
-- where it could not be read, as of a name that is gone by then. Takes two hand-overs for some hundreds of names, where
-- 'statEntry' takes one for each.
foldEntries :: File -> (a -> ByteString -> Either IOException FileStatus -> IO a) -> a -> IO a
foldEntries = Names.foldEntries ghcThreads

-- Reading and writing -----------------------------------------------------------------

-- | Read bytes from an offset on: as many as asked for, fewer only at the end of the file.
-- The memory is that of what the file has, so a larger number does no harm; @ENOMEM@ if the heap cannot have that.
-- An exception interrupts it at once, unless it runs as a blocking call (see the top of this module).
readAt :: File -> Offset -> Count -> IO ByteString
readAt = Transfer.readAt ghcThreads

-- | Write all bytes from an offset on. If it is interrupted, a part of them may
-- have been written, or may still be written afterwards.
writeAt :: File -> Offset -> ByteString -> IO ()
writeAt = Transfer.writeAt ghcThreads

-- | Write several strings one after the other, by as few system calls as possible.
writeManyAt :: File -> Offset -> [ByteString] -> IO ()
writeManyAt = Transfer.writeManyAt ghcThreads

-- | Fold over a file from an offset to its end, in chunks of that size. The last one may
-- be shorter.
foldChunks :: File -> Offset -> Count -> (a -> ByteString -> IO a) -> a -> IO a
foldChunks = Transfer.foldChunks ghcThreads

-- | Read into the caller's memory, which must stay valid until it returns. Returns the number of bytes:
-- fewer than asked for only at the end of the file. If it is interrupted, it waits
-- until the kernel no longer uses the memory before it throws.
readBufAt :: File -> Offset -> Ptr Word8 -> Count -> IO Count
readBufAt = Transfer.readBufAt ghcThreads

-- | Write all of the caller's memory, which must stay valid until it returns.
writeBufAt :: File -> Offset -> Ptr Word8 -> Count -> IO ()
writeBufAt = Transfer.writeBufAt ghcThreads

-- | Read into several pieces of memory, filled one after the other, by one request for
-- up to 1024 of them. Returns the number of bytes: fewer than there is room for only at the end
-- of the file.
readBufsAt :: File -> Offset -> [(Ptr Word8, Count)] -> IO Count
readBufsAt = Transfer.readBufsAt ghcThreads

-- | Write several pieces of memory, one after the other, by one request for up to 1024 of them. The memory must stay
-- valid until it returns; it is interrupted as 'readBufAt' is. Returns the number of bytes, which is that of all
-- pieces: what a request leaves is written by the next one. If the device is full (@ENOSPC@) or the file may not grow
-- (@EFBIG@), that is thrown, and a part may have been written. With 'openAppend' each request appends; bytes of other
-- writers may come between those of two requests.
writeBufsAt :: File -> Offset -> [(Ptr Word8, Count)] -> IO Count
writeBufsAt = Transfer.writeBufsAt ghcThreads

-- | Wait until written data is on the disk, with the file's size and times (fsync(2)).
sync :: File -> IO ()
sync = Transfer.sync ghcThreads

-- | 'sync' without the metadata that reading the file again does not need (fdatasync(2)).
syncData :: File -> IO ()
syncData = Transfer.syncData ghcThreads

-- | Reserve disk space for a range, given by offset and length. The file's size becomes at least the range's end
-- (fallocate(2)).
allocate :: File -> Offset -> Offset -> IO ()
allocate = Transfer.allocate ghcThreads

-- Status --------------------------------------------------------------------------------

-- | The status of an open file (statx(2)).
statFile :: File -> IO FileStatus
statFile = Status.statFile ghcThreads

-- | The status of the file at a path (statx(2)).
statPath :: FilePath -> IO FileStatus
statPath = Status.statPath ghcThreads

-- | The status of the file with a name in a directory that was opened as a file (statx(2)). Of a symbolic link it is
-- the link's own. The names are those of 'foldNames'.
statEntry :: File -> ByteString -> IO FileStatus
statEntry = Status.statEntry ghcThreads

-- | Run an action with the file's descriptor, which stays open during the action; for example
-- 'Weft.Socket.sendFileRange'.
withFileFd :: File -> (Fd -> IO a) -> IO a
withFileFd = withDescriptor "Weft.File.withFileFd"
