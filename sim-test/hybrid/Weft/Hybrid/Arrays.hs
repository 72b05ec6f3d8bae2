-- | The arrays of a loop's ready queue, on the simulated machine ("Weft.Sys" of @weft-core\/sim@), under the names of
-- the real module. They are the loop's alone: using them is no scheduling point.
module Weft.Hybrid.Arrays
  ( SmallArray,
    newSmallArray,
    readSmallArray,
    writeSmallArray,
    copySmallArray,
    freezeSmallArray,
    thawSmallArray,
    Arrays,
    newArrays,
    smallArrayAt,
    putSmallArrayAt,
    wordsAt,
    putWordsAt,
    boxedArrayAt,
    putBoxedArrayAt,
  )
where

import Control.Monad (forM_)
import Data.Array.IO (IOArray, newArray, readArray, writeArray)
import GHC.Exts (Any)
import Unsafe.Coerce (unsafeCoerce)
import Weft.Sys (BoxedArray, WordArray)

newtype SmallArray a = SmallArray (IOArray Int a)

newSmallArray :: Int -> a -> IO (SmallArray a)
newSmallArray n a = SmallArray <$> newArray (0, n - 1) a

readSmallArray :: SmallArray a -> Int -> IO a
readSmallArray (SmallArray a) = readArray a

writeSmallArray :: SmallArray a -> Int -> a -> IO ()
writeSmallArray (SmallArray a) = writeArray a

copySmallArray :: SmallArray a -> SmallArray a -> Int -> Int -> IO ()
copySmallArray (SmallArray from) (SmallArray to) i n = forM_ [i .. i + n - 1] (\j -> readArray from j >>= writeArray to j)

freezeSmallArray, thawSmallArray :: SmallArray a -> IO ()
freezeSmallArray _ = pure ()
thawSmallArray _ = pure ()

newtype Arrays = Arrays (IOArray Int Any)

newArrays :: Int -> IO Arrays
newArrays n = Arrays <$> newArray (0, n - 1) (unsafeCoerce ())

-- The caller has to know the type of the value at each index, as with the real arrays.
at :: Arrays -> Int -> IO a
at (Arrays r) i = unsafeCoerce <$> readArray r i

putAt :: Arrays -> Int -> a -> IO ()
putAt (Arrays r) i a = writeArray r i (unsafeCoerce a)

smallArrayAt :: Arrays -> Int -> IO (SmallArray a)
smallArrayAt = at

putSmallArrayAt :: Arrays -> Int -> SmallArray a -> IO ()
putSmallArrayAt = putAt

wordsAt :: Arrays -> Int -> IO WordArray
wordsAt = at

putWordsAt :: Arrays -> Int -> WordArray -> IO ()
putWordsAt = putAt

boxedArrayAt :: Arrays -> Int -> IO (BoxedArray a)
boxedArrayAt = at

putBoxedArrayAt :: Arrays -> Int -> BoxedArray a -> IO ()
putBoxedArrayAt = putAt
