{-# LANGUAGE MagicHash #-}
{-# LANGUAGE UnboxedTuples #-}

-- |
-- References as keys of weak pointers, and what happens when one is garbage.
module Weft.Hybrid.Weak
  ( whenGarbage,
    touchRef,
    Weak,
    weakly,
    whatIsLeft,
  )
where

import GHC.Exts
import GHC.IO (IO (..))
import Weft.Sys (Ref (..))

-- | Run an action once the reference is garbage. What the action refers to, which may
-- be the reference itself, is alive then.
whenGarbage :: Ref a -> IO () -> IO ()
whenGarbage (Ref r) (IO act) = IO $ \s -> case mkWeak# r () act s of
  (# s', _ #) -> (# s', () #)

-- | Something that is alive as long as a reference is.
data Weak v = Weak (Weak# v)

-- | Tie a value to a reference; the action runs as with 'whenGarbage'.
weakly :: Ref a -> v -> IO () -> IO (Weak v)
weakly (Ref r) v (IO act) = IO $ \s -> case mkWeak# r v act s of
  (# s', w #) -> (# s', Weak w #)

-- | The value, if the reference is alive.
whatIsLeft :: Weak v -> IO (Maybe v)
whatIsLeft (Weak w) = IO $ \s -> case deRefWeak# w s of
  (# s', 0#, _ #) -> (# s', Nothing #)
  (# s', _, v #) -> (# s', Just v #)

-- | The reference is alive up to here.
touchRef :: Ref a -> IO ()
touchRef (Ref r) = IO $ \s -> (# touch# r s, () #)
{-# INLINE touchRef #-}
