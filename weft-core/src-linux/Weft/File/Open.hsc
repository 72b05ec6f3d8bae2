-- |
-- Opening files by a path, or by a path below a directory, for both kinds of threads ("Weft.File.ThreadOps").
module Weft.File.Open
  ( -- * Opening
    openFile,
    withFile,
    openFileAt,
    withFileAt,
    openRawFileAt,
    withRawFileAt,
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
    sameLocalDevice,
  )
where

import Control.Monad.Catch (MonadMask, bracket, mask_)
import qualified Control.Exception as E (onException)
import Control.Monad.IO.Class (MonadIO (..))
import Data.Bits ((.&.), (.|.))
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Unsafe as B (unsafeUseAsCStringLen)
import Data.Maybe (isJust)
import Data.Word (Word32, Word64, Word8)
import Foreign.C.Error (Errno (..), eINVAL)
import Foreign.C.String (CStringLen)
import Foreign.C.Types (CInt (..))
import Foreign.ForeignPtr (ForeignPtr, mallocForeignPtrBytes, touchForeignPtr)
import Foreign.ForeignPtr.Unsafe (unsafeForeignPtrToPtr)
import Foreign.Marshal.Utils (copyBytes)
import Foreign.Ptr (Ptr, plusPtr)
import Foreign.Storable (pokeByteOff)
import qualified GHC.Foreign as G
import GHC.IO.Encoding (getFileSystemEncoding)
import System.IO.Unsafe (unsafePerformIO)
import System.Posix.Types (Fd (..), FileMode)
import Weft.FFI.File
import Weft.File.Attributes
import Weft.File.ThreadOps
import Weft.File.Engine
import Weft.File.Types

#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/openat2.h>

-- | How to open a file. Start from 'reading' or 'writing'.
data OpenMode = OpenMode
  { openAccess :: !Access,
    openCreation :: !Creation,
    -- | Truncate the file to zero bytes.
    openTruncate :: !Bool,
    -- | Every write appends to the file, whatever its offset (@O_APPEND@).
    openAppend :: !Bool,
    -- | Bypass the page cache (@O_DIRECT@). Addresses, offsets and counts
    -- have to be multiples of the device's block size; 4096 is safe.
    openDirect :: !Bool,
    -- | Do not wait for the other end of a named pipe or for a device
    -- (@O_NONBLOCK@). An existing file whose path is in the kernel's cache then opens without
    -- any wait.
    openNonBlocking :: !Bool,
    -- | Where the path may lead.
    openResolve :: !Within
  }
  deriving (Eq, Show)

-- | Whether a file is opened for reading, for writing, or for both (open(2)).
data Access = ReadOnly | WriteOnly | ReadWrite
  deriving (Eq, Show)

