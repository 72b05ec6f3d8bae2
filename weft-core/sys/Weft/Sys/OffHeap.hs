-- |
-- Memory outside of the heap: words that C code reads while Haskell code runs, and the buffers of back ends. A part of
-- "Weft.Sys", the core's interface to everything outside it. Any thread may call these functions; "Weft.Core.Heartbeat"
-- defines who may write which word.
module Weft.Sys.OffHeap
  ( OffHeapWords,
    openHeartbeat,
    closeHeartbeat,
    readOffHeap,
    writeOffHeap,
    mallocOwnBytes,
  )
where

import Data.Int (Int64)
import Foreign.C.Error (throwErrnoIfNull)
import Foreign.C.Types (CSize (..))
import Foreign.Ptr (Ptr)
import Foreign.Storable (peekElemOff, pokeElemOff)

-- | Words that C reads while Haskell code runs.
newtype OffHeapWords = OffHeapWords (Ptr Int64)

-- | A block that records a manager's activity (@cbits\/watchdog\/watchdog.h@), for the given capability, or -1.
openHeartbeat :: Int -> IO OffHeapWords
openHeartbeat index = OffHeapWords <$> c_heartbeat_open (fromIntegral index)

-- | Free the block.
closeHeartbeat :: OffHeapWords -> IO ()
closeHeartbeat (OffHeapWords p) = c_heartbeat_close p

foreign import ccall unsafe "weft_heartbeat_open" c_heartbeat_open :: Int64 -> IO (Ptr Int64)

foreign import ccall unsafe "weft_heartbeat_close" c_heartbeat_close :: Ptr Int64 -> IO ()

-- | A plain read.
readOffHeap :: OffHeapWords -> Int -> IO Int
readOffHeap (OffHeapWords p) i = fromIntegral <$> peekElemOff p i
{-# INLINE readOffHeap #-}

-- | A plain write.
writeOffHeap :: OffHeapWords -> Int -> Int -> IO ()
writeOffHeap (OffHeapWords p) i x = pokeElemOff p i (fromIntegral x)
{-# INLINE writeOffHeap #-}

-- | 'Foreign.Marshal.Alloc.mallocBytes' for a buffer that one capability writes often: it shares no cache line with
-- anything else (see 'Weft.Sys.newOwnWords'). Freed by 'Foreign.Marshal.Alloc.free'.
mallocOwnBytes :: Int -> IO (Ptr a)
mallocOwnBytes size = throwErrnoIfNull "aligned_alloc" (c_aligned_alloc linePair (fromIntegral pairs * linePair))
  where
    pairs = (size + 127) `quot` 128
    linePair = 128

foreign import ccall unsafe "aligned_alloc" c_aligned_alloc :: CSize -> CSize -> IO (Ptr a)
