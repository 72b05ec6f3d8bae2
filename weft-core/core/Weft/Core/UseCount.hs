-- |
-- How long a descriptor's number belongs to its owner. The kernel gives a number out again as soon as it is closed, so a
-- thread that is about to make a system call with it must know that nobody closes it meanwhile: operations count
-- themselves in and out, closing forbids further ones, and the last to leave closes the number. Sockets
-- ("Weft.Core.Readiness"), files and the descriptors of hybrid threads all follow this protocol, in one word each:
--
-- @
--   bits 0 and 1    shut; released: somebody has the duty to close it
--   bits 2 to 7     flags of the owner ('ownerFlag'), set and never cleared
--   bits 8 to 31    threads that use it now
--   bits 32 to 62   generation: tells an owner from earlier and later ones of the same word, zero where a word has one
--                   owner only
-- @
--
-- Moves, each one atomic operation:
--
-- @
--   open      -> used, used -> open      'acquire', 'release'
--   open      -> shut                    'shut', by any thread, once
--   shut, unused -> released             by the one thread that 'shut' or 'release' tells to close the number
-- @
--
-- Everything is inlined: a word's place and generation are known where it is used.
module Weft.Core.UseCount
  ( UseCount (..),

    -- * Using a descriptor
    acquire,
    acquireUnless,
    release,

    -- * Closing it
    shut,
    Shut (..),
    disown,

    -- * Flags
    isOpen,
    ownerFlag,
    setFlags,
    hasFlags,

    -- * Words that have several owners in turn
    shutWord,
    openWord,
    wordGeneration,
    inheritedWord,
  )
where

import Control.Monad (void)
import Data.Bits
import Weft.Sys

-- | A word, by its array, its index there and the owner's generation.
data UseCount = UseCount !AtomicWords !Int !Int

flagShut, flagReleased, oneUser, usersMask, generationShift :: Int
flagShut = 1
flagReleased = 2
oneUser = 256
usersMask = 0xffffff00
generationShift = 32

-- | The owner's flag of that number, from 0 to 5.
ownerFlag :: Int -> Int
ownerFlag n = 4 `unsafeShiftL` n
{-# INLINE ownerFlag #-}

-- | A word without an owner: shut, of the generation before the first.
shutWord :: Int
shutWord = flagShut

-- | An open word of a generation, with these flags of its owner.
openWord :: Int -> Int -> Int
openWord generation flags = (generation `unsafeShiftL` generationShift) .|. flags
{-# INLINE openWord #-}

-- | A word's generation.
wordGeneration :: Int -> Int
wordGeneration w = w `unsafeShiftR` generationShift
{-# INLINE wordGeneration #-}

-- | A word of the parent process as its forked child goes on with it, where the threads that use the number do not exist; and whether one
-- of them had the duty to close it, which is now the child's.
inheritedWord :: Int -> (Int, Bool)
inheritedWord w = (if left then unused .|. flagReleased else unused, left)
  where
    unused = w .&. complement usersMask
    left = w .&. flagShut /= 0 && w .&. flagReleased == 0 && w .&. usersMask /= 0

-- | Is the word the owner's still?
ours :: UseCount -> Int -> Bool
ours (UseCount _ _ generation) w = wordGeneration w == generation
{-# INLINE ours #-}

load :: UseCount -> IO Int
load (UseCount ws i _) = readWord ws i
{-# INLINE load #-}

-- | Move the word by compare-and-swap: 'Nothing' from the function leaves it. What it was.
update :: UseCount -> (Int -> Maybe Int) -> IO (Maybe Int)
update l@(UseCount ws i _) f = go =<< load l
  where
    go old = case f old of
      Nothing -> pure Nothing
      Just new -> do
        found <- casWord ws i old new
        if found == old then pure (Just old) else go found
{-# INLINE update #-}

-- | Before a system call with the number. 'False': it is shut, and is not to be used. Between this and 'release' the caller
-- neither blocks nor is interrupted, or sees to it that it releases.
acquire :: UseCount -> IO Bool
acquire = acquireUnless 0
{-# INLINE acquire #-}

-- | The same; 'False' also if one of these flags is set.
acquireUnless :: Int -> UseCount -> IO Bool
acquireUnless flags l@(UseCount ws i _) = go =<< load l
  where
    go w
      | not (ours l w) || w .&. (flagShut .|. flags) /= 0 = pure False
      | otherwise = do
        found <- casWord ws i w (w + oneUser)
        if found == w then pure True else go found
{-# INLINE acquireUnless #-}

-- | After it. 'True': it was shut meanwhile and the caller was the last user: it has to close the number. One thread is told
-- so.
release :: UseCount -> IO Bool
release l@(UseCount ws i _) = do
  old <- addWord ws i (negate oneUser)
  if old .&. flagShut /= 0 then claim l else pure False
{-# INLINE release #-}

-- | Take the duty to close the number, if it is shut and unused and nobody has it.
claim :: UseCount -> IO Bool
claim l = maybe False (const True) <$> update l next
  where
    next w
      | ours l w && w .&. (flagReleased .|. usersMask) == 0 = Just (w .|. flagReleased)
      | otherwise = Nothing
{-# NOINLINE claim #-}

-- | What became of 'shut'.
data Shut
  = -- | It was shut already.
    WasShut
  | -- | It is being used; the last user will close the number.
    StillUsed
  | -- | The caller has to close the number.
    YoursToClose
  deriving (Eq, Show)

-- | Forbid further use, for good. The caller then wakes whoever waits, so that they find out.
shut :: UseCount -> IO Shut
shut l = do
  before <- update l (\w -> if ours l w && w .&. flagShut == 0 then Just (w .|. flagShut) else Nothing)
  case before of
    Nothing -> pure WasShut
    Just _ -> (\mine -> if mine then YoursToClose else StillUsed) <$> claim l

-- | Somebody else closes the number: forbid further use, and let no user close it a second time.
disown :: UseCount -> IO ()
disown l = void (setFlags l (flagShut .|. flagReleased))

-- | Has it not been shut?
isOpen :: UseCount -> IO Bool
isOpen l = (\w -> ours l w && w .&. flagShut == 0) <$> load l
{-# INLINE isOpen #-}

-- | Set flags. The word as it was before; no effect once it has another owner.
setFlags :: UseCount -> Int -> IO Int
setFlags l f = do
  before <- update l (\w -> if ours l w && w .&. f /= f then Just (w .|. f) else Nothing)
  maybe (load l) pure before
{-# INLINE setFlags #-}

-- | Is one of these flags set?
hasFlags :: UseCount -> Int -> IO Bool
hasFlags l f = (\w -> w .&. f /= 0) <$> load l
{-# INLINE hasFlags #-}