-- | Whether a file is created.
data Creation
  = -- | It must exist.
    Existing
  | -- | It is created if it does not exist, with these permissions (less the process's mask).
    CreateIfMissing !FileMode
  | -- | It must not exist, and is created with these permissions.
    CreateNew !FileMode
  deriving (Eq, Show)

-- | A restriction of where a path may lead (openat2(2)).
data Within
  = -- | No restriction.
    Anywhere
  | -- | The path must stay below the directory that it starts from: a @..@, an
    -- absolute path or a symbolic link that leaves it is an error (@EXDEV@).
    Beneath
  | -- | 'Beneath', and any symbolic link is an error (@ELOOP@).
    BeneathNoLinks
  deriving (Eq, Show)

-- | Open an existing file for reading.
reading :: OpenMode
reading = OpenMode ReadOnly Existing False False False False Anywhere

-- | Open a file for writing: it is created (with permissions 0666 less the mask) or truncated.
writing :: OpenMode
writing = reading {openAccess = WriteOnly, openCreation = CreateIfMissing 0o666, openTruncate = True}

-- | 'Weft.File.openFile'.
openFile :: (MonadIO m, MonadMask m) => ThreadOps m -> OpenMode -> FilePath -> m File
openFile threads mode = openBelow threads "Weft.File.openFile" here mode . Spelled
{-# INLINE openFile #-}

-- | 'Weft.File.withFile'.
withFile :: (MonadIO m, MonadMask m) => ThreadOps m -> OpenMode -> FilePath -> (File -> m a) -> m a
withFile threads mode path = bracket (openFile threads mode path) (liftIO . closeFile)
{-# INLINE withFile #-}

-- | An open directory, from which paths can start; and its device, if that
-- has a local file system ('isLocal').
data Directory = Directory !File !(Maybe (Word32, Word32))

instance Show Directory where
  showsPrec p (Directory file _) = showParen (p > 10) (showString "Directory " . showsPrec 11 file)

-- | 'Weft.File.openDirectory'.
openDirectory :: (MonadIO m, MonadMask m) => ThreadOps m -> FilePath -> m Directory
openDirectory threads path = mask_ $ do
  fd <- openFd threads loc here (Spelled path) (How flags 0 0)
  liftIO . (`E.onException` closing fd) $ do
    status <- looked False loc path fd
    local <- isLocal fd
    file <- newFile path Cached status False fd
    pure (Directory file (if local then Just (statusDevice status) else Nothing))
  where
    loc = "Weft.File.openDirectory"
    flags = #{const O_PATH} .|. #{const O_DIRECTORY}
{-# INLINE openDirectory #-}

-- | Close a directory. Files that were opened from it stay open.
closeDirectory :: Directory -> IO ()
closeDirectory (Directory file _) = closeFile file

-- | 'Weft.File.withDirectory'.
withDirectory :: (MonadIO m, MonadMask m) => ThreadOps m -> FilePath -> (Directory -> m a) -> m a
withDirectory threads path = bracket (openDirectory threads path) (liftIO . closeDirectory)
{-# INLINE withDirectory #-}

-- | Whether a file is on the same file system as the directory that it was opened from, and that is a local file
-- system, which only this machine changes (ext4, XFS, btrfs, tmpfs and so on; not a network file system or FUSE). On
-- such a file system a directory's 'statusChanged' changes whenever a name in it is added or removed.
sameLocalDevice :: Directory -> File -> Bool
sameLocalDevice (Directory _ local) file = local == Just (statusDevice (fileOpened file))

-- | 'Weft.File.openFileAt'.
openFileAt :: (MonadIO m, MonadMask m) => ThreadOps m -> Directory -> OpenMode -> FilePath -> m File
openFileAt threads dir mode path = openNamedAt threads "Weft.File.openFileAt" dir mode (Spelled path)
{-# INLINE openFileAt #-}

-- | 'Weft.File.withFileAt'.
withFileAt :: (MonadIO m, MonadMask m) => ThreadOps m -> Directory -> OpenMode -> FilePath -> (File -> m a) -> m a
withFileAt threads dir mode path = bracket (openFileAt threads dir mode path) (liftIO . closeFile)
{-# INLINE withFileAt #-}

-- | 'Weft.File.openRawFileAt'.
openRawFileAt :: (MonadIO m, MonadMask m) => ThreadOps m -> Directory -> OpenMode -> ByteString -> m File
openRawFileAt threads dir mode path = openNamedAt threads "Weft.File.openRawFileAt" dir mode (Raw path)
{-# INLINE openRawFileAt #-}

-- | 'Weft.File.withRawFileAt'.
withRawFileAt :: (MonadIO m, MonadMask m) => ThreadOps m -> Directory -> OpenMode -> ByteString -> (File -> m a) -> m a
withRawFileAt threads dir mode path = bracket (openRawFileAt threads dir mode path) (liftIO . closeFile)
{-# INLINE withRawFileAt #-}

openNamedAt :: (MonadIO m, MonadMask m) => ThreadOps m -> String -> Directory -> OpenMode -> Name -> m File
openNamedAt threads loc (Directory dir local) mode name = threadsWithFile threads loc dir $ \fd -> openBelow threads loc (Start fd local (hold loc dir)) mode name
{-# INLINE openNamedAt #-}

-- | Take ownership of an open descriptor. The name is for error messages. Close it only by
-- 'closeFile'.
fromDescriptor :: FilePath -> Fd -> IO File
fromDescriptor name fd = do
  status <- looked False loc name fd
  direct <- passesCache fd >>= either (ioError . fileError loc name) pure
  newFile name (kindOf direct status) status False fd
  where
    loc = "Weft.File.fromDescriptor"

-- | A path as in "System.IO", or in the bytes of the file system.
data Name = Spelled FilePath | Raw ByteString

-- | The path for error messages.
spelled :: Name -> FilePath
spelled (Spelled path) = path
spelled (Raw bytes) = unsafePerformIO $ do
  encoding <- getFileSystemEncoding
  B.useAsCStringLen bytes (G.peekCStringLen encoding)

withBytesOf :: Name -> (CStringLen -> IO a) -> IO a
withBytesOf (Spelled path) act = getFileSystemEncoding >>= \encoding -> G.withCStringLen encoding path act
withBytesOf (Raw bytes) act = B.unsafeUseAsCStringLen bytes act

hasZero :: Name -> Bool
hasZero (Spelled path) = '\0' `elem` path
hasZero (Raw bytes) = 0 `B.elem` bytes

-- | Where a path starts from, the device whose files close lightly ('fileLight'), and
-- what holds that open ('policyAcquire').
data Start = Start !Fd !(Maybe (Word32, Word32)) !(IO (IO ()))

-- | The working directory.
here :: Start
here = Start (Fd (#{const AT_FDCWD})) Nothing (pure (pure ()))

openBelow :: (MonadIO m, MonadMask m) => ThreadOps m -> String -> Start -> OpenMode -> Name -> m File
openBelow threads loc start@(Start _ local _) mode name = mask_ $ do
  fd <- openFd threads loc start name (How (flagsOf mode) permissions resolve)
  liftIO $ do
    status <- looked (isJust local) loc (spelled name) fd `E.onException` closing fd
    newFile (spelled name) (kindOf (openDirect mode) status) status (light status) fd
  where
    light status =
      openAccess mode == ReadOnly
        && local == Just (statusDevice status)
        && statusType status `elem` [RegularFile, DirectoryFile]
    permissions = case openCreation mode of
      Existing -> 0
      CreateIfMissing p -> fromIntegral p
      CreateNew p -> fromIntegral p
    resolve = case openResolve mode of
      Anywhere -> 0
      Beneath -> #{const RESOLVE_BENEATH} .|. #{const RESOLVE_NO_MAGICLINKS}
      BeneathNoLinks -> #{const RESOLVE_BENEATH} .|. #{const RESOLVE_NO_SYMLINKS}
{-# INLINE openBelow #-}

looked :: Bool -> String -> FilePath -> Fd -> IO FileStatus
looked local loc path fd = lookAt local fd >>= either (ioError . fileError loc path) pure

-- | Whether the file has offsets, and uses the page cache.
kindOf :: Bool -> FileStatus -> Kind
kindOf direct status
  | statusType status `notElem` [RegularFile, BlockDevice, DirectoryFile] = Stream
  | direct = Direct
  | otherwise = Cached

-- | The flags for open(2).
flagsOf :: OpenMode -> Word64
flagsOf mode =
  access (openAccess mode)
    .|. creating (openCreation mode)
    .|. (if openTruncate mode then #{const O_TRUNC} else 0)
    .|. (if openAppend mode then #{const O_APPEND} else 0)
    .|. (if openDirect mode then #{const O_DIRECT} else 0)
    .|. (if openNonBlocking mode then #{const O_NONBLOCK} else 0)
    .|. #{const O_NOCTTY}
  where
    access ReadOnly = #{const O_RDONLY}
    access WriteOnly = #{const O_WRONLY}
    access ReadWrite = #{const O_RDWR}
    creating Existing = 0
    creating (CreateIfMissing _) = #{const O_CREAT}
    creating (CreateNew _) = #{const O_CREAT} .|. #{const O_EXCL}

-- | A @struct open_how@.
data How = How
  { howFlags :: !Word64,
    howPermissions :: !Word64,
    howResolve :: !Word64
  }

-- | openat2(2). With exceptions masked; a descriptor for which its caller did not
-- wait is closed.
openFd :: MonadIO m => ThreadOps m -> String -> Start -> Name -> How -> m Fd
openFd threads loc (Start dir _ held) name how = do
  (memory, text) <- liftIO (howAndPath loc name how)
  let op = opOpen dir text (unsafeForeignPtrToPtr memory)
      policy =
        RequestPolicy
          { policyTry = True,
            policyDirect = False,
            -- Without O_NONBLOCK a call may wait for ever.
            policyBlock = howFlags how .&. #{const O_NONBLOCK} /= 0,
            policyOnInterrupt = Nothing,
            policyOnWait = \_ -> pure (pure ()),
            policyOnDone = touchForeignPtr memory,
            policyAcquire = held,
            policyDispose = closing . Fd
          }
      -- EAGAIN: because of a concurrent rename the kernel cannot tell whether the path stays below.
      again n = do
        r <- threadsRequest threads policy op
        if r == errAgain && n > (0 :: Int) then again (n - 1) else pure r
  r <- again 100
  Fd . fromIntegral <$> liftIO (check loc (spelled name) r)
{-# INLINE openFd #-}

-- | The structure, and the path behind it.
howAndPath :: String -> Name -> How -> IO (ForeignPtr Word64, Ptr ())
howAndPath loc name how
  | hasZero name = ioError (fileError loc (spelled name) (negate (let Errno e = eINVAL in e)))
  | otherwise = withBytesOf name $ \(from, size) -> do
    memory <- mallocForeignPtrBytes (24 + size + 1)
    let p = unsafeForeignPtrToPtr memory
    pokeByteOff p 0 (howFlags how .|. #{const O_CLOEXEC})
    pokeByteOff p 8 (howPermissions how)
    pokeByteOff p 16 (howResolve how)
    copyBytes (p `plusPtr` 24) from size
    pokeByteOff p (24 + size) (0 :: Word8)
    touchForeignPtr memory
    pure (memory, p `plusPtr` 24)

closing :: Fd -> IO ()
closing (Fd fd) = () <$ c_close fd

-- A safe call, since it may send a request to a network file system or FUSE.
foreign import ccall safe "close" c_close :: CInt -> IO CInt
