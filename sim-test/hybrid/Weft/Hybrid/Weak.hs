-- |
-- On the simulated machine nothing becomes garbage. Under the names of the real module.
module Weft.Hybrid.Weak
  ( whenGarbage,
    touchRef,
    Weak,
    weakly,
    whatIsLeft,
  )
where

import Weft.Sys (Ref)

whenGarbage :: Ref a -> IO () -> IO ()
whenGarbage _ _ = pure ()

newtype Weak v = Weak v

weakly :: Ref a -> v -> IO () -> IO (Weak v)
weakly _ v _ = pure (Weak v)

whatIsLeft :: Weak v -> IO (Maybe v)
whatIsLeft (Weak v) = pure (Just v)

touchRef :: Ref a -> IO ()
touchRef _ = pure ()
