-- |
-- The buffer of lines that wait to be written. It is bounded, and split into a part for each capability, so that
-- requests on different capabilities do not contend.
--
-- A part is a block of memory with a lock. The lock is held while one line is written into the block,
-- and while the block is exchanged for an empty one. A thread never blocks while holding it.
module Weft.AccessLog.Buffer
  ( Buffer,
    newBuffer,
    append,
    Appended (..),
    Batch (..),
    takeBatches,
    droppedLines,
  )
where

import Control.Concurrent.MVar
import Control.Exception (mask_, onException)
import Control.Monad (forM)
import Data.Maybe (catMaybes)
import Data.Word (Word8)
import Foreign.ForeignPtr (ForeignPtr, touchForeignPtr)
import Foreign.ForeignPtr.Unsafe (unsafeForeignPtrToPtr)
import Foreign.Ptr (minusPtr, plusPtr)
import GHC.ForeignPtr (mallocPlainForeignPtrBytes)
import Weft.AccessLog.Put
import Weft.Sys (BoxedArray, WordArray, addWord, myCapability, newBoxedArray, newWordArray, readBoxedArray, readWord, sizeBoxedArray, writeBoxedArray)

-- | The lines of all capabilities.
data Buffer = Buffer
  { -- | Bytes of each part.
    bufferPart :: !Int,
    -- | The parts by capability; capabilities added later use the index modulo the number. Never changed.
    bufferParts :: !(BoxedArray (MVar Batch)),
    -- | The number of lines for which there was no room. Any thread adds to it.
    bufferDropped :: !WordArray
  }

-- | The contents of a part: its memory, the number of bytes used, and the number of lines.
data Batch = Batch
  { batchMemory :: !(ForeignPtr Word8),
    batchBytes :: !Int,
    batchLines :: !Int
  }

-- | A buffer for the given number of capabilities, with the given number of bytes for each.
newBuffer :: Int -> Int -> IO Buffer
newBuffer capabilities part = do
  parts <- newBoxedArray (max 1 capabilities) =<< newEmptyMVar
  mapM_ (\i -> newPart >>= newMVar >>= writeBoxedArray parts i) [0 .. sizeBoxedArray parts - 1]
  Buffer part parts <$> newWordArray 1
  where
    newPart = emptyBatch part

emptyBatch :: Int -> IO Batch
emptyBatch part = (\memory -> Batch memory 0 0) <$> mallocPlainForeignPtrBytes part

-- | The result of appending a line.
data Appended
  = -- | There was no room; the line was counted.
    Dropped
  | Kept
  | -- | The line is the first since its part was emptied.
    First
  | -- | The line made its part more than half full.
    HalfFull

-- | Add a line. Any thread may call it. Exceptions from evaluating the line are thrown here.
append :: Buffer -> Put -> IO Appended
append (Buffer size parts dropped) put = do
  capability <- myCapability
  part <- readBoxedArray parts (capability `rem` sizeBoxedArray parts)
  mask_ $ do
    batch@(Batch memory used count) <- takeMVar part
    let start = unsafeForeignPtrToPtr memory
    end <- runPut put (start `plusPtr` used) (start `plusPtr` size) `onException` putMVar part batch
    touchForeignPtr memory
    case end of
      Nothing -> do
        putMVar part batch
        Dropped <$ addWord dropped 0 1
      Just p -> do
        let used' = p `minusPtr` start
        putMVar part (Batch memory used' (count + 1))
        pure (appended used used')
  where
    half = size `quot` 2
    appended before after
      | before <= half && after > half = HalfFull
      | before == 0 = First
      | otherwise = Kept

-- | Take out all lines. Those of a capability stay in order.
takeBatches :: Buffer -> IO [Batch]
takeBatches buffer = fmap catMaybes . forM [0 .. sizeBoxedArray parts - 1] $ \i -> do
  part <- readBoxedArray parts i
  fresh <- emptyBatch (bufferPart buffer)
  mask_ $ do
    batch <- takeMVar part
    if batchBytes batch == 0
      then Nothing <$ putMVar part batch
      else Just batch <$ putMVar part fresh
  where
    parts = bufferParts buffer

-- | The number of lines for which there was no room.
droppedLines :: Buffer -> IO Int
droppedLines buffer = readWord (bufferDropped buffer) 0
