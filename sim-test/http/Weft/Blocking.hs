-- |
-- Calls that may block run on the calling thread, since none blocks on the simulated machine.
module Weft.Blocking
  ( blocking,
    blockingOr,
  )
where

blocking :: IO a -> IO a
blocking = id

blockingOr :: (a -> IO ()) -> IO a -> IO a
blockingOr _ = id
