-- |
-- Strings as memory for system calls: one, or several as a @struct iovec@ array. Any thread may call these functions.
module Weft.Socket.Pieces
  ( withBytes,
    withPieces,

    -- * In memory of the caller's
    pieceSize,
    putPieces,
    keepPieces,
  )
where

import Data.ByteString (ByteString)
import qualified Data.ByteString.Internal as B (toForeignPtr)
import Data.Word (Word8)
import Foreign.C.Types (CInt, CSize)
import Foreign.ForeignPtr (touchForeignPtr)
import Foreign.ForeignPtr.Unsafe (unsafeForeignPtrToPtr)
import Foreign.Marshal.Alloc (allocaBytes)
import Foreign.Ptr (Ptr, plusPtr)
import Foreign.Storable (pokeByteOff)
import GHC.ForeignPtr (unsafeWithForeignPtr)
import Weft.FFI.Socket (IoVec)

-- | The memory of a string, and its length. The action must not diverge.
withBytes :: ByteString -> (Ptr Word8 -> Int -> IO a) -> IO a
withBytes bs act = unsafeWithForeignPtr fp (\p -> act (p `plusPtr` off) n)
  where
    (fp, off, n) = B.toForeignPtr bs
{-# INLINE withBytes #-}

-- | Strings as a @struct iovec@ array, for an action that does not diverge.
withPieces :: [ByteString] -> (Ptr IoVec -> CInt -> IO a) -> IO a
withPieces chunks act = allocaBytes (pieceSize * max 1 (length chunks)) $ \iov -> do
  count <- putPieces iov chunks
  a <- act iov (fromIntegral count)
  a <$ keepPieces chunks
{-# INLINE withPieces #-}

-- | The size in bytes of a @struct iovec@.
pieceSize :: Int
pieceSize = 16

-- | Write the addresses and lengths of strings into memory, which has to have 'pieceSize' bytes for each. Returns their
-- number. What is written is valid until 'keepPieces'.
putPieces :: Ptr IoVec -> [ByteString] -> IO Int
putPieces iov = go 0
  where
    go :: Int -> [ByteString] -> IO Int
    go i [] = pure i
    go i (c : cs) = do
      let (start, offset, n) = B.toForeignPtr c
      pokeByteOff iov (pieceSize * i) (unsafeForeignPtrToPtr start `plusPtr` offset)
      pokeByteOff iov (pieceSize * i + 8) (fromIntegral n :: CSize)
      go (i + 1) cs
{-# INLINE putPieces #-}

-- | Keep the strings' memory alive up to here.
keepPieces :: [ByteString] -> IO ()
keepPieces = mapM_ keep
  where
    keep c = let (start, _, _) = B.toForeignPtr c in touchForeignPtr start
{-# INLINE keepPieces #-}
