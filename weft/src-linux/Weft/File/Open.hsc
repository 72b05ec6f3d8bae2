-- |
-- Opening files: by a path, or by a path below a directory.
module Weft.File.Open
  ( -- * Opening
    openFile,
    withFile,
    openFileAt,
    withFileAt,
    fromDescriptor,

    -- * How
    OpenMode (..),
    Access (..),
    Creation (..),
    Within (..),
    reading,
    writing,

    -- * Directories
    Directory,
    openDirectory,
    closeDirectory,
    withDirectory,
    directoryFile,
  )
where

import Control.Exception (bracket, mask_, onException)
import Data.Bits ((.&.), (.|.))
import Data.Word (Word64, Word8)
import Foreign.C.Error (Errno (..), eINVAL)
import Foreign.C.Types (CInt (..))
import Foreign.ForeignPtr (ForeignPtr, mallocForeignPtrBytes, touchForeignPtr, withForeignPtr)
import Foreign.ForeignPtr.Unsafe (unsafeForeignPtrToPtr)
import Foreign.Marshal.Utils (copyBytes)
import Foreign.Ptr (plusPtr)
import Foreign.Storable (pokeByteOff)
import qualified GHC.Foreign as G
import GHC.IO.Encoding (getFileSystemEncoding)
import System.Posix.Types (Fd (..), FileMode)
import Weft.FFI.File
import Weft.File.Engine
import Weft.File.Status (descriptorKind)
import Weft.File.Types

#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/openat2.h>

-- | How to open a file. Start from 'reading' or 'writing'.
data OpenMode = OpenMode
  { openAccess :: !Access,
    openCreation :: !Creation,
    -- | Make the file empty.
    openTruncate :: !Bool,
    -- | Every write goes to the end, whatever offset it names.
    openAppend :: !Bool,
    -- | Read and write past the page cache (@O_DIRECT@): memory, offsets and counts
    -- must then be multiples of the device's block, 4096 bytes being safe.
    openDirect :: !Bool,
    -- | Do not wait for the other end of a named pipe or for a device
    -- (@O_NONBLOCK@). An existing file whose path the kernel knows then opens without
    -- any wait: what a server wants.
    openPrompt :: !Bool,
    -- | Where the path may lead.
    openWithin :: !Within
  }
  deriving (Eq, Show)

data Access = ReadOnly | WriteOnly | ReadWrite
  deriving (Eq, Show)

