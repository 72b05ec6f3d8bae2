-- |
-- Reading and writing at offsets, for both kinds of threads ("Weft.File.ThreadOps"). The functions are documented in
-- "Weft.File".
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
    foldChunks,

    -- * Onto the disk
    sync,
    syncData,
    allocate,

    -- * For other operations
    forgotten,
  )
where

import Control.Exception (AsyncException (HeapOverflow), handleJust)
import Control.Monad (guard, unless)
import Control.Monad.IO.Class (MonadIO (..))
import Data.Bits ((.&.))
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Internal as B (fromForeignPtr, mallocByteString, toForeignPtr)
import Data.Int (Int64)
import Data.Word (Word8)
import Foreign.C.Error (Errno (..), eINVAL, eNOMEM, eSPIPE)
import Foreign.C.Types (CInt)
import Foreign.ForeignPtr (ForeignPtr, mallocForeignPtrBytes, plusForeignPtr, touchForeignPtr, withForeignPtr)
import Foreign.ForeignPtr.Unsafe (unsafeForeignPtrToPtr)
import Foreign.Ptr (Ptr, WordPtr (..), plusPtr, ptrToWordPtr)
import Foreign.Storable (poke, pokeByteOff, sizeOf)
import GHC.ForeignPtr (mallocPlainForeignPtrBytes)
import System.Posix.Types (Fd)
import Weft.FFI.File
import Weft.File.Attributes (FileStatus (..))
import Weft.File.Engine
import Weft.File.Status (statFile)
import Weft.File.ThreadOps
import Weft.File.Types
import Weft.File.Units

