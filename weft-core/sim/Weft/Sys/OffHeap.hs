-- |
-- A replacement without effect: the simulated machine has no watchdog, so heartbeats are never read.
module Weft.Sys.OffHeap
  ( OffHeapWords,
    openHeartbeat,
    closeHeartbeat,
    readOffHeap,
    writeOffHeap,
  )
where

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
