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
    bufferMemory,
    bufferStart,
    touchBuffer,
  )
where

import Control.Monad (unless, when)
import Data.Word (Word8)
import Foreign.ForeignPtr (ForeignPtr, touchForeignPtr)
import Foreign.ForeignPtr.Unsafe (unsafeForeignPtrToPtr)
import Foreign.Ptr (Ptr)
import GHC.ForeignPtr (mallocPlainForeignPtrBytes)
import System.IO.Unsafe (unsafePerformIO)
import Weft.Core.Each
import Weft.Sys
import Weft.Transport (Connection, connKeepsStrings)

-- | Memory, its size in bytes, and the capability in whose slot it is kept ('bufferHome').
data Buffer = Buffer
  { bufferMemory :: !(ForeignPtr Word8),
    bufferSize :: !Int,
    -- | The capability that allocated it. The buffer returns there, even if its thread has moved
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

-- | The slots. Any thread takes from and returns to a slot; if two buffers return, one is dropped.
places :: Each (OwnRef Buffer)
places = unsafePerformIO (newEach (newOwnRef noBuffer))
{-# NOINLINE places #-}

-- | The capability's buffer, or a new one of 'standardSize' if another thread has it.
takeBuffer :: IO Buffer
takeBuffer = do
  home <- myCapability
  place <- ofCapability places home
  found <- swapOwnRef place noBuffer
  if bufferSize found > 0 then pure found else bufferOf home standardSize
-- If this were inlined, it would unpack the buffer that it found, and then box it again.
{-# NOINLINE takeBuffer #-}

-- | A new buffer of the given size.
newBuffer :: Int -> IO Buffer
newBuffer size = myCapability >>= \home -> bufferOf home size

bufferOf :: Int -> Int -> IO Buffer
bufferOf home size = do
  memory <- mallocPlainForeignPtrBytes size
  pure (Buffer memory size home)
{-# NOINLINE bufferOf #-}

-- | Return a buffer of any size. Its memory may not be used any more.
putBuffer :: Buffer -> IO ()
putBuffer buffer = when (bufferSize buffer == standardSize) $ ofCapability places (bufferHome buffer) >>= \place -> writeOwnRef place buffer

-- | Return a buffer of which views have been sent as strings. If the connection keeps these, the buffer is left to the
-- collector.
putSentBuffer :: Connection -> Buffer -> IO ()
putSentBuffer c buffer = unless (connKeepsStrings c) (putBuffer buffer)
