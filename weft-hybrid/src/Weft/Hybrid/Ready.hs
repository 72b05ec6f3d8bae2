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
    pushFifoIn,
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

-- What a queue has, behind one pointer, since the machine saves what it has at hand around
-- each thread's step: the chunk to take from; the one to put into, which may be the same; counts;
-- and one slot with the 'Chunks' in between.
atFirst, atLast, atCounts, atRest :: Int
atFirst = 0
atLast = 1
atCounts = 2
atRest = 3

firstOf, lastOf :: Fifo -> IO (Slots Task)
firstOf (Fifo q) = slotsOf q atFirst
lastOf (Fifo q) = slotsOf q atLast
{-# INLINE firstOf #-}
{-# INLINE lastOf #-}

setFirst, setLast :: Fifo -> Slots Task -> IO ()
setFirst (Fifo q) = putSlots q atFirst
setLast (Fifo q) = putSlots q atLast

countsOf :: Fifo -> IO Cells
countsOf (Fifo q) = cellsOf q atCounts
{-# INLINE countsOf #-}

restOf :: Fifo -> IO Chunks
restOf (Fifo q) = slotsOf q atRest >>= \slots -> readSlot slots 0

setRest :: Fifo -> Chunks -> IO ()
setRest (Fifo q) rest = slotsOf q atRest >>= \slots -> writeSlot slots 0 rest

-- The counts: how many were ever taken out; how many put in; and up to which one the slots are
-- clear.
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
  q <- newArrays 4
  chunk <- newSlots chunkSize vacant
  putSlots q atFirst chunk
  putSlots q atLast chunk
  putCells q atCounts =<< newCells 3
  putSlots q atRest =<< newSlots 1 (Chunks [] [] [])
  pure (Fifo q)

vacant :: Task
vacant () = Idle
{-# NOINLINE vacant #-}

-- | A chunk of nothing, to clear others with. Never written.
vacancies :: Slots Task
vacancies = unsafePerformIO (newSlots chunkSize vacant)
{-# NOINLINE vacancies #-}

-- | At the end. O(1). The task is not evaluated.
pushFifo :: Fifo -> Task -> IO ()
pushFifo q task = do
  counts <- countsOf q
  n <- peekCell counts cellPut
  slots <- lastOf q
  let i = n .&. (chunkSize - 1)
  writeSlot slots i task
  pokeCell counts cellPut (n + 1)
  when (i == chunkSize - 1) (extend q)
{-# INLINE pushFifo #-}

-- | The last chunk is full.
extend :: Fifo -> IO ()
extend q = do
  full <- lastOf q
  counts <- countsOf q
  taken <- peekCell counts cellTaken
  put <- peekCell counts cellPut
  Chunks next final spare <- restOf q
  let same = chunkOf taken == chunkOf (put - 1)
      final' = if same then final else full : final
  case spare of
    chunk : _ -> setLast q chunk >> setRest q (Chunks next final' [])
    [] -> do
      chunk <- newSlots chunkSize vacant
      setLast q chunk
      setRest q (Chunks next final' [])
{-# NOINLINE extend #-}

chunkOf :: Int -> Int
chunkOf n = n `unsafeShiftR` 10

-- | From the beginning; 'Idle' when there is none. O(1).
popFifo :: Fifo -> IO Task
popFifo q = do
  counts <- countsOf q
  n <- peekCell counts cellTaken
  end <- peekCell counts cellPut
  if n == end
    then pure vacant
    else do
      slots <- firstOf q
      let i = n .&. (chunkSize - 1)
      task <- readSlot slots i
      pokeCell counts cellTaken (n + 1)
      when (i == chunkSize - 1) (advance q)
      pure task
{-# INLINE popFifo #-}

-- | The first chunk is used up, and is not the last.
advance :: Fifo -> IO ()
advance q = do
  used <- firstOf q
  copySlotsAt vacancies used 0 chunkSize
  counts <- countsOf q
  taken <- peekCell counts cellTaken
  pokeCell counts cellClear taken
  Chunks next final _ <- restOf q
  case next <> reverse final of
    chunk : next' -> setFirst q chunk >> setRest q (Chunks next' [] [used])
    [] -> do
      lastOf q >>= setFirst q
      setRest q (Chunks [] [] [used])
{-# NOINLINE advance #-}

-- | Forget what was taken out. O(what was taken out since the last time).
tidyFifo :: Fifo -> IO ()
tidyFifo q = do
  counts <- countsOf q
  clear <- peekCell counts cellClear
  taken <- peekCell counts cellTaken
  when (clear < taken) $ do
    slots <- firstOf q
    copySlotsAt vacancies slots (clear .&. (chunkSize - 1)) (taken - clear)
    pokeCell counts cellClear taken

-- | How many are in it.
sizeFifo :: Fifo -> IO Int
sizeFifo q = do
  counts <- countsOf q
  (-) <$> peekCell counts cellPut <*> peekCell counts cellTaken
{-# INLINE sizeFifo #-}

-- Any queue ------------------------------------------------------------------------

-- | Put a thread in.
pushReady :: Ready -> Context -> Task -> IO ()
pushReady (RoundRobin q) ctx task = pushFifoIn q ctx task
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

-- | 'pushFifo' of that. Neither is left unevaluated.
pushFifoIn :: Fifo -> Context -> Task -> IO ()
pushFifoIn q ctx task = case ctx of
  Plain -> pushFifo q task
  _ -> pushFifo q (\() -> Enter ctx task)
{-# INLINE pushFifoIn #-}
