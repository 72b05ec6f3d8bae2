-- |
-- A model of the protocol of the ring for files, which is C code (@cbits/linux/file_ring.c@), written in terms of
-- "Weft.Sys". It follows the C code word for word, so that the simulated machine can run it in every order of steps
-- (suite @wake@). The suite @file-ring@ compares it with the C code in lockstep.
--
-- A ring has fewer than 64 slots here, so that one word holds all cancellation bits.
module FileRing
  ( FileRing,
    newFileRing,
    Name (..),
    Entry (..),
    Kernel (..),
    Protocol (..),
    production,

    -- * Any thread
    submit,
    cancel,
    nextGeneration,

    -- * The reader
    collect,
    await,
    wakeOwner,

    -- * The owner
    turn,

    -- * For comparison
    observe,
  )
where

import Control.Monad
import Data.Bits
import Data.IORef
import Weft.Sys

-- | A request: its slot and generation.
data Name = Name Int Int
  deriving (Eq, Show)

-- | A submission to the kernel.
data Entry = Request Name | Cancellation Name
  deriving (Eq, Show)

-- | The operations on the kernel that the ring uses.
data Kernel = Kernel
  { -- | Submit these entries.
    kernelSubmit :: [Entry] -> IO (),
    -- | Block until there is a completion or a signal.
    kernelWait :: IO (),
    -- | The available completions; each is returned once.
    kernelReap :: IO [(Name, Int)],
    -- | End the owner's current wait, or its next one.
    kernelSignal :: IO (),
    -- | Fill the reader's MVar.
    kernelRing :: IO ()
  }

-- | The protocol's steps, each of which can be left out to plant a bug.
data Protocol = Protocol
  { -- | The cancellation bits are taken before the inbox.
    bitsFirst :: Bool,
    -- | The owner checks for work again after announcing that it sleeps.
    ownerLooksAgain :: Bool,
    -- | A submission wakes the owner.
    submitWakes :: Bool,
    -- | A cancellation wakes the owner.
    cancelWakes :: Bool,
    -- | The reader checks for completions again after leaving its MVar.
    readerLooksAgain :: Bool,
    -- | The reader wakes the owner for requests that were submitted while it delivered completions.
    readerWakes :: Bool,
    -- | A late cancellation does not replace one for a newer generation.
    cancelKeepsNewer :: Bool
  }

-- | The protocol without planted bugs.
production :: Protocol
production = Protocol True True True True True True True

-- | The words of the ring, as in the C code.
data FileRing = FileRing
  { protocol :: Protocol,
    kernel :: Kernel,
    depth :: Int,
    shared :: WordArray,
    -- | Four words for each slot.
    slots :: WordArray,
    -- | Entries that are queued and not submitted yet. Used by the owner.
    queued :: IORef [Entry],
    counters :: IORef (Int, Int, Int, Int)
  }

inbox, asleep, anyCancel, done, handing, waiter, bits :: Int
inbox = 0
asleep = 1
anyCancel = 2
done = 3
handing = 4
waiter = 5
bits = 6

data Field = Generation | Cancelled | Next | Result
  deriving (Enum)

field :: Int -> Field -> Int
field slot f = 4 * slot + fromEnum f

newFileRing :: Protocol -> Kernel -> Int -> IO FileRing
newFileRing p k n = FileRing p k n <$> newWordArray 7 <*> newWordArray (4 * n) <*> newIORef [] <*> newIORef (0, 0, 0, 0)

countSubmitted, countSignalled, countRung, countCancels :: FileRing -> Int -> IO ()
countSubmitted r n = modifyIORef' (counters r) (\(a, b, c, d) -> (a + n, b, c, d))
countSignalled r n = modifyIORef' (counters r) (\(a, b, c, d) -> (a, b + n, c, d))
countRung r n = modifyIORef' (counters r) (\(a, b, c, d) -> (a, b, c + n, d))
countCancels r n = modifyIORef' (counters r) (\(a, b, c, d) -> (a, b, c, d + n))

push :: FileRing -> Int -> Int -> IO ()
push r stack slot = readWord (shared r) stack >>= go
  where
    go top = do
      pokeWord (slots r) (field slot Next) top
      found <- casWord (shared r) stack top (slot + 1)
      unless (found == top) (go found)

takeAll :: FileRing -> Int -> IO Int
takeAll r stack = do
  some <- readWord (shared r) stack
  if some == 0 then pure 0 else swapWord (shared r) stack 0

wake :: FileRing -> IO ()
wake r = do
  sleeps <- readWord (shared r) asleep
  when (sleeps /= 0) $ do
    mine <- swapWord (shared r) asleep 0
    when (mine /= 0) (countSignalled r 1 >> kernelSignal (kernel r))

-- Everybody ---------------------------------------------------------------------------

-- | The generation that the next request in a slot will have.
nextGeneration :: FileRing -> Int -> IO Int
nextGeneration r slot = (+ 1) <$> peekWord (slots r) (field slot Generation)

-- | Submit the request of a slot. Called by the slot's holder.
submit :: FileRing -> Int -> IO ()
submit r slot = do
  before <- peekWord (slots r) (field slot Generation)
  pokeWord (slots r) (field slot Cancelled) before
  pokeWord (slots r) (field slot Generation) (before + 1)
  push r inbox slot
  hands <- readWord (shared r) handing
  when (hands == 0 && submitWakes (protocol r)) (wake r)

