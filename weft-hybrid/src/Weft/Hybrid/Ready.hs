-- |
-- First in, first out: a queue in chunks. A chunk is an array of its own, too large
-- for the collector to copy; a waiting thread takes one word of it. Chunks that are
-- clean cost a minor collection nothing but their place in a list.
--
-- What was taken out stays in its slot until 'tidyFifo', or until its chunk is used
-- up: clearing slots one by one would cost as much as taking them.
--
-- For one thread, the loop that owns it.
module Weft.Hybrid.Ready
  ( -- * Any queue
    pushReady,
    popReady,
    sizeReady,
    inContext,

    -- * First in, first out
    newFifo,
    pushFifo,
    popFifo,
    sizeFifo,
    tidyFifo,
  )
where

import Control.Monad (when)
import Data.Bits (unsafeShiftR, (.&.))
import System.IO.Unsafe (unsafePerformIO)
import Weft.Hybrid.Trace
import Weft.Sys

cellTaken, cellPut, cellClear :: Int
cellTaken = 0
cellPut = 1
cellClear = 2

-- | Threads in a chunk, a power of two: what is more than 3 KiB is never copied.
chunkSize :: Int
chunkSize = 1024

-- | An empty one.
newFifo :: IO Fifo
newFifo = do
  chunk <- newSlots chunkSize vacant
  Fifo <$> newSlotsRef chunk <*> newSlotsRef chunk <*> newCells 3 <*> newRef (Chunks [] [] [])

vacant :: Task
vacant () = Idle
{-# NOINLINE vacant #-}

-- | A chunk of nothing, to clear others with. Never written.
vacancies :: Slots Task
vacancies = unsafePerformIO (newSlots chunkSize vacant)
{-# NOINLINE vacancies #-}

-- | At the end. O(1).
pushFifo :: Fifo -> Task -> IO ()
pushFifo q !task = do
  n <- peekCell (fifoCells q) cellPut
  slots <- readSlotsRef (fifoLast q)
  let i = n .&. (chunkSize - 1)
  writeSlot slots i task
  pokeCell (fifoCells q) cellPut (n + 1)
  when (i == chunkSize - 1) (extend q)
{-# INLINE pushFifo #-}

-- | The last chunk is full.
extend :: Fifo -> IO ()
extend q = do
  full <- readSlotsRef (fifoLast q)
  taken <- peekCell (fifoCells q) cellTaken
  put <- peekCell (fifoCells q) cellPut
  Chunks next final spare <- readRef (fifoRest q)
  let same = chunkOf taken == chunkOf (put - 1)
      final' = if same then final else full : final
  case spare of
    chunk : _ -> writeSlotsRef (fifoLast q) chunk >> writeRef (fifoRest q) (Chunks next final' [])
    [] -> do
      chunk <- newSlots chunkSize vacant
      writeSlotsRef (fifoLast q) chunk
      writeRef (fifoRest q) (Chunks next final' [])
{-# NOINLINE extend #-}

chunkOf :: Int -> Int
chunkOf n = n `unsafeShiftR` 10

-- | From the beginning; 'Idle' when there is none. O(1).
popFifo :: Fifo -> IO Task
popFifo q = do
  n <- peekCell (fifoCells q) cellTaken
  end <- peekCell (fifoCells q) cellPut
  if n == end
    then pure vacant
    else do
      slots <- readSlotsRef (fifoFirst q)
      let i = n .&. (chunkSize - 1)
      task <- readSlot slots i
      pokeCell (fifoCells q) cellTaken (n + 1)
      when (i == chunkSize - 1) (advance q)
      pure task
{-# INLINE popFifo #-}

-- | The first chunk is used up, and is not the last.
advance :: Fifo -> IO ()
advance q = do
  used <- readSlotsRef (fifoFirst q)
  copySlotsAt vacancies used 0 chunkSize
  taken <- peekCell (fifoCells q) cellTaken
  pokeCell (fifoCells q) cellClear taken
  Chunks next final _ <- readRef (fifoRest q)
  case next <> reverse final of
    chunk : next' -> writeSlotsRef (fifoFirst q) chunk >> writeRef (fifoRest q) (Chunks next' [] [used])
    [] -> do
      readSlotsRef (fifoLast q) >>= writeSlotsRef (fifoFirst q)
      writeRef (fifoRest q) (Chunks [] [] [used])
{-# NOINLINE advance #-}

-- | Forget what was taken out. O(what was taken out since the last time).
tidyFifo :: Fifo -> IO ()
tidyFifo q = do
  clear <- peekCell (fifoCells q) cellClear
  taken <- peekCell (fifoCells q) cellTaken
  when (clear < taken) $ do
    slots <- readSlotsRef (fifoFirst q)
    copySlotsAt vacancies slots (clear .&. (chunkSize - 1)) (taken - clear)
    pokeCell (fifoCells q) cellClear taken

-- | How many are in it.
sizeFifo :: Fifo -> IO Int
sizeFifo q = (-) <$> peekCell (fifoCells q) cellPut <*> peekCell (fifoCells q) cellTaken
{-# INLINE sizeFifo #-}

-- Any queue ------------------------------------------------------------------------

-- | Put a thread in.
pushReady :: Ready -> Context -> Task -> IO ()
pushReady (RoundRobin q) ctx task = pushFifo q (inContext ctx task)
pushReady (Custom q) ctx task = queuePush q ctx task
{-# INLINE pushReady #-}

-- | Take the next one out.
popReady :: Ready -> IO Task
popReady (RoundRobin q) = popFifo q
popReady (Custom q) = queuePop q
{-# INLINE popReady #-}

-- | How many there are.
sizeReady :: Ready -> IO Int
sizeReady (RoundRobin q) = sizeFifo q
sizeReady (Custom q) = queueSize q

-- | What to put into a queue of tasks for a thread in that context.
inContext :: Context -> Task -> Task
inContext Plain task = task
inContext ctx task = \() -> Enter ctx task
{-# INLINE inContext #-}
