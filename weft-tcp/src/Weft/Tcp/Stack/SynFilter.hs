-- |
-- Which SYNs of a flood are answered. Answering a SYN costs several times as much as receiving it, so that a flood
-- which is answered in full fills the device's queue, and the packets of everybody are lost there. Above a rate only
-- those SYNs are answered that come a second time: a client repeats its SYN after a second (RFC 6298, section 5.7),
-- while forged ones come once. Two generations of a Bloom filter of fixed size know what came lately; where it errs, a
-- SYN is answered at once.
--
-- The rate is that of a token bucket: what was not used in the last tenth of a second may be used at once. So many
-- clients that connect together are answered together. A flood gains that many answers at its beginning, and none after
-- that, as it leaves nothing unused. (At 20,000 a second they are 2,000: about 10 ms of work. An answer takes no
-- memory.)
--
-- @since 0.1.0
module Weft.Tcp.Stack.SynFilter
  ( SynFilter,
    newSynFilter,
    admits,
  )
where

import Control.Monad (when)
import Data.Bits (setBit, shiftR, testBit, (.&.))
import Data.IORef
import Data.Word (Word64)
import Weft.Sys (WordArray, newWordArray, peekWord, pokeWord)
import Weft.Tcp.Core.Rate
import Weft.Tcp.Core.Time

-- | The state of a stack's filter. Used by all loops without a lock: a race between them answers one SYN more or less.
data SynFilter = SynFilter
  { filterRate :: !Rate,
    -- | The state of the limit, in microseconds.
    filterDue :: !WordArray,
    filterSeen :: !(IORef Seen)
  }

-- | What came lately: since that time, and in the generation before. Both are allocated in the first flood.
data Seen = NoneYet | Seen !Instant !WordArray !WordArray

-- | How long a generation lasts: 2 s. A bit is known for as long at least, in which a client repeats its SYN once.
generationTime :: Micros
generationTime = secs 2

-- | The number of bits of a generation: 4 MiB. At a million SYNs a second, of which each sets two bits, one in nine is
-- set in the end, and one forged SYN in eighty is answered.
generationBits :: Int
generationBits = 33554432

-- | A filter that lets so many SYNs a second pass in any case, and a tenth of them at once.
newSynFilter :: Int -> IO SynFilter
newSynFilter rate = SynFilter (perSecond (max 1 (rate `div` 10)) rate) <$> newWordArray 1 <*> newIORef NoneYet

-- | Whether to answer a SYN that arrives at the given time and has the given keyed hash, which is used above the rate
-- only.
admits :: SynFilter -> Instant -> Word64 -> IO Bool
admits f t h = do
  due <- Instant <$> peekWord (filterDue f) 0
  case spend (filterRate f) t due of
    Just (Instant next) -> True <$ pokeWord (filterDue f) 0 next
    Nothing -> repeated f t h

-- | Whether the SYN came before; from now on it did.
repeated :: SynFilter -> Instant -> Word64 -> IO Bool
repeated f t h = do
  seen <- readIORef (filterSeen f)
  (current, before) <- case seen of
    Seen begun current before
      | t `since` begun < generationTime -> pure (current, before)
      | otherwise -> do
        writeIORef (filterSeen f) (Seen t before current)
        clear before 0
        pure (before, current)
    NoneYet -> do
      current <- newWordArray generationWords
      before <- newWordArray generationWords
      writeIORef (filterSeen f) (Seen t current before)
      pure (current, before)
  found <- (||) <$> has current <*> has before
  found <$ when (not found) (mapM_ (set current) [first, second])
  where
    generationWords = generationBits `div` 64
    -- Not by a list of the indices: its cells would be kept for the next generation, 20 MB.
    clear generation i = when (i < generationWords) $ pokeWord generation i 0 >> clear generation (i + 1)
    first = fromIntegral h .&. (generationBits - 1)
    second = fromIntegral (h `shiftR` 32) .&. (generationBits - 1)
    has generation = (&&) <$> isSet generation first <*> isSet generation second
    isSet generation i = (`testBit` (i .&. 63)) <$> peekWord generation (i `shiftR` 6)
    set generation i = peekWord generation (i `shiftR` 6) >>= \bits -> pokeWord generation (i `shiftR` 6) (setBit bits (i .&. 63))
