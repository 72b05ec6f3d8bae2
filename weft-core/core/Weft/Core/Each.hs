-- |
-- One of a thing for each capability, for threads that would otherwise write to the same memory: a counter, a spare
-- buffer. Any thread may call these functions.
--
-- This alone only separates the things. What a capability writes often also needs cache lines of its own:
-- 'Weft.Sys.newOwnWords' or 'Weft.Sys.newOwnRef'.
--
-- A thread may be moved to another capability between two operations, so a thing must be fit for use by several
-- threads. Capabilities that are added beyond the number of processors share things with others.
module Weft.Core.Each
  ( Each,
    newEach,
    own,
    ofCapability,
    everyOne,
  )
where

import Control.Monad (forM_)
import Data.Bits (countLeadingZeros, finiteBitSize, unsafeShiftL, (.&.))
import Weft.Sys

-- | The things, and their number less one; it is a power of two. The array is not changed.
data Each a = Each !Int !(BoxedArray a)

-- | Make one for each capability that there is, and for each that there may be later on this machine.
newEach :: IO a -> IO (Each a)
newEach make = do
  most <- max <$> getNumCapabilities <*> getNumProcessors
  let size = 1 `unsafeShiftL` (finiteBitSize most - countLeadingZeros (most - 1))
  things <- newOwnArray size =<< make
  forM_ [1 .. size - 1] $ \i -> make >>= writeBoxedArray things i
  pure (Each (size - 1) things)

-- | That of the calling thread's capability.
own :: Each a -> IO a
own each = myCapability >>= ofCapability each
{-# INLINE own #-}

-- | That of a capability.
ofCapability :: Each a -> Int -> IO a
ofCapability (Each mask things) capability = readBoxedArray things (capability .&. mask)
{-# INLINE ofCapability #-}

-- | All of them.
everyOne :: Each a -> IO [a]
everyOne (Each mask things) = mapM (readBoxedArray things) [0 .. mask]
