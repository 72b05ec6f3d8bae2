-- |
-- A replacement without effect: the simulated machine has no watchdog, so heartbeats are never read. Nor has it cache
-- lines.
module Weft.Sys.OffHeap
  ( OffHeapWords,
    openHeartbeat,
    closeHeartbeat,
    readOffHeap,
    writeOffHeap,
    mallocOwnBytes,
  )
where

import Foreign.Marshal.Alloc (mallocBytes)
import Foreign.Ptr (Ptr)

-- | A block without words.
data OffHeapWords = OffHeapWords

-- | No effect.
openHeartbeat :: Applicative m => Int -> m OffHeapWords
openHeartbeat _ = pure OffHeapWords

-- | No effect.
closeHeartbeat :: Applicative m => OffHeapWords -> m ()
closeHeartbeat OffHeapWords = pure ()

-- | Always 0: not watched.
readOffHeap :: Applicative m => OffHeapWords -> Int -> m Int
readOffHeap OffHeapWords _ = pure 0

-- | No effect.
writeOffHeap :: Applicative m => OffHeapWords -> Int -> Int -> m ()
writeOffHeap OffHeapWords _ _ = pure ()

-- | Like 'mallocBytes'.
mallocOwnBytes :: Int -> IO (Ptr a)
mallocOwnBytes = mallocBytes
