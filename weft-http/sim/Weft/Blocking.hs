-- |
-- Calls that may block, made by the caller: on the simulated machine none does.
module Weft.Blocking
  ( blocking,
    blockingOr,
  )
where

blocking :: IO a -> IO a
blocking = id

blockingOr :: (a -> IO ()) -> IO a -> IO a
blockingOr _ = id