-- | 'Weft.File.readAt'.
readAt :: MonadIO m => ThreadOps m -> File -> Offset -> Count -> m ByteString
readAt threads file off (Count count) = do
  liftIO (validate loc file off count)
  if count <= mebibyte then readPart threads file off count else readLarge threads file off count
  where
    loc = "Weft.File.readAt"
{-# INLINE readAt #-}

-- | Read many bytes. The memory is that of what the file has, not of what was asked for. If the file has more than its
-- status says (it grows, or is a device, or a file of \/proc), the rest comes in further parts, each twice as large.
readLarge :: MonadIO m => ThreadOps m -> File -> Offset -> Int -> m ByteString
readLarge threads file start count = do
  status <- statFile threads file
  -- In whole MiB, as sizes and addresses past the page cache are in blocks. There is room for more than
  -- the file has, which shows its end.
  let parts = max 0 (offsetBytes (statusSize status) - offsetBytes start) `div` fromIntegral mebibyte + 1
  go start (fromIntegral (min parts (fromIntegral (maxBound `div` mebibyte))) * mebibyte) count []
  where
    go at size left before = do
      let now = min size left
      bytes <- readPart threads file at now
      if B.length bytes < now || now == left
        then pure $! B.concat (reverse (bytes : before))
        else go (at + fromIntegral now) (min (2 * size) (maxBound `div` 4)) (left - now) (bytes : before)
{-# INLINE readLarge #-}

-- | Read bytes into memory of that size.
readPart :: MonadIO m => ThreadOps m -> File -> Offset -> Int -> m ByteString
readPart threads file off count = threadsWithFile threads loc file $ \fd -> do
  memory <- liftIO (bufferFor loc file count)
  n <- repeatedly count $ \done -> do
    let p = unsafeForeignPtrToPtr memory `plusPtr` done
        size = min most (count - done)
    threadsRequest threads (forgotten loc file (touchForeignPtr memory)) (opRead fd (offsetBytes off + fromIntegral done) p size)
      >>= checked loc file
  pure $! slice memory n count
  where
    loc = "Weft.File.readAt"
{-# INLINE readPart #-}

-- | Reads of more than that ask for the file's size first.
mebibyte :: Int
mebibyte = 1048576

-- | The string of the bytes that were read. If the buffer is mostly empty, they are copied.
slice :: ForeignPtr Word8 -> Int -> Int -> ByteString
slice memory n count
  | n == 0 = B.empty
  | n < count `div` 2 = B.copy bytes
  | otherwise = bytes
  where
    bytes = B.fromForeignPtr memory 0 n

-- | Memory for that number of bytes; @ENOMEM@ if the heap cannot have it.
bufferFor :: String -> File -> Int -> IO (ForeignPtr Word8)
bufferFor loc file count =
  handleJust (guard . (== HeapOverflow)) (const (refuse loc file eNOMEM)) $
    if fileKind file == Direct then alignedBuffer (Count count) else B.mallocByteString count

-- | Memory of that size at an address that is a multiple of 4096, for files that
-- are opened with 'Weft.File.openDirect'. What they need depends on the device's blocks, not on the size of pages.
--
-- It is a part of a larger array: newAlignedPinnedByteArray# of GHC 9.0 places small arrays with this alignment behind
-- the end of their block.
alignedBuffer :: Count -> IO (ForeignPtr Word8)
alignedBuffer (Count count) = do
  memory <- mallocPlainForeignPtrBytes (max 1 count + alignment - 1)
  let WordPtr start = ptrToWordPtr (unsafeForeignPtrToPtr memory)
  pure (memory `plusForeignPtr` (fromIntegral (negate start) .&. (alignment - 1)))
  where
    alignment = 4096

-- | 'Weft.File.writeAt'.
writeAt :: MonadIO m => ThreadOps m -> File -> Offset -> ByteString -> m ()
writeAt threads file off bytes = do
  liftIO (validate loc file off size)
  threadsWithFile threads loc file $ \fd -> fully loc size $ \done ->
    threadsRequest
      threads
      (forgotten loc file (touchForeignPtr memory))
      (opWrite fd (offsetBytes off + fromIntegral done) (base `plusPtr` done) (min most (size - done)))
      >>= checked loc file
  where
    loc = "Weft.File.writeAt"
    (memory, start, size) = B.toForeignPtr bytes
    base = unsafeForeignPtrToPtr memory `plusPtr` start
{-# INLINE writeAt #-}

-- | 'Weft.File.writeManyAt'. The strings are kept by the requests.
writeManyAt :: MonadIO m => ThreadOps m -> File -> Offset -> [ByteString] -> m ()
writeManyAt threads file off strings =
  () <$ writeParts (Vectored loc opWriteParts keeping) threads file off [(unsafeForeignPtrToPtr m `plusPtr` o, Count n) | (m, o, n) <- parts]
  where
    loc = "Weft.File.writeManyAt"
    parts = map B.toForeignPtr strings
    keeping keep = forgotten loc file (mapM_ (\(m, _, _) -> touchForeignPtr m) parts >> keep)
{-# INLINE writeManyAt #-}

-- | 'Weft.File.readBufAt'.
readBufAt :: MonadIO m => ThreadOps m -> File -> Offset -> Ptr Word8 -> Count -> m Count
readBufAt threads file off p (Count count) = do
  liftIO (validate loc file off count)
  threadsWithFile threads loc file $ \fd ->
    Count
      <$> repeatedly
        count
        ( \done ->
            threadsRequest threads (lent loc file (pure ())) (opRead fd (offsetBytes off + fromIntegral done) (p `plusPtr` done) (min most (count - done)))
              >>= checked loc file
        )
  where
    loc = "Weft.File.readBufAt"
{-# INLINE readBufAt #-}

-- | 'Weft.File.writeBufAt'.
writeBufAt :: MonadIO m => ThreadOps m -> File -> Offset -> Ptr Word8 -> Count -> m ()
writeBufAt threads file off p (Count count) = do
  liftIO (validate loc file off count)
  threadsWithFile threads loc file $ \fd -> fully loc count $ \done ->
    threadsRequest threads (lent loc file (pure ())) (opWrite fd (offsetBytes off + fromIntegral done) (p `plusPtr` done) (min most (count - done)))
      >>= checked loc file
  where
    loc = "Weft.File.writeBufAt"
{-# INLINE writeBufAt #-}

-- | 'Weft.File.readBufsAt'.
readBufsAt :: MonadIO m => ThreadOps m -> File -> Offset -> [(Ptr Word8, Count)] -> m Count
readBufsAt threads file = vectored (Vectored loc opReadParts (lent loc file)) threads file
  where
    loc = "Weft.File.readBufsAt"
{-# INLINE readBufsAt #-}

-- | 'Weft.File.writeBufsAt'.
writeBufsAt :: MonadIO m => ThreadOps m -> File -> Offset -> [(Ptr Word8, Count)] -> m Count
writeBufsAt threads file = writeParts (Vectored loc opWriteParts (lent loc file)) threads file
  where
    loc = "Weft.File.writeBufsAt"
{-# INLINE writeBufsAt #-}

-- | A request for several parts of memory.
data Vectored = Vectored
  { -- | For errors.
    vectoredName :: String,
    -- | The operation on a vector of that many parts.
    vectoredMake :: Fd -> Int64 -> Ptr () -> Int -> Op,
    -- | The policy, which gets an action that keeps the vector alive.
    vectoredPolicy :: IO () -> RequestPolicy
  }

-- | Write all parts, or throw.
writeParts :: MonadIO m => Vectored -> ThreadOps m -> File -> Offset -> [(Ptr Word8, Count)] -> m Count
writeParts request threads file off parts = do
  written <- vectored request threads file off parts
  unless (written == sum (map snd parts)) (liftIO (ioError (tookNoMore (vectoredName request))))
  pure written
{-# INLINE writeParts #-}

-- | Repeat requests for the rest until all is done, or one transfers nothing.
vectored :: MonadIO m => Vectored -> ThreadOps m -> File -> Offset -> [(Ptr Word8, Count)] -> m Count
vectored Vectored {vectoredName = loc, vectoredMake = make, vectoredPolicy = policy} threads file start given = do
  liftIO (mapM_ (validate loc file start . countBytes) (0 : map snd given))
  threadsWithFile threads loc file $ \fd -> go fd start (filter ((> 0) . snd) given) 0
  where
    go _ _ [] done = pure done
    go fd at parts done = do
      let now = take 1024 parts
          count = length now
      vector <- liftIO (vectorOf count now)
      n <-
        threadsRequest threads (policy (touchForeignPtr vector)) (make fd (offsetBytes at) (unsafeForeignPtrToPtr vector) count)
          >>= checked loc file
      if n == 0
        then pure done
        else go fd (at + fromIntegral n) (behind (Count n) parts) (done + Count n)
{-# INLINE vectored #-}

-- | An array of that number of @struct iovec@ (readv(2)).
vectorOf :: Int -> [(Ptr Word8, Count)] -> IO (ForeignPtr ())
vectorOf count parts = do
  vector <- mallocForeignPtrBytes (partSize * count)
  withForeignPtr vector $ \p -> mapM_ (uncurry (describe p)) (zip [0 ..] parts)
  pure vector
  where
    partSize = 2 * sizeOf (0 :: Int)
    describe p i (from, Count n) = do
      poke (p `plusPtr` (i * partSize)) from
      pokeByteOff (p `plusPtr` (i * partSize)) (sizeOf (0 :: Int)) n

-- | The parts after that number of bytes.
behind :: Count -> [(Ptr Word8, Count)] -> [(Ptr Word8, Count)]
behind _ [] = []
behind n ((p, size) : rest)
  | n >= size = behind (n - size) rest
  | otherwise = (p `plusPtr` countBytes n, size - n) : rest

-- | 'Weft.File.foldChunks'.
foldChunks :: MonadIO m => ThreadOps m -> File -> Offset -> Count -> (a -> ByteString -> m a) -> a -> m a
foldChunks threads file start size use = go start
  where
    go at acc = do
      bytes <- readAt threads file at size
      if B.null bytes
        then pure acc
        else do
          acc' <- use acc bytes
          if B.length bytes < countBytes size then pure acc' else go (at + fromIntegral (B.length bytes)) acc'
{-# INLINE foldChunks #-}

-- | 'Weft.File.sync'.
sync :: MonadIO m => ThreadOps m -> File -> m ()
sync = onDisk "Weft.File.sync" opSync
{-# INLINE sync #-}

-- | 'Weft.File.syncData'.
syncData :: MonadIO m => ThreadOps m -> File -> m ()
syncData = onDisk "Weft.File.syncData" opSyncData
{-# INLINE syncData #-}

-- | 'Weft.File.allocate'.
allocate :: MonadIO m => ThreadOps m -> File -> Offset -> Offset -> m ()
allocate threads file off len = do
  liftIO (validate loc file off 0)
  onDisk loc (\fd -> opAllocate fd 0 (offsetBytes off) (offsetBytes len)) threads file
  where
    loc = "Weft.File.allocate"
{-# INLINE allocate #-}

onDisk :: MonadIO m => String -> (Fd -> Op) -> ThreadOps m -> File -> m ()
onDisk loc make threads file = threadsWithFile threads loc file $ \fd ->
  () <$ (threadsRequest threads (forgotten loc file (pure ())) {policyTry = False, policyDirect = False} (make fd) >>= checked loc file)
{-# INLINE onDisk #-}

-- Helpers --------------------------------------------------------------------------

-- | The policy of an operation whose request keeps its memory alive, so that an interrupted caller need not wait.
forgotten :: String -> File -> IO () -> RequestPolicy
forgotten loc file keep =
  RequestPolicy
    { policyTry = fileKind file == Cached,
      policyDirect = fileKind file == Direct,
      policyBlock = True,
      policyOnInterrupt = Nothing,
      policyOnWait = \_ -> pure (pure ()),
      policyOnDone = keep,
      policyAcquire = hold loc file,
      policyDispose = const (pure ())
    }

-- | The policy of an operation on the caller's memory.
lent :: String -> File -> IO () -> RequestPolicy
lent loc file keep = (forgotten loc file keep) {policyOnInterrupt = Just (const (pure ()))}

checked :: MonadIO m => String -> File -> CInt -> m Int
checked loc file r
  | r >= 0 = pure (fromIntegral r)
  | otherwise = liftIO (check loc (filePath file) r)
{-# INLINE checked #-}

-- | Repeat until the sum of the results is the count, or a result is 0. Returns the sum.
repeatedly :: Monad m => Int -> (Int -> m Int) -> m Int
repeatedly count step = go 0
  where
    go done
      | done >= count = pure done
      | otherwise = do
        n <- step done
        if n == 0 then pure done else go (done + n)
{-# INLINE repeatedly #-}

fully :: MonadIO m => String -> Int -> (Int -> m Int) -> m ()
fully loc count step = do
  n <- repeatedly count step
  unless (n == count) (liftIO (ioError (tookNoMore loc)))
{-# INLINE fully #-}

tookNoMore :: String -> IOError
tookNoMore loc = userError (loc <> ": the device took no more")

-- | The largest number of bytes that one system call transfers on Linux, in whole pages.
most :: Int
most = 0x7ffff000

validate :: String -> File -> Offset -> Int -> IO ()
validate loc file off count
  | fileKind file == Stream = refuse loc file eSPIPE
  | off < 0 || count < 0 = refuse loc file eINVAL
  | otherwise = demandOpen loc file

refuse :: String -> File -> Errno -> IO a
refuse loc file (Errno e) = ioError (fileError loc (filePath file) (negate e))
