-- |
-- Files, for hybrid threads (2007, section 4.5: @sys_aio_read@): the functions of
-- "Weft.File", in which a thread that has to wait for a disk is parked, and its loop runs
-- others. What is in the page cache comes at once. What is not goes to the ring of the
-- loop's capability, an io_uring, or, where the kernel refuses that, to the pool of
-- "Weft.Blocking" (@WEFT_FILES@, 'Weft.File.preferFiles'); never to a call that blocks, as
-- a GHC thread's may.
--
-- > import Weft.Hybrid
-- > import Weft.Hybrid.File
-- >
-- > size :: FilePath -> Hybrid Offset
-- > size path = withFile reading path (fmap statusSize . statFile)
--
-- A 'File' is that of "Weft.File": it may be opened by one kind of thread and used by the other.
-- Any number of threads may use it at once. Pipes and terminals, which have no offsets, are
-- for "Weft.Hybrid.Pipe".
--
-- Everything may be interrupted where it waits. Memory and descriptor stay the kernel's until
-- its last completion: what a request keeps by itself (strings, paths) it keeps so long though its
-- thread has gone; a thread whose own memory is lent waits for the end, which is asked to
-- come soon; a file whose opening won is closed. Errors are as in "Weft.File", and name
-- its functions.
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
  )
where

import Control.Exception (onException)
import Control.Monad (void, when)
import Data.ByteString (ByteString)
import Data.Word (Word8)
import Foreign.C.Types (CInt)
import Foreign.Ptr (Ptr)
import Weft.FFI.File (Op, errAgain, errInterrupted, tryOp)
import Weft.File (Access (..), Count (..), Creation (..), Directory, File, FileStatus (..), FileType (..), Offset (..), OpenMode (..), Within (..), alignedBuffer, directoryLocal, filePath, openedStatus, reading, writing)
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

-- | Hybrid threads. Between operations one of them has nothing of the file: masking and a handler would be
-- a dozen system calls for each read.
hybridThreads :: ThreadOps Hybrid
hybridThreads = ThreadOps {carry = carryOut, using = \_ file act -> act (fileFd file)}
{-# INLINE hybridThreads #-}

-- | Try at once, where that does not block, else begin and park.
carryOut :: RequestPolicy -> Op -> Hybrid CInt
carryOut manner op = do
  r <- if policyTry manner then nonBlocking prompt else pure errAgain
  result <- if r == errAgain then await manner op else pure r
  if result == errInterrupted then carryOut manner op else pure result
  where
    prompt = do
      release <- policyHold manner
      r <- tryOp op
      policyKeep manner
      r <$ release

-- | Begin, and park for the end. 'policyWatch', which is for streams, is not looked at.
await :: RequestPolicy -> Op -> Hybrid CInt
await manner op = call $ \l ctx k -> outside l ctx k interrupted $ \promise -> do
  release <- policyHold manner
  begin op (\r -> policyKeep manner >> release >> void (fulfil promise (Right r))) `onException` release
  where
    interrupted = maybe (Leaves (won (policyDispose manner))) (Stays . won) (policyStay manner)
    won act r = when (r >= 0) (act r)

-- Opening and closing -------------------------------------------------------------------

-- | 'GHC.openFile'. Interruptible, and then nothing stays open.
openFile :: OpenMode -> FilePath -> Hybrid File
openFile = Open.openFile hybridThreads

-- | Open a file for as long as the action takes.
withFile :: OpenMode -> FilePath -> (File -> Hybrid a) -> Hybrid a
withFile = Open.withFile hybridThreads

-- | 'GHC.closeFile'.
closeFile :: File -> Hybrid ()
closeFile = nonBlocking . GHC.closeFile

-- | Open a directory.
openDirectory :: FilePath -> Hybrid Directory
openDirectory = Open.openDirectory hybridThreads

-- | Close it; files opened from it stay open.
closeDirectory :: Directory -> Hybrid ()
closeDirectory = nonBlocking . GHC.closeDirectory

-- | Open a directory for as long as the action takes.
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

-- | All names in a directory that was opened as a file: 'GHC.forNames'.
foldNames :: File -> (a -> ByteString -> Hybrid a) -> a -> Hybrid a
foldNames = Names.foldNames hybridThreads

-- Reading and writing ---------------------------------------------------------------------

-- | Bytes from an offset: as many as asked for, fewer only at the end of the file.
-- (@sys_aio_read@)
readAt :: File -> Offset -> Count -> Hybrid ByteString
readAt = Transfer.readAt hybridThreads

-- | Write all bytes from an offset on. When it is interrupted, a part of them may
-- have been written, or be written yet.
writeAt :: File -> Offset -> ByteString -> Hybrid ()
writeAt = Transfer.writeAt hybridThreads

-- | Write several strings one after the other, by as few system calls as may be.
writeManyAt :: File -> Offset -> [ByteString] -> Hybrid ()
writeManyAt = Transfer.writeManyAt hybridThreads

-- | All of a file from an offset on, in chunks of that size, the last of which may
-- be shorter.
foldChunks :: File -> Offset -> Count -> (a -> ByteString -> Hybrid a) -> a -> Hybrid a
foldChunks = Transfer.foldChunks hybridThreads

-- | Read into the caller's memory, which must stay valid until it returns. Returns the number of bytes:
-- fewer than asked for only at the end of the file. Interrupted, the thread waits until
-- the kernel is done with the memory.
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

-- | Write several pieces of memory; all of them, unless the device is full.
writeBufsAt :: File -> Offset -> [(Ptr Word8, Count)] -> Hybrid Count
writeBufsAt = Transfer.writeBufsAt hybridThreads

-- | Have what was written reach the disk, with its size and times (fsync(2)).
sync :: File -> Hybrid ()
sync = Transfer.sync hybridThreads

-- | 'sync' without the metadata that reading the file again does not need (fdatasync(2)).
syncData :: File -> Hybrid ()
syncData = Transfer.syncData hybridThreads

-- | Have the disk set space aside for a range, and the file be at least that long
-- (fallocate(2)).
allocate :: File -> Offset -> Offset -> Hybrid ()
allocate = Transfer.allocate hybridThreads

-- Status -------------------------------------------------------------------------------------

-- | The status of an open file (statx(2)).
statFile :: File -> Hybrid FileStatus
statFile = Status.statFile hybridThreads

-- | The status of the file that a path leads to (statx(2)).
statPath :: FilePath -> Hybrid FileStatus
statPath = Status.statPath hybridThreads
