-- |
-- Reading and writing at offsets.
module Weft.File.Transfer
  ( -- * Bytes
    readAt,
    writeAt,
    writeManyAt,

    -- * Into and from memory of one's own
    readBufAt,
    writeBufAt,
    readBufsAt,
    writeBufsAt,
    alignedBuffer,

    -- * Chunks
    forChunks,

    -- * Onto the disk
    sync,
    syncData,
    allocate,
  )
where

import Control.Monad (unless)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Internal as B (fromForeignPtr, mallocByteString, toForeignPtr)
import Data.Int (Int64)
import Data.Word (Word8)
import Foreign.C.Error (Errno (..), eINVAL, eSPIPE)
import Foreign.ForeignPtr (ForeignPtr, touchForeignPtr)
import Foreign.ForeignPtr.Unsafe (unsafeForeignPtrToPtr)
import Foreign.Marshal.Alloc (allocaBytes)
import Foreign.Ptr (Ptr, plusPtr)
import Foreign.Storable (poke, pokeByteOff, sizeOf)
import GHC.ForeignPtr (mallocPlainForeignPtrAlignedBytes)
import System.Posix.Types (Fd)
import Weft.FFI.File
import Weft.File.Engine
import Weft.File.Types

-- | Bytes from an offset: as many as asked for, fewer only at the end of the file.
-- When it is interrupted it returns at once.
readAt :: File -> Offset -> Count -> IO ByteString
readAt file off (Count count) = do
  validate loc file off count
  using loc file $ \fd -> do
    memory <- bufferFor file count
    n <- repeatedly count $ \done -> do
      let p = unsafeForeignPtrToPtr memory `plusPtr` done
          size = min most (count - done)
      perform (forgotten file (touchForeignPtr memory)) (opRead fd (offsetBytes off + fromIntegral done) p size)
        >>= check loc (filePath file)
    pure (slice memory n count)
  where
    loc = "Weft.File.readAt"

-- | What was read. A buffer that is mostly empty is not kept.
slice :: ForeignPtr Word8 -> Int -> Int -> ByteString
slice memory n count
  | n == 0 = B.empty
  | n < count `div` 2 = B.copy bytes
  | otherwise = bytes
  where
    bytes = B.fromForeignPtr memory 0 n

bufferFor :: File -> Int -> IO (ForeignPtr Word8)
bufferFor file count
  | fileKind file == Direct = alignedBuffer (Count count)
  | otherwise = B.mallocByteString count

-- | Memory of so many bytes at an address that is a multiple of 4096, as files that
-- are opened with 'Weft.File.openDirect' need it.
alignedBuffer :: Count -> IO (ForeignPtr Word8)
alignedBuffer (Count count) = mallocPlainForeignPtrAlignedBytes (max 1 count) 4096

-- | Write all bytes from an offset on. When it is interrupted, a part of them may
-- have been written, or be written yet.
writeAt :: File -> Offset -> ByteString -> IO ()
writeAt file off bytes = do
  validate loc file off size
  using loc file $ \fd -> fully loc size $ \done ->
    perform
      (forgotten file (touchForeignPtr memory))
      (opWrite fd (offsetBytes off + fromIntegral done) (base `plusPtr` done) (min most (size - done)))
      >>= check loc (filePath file)
  where
    loc = "Weft.File.writeAt"
    (memory, start, size) = B.toForeignPtr bytes
    base = unsafeForeignPtrToPtr memory `plusPtr` start

-- | Write several strings one after the other, by as few system calls as may be.
writeManyAt :: File -> Offset -> [ByteString] -> IO ()
writeManyAt file off strings = do
  written <- writeBufsAt file off [(unsafeForeignPtrToPtr m `plusPtr` o, Count n) | (m, o, n) <- parts]
  mapM_ (\(m, _, _) -> touchForeignPtr m) parts
  unless (written == sum [Count n | (_, _, n) <- parts]) (ioError (tookNoMore "Weft.File.writeManyAt"))
  where
    parts = map B.toForeignPtr strings

-- | Into memory of the caller's, which must stay until it returns: how many bytes,
-- fewer than asked for only at the end of the file. Interruptible; before it ends
-- by an exception it waits until the kernel is done with the memory.
readBufAt :: File -> Offset -> Ptr Word8 -> Count -> IO Count
readBufAt file off p (Count count) = do
  validate loc file off count
  using loc file $ \fd ->
    Count
      <$> repeatedly
        count
        ( \done ->
            perform (lent file) (opRead fd (offsetBytes off + fromIntegral done) (p `plusPtr` done) (min most (count - done)))
              >>= check loc (filePath file)
        )
  where
    loc = "Weft.File.readBufAt"

-- | From memory of the caller's, in the same way: all of it.
writeBufAt :: File -> Offset -> Ptr Word8 -> Count -> IO ()
writeBufAt file off p (Count count) = do
  validate loc file off count
  using loc file $ \fd -> fully loc count $ \done ->
    perform (lent file) (opWrite fd (offsetBytes off + fromIntegral done) (p `plusPtr` done) (min most (count - done)))
      >>= check loc (filePath file)
  where
    loc = "Weft.File.writeBufAt"

