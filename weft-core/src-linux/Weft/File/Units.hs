{-# LANGUAGE GeneralizedNewtypeDeriving #-}

-- |
-- The units of the parts of files.
module Weft.File.Units
  ( Offset (..),
    Count (..),
  )
where

import Data.Int (Int64)

-- | A place in a file: bytes from its beginning.
newtype Offset = Offset {offsetBytes :: Int64}
  deriving (Eq, Ord, Num, Enum, Real, Integral)

instance Show Offset where
  showsPrec p (Offset n) = showsPrec p n

-- | A number of bytes.
newtype Count = Count {countBytes :: Int}
  deriving (Eq, Ord, Num, Enum, Real, Integral)

instance Show Count where
  showsPrec p (Count n) = showsPrec p n
