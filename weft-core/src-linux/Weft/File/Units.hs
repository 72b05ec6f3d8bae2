{-# LANGUAGE GeneralizedNewtypeDeriving #-}

-- |
-- Units of positions in files and of sizes.
module Weft.File.Units
  ( Offset (..),
    Count (..),
  )
where

import Data.Int (Int64)

-- | A position in a file, in bytes from its beginning.
newtype Offset = Offset {offsetBytes :: Int64}
  deriving (Eq, Ord, Num, Enum, Real, Integral)

instance Show Offset where
  showsPrec p (Offset n) = showsPrec p n

-- | A number of bytes.
newtype Count = Count {countBytes :: Int}
  deriving (Eq, Ord, Num, Enum, Real, Integral)

instance Show Count where
  showsPrec p (Count n) = showsPrec p n