-- | Into several pieces of memory, filled one after the other, by one request for
-- up to 1024 of them: how many bytes; fewer than there is room for only at the end
-- of the file.
readBufsAt :: File -> Offset -> [(Ptr Word8, Count)] -> IO Count
readBufsAt = vectored "Weft.File.readBufsAt" opReadParts

-- | From several pieces of memory; all of it, unless the device is full.
writeBufsAt :: File -> Offset -> [(Ptr Word8, Count)] -> IO Count
writeBufsAt = vectored "Weft.File.writeBufsAt" opWriteParts

-- | Goes on behind what a request did, until all is done or one does nothing.
vectored :: String -> (Fd -> Int64 -> Ptr () -> Int -> Op) -> File -> Offset -> [(Ptr Word8, Count)] -> IO Count
vectored loc make file start given = do
  mapM_ (validate loc file start . countBytes . snd) given
  using loc file $ \fd -> go fd start (filter ((> 0) . snd) given) 0
  where
    go _ _ [] done = pure done
    go fd at parts done = do
      let now = take 1024 parts
      n <- allocaBytes (partSize * length now) $ \vector -> do
        mapM_ (uncurry (describe vector)) (zip [0 ..] now)
        perform (lent file) (make fd (offsetBytes at) vector (length now)) >>= check loc (filePath file)
      if n == 0
        then pure done
        else go fd (at + fromIntegral n) (behind (Count n) parts) (done + Count n)
    partSize = 2 * sizeOf (0 :: Int)
    describe vector i (p, Count n) = do
      poke (vector `plusPtr` (i * partSize)) p
      pokeByteOff (vector `plusPtr` (i * partSize)) (sizeOf (0 :: Int)) n

-- | What is left of a list of parts after so many bytes.
behind :: Count -> [(Ptr Word8, Count)] -> [(Ptr Word8, Count)]
behind _ [] = []
behind n ((p, size) : rest)
  | n >= size = behind (n - size) rest
  | otherwise = (p `plusPtr` countBytes n, size - n) : rest

-- | All of a file from an offset on, in chunks of that size, the last of which may
-- be shorter.
forChunks :: File -> Offset -> Count -> (a -> ByteString -> IO a) -> a -> IO a
forChunks file start size use = go start
  where
    go at acc = do
      bytes <- readAt file at size
      if B.null bytes
        then pure acc
        else do
          acc' <- use acc bytes
          if B.length bytes < countBytes size then pure acc' else go (at + fromIntegral (B.length bytes)) acc'

-- | Have what was written reach the disk, with its size and times (fsync(2)).
sync :: File -> IO ()
sync = onDisk "Weft.File.sync" opSync

-- | The same without what is not needed to read it again (fdatasync(2)).
syncData :: File -> IO ()
syncData = onDisk "Weft.File.syncData" opSyncData

onDisk :: String -> (Fd -> Op) -> File -> IO ()
onDisk loc make file = using loc file $ \fd ->
  () <$ (perform (forgotten file (pure ())) {mannerTry = False} (make fd) >>= check loc (filePath file))

-- | Have the disk set space aside for a range, and the file be at least that long
-- (fallocate(2)).
allocate :: File -> Offset -> Offset -> IO ()
allocate file off len = do
  validate loc file off 0
  using loc file $ \fd ->
    () <$ (perform (forgotten file (pure ())) {mannerTry = False} (opAllocate fd 0 (offsetBytes off) (offsetBytes len)) >>= check loc (filePath file))
  where
    loc = "Weft.File.allocate"

-- Helpers --------------------------------------------------------------------------

-- | An operation whose memory is kept by its request: its caller may go.
forgotten :: File -> IO () -> Manner
forgotten file keep =
  Manner
    { mannerTry = fileKind file == Cached,
      mannerBlock = True,
      mannerStay = Nothing,
      mannerWatch = \_ -> pure (pure ()),
      mannerKeep = keep,
      mannerDispose = const (pure ())
    }

-- | One with memory of the caller's.
lent :: File -> Manner
lent file = (forgotten file (pure ())) {mannerStay = Just (const (pure ()))}

-- | Up to the count, or to a result of 0: how much it was.
repeatedly :: Int -> (Int -> IO Int) -> IO Int
repeatedly count step = go 0
  where
    go done
      | done >= count = pure done
      | otherwise = do
        n <- step done
        if n == 0 then pure done else go (done + n)
{-# INLINE repeatedly #-}

fully :: String -> Int -> (Int -> IO Int) -> IO ()
fully loc count step = do
  n <- repeatedly count step
  unless (n == count) (ioError (tookNoMore loc))

tookNoMore :: String -> IOError
tookNoMore loc = userError (loc <> ": the device took no more")

-- | The most that one system call transfers on Linux, in whole pages.
most :: Int
most = 0x7ffff000

validate :: String -> File -> Offset -> Int -> IO ()
validate loc file off count
  | fileKind file == Stream = refuse eSPIPE
  | off < 0 || count < 0 = refuse eINVAL
  | otherwise = pure ()
  where
    refuse (Errno e) = ioError (fileError loc (filePath file) (negate e))
