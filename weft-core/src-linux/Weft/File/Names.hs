-- |
-- The names in a directory, for both kinds of threads ("Weft.File.ThreadOps").
module Weft.File.Names
  ( foldNames,
  )
where

import Control.Monad.IO.Class (MonadIO (..))
import Data.Bits (shiftL, (.|.))
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import qualified Data.ByteString.Internal as B (fromForeignPtr, mallocByteString)
import qualified Data.ByteString.Unsafe as B (unsafeDrop, unsafeIndex, unsafeTake)
import Foreign.ForeignPtr (touchForeignPtr)
import Foreign.ForeignPtr.Unsafe (unsafeForeignPtrToPtr)
import GHC.ByteOrder (ByteOrder (..), targetByteOrder)
import Weft.FFI.File
import Weft.File.Engine
import Weft.File.ThreadOps
import Weft.File.Transfer (forgotten)
import Weft.File.Types

-- | 'Weft.File.foldNames'.
foldNames :: MonadIO m => ThreadOps m -> File -> (a -> ByteString -> m a) -> a -> m a
foldNames threads file use = go True
  where
    go first acc = do
      batch <- next first
      if B.null batch then pure acc else each acc batch >>= go False
    next first = using threads loc file $ \fd -> do
      memory <- liftIO (B.mallocByteString batchBytes)
      n <-
        carry
          threads
          (forgotten loc file (touchForeignPtr memory)) {policyTry = False}
          (opNames fd first (unsafeForeignPtrToPtr memory) batchBytes)
      B.fromForeignPtr memory 0 <$> liftIO (check loc (filePath file) n)
    each acc batch
      | B.null batch = pure acc
      | name == C.pack "." || name == C.pack ".." = each acc rest
      | otherwise = use acc name >>= \acc' -> each acc' rest
      where
        (name, rest) = entry batch
    loc = "Weft.File.foldNames"
{-# INLINE foldNames #-}

-- | The name in the first of several @struct linux_dirent64@ (getdents(2)), and the rest. Such a structure has two
-- numbers of eight bytes, its length in two bytes, the type in one, and the name, which ends with a zero byte.
entry :: ByteString -> (ByteString, ByteString)
entry batch = (B.takeWhile (/= 0) (B.unsafeDrop 19 (B.unsafeTake size batch)), B.unsafeDrop size batch)
  where
    size = fromIntegral (B.unsafeIndex batch low) .|. fromIntegral (B.unsafeIndex batch (33 - low)) `shiftL` 8 :: Int
    low = if targetByteOrder == LittleEndian then 16 else 17

batchBytes :: Int
batchBytes = 32768
