-- |
-- The names in a directory, and the status of what they name, for both kinds of threads ("Weft.File.ThreadOps").
module Weft.File.Names
  ( foldNames,
    foldEntries,
  )
where

import Control.Exception (IOException, try)
import Control.Monad.IO.Class (MonadIO (..))
import Data.Bits (shiftL, (.|.))
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import qualified Data.ByteString.Internal as B (fromForeignPtr, mallocByteString, toForeignPtr)
import qualified Data.ByteString.Unsafe as B (unsafeDrop, unsafeIndex, unsafeTake)
import Data.Word (Word64)
import Foreign.ForeignPtr (ForeignPtr, mallocForeignPtrBytes, touchForeignPtr)
import Foreign.ForeignPtr.Unsafe (unsafeForeignPtrToPtr)
import Foreign.Ptr (plusPtr)
import GHC.ByteOrder (ByteOrder (..), targetByteOrder)
import Weft.FFI.File
import Weft.File.Attributes (FileStatus, readEntryStatus, statusSpace)
import Weft.File.Engine
import Weft.File.ThreadOps
import Weft.File.Transfer (forgotten)
import Weft.File.Types

-- | 'Weft.File.foldNames'.
foldNames :: MonadIO m => ThreadOps m -> File -> (a -> ByteString -> m a) -> a -> m a
foldNames threads file use = foldBatches threads "Weft.File.foldNames" file (\acc batch -> each batch (const use) acc)
{-# INLINE foldNames #-}

-- | 'Weft.File.foldEntries'.
foldEntries :: MonadIO m => ThreadOps m -> File -> (a -> ByteString -> Either IOException FileStatus -> m a) -> a -> m a
foldEntries threads file use = foldBatches threads loc file $ \acc batch -> do
  statuses <- statusesOf batch
  each batch (\i found name -> liftIO (statusAt statuses i) >>= use found name) acc
  where
    -- All by one call: handing each to a thread that may block costs several times as much as statx(2).
    statusesOf batch = threadsWithFile threads loc file $ \fd -> do
      let (names, offset, n) = B.toForeignPtr batch
      memory <- liftIO (mallocForeignPtrBytes (statusSpace * (n `div` leastEntry)) :: IO (ForeignPtr Word64))
      r <-
        threadsRequest
          threads
          (forgotten loc file (touchForeignPtr names >> touchForeignPtr memory)) {policyTry = False}
          (opStats fd (unsafeForeignPtrToPtr names `plusPtr` offset) n (unsafeForeignPtrToPtr memory))
      memory <$ liftIO (check loc (filePath file) r)
    statusAt memory i = do
      found <- readEntryStatus (unsafeForeignPtrToPtr memory `plusPtr` (statusSpace * i))
      touchForeignPtr memory
      either (\code -> try (check loc (filePath file) (negate code) >> ioError (userError loc))) (pure . Right) found
    loc = "Weft.File.foldEntries"
{-# INLINE foldEntries #-}

-- | Fold over the entries of a directory in the form in which getdents(2) gives them, several at once.
foldBatches :: MonadIO m => ThreadOps m -> String -> File -> (a -> ByteString -> m a) -> a -> m a
foldBatches threads loc file use = go True
  where
    go first acc = do
      batch <- next first
      if B.null batch then pure acc else use acc batch >>= go False
    next first = threadsWithFile threads loc file $ \fd -> do
      memory <- liftIO (B.mallocByteString batchBytes)
      n <-
        threadsRequest
          threads
          (forgotten loc file (touchForeignPtr memory)) {policyTry = False}
          (opNames fd first (unsafeForeignPtrToPtr memory) batchBytes)
      B.fromForeignPtr memory 0 <$> liftIO (check loc (filePath file) n)
{-# INLINE foldBatches #-}

-- | Fold over the names of a batch, with their numbers in it. The directory itself and its parent are left out.
each :: Monad m => ByteString -> (Int -> a -> ByteString -> m a) -> a -> m a
each entries use = go 0 entries
  where
    go !i batch acc
      | B.null batch = pure acc
      | name == C.pack "." || name == C.pack ".." = go (i + 1) rest acc
      | otherwise = use i acc name >>= go (i + 1) rest
      where
        (name, rest) = entry batch
{-# INLINE each #-}

-- | The name in the first of several @struct linux_dirent64@ (getdents(2)), and the rest. Such a structure has two
-- numbers of eight bytes, its length in two bytes, the type in one, and the name, which ends with a zero byte.
entry :: ByteString -> (ByteString, ByteString)
entry batch = (B.takeWhile (/= 0) (B.unsafeDrop 19 (B.unsafeTake size batch)), B.unsafeDrop size batch)
  where
    size = fromIntegral (B.unsafeIndex batch low) .|. fromIntegral (B.unsafeIndex batch (33 - low)) `shiftL` 8 :: Int
    low = if targetByteOrder == LittleEndian then 16 else 17

batchBytes :: Int
batchBytes = 32768

-- | The size of an entry whose name is short.
leastEntry :: Int
leastEntry = 24
