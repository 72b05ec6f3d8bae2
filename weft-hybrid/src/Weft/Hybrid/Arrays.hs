{-# LANGUAGE MagicHash #-}
{-# LANGUAGE UnboxedTuples #-}

-- | Arrays for the ready queue: without cards, and references to arrays behind one pointer. The figures that ask for
-- them are in @doc\/rationale\/hybrid.md@. Indices and ranges are the caller's care.
module Weft.Hybrid.Arrays
  ( -- * Arrays without cards
    SmallArray,
    newSmallArray,
    readSmallArray,
    writeSmallArray,
    copySmallArray,
    freezeSmallArray,
    thawSmallArray,

    -- * Arrays of arrays
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

import GHC.Exts
import GHC.IO (IO (..))
import Weft.Sys (BoxedArray (..), WordArray (..))

-- | A mutable array of boxed values without cards: a write is seven instructions shorter than
-- 'writeSmallArray', and a minor collection looks through all of it, unless it is closed.
data SmallArray a = SmallArray (SmallMutableArray# RealWorld a)

-- | One of that size, filled with one value, and open.
newSmallArray :: Int -> a -> IO (SmallArray a)
newSmallArray (I# n) a = IO $ \s -> case newSmallArray# n a s of (# s', arr #) -> (# s', SmallArray arr #)

-- | Read a place; the index is the caller's care.
readSmallArray :: SmallArray a -> Int -> IO a
readSmallArray (SmallArray a) (I# i) = IO (readSmallArray# a i)
{-# INLINE readSmallArray #-}

-- | Write a place of an open one; the index is the caller's care.
writeSmallArray :: SmallArray a -> Int -> a -> IO ()
writeSmallArray (SmallArray a) (I# i) x = IO $ \s -> (# writeSmallArray# a i x s, () #)
{-# INLINE writeSmallArray #-}

-- | @copySmallArray from to i n@ copies @n@ slots from index @i@ on to the same indices of an open chunk. The range is
-- not checked.
copySmallArray :: SmallArray a -> SmallArray a -> Int -> Int -> IO ()
copySmallArray (SmallArray from) (SmallArray to) (I# i) (I# n) = IO $ \s ->
  (# copySmallMutableArray# from i to i n s, () #)

-- | Freeze a chunk, which is only read from now on. When the objects that it refers to are as old as the chunk, minor
-- collections skip it.
freezeSmallArray :: SmallArray a -> IO ()
freezeSmallArray (SmallArray a) = IO $ \s -> case unsafeFreezeSmallArray# a s of (# s', _ #) -> (# s', () #)

-- | Make a frozen chunk mutable again.
thawSmallArray :: SmallArray a -> IO ()
thawSmallArray (SmallArray a) = IO $ \s -> case unsafeThawSmallArray# (unsafeCoerce# a) s of (# s', _ #) -> (# s', () #)

-- | A fixed number of references to 'SmallArray', 'WordArray' and 'BoxedArray', behind one pointer. To read one,
-- nothing is evaluated. What is at which index, and of what type, is the caller's care.
data Arrays = Arrays (MutableArrayArray# RealWorld)

-- | An array of this many references. Each must be written before it is read.
newArrays :: Int -> IO Arrays
newArrays (I# n) = IO $ \s -> case newArrayArray# n s of (# s', r #) -> (# s', Arrays r #)

-- | The chunk at that index. (There is no operation for arrays of this kind; to the machine they are
-- pointers like any other.)
smallArrayAt :: Arrays -> Int -> IO (SmallArray a)
smallArrayAt (Arrays r) (I# i) = IO $ \s -> case readMutableByteArrayArray# r i s of
  (# s', a #) -> (# s', SmallArray (unsafeCoerce# a) #)
{-# INLINE smallArrayAt #-}

-- | Replace it.
putSmallArrayAt :: Arrays -> Int -> SmallArray a -> IO ()
putSmallArrayAt (Arrays r) (I# i) (SmallArray a) = IO $ \s -> (# writeMutableByteArrayArray# r i (unsafeCoerce# a) s, () #)

-- | The words at that index.
wordsAt :: Arrays -> Int -> IO WordArray
wordsAt (Arrays r) (I# i) = IO $ \s -> case readMutableByteArrayArray# r i s of
  (# s', a #) -> (# s', WordArray a #)
{-# INLINE wordsAt #-}

-- | Replace them.
putWordsAt :: Arrays -> Int -> WordArray -> IO ()
putWordsAt (Arrays r) (I# i) (WordArray a) = IO $ \s -> (# writeMutableByteArrayArray# r i a s, () #)

-- | The array of boxed values at that index.
boxedArrayAt :: Arrays -> Int -> IO (BoxedArray a)
boxedArrayAt (Arrays r) (I# i) = IO $ \s -> case readMutableByteArrayArray# r i s of
  (# s', a #) -> (# s', BoxedArray (unsafeCoerce# a) #)

-- | Replace it.
putBoxedArrayAt :: Arrays -> Int -> BoxedArray a -> IO ()
putBoxedArrayAt (Arrays r) (I# i) (BoxedArray a) = IO $ \s -> (# writeMutableByteArrayArray# r i (unsafeCoerce# a) s, () #)