cancel :: FileRing -> Name -> IO ()
cancel r (Name slot generation) = do
  readWord (slots r) (field slot Cancelled) >>= newer
  setBitOf slot
  writeWord (shared r) anyCancel 1
  when (cancelWakes (protocol r)) (wake r)
  where
    newer before
      | not (cancelKeepsNewer (protocol r)) = writeWord (slots r) (field slot Cancelled) generation
      | generation <= before = pure ()
      | otherwise = do
        found <- casWord (slots r) (field slot Cancelled) before generation
        unless (found == before) (newer found)
    setBitOf s = do
      old <- readWord (shared r) bits
      found <- casWord (shared r) bits old (setBit old s)
      unless (found == old) (setBitOf s)

-- The reader --------------------------------------------------------------------------

-- | Take at most the given number of completions from a list that the reader keeps: slots and results, and the rest of
-- the list.
collect :: FileRing -> Int -> Int -> IO ([(Int, Int)], Int)
collect r list most = do
  list' <- if list == 0 then takeAll r done else pure list
  (found, left) <- go list' most
  unless (null found) (writeWord (shared r) handing 1)
  pure (found, left)
  where
    go 0 _ = pure ([], 0)
    go l 0 = pure ([], l)
    go l n = do
      result <- peekWord (slots r) (field (l - 1) Result)
      next <- peekWord (slots r) (field (l - 1) Next)
      (more, left) <- go next (n - 1)
      pure ((l - 1, result) : more, left)

-- | The reader leaves its MVar. 'False': it has to take it back, since there are completions.
await :: FileRing -> IO Bool
await r = do
  writeWord (shared r) waiter 1
  some <- if readerLooksAgain (protocol r) then readWord (shared r) done else pure 0
  if some == 0 then pure True else (== 0) <$> swapWord (shared r) waiter 0

-- | Wake the owner if necessary, after delivering completions.
wakeOwner :: FileRing -> IO ()
wakeOwner r = do
  writeWord (shared r) handing 0
  some <- readWord (shared r) inbox
  when (some /= 0 && readerWakes (protocol r)) (wake r)

-- The owner ---------------------------------------------------------------------------

-- | One turn of the owner; blocks if there is nothing to do.
turn :: FileRing -> IO ()
turn r = do
  takeIn
  writeWord (shared r) asleep 1
  news <-
    if ownerLooksAgain (protocol r)
      then (||) <$> ((/= 0) <$> readWord (shared r) inbox) <*> ((/= 0) <$> readWord (shared r) anyCancel)
      else pure False
  unless news $ do
    entries <- readIORef (queued r)
    writeIORef (queued r) []
    kernelSubmit (kernel r) (reverse entries)
    kernelWait (kernel r)
  writeWord (shared r) asleep 0
  handBack
  where
    queue e = modifyIORef' (queued r) (e :)
    takeIn
      | bitsFirst (protocol r) = do
        taken <- takeBits
        takeInbox
        cancelAll taken
      | otherwise = takeInbox >> takeBits >>= cancelAll
    takeBits = do
      wanted <- readWord (shared r) anyCancel
      asked <- if wanted == 0 then pure 0 else swapWord (shared r) anyCancel 0
      if asked == 0 then pure 0 else swapWord (shared r) bits 0
    takeInbox = do
      newest <- takeAll r inbox
      names <- listed newest []
      forM_ names $ \slot -> peekWord (slots r) (field slot Generation) >>= queue . Request . Name slot
      countSubmitted r (length names)
    -- Reverses the list: the oldest request first.
    listed 0 acc = pure acc
    listed l acc = peekWord (slots r) (field (l - 1) Next) >>= \next -> listed next (l - 1 : acc)
    cancelAll taken = forM_ [s | s <- [0 .. depth r - 1], testBit taken s] $ \slot -> do
      readWord (slots r) (field slot Cancelled) >>= queue . Cancellation . Name slot
      countCancels r 1
    handBack = do
      completions <- kernelReap (kernel r)
      forM_ completions $ \(Name slot _, result) -> do
        pokeWord (slots r) (field slot Result) result
        push r done slot
      unless (null completions) $ do
        left <- swapWord (shared r) waiter 0
        when (left /= 0) (countRung r 1 >> kernelRing (kernel r))

-- To be compared ------------------------------------------------------------------------

-- | All words that the C code has too; the word 'Next' only for slots on the two stacks.
observe :: FileRing -> IO [Int]
observe r = do
  words' <- mapM (peekWord (shared r)) [asleep, anyCancel, handing, waiter, bits]
  stacks <- mapM (peekWord (shared r) >=> chain) [inbox, done]
  each <- forM [0 .. depth r - 1] (\s -> mapM (peekWord (slots r) . field s) [Generation, Cancelled, Result])
  (a, b, c, d) <- readIORef (counters r)
  pure (words' <> concat [length s : s | s <- stacks] <> concat each <> [a, b, c, d])
  where
    chain 0 = pure []
    chain l = (l :) <$> (peekWord (slots r) (field (l - 1) Next) >>= chain)
