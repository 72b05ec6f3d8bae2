-- | The use count of a descriptor, which keeps its number from being closed while a thread uses it. The kernel gives
-- out a number again as soon as it is closed; so a thread that is about to make a system call with it must know that
-- no other thread closes it meanwhile. Operations count themselves in and out, closing forbids further ones, and the
-- last one out closes the number. Sockets ("Weft.Core.Readiness"), files and the descriptors of hybrid threads follow
-- this protocol, with one word each:
--
-- @
--   bits 0 and 1    shut; released: a thread has been told to close the number
--   bits 2 to 7     flags of the owner ('ownerFlag'), set and never cleared
--   bits 8 to 31    threads that use it now
--   bits 32 to 62   generation: distinguishes an owner from earlier and later ones of the same word. If a word has only
--                   one owner: the process whose threads are counted ('soleOwner')
-- @
--
-- Moves, each one atomic operation:
--
-- @
--   open      -> used, used -> open      'acquire', 'release'
--   open      -> shut                    'shut', by any thread, once
--   shut, unused -> released             by the one thread that 'shut' or 'release' tells to close the number
--   used -> unused                       in a forked child, where the parent's threads do not exist
-- @
--
-- Everything is inlined: callers know a word's place and generation.
module Weft.Core.UseCount
  ( UseCount (..),
    soleOwner,

    -- * Using a descriptor
    acquire,
    acquireUnless,
    release,

    -- * Closing it
    shut,
    Shut (..),
    markClosedElsewhere,

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

import Control.Monad (void, when, zipWithM_)
import Data.Bits
import Weft.Sys

-- | A word, by its array, its index there and the owner's generation.
data UseCount = UseCount !WordArray !Int !Int

-- | Word 0 of an array, which has only one owner. Its generation is the 'forkGeneration' of the process whose threads
-- are counted. A forked child inherits the word with the parent's users, and drops them when it first uses the word. It
-- sets the given number of words after it to zero then: they count threads of the process, too, and are changed only
-- after a call of this function. (If the parent had shut the word, and one of its users was to close the number, the
-- child leaves the number open.)
soleOwner :: Int -> WordArray -> IO UseCount
soleOwner others ws = do
  process <- forkGeneration
  w <- readWord ws 0
  when (wordGeneration w /= process) (takeOver others ws process w)
  pure (UseCount ws 0 process)
{-# INLINE soleOwner #-}

-- | Drop the users of another process, given the word as it was read.
takeOver :: Int -> WordArray -> Int -> Int -> IO ()
takeOver others ws process w = do
  counts <- mapM (readWord ws) [1 .. others]
  found <- casWord ws 0 w (openWord process (w .&. allFlags))
  if found == w
    then -- Until that swap no thread of this process has changed the others, and all add to them.
      zipWithM_ (\i n -> addWord ws i (negate n)) [1 ..] counts
    else when (wordGeneration found /= process) (takeOver others ws process found)
{-# NOINLINE takeOver #-}

flagShut, flagReleased, allFlags, oneUser, usersMask, generationShift :: Int
flagShut = 1
flagReleased = 2
allFlags = 0xff
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

-- | The word for a forked child, from the parent's. The threads that use the number do not exist in the child. 'True'
-- if one of them had to close the number: the child has to do that.
inheritedWord :: Int -> (Int, Bool)
inheritedWord w = (if left then unused .|. flagReleased else unused, left)
  where
    unused = w .&. complement usersMask
    left = w .&. flagShut /= 0 && w .&. flagReleased == 0 && w .&. usersMask /= 0

-- | Whether the word still belongs to the owner.
ours :: UseCount -> Int -> Bool
ours (UseCount _ _ generation) w = wordGeneration w == generation
{-# INLINE ours #-}

load :: UseCount -> IO Int
load (UseCount ws i _) = readWord ws i
{-# INLINE load #-}

-- | Change the word by compare-and-swap. If the function returns 'Nothing', the word is left as it is, and so is the
-- result; otherwise the result is the old word.
update :: UseCount -> (Int -> Maybe Int) -> IO (Maybe Int)
update l@(UseCount ws i _) f = go =<< load l
  where
    go old = case f old of
      Nothing -> pure Nothing
      Just new -> do
        found <- casWord ws i old new
        if found == old then pure (Just old) else go found
{-# INLINE update #-}

-- | To be called before a system call with the number. 'False' if it is shut and must not be used. The caller has to
-- call 'release' afterwards, also if it is interrupted.
acquire :: UseCount -> IO Bool
acquire = acquireUnless 0
{-# INLINE acquire #-}

-- | 'acquire' that is also 'False' if one of these flags is set.
acquireUnless :: Int -> UseCount -> IO Bool
acquireUnless flags l@(UseCount ws i _) = go =<< load l
  where
    go w
      | not (ours l w) || w .&. (flagShut .|. flags) /= 0 = pure False
      | otherwise = do
        found <- casWord ws i w (w + oneUser)
        if found == w then pure True else go found
{-# INLINE acquireUnless #-}

-- | To be called after the system call. 'True' if the number was shut meanwhile and the caller was the last user: it
-- has to close the number. Only one thread gets 'True'.
release :: UseCount -> IO Bool
release l@(UseCount ws i _) = do
  old <- addWord ws i (negate oneUser)
  if old .&. flagShut /= 0 then claim l else pure False
{-# INLINE release #-}

-- | 'True' if the caller has to close the number: it is shut and unused, and no other thread was told to.
claim :: UseCount -> IO Bool
claim l = maybe False (const True) <$> update l next
  where
    next w
      | ours l w && w .&. (flagReleased .|. usersMask) == 0 = Just (w .|. flagReleased)
      | otherwise = Nothing
{-# NOINLINE claim #-}

-- | The result of 'shut'.
data Shut
  = -- | It was shut already.
    WasShut
  | -- | It is being used; the last user will close the number.
    StillUsed
  | -- | The caller has to close the number.
    YoursToClose
  deriving (Eq, Show)

-- | Forbid further use. The caller then has to wake the threads that wait. What it reads for that, plainly, is not read
-- before others see the change: after the compare-and-swap, 'claim' reads the word atomically.
shut :: UseCount -> IO Shut
shut l = do
  before <- update l (\w -> if ours l w && w .&. flagShut == 0 then Just (w .|. flagShut) else Nothing)
  case before of
    Nothing -> pure WasShut
    Just _ -> (\mine -> if mine then YoursToClose else StillUsed) <$> claim l

-- | Forbid further use of a number that another owner closes: no user closes it a second time.
markClosedElsewhere :: UseCount -> IO ()
markClosedElsewhere l = void (setFlags l (flagShut .|. flagReleased))

-- | Whether it has not been shut.
isOpen :: UseCount -> IO Bool
isOpen l = (\w -> ours l w && w .&. flagShut == 0) <$> load l
{-# INLINE isOpen #-}

-- | Set flags. Returns the word as it was before. No effect if it has another owner.
setFlags :: UseCount -> Int -> IO Int
setFlags l f = do
  before <- update l (\w -> if ours l w && w .&. f /= f then Just (w .|. f) else Nothing)
  maybe (load l) pure before
{-# INLINE setFlags #-}

-- | Whether one of these flags is set.
hasFlags :: UseCount -> Int -> IO Bool
hasFlags l f = (\w -> w .&. f /= 0) <$> load l
{-# INLINE hasFlags #-}
