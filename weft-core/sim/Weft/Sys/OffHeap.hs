-- |
-- The simulated machine has no watchdog, so heartbeats are never watched.
module Weft.Sys.OffHeap
  ( OffHeapWords,
    openHeartbeat,
    closeHeartbeat,
    readOffHeap,
    writeOffHeap,
  )
where

-- | No words at all.
data OffHeapWords = OffHeapWords

-- | Nothing to open.
openHeartbeat :: Applicative m => Int -> m OffHeapWords
openHeartbeat _ = pure OffHeapWords

-- | Nothing to close.
closeHeartbeat :: Applicative m => OffHeapWords -> m ()
closeHeartbeat OffHeapWords = pure ()

-- | Always 0: not watched.
readOffHeap :: Applicative m => OffHeapWords -> Int -> m Int
readOffHeap OffHeapWords _ = pure 0

-- | No effect.
writeOffHeap :: Applicative m => OffHeapWords -> Int -> Int -> m ()
writeOffHeap OffHeapWords _ _ = pure ()
