-- |
-- The status of files (statx(2)), for both kinds of threads ("Weft.File.ThreadOps").
module Weft.File.Status
  ( FileStatus (..),
    FileType (..),
    statFile,
    statPath,
    statEntry,
    openedStatus,
  )
where

import Control.Monad.IO.Class (MonadIO (..))
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Unsafe as B (unsafeUseAsCStringLen)
import Data.Word (Word32, Word64, Word8)
import Foreign.C.String (CStringLen)
import Foreign.ForeignPtr (ForeignPtr, mallocForeignPtrBytes, touchForeignPtr)
import Foreign.ForeignPtr.Unsafe (unsafeForeignPtrToPtr)
import Foreign.Marshal.Utils (copyBytes)
import Foreign.Ptr (plusPtr)
import Foreign.Storable (pokeByteOff)
import qualified GHC.Foreign as G
import GHC.IO.Encoding (getFileSystemEncoding)
import System.Posix.Types (Fd (..))
import Weft.FFI.File
import Weft.File.Attributes
import Weft.File.ThreadOps
import Weft.File.Engine
import Weft.File.Types

#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/stat.h>

-- | 'Weft.File.statFile'.
statFile :: MonadIO m => ThreadOps m -> File -> m FileStatus
statFile threads file = threadsWithFile threads loc file $ \fd ->
  statx threads loc (Subject (filePath file) fd (#{const AT_EMPTY_PATH}) (fileLight file) (hold loc file)) (outAndName B.empty)
  where
    loc = "Weft.File.statFile"
{-# INLINE statFile #-}

-- | The file's status when it was opened. No system call.
openedStatus :: File -> FileStatus
openedStatus = fileOpened

-- | 'Weft.File.statPath'.
statPath :: MonadIO m => ThreadOps m -> FilePath -> m FileStatus
statPath threads path = statx threads "Weft.File.statPath" (Subject path (Fd (#{const AT_FDCWD})) 0 False (pure (pure ()))) (outAndPath path)
{-# INLINE statPath #-}

-- | 'Weft.File.statEntry'.
statEntry :: MonadIO m => ThreadOps m -> File -> ByteString -> m FileStatus
statEntry threads folder name = threadsWithFile threads loc folder $ \fd ->
  statx threads loc (Subject (filePath folder) fd (#{const AT_SYMLINK_NOFOLLOW}) False (hold loc folder)) (outAndName name)
  where
    loc = "Weft.File.statEntry"
{-# INLINE statEntry #-}

-- | What a status is asked of.
data Subject = Subject
  { -- | For errors.
    subjectShown :: FilePath,
    -- | The file, or the directory that has it.
    subjectFd :: !Fd,
    subjectFlags :: !Word32,
    -- | Whether the answer does not have to come from a server.
    subjectLocal :: !Bool,
    -- | 'policyAcquire'.
    subjectHold :: IO (IO ())
  }

-- | statx(2), given what makes the room for the answer, with the path behind it.
statx :: MonadIO m => ThreadOps m -> String -> Subject -> IO (ForeignPtr Word64) -> m FileStatus
statx threads loc subject path = do
  memory <- liftIO path
  let out = unsafeForeignPtrToPtr memory
      op = opStat (subjectFd subject) (out `plusPtr` statusSpace) (subjectFlags subject) (#{const STATX_BASIC_STATS}) out
      policy =
        RequestPolicy
          { policyTry = subjectLocal subject,
            policyDirect = False,
            policyBlock = True,
            policyOnInterrupt = Nothing,
            policyOnWait = \_ -> pure (pure ()),
            policyOnDone = touchForeignPtr memory,
            policyAcquire = subjectHold subject,
            policyDispose = const (pure ())
          }
  r <- threadsRequest threads policy op
  liftIO (check loc (subjectShown subject) r >> readStatus out <* touchForeignPtr memory)
{-# INLINE statx #-}

-- | Room for the answer, and the path behind it.
outAndPath :: FilePath -> IO (ForeignPtr Word64)
outAndPath path = do
  encoding <- getFileSystemEncoding
  G.withCStringLen encoding path outAnd

-- | The same, for a path in bytes.
outAndName :: ByteString -> IO (ForeignPtr Word64)
outAndName name = B.unsafeUseAsCStringLen name outAnd

outAnd :: CStringLen -> IO (ForeignPtr Word64)
outAnd (from, size) = do
  memory <- mallocForeignPtrBytes (statusSpace + size + 1)
  let p = unsafeForeignPtrToPtr memory
  copyBytes (p `plusPtr` statusSpace) from size
  pokeByteOff p (statusSpace + size) (0 :: Word8)
  memory <$ touchForeignPtr memory