-- | When there is no such file, or there is.
data Creation
  = -- | It must exist.
    Existing
  | -- | It is made, with these permissions (less the process's mask).
    CreateIfMissing !FileMode
  | -- | It must not exist and is made.
    CreateNew !FileMode
  deriving (Eq, Show)

-- | Where a path may lead (openat2(2)).
data Within
  = -- | Wherever it does.
    Anywhere
  | -- | Nowhere above the directory that it starts from: neither by @..@, nor by an
    -- absolute path or symbolic link. Leaving it is an error (@EXDEV@).
    Beneath
  | -- | The same, and symbolic links are not followed at all (@ELOOP@).
    BeneathNoLinks
  deriving (Eq, Show)

-- | An existing file, to be read.
reading :: OpenMode
reading = OpenMode ReadOnly Existing False False False False Anywhere

-- | A file to be written, made (with permissions 0666 less the mask) or emptied.
writing :: OpenMode
writing = reading {openAccess = WriteOnly, openCreation = CreateIfMissing 0o666, openTruncate = True}

-- | Open a file. Close it with 'closeFile'; better, use 'withFile'. Throws as
-- 'System.IO.openFile' does; interruptible, and then nothing stays open.
openFile :: OpenMode -> FilePath -> IO File
openFile = openBelow "Weft.File.openFile" (Fd (#{const AT_FDCWD}))

-- | Open a file for as long as the action takes.
withFile :: OpenMode -> FilePath -> (File -> IO a) -> IO a
withFile mode path = bracket (openFile mode path) closeFile

-- | An open directory, from which paths can start.
newtype Directory = Directory File
  deriving (Show)

-- | Open a directory.
openDirectory :: FilePath -> IO Directory
openDirectory path = mask_ $ do
  fd <- openFd "Weft.File.openDirectory" (Fd (#{const AT_FDCWD})) path flags 0 0
  Directory <$> newFile path Cached fd
  where
    flags = #{const O_PATH} .|. #{const O_DIRECTORY}

-- | Close it; files opened from it stay open.
closeDirectory :: Directory -> IO ()
closeDirectory (Directory file) = closeFile file

-- | Open a directory for as long as the action takes.
withDirectory :: FilePath -> (Directory -> IO a) -> IO a
withDirectory path = bracket (openDirectory path) closeDirectory

-- | For "Weft.File.Status".
directoryFile :: Directory -> File
directoryFile (Directory file) = file

-- | Open a file by a path that starts from a directory.
openFileAt :: Directory -> OpenMode -> FilePath -> IO File
openFileAt (Directory dir) mode path = using loc dir $ \fd -> openBelow loc fd mode path
  where
    loc = "Weft.File.openFileAt"

-- | The same for as long as the action takes.
withFileAt :: Directory -> OpenMode -> FilePath -> (File -> IO a) -> IO a
withFileAt dir mode path = bracket (openFileAt dir mode path) closeFile

-- | Take charge of an open descriptor, whose name is only for messages. From now on
-- only 'closeFile' may close it.
fromDescriptor :: FilePath -> Fd -> IO File
fromDescriptor name fd = do
  kind <- descriptorKind "Weft.File.fromDescriptor" name fd
  newFile name kind fd

openBelow :: String -> Fd -> OpenMode -> FilePath -> IO File
openBelow loc dir mode path = mask_ $ do
  fd <- openFd loc dir path flags permissions resolve
  kind <- if openDirect mode then pure Direct else descriptorKind loc path fd `onException` closing fd
  newFile path kind fd
  where
    flags =
      access (openAccess mode)
        .|. creating
        .|. (if openTruncate mode then #{const O_TRUNC} else 0)
        .|. (if openAppend mode then #{const O_APPEND} else 0)
        .|. (if openDirect mode then #{const O_DIRECT} else 0)
        .|. (if openPrompt mode then #{const O_NONBLOCK} else 0)
        .|. #{const O_NOCTTY}
    access ReadOnly = #{const O_RDONLY}
    access WriteOnly = #{const O_WRONLY}
    access ReadWrite = #{const O_RDWR}
    (creating, permissions) = case openCreation mode of
      Existing -> (0, 0)
      CreateIfMissing p -> (#{const O_CREAT}, fromIntegral p)
      CreateNew p -> (#{const O_CREAT} .|. #{const O_EXCL}, fromIntegral p)
    resolve = case openWithin mode of
      Anywhere -> 0
      Beneath -> #{const RESOLVE_BENEATH} .|. #{const RESOLVE_NO_MAGICLINKS}
      BeneathNoLinks -> #{const RESOLVE_BENEATH} .|. #{const RESOLVE_NO_SYMLINKS}

-- | openat2(2). With exceptions masked; a descriptor for which its caller did not
-- wait is closed.
openFd :: String -> Fd -> FilePath -> Word64 -> Word64 -> Word64 -> IO Fd
openFd loc dir path flags permissions resolve
  | '\0' `elem` path = ioError (fileError loc path (negate (let Errno e = eINVAL in e)))
  | otherwise = do
    (memory, text) <- howAndPath
    let op = opOpen dir text (unsafeForeignPtrToPtr memory)
        manner =
          Manner
            { mannerTry = True,
              -- Without it a call may wait for ever.
              mannerBlock = flags .&. #{const O_NONBLOCK} /= 0,
              mannerStay = Nothing,
              mannerWatch = \_ -> pure (pure ()),
              mannerKeep = touchForeignPtr memory,
              mannerDispose = closing . Fd
            }
    Fd . fromIntegral <$> (again (100 :: Int) (perform manner op) >>= check loc path)
  where
    -- A rename somewhere made the kernel unsure that the path stays beneath.
    again n act = do
      r <- act
      if r == errAgain && n > 0 then again (n - 1) act else pure r
    howAndPath = do
      encoding <- getFileSystemEncoding
      G.withCStringLen encoding path $ \(from, size) -> do
        memory <- mallocForeignPtrBytes (24 + size + 1) :: IO (ForeignPtr Word64)
        withForeignPtr memory $ \p -> do
          pokeByteOff p 0 (flags .|. #{const O_CLOEXEC})
          pokeByteOff p 8 permissions
          pokeByteOff p 16 resolve
          copyBytes (p `plusPtr` 24) from size
          pokeByteOff p (24 + size) (0 :: Word8)
          pure (memory, p `plusPtr` 24)

closing :: Fd -> IO ()
closing (Fd fd) = () <$ c_close fd

foreign import ccall unsafe "close" c_close :: CInt -> IO CInt
