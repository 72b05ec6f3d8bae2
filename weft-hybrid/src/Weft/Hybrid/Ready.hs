-- |
-- First in, first out: a queue in chunks. A chunk is an array of its own, too large
-- for the collector to copy; a waiting thread takes one word of it. Only the first chunk and
-- the last are ever written; those in between are closed, and cost a minor collection nothing.
--
-- What was taken out stays in its place until 'tidyFifo', or until its chunk is used
-- up: clearing places one by one would cost as much as taking them.
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
    exchangeFifoIn,
    sizeFifo,
    tidyFifo,
  )
where

import Control.Monad (when)
import System.IO.Unsafe (unsafePerformIO)
import Weft.Hybrid.Arrays
import Weft.Hybrid.Trace
import Weft.Sys

-- The fields of a queue. They are behind one pointer, since the interpreter saves all its live values around
-- each thread's step: the chunk to take from; the chunk to put into, which may be the same; positions;
-- and one slot with the 'Chunks' in between.
atFirst, atLast, atPositions, atRest :: Int
atFirst = 0
atLast = 1
atPositions = 2
atRest = 3

firstOf, lastOf :: Fifo -> IO (SmallArray Task)
firstOf (Fifo q) = smallArrayAt q atFirst
lastOf (Fifo q) = smallArrayAt q atLast
{-# INLINE firstOf #-}
{-# INLINE lastOf #-}

setFirst, setLast :: Fifo -> SmallArray Task -> IO ()
setFirst (Fifo q) = putSmallArrayAt q atFirst
setLast (Fifo q) = putSmallArrayAt q atLast

positionsOf :: Fifo -> IO WordArray
positionsOf (Fifo q) = wordsAt q atPositions
{-# INLINE positionsOf #-}

restOf :: Fifo -> IO Chunks
restOf (Fifo q) = boxedArrayAt q atRest >>= \slot -> readBoxedArray slot 0

setRest :: Fifo -> Chunks -> IO ()
setRest (Fifo q) rest = boxedArrayAt q atRest >>= \slot -> writeBoxedArray slot 0 rest

-- The positions: where to take in the first chunk; where to put in the last; by how much the last chunk is
-- ahead of the first, in places; and up to where the first one is clear.
wordTake, wordPut, wordAhead, wordClear :: Int
wordTake = 0
wordPut = 1
wordAhead = 2
wordClear = 3

-- | Threads in a chunk: with its two words of header it is one block of the collector's. (What is more
-- than 3 KiB is never copied.)
chunkSize :: Int
chunkSize = 510

-- | An empty one.
newFifo :: IO Fifo
newFifo = do
  q <- newArrays 4
  chunk <- newSmallArray chunkSize vacant
  putSmallArrayAt q atFirst chunk
  putSmallArrayAt q atLast chunk
  putWordsAt q atPositions =<< newWordArray 4
  putBoxedArrayAt q atRest =<< newBoxedArray 1 (Chunks [] [] [])
  pure (Fifo q)

vacant :: Task
vacant () = Idle
{-# NOINLINE vacant #-}

-- | A chunk of nothing, to clear others with. Never written.
vacancies :: SmallArray Task
vacancies = unsafePerformIO (newSmallArray chunkSize vacant)
{-# NOINLINE vacancies #-}

-- | At the end. O(1). The task is not evaluated.
pushFifo :: Fifo -> Task -> IO ()
pushFifo q task = do
  positions <- positionsOf q
  put positions q task
{-# INLINE pushFifo #-}

put :: WordArray -> Fifo -> Task -> IO ()
put positions q task = do
  i <- peekWord positions wordPut
  chunk <- lastOf q
  writeSmallArray chunk i task
  if i /= chunkSize - 1 then pokeWord positions wordPut (i + 1) else extend q
{-# INLINE put #-}

-- | The last chunk is full. The first one stays open.
extend :: Fifo -> IO ()
extend q = do
  full <- lastOf q
  positions <- positionsOf q
  ahead <- peekWord positions wordAhead
  Chunks next final spare <- restOf q
  final' <- if ahead == 0 then pure final else (full : final) <$ freezeSmallArray full
  case spare of
    chunk : _ -> setLast q chunk
    [] -> newSmallArray chunkSize vacant >>= setLast q
  setRest q (Chunks next final' [])
  pokeWord positions wordPut 0
  pokeWord positions wordAhead (ahead + chunkSize)
{-# NOINLINE extend #-}

-- | Take the first thread of the queue; 'Idle' if there is none. O(1).
popFifo :: Fifo -> IO Task
popFifo q = do
  positions <- positionsOf q
  i <- peekWord positions wordTake
  end <- peekWord positions wordPut
  if i /= end
    then takeAt positions q i
    else do
      ahead <- peekWord positions wordAhead
      if ahead /= 0 then takeAt positions q i else pure vacant
{-# INLINE popFifo #-}

-- | There is one.
takeAt :: WordArray -> Fifo -> Int -> IO Task
takeAt positions q i = do
  chunk <- firstOf q
  task <- readSmallArray chunk i
  if i /= chunkSize - 1 then pokeWord positions wordTake (i + 1) else advance q
  pure task
{-# INLINE takeAt #-}

-- | The first chunk is used up, and is not the last.
advance :: Fifo -> IO ()
advance q = do
  used <- firstOf q
  copySmallArray vacancies used 0 chunkSize
  positions <- positionsOf q
  pokeWord positions wordTake 0
  pokeWord positions wordClear 0
  ahead <- peekWord positions wordAhead
  pokeWord positions wordAhead (ahead - chunkSize)
  Chunks next final _ <- restOf q
  case next of
    chunk : next' -> chunk `followedBy` Chunks next' final [used]
    [] -> case reverse final of
      chunk : next' -> chunk `followedBy` Chunks next' [] [used]
      [] -> do
        lastOf q >>= setFirst q
        setRest q (Chunks [] [] [used])
  where
    chunk `followedBy` rest = do
      thawSmallArray chunk
      setFirst q chunk
      setRest q rest
{-# NOINLINE advance #-}

-- | Clear the slots of tasks that were taken out. O(tasks taken out since the last time).
tidyFifo :: Fifo -> IO ()
tidyFifo q = do
  positions <- positionsOf q
  clear <- peekWord positions wordClear
  taken <- peekWord positions wordTake
  when (clear < taken) $ do
    chunk <- firstOf q
    copySmallArray vacancies chunk clear (taken - clear)
    pokeWord positions wordClear taken

-- | The number of threads in the queue.
sizeFifo :: Fifo -> IO Int
sizeFifo q = do
  positions <- positionsOf q
  taken <- peekWord positions wordTake
  end <- peekWord positions wordPut
  ahead <- peekWord positions wordAhead
  pure (ahead + end - taken)
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

-- | The number of ready threads.
sizeReady :: Ready -> IO Int
sizeReady (RoundRobin q) = sizeFifo q
sizeReady (Custom q) = queueSize q

-- | The task to put into a queue for a thread with this context: one that enters the context first. So
-- the context is visible when the task is taken out.
inContext :: Context -> Task -> Task
-- (Two arguments before the equals sign: a closure of two words is made in place.)
inContext ctx task = entering
  where
    entering () = Enter ctx task
{-# INLINE inContext #-}

-- | 'pushFifo' of that. Neither is left unevaluated.
pushFifoIn :: Fifo -> Context -> Task -> IO ()
pushFifoIn q ctx task = case ctx of
  Plain -> pushFifo q task
  _ -> pushFifo q (\() -> Enter ctx task)
{-# INLINE pushFifoIn #-}

-- | 'pushFifoIn', then 'popFifo', which cannot fail then.
exchangeFifoIn :: Fifo -> Context -> Task -> IO Task
exchangeFifoIn q ctx task = do
  positions <- positionsOf q
  case ctx of
    Plain -> put positions q task
    _ -> put positions q (\() -> Enter ctx task)
  takeAt positions q =<< peekWord positions wordTake
{-# INLINE exchangeFifoIn #-}
