-- |
-- What is known about files: statx(2). By threads of any kind, as "Weft.File.Transfer".
module Weft.File.Status
  ( FileStatus (..),
    FileType (..),
    statFile,
    statPath,
    statPathAt,
    descriptorKind,
  )
where

import Control.Monad.Catch (MonadMask)
import Control.Monad.IO.Class (MonadIO (..))
import Data.Bits ((.&.))
import Data.Int (Int64)
import Data.Word (Word16, Word32, Word64, Word8)
import Foreign.C.Types (CInt (..))
import Foreign.ForeignPtr (ForeignPtr, mallocForeignPtrBytes, touchForeignPtr)
import Foreign.ForeignPtr.Unsafe (unsafeForeignPtrToPtr)
import Foreign.Marshal.Utils (copyBytes)
import Foreign.Ptr (Ptr, plusPtr)
import Foreign.Storable (peekByteOff, pokeByteOff)
import qualified GHC.Foreign as G
import GHC.IO.Encoding (getFileSystemEncoding)
import System.Posix.Types (Fd (..), FileMode)
import Weft.FFI.File
import Weft.File.Engine
import Weft.File.Types

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
    statusInode :: !Word64,
    -- | Of the device that holds it: major and minor number.
    statusDevice :: !(Word32, Word32),
    statusLinks :: !Word32
  }
  deriving (Eq, Show)

data FileType = RegularFile | DirectoryFile | SymbolicLink | BlockDevice | CharacterDevice | NamedPipe | SocketFile | OtherFile
  deriving (Eq, Show)

-- | 'Weft.File.statFile'.
statFile :: (MonadIO m, MonadMask m) => Carrier m -> File -> m FileStatus
statFile carry file = using loc file $ \fd -> statx carry (hold file) loc (filePath file) fd "" (#{const AT_EMPTY_PATH})
  where
    loc = "Weft.File.statFile"
{-# INLINE statFile #-}

-- | 'Weft.File.statPath'.
statPath :: MonadIO m => Carrier m -> FilePath -> m FileStatus
statPath carry path = statx carry (pure (pure ())) "Weft.File.statPath" path (Fd (#{const AT_FDCWD})) path 0
{-# INLINE statPath #-}

-- | Of what a path leads to that starts from a directory, given as a file. (It may
-- lead out of it: to stay inside, open the file and ask 'statFile'.)
statPathAt :: (MonadIO m, MonadMask m) => Carrier m -> File -> FilePath -> m FileStatus
statPathAt carry dir path = using loc dir $ \fd -> statx carry (hold dir) loc path fd path 0
  where
    loc = "Weft.File.statPathAt"
{-# INLINE statPathAt #-}

statx :: MonadIO m => Carrier m -> IO (IO ()) -> String -> FilePath -> Fd -> FilePath -> Word32 -> m FileStatus
statx carry held loc shown dir path flags = do
  memory <- liftIO (outAndPath path)
  let out = unsafeForeignPtrToPtr memory
      op = opStat dir (out `plusPtr` outSize) flags (#{const STATX_BASIC_STATS}) out
      manner =
        Manner
          { mannerTry = True,
            mannerBlock = True,
            mannerStay = Nothing,
            mannerWatch = \_ -> pure (pure ()),
            mannerKeep = touchForeignPtr memory,
            mannerHold = held,
            mannerDispose = const (pure ())
          }
  r <- carry manner op
  liftIO (check loc shown r >> readStatus out <* touchForeignPtr memory)
{-# INLINE statx #-}

-- | Room for the answer, and the path behind it.
outAndPath :: FilePath -> IO (ForeignPtr Word64)
outAndPath path = do
  encoding <- getFileSystemEncoding
  G.withCStringLen encoding path $ \(from, size) -> do
    memory <- mallocForeignPtrBytes (outSize + size + 1) :: IO (ForeignPtr Word64)
    let p = unsafeForeignPtrToPtr memory
    copyBytes (p `plusPtr` outSize) from size
    pokeByteOff p (outSize + size) (0 :: Word8)
    memory <$ touchForeignPtr memory

outSize :: Int
outSize = #{size struct statx}

readStatus :: Ptr a -> IO FileStatus
readStatus p = do
  mode <- #{peek struct statx, stx_mode} p :: IO Word16
  size <- #{peek struct statx, stx_size} p :: IO Word64
  seconds <- #{peek struct statx, stx_mtime.tv_sec} p
  nanos <- #{peek struct statx, stx_mtime.tv_nsec} p
  inode <- #{peek struct statx, stx_ino} p
  major <- #{peek struct statx, stx_dev_major} p
  minor <- #{peek struct statx, stx_dev_minor} p
  links <- #{peek struct statx, stx_nlink} p
  pure
    FileStatus
      { statusType = typeOf mode,
        statusSize = fromIntegral size,
        statusMode = fromIntegral (mode .&. 0o7777),
        statusModified = (seconds, nanos),
        statusInode = inode,
        statusDevice = (major, minor),
        statusLinks = links
      }

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

-- | Has it offsets?
descriptorKind :: String -> FilePath -> Fd -> IO Kind
descriptorKind loc path (Fd fd) = do
  r <- c_kind fd >>= check loc path
  pure (case r of 0 -> Cached; 1 -> Direct; _ -> Stream)

foreign import ccall unsafe "weft_file_kind" c_kind :: CInt -> IO CInt
