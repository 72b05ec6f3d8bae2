-- |
-- Timers in a hierarchical wheel (Varghese and Lauck 1987, scheme 7): O(1) to set, O(expired) to expire; cancelling
-- does not touch the wheel.
--
-- Time is counted in ticks of 2^15 ns (33 us). A due time is rounded up to a tick
-- and an instant down, so a timer never fires early and is late by a tick at
-- most. A tick number of 48 bits, which reaches 292 years, is eight digits of six
-- bits; level l has a slot for each value of digit l.
--
-- Invariant: with the wheel at tick @now@, a timer of tick @t > now@ is at the level
-- of the highest digit in which the two differ, in the slot of @t@'s digit there.
-- So all timers of a level lie within one turn of it, ahead of @now@; the first
-- occupied slot of the lowest occupied level is the next one; and @now@ may go
-- forward freely as long as it does not pass an occupied slot. When it reaches a
-- slot of a higher level, that slot's timers are put in again and land lower.
module Weft.Core.Timer.Wheel
  ( newWheel,
    tickLength,
  )
where

import Control.Monad (forM_, unless, when)
import Data.Bits
import Weft.Core.Time (Duration (..), Instant (..), never)
import Weft.Core.Timer
import Weft.Sys

-- | The resolution.
tickLength :: Duration
tickLength = Duration (1 `shiftL` tickBits)

tickBits, digitBits, levelCount, slotsPerLevel, overdue, lastTick :: Int
tickBits = 15
digitBits = 6
levelCount = 8
slotsPerLevel = 64
-- The slot for timers that are late already.
overdue = levelCount * slotsPerLevel
lastTick = (1 `shiftL` (digitBits * levelCount)) - 1

-- | A wheel. Used by one thread only.
data Wheel = Wheel
  { -- | Lists of timers, the latest first: by level and digit, and those overdue.
    wheelSlots :: !(BoxedArray [Timer]),
    -- | Words 0 to 7: which slots of a level are occupied, a bit each. Word 8: the
    -- tick that the wheel is at. Word 9: the number of timers. Word 10: what 'next' has found, or 'notKnown' if the
    -- slots or the tick have changed since. A manager asks several times in a turn, and few turns change them.
    wheelState :: !WordArray
  }

wordNow, wordSize, wordNext :: Int
wordNow = levelCount
wordSize = levelCount + 1
wordNext = levelCount + 2

-- | The value of word 10 that is no instant.
notKnown :: Int
notKnown = -1

-- | After each operation that changes slots or the tick. While timers expire, the older value is not too late.
forgetNext :: Wheel -> IO ()
forgetNext w = pokeWord (wheelState w) wordNext notKnown

-- | An empty wheel that is at that instant.
newWheel :: Instant -> IO Queue
newWheel start = do
  w <- Wheel <$> newBoxedArray (overdue + 1) [] <*> newOwnWords (levelCount + 3)
  pokeWord (wheelState w) wordNow (tickOf start)
  forgetNext w
  pure
    Queue
      { queueInsert = \t -> bumpWord (wheelState w) wordSize 1 >> place w t >> forgetNext w,
        queueExpire = \instant each -> expire w instant each >> forgetNext w,
        queueNext = next w,
        queueSweep = \keep -> sweep w keep >> forgetNext w,
        queueSize = peekWord (wheelState w) wordSize
      }

-- | The last tick that has begun.
tickOf :: Instant -> Int
tickOf (Instant t) = fromIntegral (t `unsafeShiftR` tickBits)

-- | The first tick at which a timer may fire.
dueTick :: Timer -> Int
dueTick t = min lastTick (((fromIntegral due - 1) `unsafeShiftR` tickBits) + 1)
  where
    Instant due = timerDue t

place :: Wheel -> Timer -> IO ()
place w t = do
  here <- peekWord (wheelState w) wordNow
  let tick = dueTick t
  if tick <= here
    then push w overdue t
    else do
      let level = (finiteBitSize tick - 1 - countLeadingZeros (tick `xor` here)) `quot` digitBits
          digit = (tick `unsafeShiftR` (digitBits * level)) .&. (slotsPerLevel - 1)
      push w (level * slotsPerLevel + digit) t
      occupied <- peekWord (wheelState w) level
      pokeWord (wheelState w) level (occupied .|. unsafeShiftL 1 digit)

