-- |
-- Files, read and written at offsets without ever blocking a capability: what is
-- in the page cache comes at once, everything else is waited for as sockets are,
-- while other threads run.
--
-- > import Weft.File
-- >
-- > main :: IO ()
-- > main = withFile reading "/etc/os-release" $ \file -> do
-- >   size <- statusSize <$> statFile file
-- >   begin <- readAt file 0 64
-- >   print (size, begin)
--
-- Requests that have to wait for a disk go to an io_uring in batches, one ring a
-- capability, or, where the kernel refuses that, to the pool of "Weft.Blocking";
-- the results are the same (@WEFT_FILES@, 'preferFiles').
--
-- Every function may be called from any thread, and any number of threads may use
-- one file at once. All are interruptible while they wait. Errors are 'IOError's
-- with the function's and the file's name, of the kinds that "System.IO" has.
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
    directoryLocal,

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

    -- * Without offsets: pipes, terminals
    readNext,
    writeNext,
    withFileFd,

    -- * How it is done
    FileEngine (..),
    preferFiles,
    filesChoice,
    RingMetrics (..),
    ringReports,
    stopRings,
  )
where

import Data.ByteString (ByteString)
import Data.Word (Word8)
import Foreign.Ptr (Ptr)
import System.Posix.Types (Fd)
import Weft.File.Attributes (FileStatus (..), FileType (..))
import Weft.File.Engine
import qualified Weft.File.Names as Names
import Weft.File.Open (Access (..), Creation (..), Directory, OpenMode (..), Within (..), closeDirectory, directoryLocal, fromDescriptor, reading, writing)
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

-- | Open a file. Close it with 'closeFile'; better, use 'withFile'. Throws as
-- 'System.IO.openFile' does; interruptible, and then nothing stays open.
openFile :: OpenMode -> FilePath -> IO File
openFile = Open.openFile ghcThreads

-- | Open a file for as long as the action takes.
withFile :: OpenMode -> FilePath -> (File -> IO a) -> IO a
withFile = Open.withFile ghcThreads

-- | Open a directory.
openDirectory :: FilePath -> IO Directory
openDirectory = Open.openDirectory ghcThreads

-- | Open a directory for as long as the action takes.
withDirectory :: FilePath -> (Directory -> IO a) -> IO a
withDirectory = Open.withDirectory ghcThreads

-- | Open a file by a path that starts from a directory.
openFileAt :: Directory -> OpenMode -> FilePath -> IO File
openFileAt = Open.openFileAt ghcThreads

-- | 'openFileAt', closed when the action ends.
withFileAt :: Directory -> OpenMode -> FilePath -> (File -> IO a) -> IO a
withFileAt = Open.withFileAt ghcThreads

-- | 'openFileAt' by a path in the bytes that the file system has, whatever their encoding.
-- Nothing is converted, but for the path in messages.
openRawFileAt :: Directory -> OpenMode -> ByteString -> IO File
openRawFileAt = Open.openRawFileAt ghcThreads

-- | 'openRawFileAt', closed when the action ends.
withRawFileAt :: Directory -> OpenMode -> ByteString -> (File -> IO a) -> IO a
withRawFileAt = Open.withRawFileAt ghcThreads

-- | All names in a directory that was opened as a file, for reading, in no order; not @.@
-- and @..@. Names that come or go meanwhile may be among them. A name shares its memory
-- with those that the kernel named with it, 32 KiB: copy what is to be kept. Not by two
-- threads at once with one 'File', which has one position. Throws an 'IOError' when it is
-- no directory (@ENOTDIR@).
foldNames :: File -> (a -> ByteString -> IO a) -> a -> IO a
foldNames = Names.foldNames ghcThreads

-- Reading and writing -----------------------------------------------------------------

-- | Bytes from an offset: as many as asked for, fewer only at the end of the file.
-- When it is interrupted it returns at once.
readAt :: File -> Offset -> Count -> IO ByteString
readAt = Transfer.readAt ghcThreads

-- | Write all bytes from an offset on. When it is interrupted, a part of them may
-- have been written, or be written yet.
writeAt :: File -> Offset -> ByteString -> IO ()
writeAt = Transfer.writeAt ghcThreads

-- | Write several strings one after the other, by as few system calls as may be.
writeManyAt :: File -> Offset -> [ByteString] -> IO ()
writeManyAt = Transfer.writeManyAt ghcThreads

-- | All of a file from an offset on, in chunks of that size, the last of which may
-- be shorter.
foldChunks :: File -> Offset -> Count -> (a -> ByteString -> IO a) -> a -> IO a
foldChunks = Transfer.foldChunks ghcThreads

-- | Read into the caller's memory, which must stay valid until it returns. Returns the number of bytes:
-- fewer than asked for only at the end of the file. Interruptible; before it ends
-- by an exception it waits until the kernel is done with the memory.
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

-- | Write several pieces of memory; all of them, unless the device is full.
writeBufsAt :: File -> Offset -> [(Ptr Word8, Count)] -> IO Count
writeBufsAt = Transfer.writeBufsAt ghcThreads

-- | Have what was written reach the disk, with its size and times (fsync(2)).
sync :: File -> IO ()
sync = Transfer.sync ghcThreads

-- | 'sync' without the metadata that reading the file again does not need (fdatasync(2)).
syncData :: File -> IO ()
syncData = Transfer.syncData ghcThreads

-- | Have the disk set space aside for a range, and the file be at least that long
-- (fallocate(2)).
allocate :: File -> Offset -> Offset -> IO ()
allocate = Transfer.allocate ghcThreads

-- Status --------------------------------------------------------------------------------

-- | The status of an open file (statx(2)).
statFile :: File -> IO FileStatus
statFile = Status.statFile ghcThreads

-- | The status of the file that a path leads to (statx(2)).
statPath :: FilePath -> IO FileStatus
statPath = Status.statPath ghcThreads

-- | Run something with the file's descriptor, which stays open meanwhile: for
-- 'Weft.Socket.sendFileRange', say.
withFileFd :: File -> (Fd -> IO a) -> IO a
withFileFd = inside "Weft.File.withFileFd"
