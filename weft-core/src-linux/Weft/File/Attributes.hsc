-- |
-- The status of files (statx(2)), and properties of open descriptors that are read without waiting.
module Weft.File.Attributes
  ( -- * Status
    FileStatus (..),
    FileType (..),

    -- * From the kernel
    statusSpace,
    readStatus,
    readEntryStatus,
    lookAt,
    passesCache,
    isLocal,
  )
where

import Data.Bits ((.&.))
import Data.Int (Int64)
import Data.Word (Word16, Word32, Word64)
import Foreign.C.Types (CInt (..))
import Foreign.Marshal.Alloc (allocaBytesAligned)
import Foreign.Ptr (Ptr)
import Foreign.Storable (peekByteOff)
import System.Posix.Types (Fd (..), FileMode)
import Weft.File.Units (Offset (..))

#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/stat.h>

-- | The status of a file.
data FileStatus = FileStatus
  { statusType :: !FileType,
    statusSize :: !Offset,
    -- | Permissions, without the type.
    statusMode :: !FileMode,
    -- | The time of the last change to its contents: seconds since 1970, and nanoseconds.
    statusModified :: !(Int64, Word32),
    -- | The time of the last change to its contents or status; for a directory also to a name in
    -- it. Unlike 'statusModified', programs cannot set it.
    statusChanged :: !(Int64, Word32),
    statusInode :: !Word64,
    -- | The device that holds it: major and minor number.
    statusDevice :: !(Word32, Word32),
    statusLinks :: !Word32
  }
  deriving (Eq, Show)

-- | Types of files (stat(2), @st_mode@).
data FileType = RegularFile | DirectoryFile | SymbolicLink | BlockDevice | CharacterDevice | NamedPipe | SocketFile | OtherFile
  deriving (Eq, Show)

-- | The size of a @struct statx@ in bytes.
statusSpace :: Int
statusSpace = #{size struct statx}

-- | Read a status from a @struct statx@ of 'Weft.FFI.File.opStats'. 'Left' has the error number.
readEntryStatus :: Ptr a -> IO (Either CInt FileStatus)
readEntryStatus p = do
  mask <- #{peek struct statx, stx_mask} p :: IO Word32
  if mask == 0
    then (\code -> Left (fromIntegral (code :: Word32))) <$> #{peek struct statx, stx_blksize} p
    else Right <$> readStatus p

-- | Read a status from a @struct statx@.
readStatus :: Ptr a -> IO FileStatus
readStatus p = do
  mode <- #{peek struct statx, stx_mode} p :: IO Word16
  size <- #{peek struct statx, stx_size} p :: IO Word64
  modified <- time <$> #{peek struct statx, stx_mtime.tv_sec} p <*> #{peek struct statx, stx_mtime.tv_nsec} p
  changed <- time <$> #{peek struct statx, stx_ctime.tv_sec} p <*> #{peek struct statx, stx_ctime.tv_nsec} p
  inode <- #{peek struct statx, stx_ino} p
  major <- #{peek struct statx, stx_dev_major} p
  minor <- #{peek struct statx, stx_dev_minor} p
  links <- #{peek struct statx, stx_nlink} p
  pure
    FileStatus
      { statusType = typeOf mode,
        statusSize = fromIntegral size,
        statusMode = fromIntegral (mode .&. 0o7777),
        statusModified = modified,
        statusChanged = changed,
        statusInode = inode,
        statusDevice = (major, minor),
        statusLinks = links
      }
  where
    time !s !n = (s, n)

typeOf :: Word16 -> FileType
typeOf mode = case mode .&. #{const S_IFMT} of
  #{const S_IFREG} -> RegularFile
  #{const S_IFDIR} -> DirectoryFile
  #{const S_IFLNK} -> SymbolicLink
  #{const S_IFBLK} -> BlockDevice
  #{const S_IFCHR} -> CharacterDevice
  #{const S_IFIFO} -> NamedPipe
  #{const S_IFSOCK} -> SocketFile
  _ -> OtherFile

-- | The status of an open descriptor, or @-errno@. The 'Bool' says whether its file system is known to be local;
-- another one may have to ask a server.
lookAt :: Bool -> Fd -> IO (Either CInt FileStatus)
lookAt local (Fd fd) = allocaBytesAligned statusSpace 8 $ \p -> do
  r <- if local then c_look fd p else c_ask fd p
  if r < 0 then pure (Left r) else Right <$> readStatus p

foreign import ccall unsafe "weft_file_look" c_look :: CInt -> Ptr () -> IO CInt

foreign import ccall safe "weft_file_look" c_ask :: CInt -> Ptr () -> IO CInt

-- | Whether it bypasses the page cache (@O_DIRECT@), or @-errno@.
passesCache :: Fd -> IO (Either CInt Bool)
passesCache (Fd fd) = do
  r <- c_passes fd
  pure (if r < 0 then Left r else Right (r /= 0))

foreign import ccall unsafe "weft_file_passes_cache" c_passes :: CInt -> IO CInt

-- | Whether it is on a known local file system, which only this machine changes. There, closing a file
-- that was only read does not wait, and a directory's 'statusChanged' changes whenever a name in it is
-- added or removed. Network file systems and FUSE are not local.
isLocal :: Fd -> IO Bool
isLocal (Fd fd) = (/= 0) <$> c_local fd

-- A safe call, since it may send a request to a network file system or FUSE.
foreign import ccall safe "weft_file_local" c_local :: CInt -> IO CInt
