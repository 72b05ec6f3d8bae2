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

    -- * Reading and writing
    readAt,
    writeAt,
    writeManyAt,
    forChunks,

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
    statPath,

    -- * Without offsets: pipes, terminals
    readNext,
    writeNext,
    withFileFd,

    -- * How it is done
    FileEngine (..),
    preferFiles,
    filesChoice,
    LaneFigures (..),
    laneReports,
    stopLanes,
  )
where

import System.Posix.Types (Fd)
import Weft.File.Engine
import Weft.File.Lane (LaneFigures (..))
import Weft.File.Open
import Weft.File.Status
import Weft.File.Stream
import Weft.File.Transfer
import Weft.File.Types

-- | Run something with the file's descriptor, which stays open meanwhile: for
-- 'Weft.Socket.sendFileRange', say.
withFileFd :: File -> (Fd -> IO a) -> IO a
withFileFd = using "Weft.File.withFileFd"
