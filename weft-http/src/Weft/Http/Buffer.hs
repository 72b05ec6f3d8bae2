-- |
-- Buffers in which responses are assembled; each capability keeps one. A connection holds a buffer
-- from the first byte of a response until it has been sent. A connection that waits for its client's
-- next request holds none.
module Weft.Http.Buffer
  ( Buffer,
    takeBuffer,
    newBuffer,
    putBuffer,
    putSentBuffer,
    standardSize,
    bufferSize,
    bufferHome,
    placeCount,
    bufferMemory,
    bufferStart,
    touchBuffer,
  )
where

import Control.Monad (unless, when)
import Data.Bits ((.&.))
import Data.Word (Word8)
import Foreign.ForeignPtr (ForeignPtr, touchForeignPtr)
import Foreign.ForeignPtr.Unsafe (unsafeForeignPtrToPtr)
import Foreign.Ptr (Ptr)
import GHC.ForeignPtr (mallocPlainForeignPtrBytes)
import System.IO.Unsafe (unsafePerformIO)
import Weft.Sys
import Weft.Transport (Connection, connKeepsStrings)

-- | Memory, its size in bytes, and the index of the slot where it is kept ('bufferHome').
data Buffer = Buffer
  { bufferMemory :: !(ForeignPtr Word8),
    bufferSize :: !Int,
    -- | The capability that allocated it, modulo 'placeCount'. The buffer returns there, even if its thread has moved
    -- to another capability, so that the capability is looked up only once for each response.
    bufferHome :: !Int
  }

-- | The address of the memory. It is valid until 'touchBuffer'.
bufferStart :: Buffer -> Ptr Word8
bufferStart = unsafeForeignPtrToPtr . bufferMemory
{-# INLINE bufferStart #-}

-- | Keep the memory alive up to this point.
touchBuffer :: Buffer -> IO ()
touchBuffer = touchForeignPtr . bufferMemory
{-# INLINE touchBuffer #-}

-- | The size of the buffers that capabilities keep: 16 KiB.
standardSize :: Int
standardSize = 16384

-- | The content of an empty slot.
noBuffer :: Buffer
noBuffer = unsafePerformIO (bufferOf 0 0)
{-# NOINLINE noBuffer #-}

-- | The slots, by capability modulo their number. Any thread takes from and returns to a slot; if two buffers return,
-- one is dropped.
places :: BoxedArray (Ref Buffer)
places = unsafePerformIO $ do
  first <- newRef noBuffer
  arr <- newBoxedArray placeCount first
  mapM_ (\i -> newRef noBuffer >>= writeBoxedArray arr i) [0 .. placeCount - 1]
  pure arr
{-# NOINLINE places #-}

-- | The number of slots.
placeCount :: Int
placeCount = 64

-- | The index of the calling thread's slot.
here :: IO Int
here = (.&. (placeCount - 1)) <$> myCapability
{-# INLINE here #-}

-- | The capability's buffer, or a new one of 'standardSize' if another thread has it.
takeBuffer :: IO Buffer
takeBuffer = do
  home <- here
  ref <- readBoxedArray places home
  found <- swapRef ref noBuffer
  if bufferSize found > 0 then pure found else bufferOf home standardSize
-- If this were inlined, it would unpack the buffer that it found, and then box it again.
{-# NOINLINE takeBuffer #-}

-- | A new buffer of the given size.
newBuffer :: Int -> IO Buffer
newBuffer size = here >>= \home -> bufferOf home size

bufferOf :: Int -> Int -> IO Buffer
bufferOf home size = do
  memory <- mallocPlainForeignPtrBytes size
  pure (Buffer memory size home)
{-# NOINLINE bufferOf #-}

-- | Return a buffer of any size. Its memory may not be used any more.
putBuffer :: Buffer -> IO ()
putBuffer buffer = when (bufferSize buffer == standardSize) $ readBoxedArray places (bufferHome buffer) >>= \ref -> writeRef ref buffer

-- | Return a buffer of which views have been sent as strings. If the connection keeps these, the buffer is left to the
-- collector.
putSentBuffer :: Connection -> Buffer -> IO ()
putSentBuffer c buffer = unless (connKeepsStrings c) (putBuffer buffer)