push :: Wheel -> Int -> Timer -> IO ()
push w i t = do
  ts <- readBoxedArray (wheelSlots w) i
  writeBoxedArray (wheelSlots w) i (t : ts)

-- | Empty a slot. Returns its timers in the order in which they were put in.
takeSlot :: Wheel -> Int -> IO [Timer]
takeSlot w i = do
  ts <- readBoxedArray (wheelSlots w) i
  writeBoxedArray (wheelSlots w) i []
  pure (reverse ts)

-- | The next occupied slot: its level, its digit and the tick at which it begins.
data Ahead = Ahead !Int !Int !Int | NothingAhead

ahead :: Wheel -> IO Ahead
ahead w = do
  here <- peekWord (wheelState w) wordNow
  go here 0
  where
    go here level
      | level == levelCount = pure NothingAhead
      | otherwise = do
        occupied <- peekWord (wheelState w) level
        if occupied == 0
          then go here (level + 1)
          else do
            let digit = countTrailingZeros occupied
                above = digitBits * (level + 1)
                begin =
                  ((here `unsafeShiftR` above) `unsafeShiftL` above)
                    .|. (digit `unsafeShiftL` (digitBits * level))
            pure (Ahead level digit begin)

expire :: Wheel -> Instant -> (Timer -> IO ()) -> IO ()
expire w instant each = do
  late <- readBoxedArray (wheelSlots w) overdue
  unless (null late) (fire =<< takeSlot w overdue)
  advance
  where
    target = tickOf instant
    advance = do
      found <- ahead w
      case found of
        Ahead level digit begin | begin <= target -> do
          pokeWord (wheelState w) wordNow begin
          occupied <- peekWord (wheelState w) level
          pokeWord (wheelState w) level (occupied .&. complement (unsafeShiftL 1 digit))
          ts <- takeSlot w (level * slotsPerLevel + digit)
          if level == 0 then fire ts else forM_ ts (descend begin)
          advance
        _ -> do
          here <- peekWord (wheelState w) wordNow
          when (target > here) (pokeWord (wheelState w) wordNow target)
    fire ts = do
      bumpWord (wheelState w) wordSize (negate (length ts))
      mapM_ each ts
    descend begin t
      | dueTick t <= begin = fire [t]
      | otherwise = place w t

-- | The first instant at which there may be something to do.
next :: Wheel -> IO Instant
next w = do
  known <- peekWord (wheelState w) wordNext
  if known /= notKnown
    then pure (Instant (fromIntegral known))
    else do
      found@(Instant t) <- findNext w
      found <$ pokeWord (wheelState w) wordNext (fromIntegral t)

findNext :: Wheel -> IO Instant
findNext w = do
  late <- readBoxedArray (wheelSlots w) overdue
  found <- ahead w
  here <- peekWord (wheelState w) wordNow
  pure $ case found of
    _ | not (null late) -> beginning here
    Ahead _ _ begin | begin < lastTick -> beginning begin
    _ -> never
  where
    beginning tick = Instant (fromIntegral tick `unsafeShiftL` tickBits)

sweep :: Wheel -> (Timer -> IO Bool) -> IO ()
sweep w keep = do
  counts <- mapM sweepSlot [0 .. overdue]
  pokeWord (wheelState w) wordSize (sum counts)
  where
    sweepSlot i = do
      ts <- readBoxedArray (wheelSlots w) i
      if null ts
        then pure 0
        else do
          kept <- keepers ts []
          writeBoxedArray (wheelSlots w) i kept
          when (null kept && i < overdue) $ do
            let (level, digit) = i `quotRem` slotsPerLevel
            occupied <- peekWord (wheelState w) level
            pokeWord (wheelState w) level (occupied .&. complement (unsafeShiftL 1 digit))
          pure $! length kept
    keepers [] acc = pure (reverse acc)
    keepers (t : ts) acc = do
      yes <- keep t
      keepers ts (if yes then t : acc else acc)
