-- |
-- Buffers in which responses are put together, kept by each capability. A connection has one
-- from its response's first byte until that was sent, so that one which waits for its client's
-- next request holds none.
module Weft.Http.Buffer
  ( Buffer,
    takeBuffer,
    newBuffer,
    putBuffer,
    standardSize,
    bufferSize,
    bufferHome,
    placeCount,
    bufferMemory,
    bufferStart,
    touchBuffer,
  )
where

import Control.Monad (when)
import Data.Bits ((.&.))
import Data.Word (Word8)
import Foreign.ForeignPtr (ForeignPtr, touchForeignPtr)
import Foreign.ForeignPtr.Unsafe (unsafeForeignPtrToPtr)
import Foreign.Ptr (Ptr)
import GHC.ForeignPtr (mallocPlainForeignPtrBytes)
import System.IO.Unsafe (unsafePerformIO)
import Weft.Sys

-- | Memory, its size in bytes, and the number of the place where it is kept ('bufferHome').
data Buffer = Buffer
  { bufferMemory :: !(ForeignPtr Word8),
    bufferSize :: !Int,
    -- | The capability that made it, modulo 'placeCount'. It comes back there, wherever its user has gone meanwhile, so that
    -- the capability is asked for once a response.
    bufferHome :: !Int
  }

-- | Where the memory begins. It is there until 'touchBuffer'.
bufferStart :: Buffer -> Ptr Word8
bufferStart = unsafeForeignPtrToPtr . bufferMemory
{-# INLINE bufferStart #-}

-- | Keep the memory up to here.
touchBuffer :: Buffer -> IO ()
touchBuffer = touchForeignPtr . bufferMemory
{-# INLINE touchBuffer #-}

-- | The size of the buffers that capabilities keep: 16 KiB.
standardSize :: Int
standardSize = 16384

-- | In a place that is empty.
noBuffer :: Buffer
noBuffer = unsafePerformIO (bufferOf 0 0)
{-# NOINLINE noBuffer #-}

-- | By capability, modulo their number. Taken and put back by any thread; of two buffers that come back
-- one is dropped.
places :: BoxedArray (Ref Buffer)
places = unsafePerformIO $ do
  first <- newRef noBuffer
  arr <- newBoxedArray placeCount first
  mapM_ (\i -> newRef noBuffer >>= writeBoxedArray arr i) [0 .. placeCount - 1]
  pure arr
{-# NOINLINE places #-}

-- | How many places there are.
placeCount :: Int
placeCount = 64

-- | The number of the caller's place.
here :: IO Int
here = (.&. (placeCount - 1)) <$> myCapability
{-# INLINE here #-}

-- | The capability's buffer, or a new one of 'standardSize' when another thread has it.
takeBuffer :: IO Buffer
takeBuffer = do
  home <- here
  ref <- readBoxedArray places home
  found <- swapRef ref noBuffer
  if bufferSize found > 0 then pure found else bufferOf home standardSize
-- Inlined, it takes what it has found apart, and puts it together again.
{-# NOINLINE takeBuffer #-}

-- | A buffer of that size.
newBuffer :: Int -> IO Buffer
newBuffer size = here >>= \home -> bufferOf home size

bufferOf :: Int -> Int -> IO Buffer
bufferOf home size = do
  memory <- mallocPlainForeignPtrBytes size
  pure (Buffer memory size home)
{-# NOINLINE bufferOf #-}

-- | Give a buffer of any size back. Nobody may use its memory any more.
putBuffer :: Buffer -> IO ()
putBuffer buffer = when (bufferSize buffer == standardSize) $ readBoxedArray places (bufferHome buffer) >>= \ref -> writeRef ref buffer
