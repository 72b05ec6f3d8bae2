-- |
-- Where hybrid threads wait for descriptors: two gates for each, one a direction. A
-- gate holds the last news (\"trying may be worth it\") or the threads that wait. So an
-- idle connection costs its threads' continuations and three words here.
--
-- The table is the process's, as descriptors are, in blocks of 64 that never move.
--
-- A descriptor's word: bits 0 to 7 flags, above them how many threads are inside a
-- system call with it, from bit 32 its generation, which tells it from earlier and
-- later users of its number.
--
-- @
--   word   shut, nobody inside      free; the number may be the kernel's
--          -> open, next generation   'open', by who got the number from the kernel
--          open -> shut               'shut', by anybody, once
--          inside +1, -1              'enter' (not when shut), 'leave'
--          released                   by the one that finds it shut and nobody inside, once
--   gate   Quiet    nothing is known; the kernel will report the next change
--          News     try                put by the loop that polls, taken by who tries
--          Line     who waits          a thread joins; taken out by who resumes it
-- @
--
-- All moves are compare-and-swaps. A thread takes the news before it tries, so no
-- report is lost between its attempt and its wait; and news are never in the hands of a thread
-- that is resumed, so none are lost if that is killed.
module Weft.Hybrid.Gate
  ( -- * Descriptors
    Descriptor,
    descriptorFd,
    descriptorGeneration,
    openDescriptor,
    enter,
    leave,
    shut,
    isOpen,
    mayHideMore,

    -- * Their loops
    readOwner,
    loopOf,
    casOwner,

    -- * Gates
    Gate (..),
    Direction (..),
    readGate,
    casGate,
    admit,
    takeOut,
    joinGate,

    -- * The loop that polls
    deliver,
    admitAll,
  )
where

import Control.Monad (forM_, unless, when)
import Data.Bits
import System.IO.Unsafe (unsafePerformIO)
import System.Posix.Types (Fd)
import Weft.Core.Channel (Direction (..))
import Weft.Core.Events
import Weft.Core.Manager (sameManager)
import Weft.Hybrid.Park
import Weft.Hybrid.Trace
import Weft.Sys

-- | An open descriptor, or one that was: its number in the low half, its generation in the
-- high one.
newtype Descriptor = Descriptor Int
  deriving (Eq)

-- | Its number.
descriptorFd :: Descriptor -> Fd
descriptorFd (Descriptor d) = fromIntegral (d .&. 0xffffffff)
{-# INLINE descriptorFd #-}

-- | Its generation.
descriptorGeneration :: Descriptor -> Int
descriptorGeneration (Descriptor d) = d `unsafeShiftR` 32
{-# INLINE descriptorGeneration #-}

describe :: Fd -> Int -> Descriptor
describe fd gen = Descriptor ((gen `unsafeShiftL` 32) .|. fromIntegral fd)
{-# INLINE describe #-}

instance Show Descriptor where
  show d = "<descriptor " <> show (descriptorFd d) <> ">"

-- | What is known of a direction. The number tells who waits there, for taking it out
-- again, 0 for one that is never taken out; the trace tries anew.
data Gate
  = Quiet
  | News
  | Line !Int {-# UNPACK #-} !Waiter Trace Gate

-- | 64 descriptors.
data Block = Block
  { blockWords :: !Cells,
    blockGates :: !(Slots Gate),
    blockOwners :: !(Slots Owner)
  }

-- The table ---------------------------------------------------------------------------

-- | Blocks by the upper bits of the descriptor; replaced by a larger array under the lock, and a
-- block put in under the lock; read by anybody.
table :: Ref (Slots (Maybe Block))
table = unsafePerformIO (newSlots 16 Nothing >>= newRef)
{-# NOINLINE table #-}

tableLock :: MVar ()
tableLock = unsafePerformIO (newMVar ())
{-# NOINLINE tableLock #-}

blockBits, blockSize :: Int
blockBits = 6
blockSize = 64

blockOf :: Descriptor -> IO Block
blockOf d = do
  blocks <- readRef table
  let i = fromIntegral (descriptorFd d) `unsafeShiftR` blockBits
  found <- if i < sizeSlots blocks then readSlot blocks i else pure Nothing
  maybe (newBlock i) pure found
{-# INLINE blockOf #-}

newBlock :: Int -> IO Block
newBlock i = withMVar tableLock $ \() -> do
  blocks <- readRef table
  when (i >= sizeSlots blocks) $ do
    bigger <- newSlots (max (i + 1) (2 * sizeSlots blocks)) Nothing
    copySlots blocks bigger
    writeRef table bigger
  blocks' <- readRef table
  found <- readSlot blocks' i
  case found of
    Just b -> pure b
    Nothing -> do
      b <- Block <$> newCells blockSize <*> newSlots (2 * blockSize) Quiet <*> newSlots blockSize Nobody
      forM_ [0 .. blockSize - 1] $ \j -> pokeCell (blockWords b) j flagShut
      b <$ writeSlot blocks' i (Just b)

cell :: Descriptor -> Int
cell d = fromIntegral (descriptorFd d) .&. (blockSize - 1)
{-# INLINE cell #-}

-- Words -------------------------------------------------------------------------------

flagShut, flagReleased, flagHides, oneInside, generationShift, insideMask :: Int
flagShut = 1
flagReleased = 2
flagHides = 4
oneInside = 256
generationShift = 32
insideMask = 0xffffff00

generationOf :: Int -> Int
generationOf w = w `unsafeShiftR` generationShift

-- | Take charge of a descriptor that the kernel has just given to the caller. Does a read or
-- a write of less than was asked for mean that there is no more, as with streams?
openDescriptor :: Bool -> Fd -> IO Descriptor
openDescriptor stream fd = do
  b <- blockOf d0
  w <- readCell (blockWords b) i
  let gen = (generationOf w + 1) .&. 0x3fffffff
  writeSlot (blockOwners b) i Nobody
  mapM_ (ajar b) [2 * i, 2 * i + 1]
  writeCell (blockWords b) i ((gen `unsafeShiftL` generationShift) .|. (if stream then 0 else flagHides))
  pure (describe fd gen)
  where
    d0 = describe fd 0
    i = cell d0
    -- A thread that meant the number's last user may be there still, about to notice: it
    -- must not be lost, and will have everybody try.
    ajar b j = do
      gate <- readSlot (blockGates b) j
      case gate of
        Quiet -> casSlot (blockGates b) j gate News >>= \ok -> unless ok (ajar b j)
        _ -> pure ()

-- | Before a system call with it. 'False': it is shut.
enter :: Descriptor -> IO Bool
enter d = do
  b <- blockOf d
  let go w
        | generationOf w /= descriptorGeneration d || w .&. flagShut /= 0 = pure False
        | otherwise = do
          found <- casCell (blockWords b) (cell d) w (w + oneInside)
          if found == w then pure True else go found
  go =<< readCell (blockWords b) (cell d)
{-# INLINE enter #-}

-- | After it. 'True': it was shut meanwhile and the caller is the last to leave, and has
-- to release it.
leave :: Descriptor -> IO Bool
leave d = do
  b <- blockOf d
  old <- addCell (blockWords b) (cell d) (negate oneInside)
  if old .&. flagShut == 0 then pure False else claimRelease b d
{-# INLINE leave #-}

-- | Forbid entry, for good. Nothing: it was shut. 'True': the caller has to release it;
-- 'False': who is inside will.
shut :: Descriptor -> IO (Maybe Bool)
shut d = do
  b <- blockOf d
  let go w
        | generationOf w /= descriptorGeneration d || w .&. flagShut /= 0 = pure Nothing
        | otherwise = do
          found <- casCell (blockWords b) (cell d) w (w .|. flagShut)
          if found == w then Just <$> claimRelease b d else go found
  go =<< readCell (blockWords b) (cell d)

claimRelease :: Block -> Descriptor -> IO Bool
claimRelease b d = go =<< readCell (blockWords b) (cell d)
  where
    go w
      | generationOf w /= descriptorGeneration d = pure False
      | w .&. flagReleased /= 0 || w .&. insideMask /= 0 = pure False
      | otherwise = do
        found <- casCell (blockWords b) (cell d) w (w .|. flagReleased)
        if found == w then pure True else go found

-- | Is it open?
isOpen :: Descriptor -> IO Bool
isOpen d = do
  b <- blockOf d
  w <- readCell (blockWords b) (cell d)
  pure (generationOf w == descriptorGeneration d && w .&. flagShut == 0)

-- | Has the kernel reported something after which a short read does not mean that nothing is left:
-- the end of the stream, an error, urgent data?
mayHideMore :: Descriptor -> IO Bool
mayHideMore d = do
  b <- blockOf d
  w <- readCell (blockWords b) (cell d)
  pure (w .&. flagHides /= 0)
{-# INLINE mayHideMore #-}

-- Owners ------------------------------------------------------------------------------

-- | Who reports its events.
readOwner :: Descriptor -> IO Owner
readOwner d = blockOf d >>= \b -> readSlot (blockOwners b) (cell d)
{-# INLINE readOwner #-}

-- | Its loop, or the one that is to be.
loopOf :: Owner -> Maybe Loop
loopOf Nobody = Nothing
loopOf (Owner l) = Just l
loopOf (Moving l) = Just l

-- | Change it, if it is what 'readOwner' said.
casOwner :: Descriptor -> Owner -> Owner -> IO Bool
casOwner d !old !new = blockOf d >>= \b -> casSlot (blockOwners b) (cell d) old new

-- Gates -------------------------------------------------------------------------------

gateIndex :: Descriptor -> Direction -> Int
gateIndex d Reading = 2 * cell d
gateIndex d Writing = 2 * cell d + 1
{-# INLINE gateIndex #-}

-- | A direction's gate.
readGate :: Descriptor -> Direction -> IO Gate
readGate d dir = blockOf d >>= \b -> readSlot (blockGates b) (gateIndex d dir)
{-# INLINE readGate #-}

-- | Move it, from what 'readGate' said; both evaluated.
casGate :: Descriptor -> Direction -> Gate -> Gate -> IO Bool
casGate d dir old new = blockOf d >>= \b -> casSlot (blockGates b) (gateIndex d dir) old new
{-# INLINE casGate #-}

-- | There may be something to do: that is noted, and all who wait try, in their order. (Mostly
-- that is one. Who finds nothing left waits again.)
admit :: Place -> Descriptor -> Direction -> IO ()
admit place d dir = go
  where
    go = do
      gate <- readGate d dir
      case gate of
        News -> pure ()
        _ -> do
          ok <- casGate d dir gate News
          if ok then each gate else go
    each (Line _ w t rest) = resume place w (\() -> t) >> each rest
    each _ = pure ()
{-# INLINE admit #-}

-- | Wait at the end of the line. 'False': there are news.
joinGate :: Descriptor -> Direction -> Int -> Trace -> Waiter -> IO Bool
joinGate d dir n t w = go
  where
    go = do
      gate <- readGate d dir
      case gate of
        News -> pure False
        _ -> do
          let !gate' = append gate
          casGate d dir gate gate' >>= \ok -> if ok then pure True else go
    append (Line m v u rest) = let !rest' = append rest in Line m v u rest'
    append _ = Line n w t Quiet

-- | Take the one with that number out of the line. 'False': it is not there.
takeOut :: Descriptor -> Direction -> Int -> IO Bool
takeOut d dir n = do
  gate <- readGate d dir
  case without' gate of
    Nothing -> pure False
    Just !gate' -> casGate d dir gate gate' >>= \ok -> if ok then pure True else takeOut d dir n
  where
    without' (Line m w t rest)
      | m == n = Just rest
      | otherwise = (\ !rest' -> Line m w t rest') <$> without' rest
    without' _ = Nothing

-- The loop that polls -------------------------------------------------------------------

-- | The kernel reported that. For 'Weft.Core.Manager.setGuest'.
deliver :: Loop -> Token -> Events -> IO ()
deliver l tok evs = do
  b <- blockOf d
  w <- readCell (blockWords b) (cell d)
  when (generationOf w == descriptorGeneration d) $ do
    when (hides && w .&. flagHides == 0) (setFlag b)
    when (evs `overlaps` evtRead) (admit (onLoop l) d Reading)
    when (evs `overlaps` evtWrite) (admit (onLoop l) d Writing)
  where
    d = describe (tokenFd tok) (tokenGeneration tok)
    hides = evs `overlaps` (evtPeerClosed <> evtHangup <> evtUrgent)
    setFlag b = do
      w <- readCell (blockWords b) (cell d)
      found <- casCell (blockWords b) (cell d) w (w .|. flagHides)
      unless (found == w) (setFlag b)

-- | Have all who wait for descriptors of the loop try again. For its end. O(descriptors).
admitAll :: Loop -> IO ()
admitAll l = do
  blocks <- readRef table
  forM_ [0 .. sizeSlots blocks - 1] $ \i -> readSlot blocks i >>= mapM_ (each i)
  where
    each i b = forM_ [0 .. blockSize - 1] $ \j -> do
      owner <- readSlot (blockOwners b) j
      w <- readCell (blockWords b) j
      case loopOf owner of
        Just l' | loopManager l' `sameManager` loopManager l -> do
          let d = describe (fromIntegral (i * blockSize + j)) (generationOf w)
          mapM_ (admit (onLoop l) d) [Reading, Writing]
        _ -> pure ()
