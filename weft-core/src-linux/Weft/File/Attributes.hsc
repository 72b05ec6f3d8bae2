-- |
-- What is known about files, as statx(2) says it, and what can be asked about an open
-- descriptor without any wait.
module Weft.File.Attributes
  ( -- * Status
    FileStatus (..),
    FileType (..),

    -- * From the kernel
    statusSpace,
    readStatus,
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

-- | What the file system says of a file.
data FileStatus = FileStatus
  { statusType :: !FileType,
    statusSize :: !Offset,
    -- | Permissions, without the type.
    statusMode :: !FileMode,
    -- | When its contents last changed: seconds since 1970, and nanoseconds.
    statusModified :: !(Int64, Word32),
    -- | When its contents or its status last changed, for a directory also a name in
    -- it. Unlike 'statusModified' nobody can set it.
    statusChanged :: !(Int64, Word32),
    statusInode :: !Word64,
    -- | Of the device that holds it: major and minor number.
    statusDevice :: !(Word32, Word32),
    statusLinks :: !Word32
  }
  deriving (Eq, Show)

-- | What a name stands for (stat(2), @st_mode@).
data FileType = RegularFile | DirectoryFile | SymbolicLink | BlockDevice | CharacterDevice | NamedPipe | SocketFile | OtherFile
  deriving (Eq, Show)

-- | Bytes of a @struct statx@.
statusSpace :: Int
statusSpace = #{size struct statx}

-- | From one.
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

-- | The status of what is open, or @-errno@.
lookAt :: Fd -> IO (Either CInt FileStatus)
lookAt (Fd fd) = allocaBytesAligned statusSpace 8 $ \p -> do
  r <- c_look fd p
  if r < 0 then pure (Left r) else Right <$> readStatus p

foreign import ccall unsafe "weft_file_look" c_look :: CInt -> Ptr () -> IO CInt

-- | Is it read past the page cache (@O_DIRECT@)? Or @-errno@.
passesCache :: Fd -> IO (Either CInt Bool)
passesCache (Fd fd) = do
  r <- c_passes fd
  pure (if r < 0 then Left r else Right (r /= 0))

foreign import ccall unsafe "weft_file_passes_cache" c_passes :: CInt -> IO CInt

-- | Is it on one of the file systems that this machine alone changes, all of whose
-- doings are known: closing what was only read asks nobody, and whenever a name comes
-- or goes its directory's 'statusChanged' moves? Network file systems, and those of
-- programs (FUSE), are not among them.
isLocal :: Fd -> IO Bool
isLocal (Fd fd) = (/= 0) <$> c_local fd

-- Of a file system of the network, or of a program, it is a question to that.
foreign import ccall safe "weft_file_local" c_local :: CInt -> IO CInt
