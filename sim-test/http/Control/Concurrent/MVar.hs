-- |
-- "Control.Concurrent.MVar" of base, on the simulated machine.
module Control.Concurrent.MVar
  ( MVar,
    newEmptyMVar,
    newMVar,
    takeMVar,
    putMVar,
    readMVar,
    tryTakeMVar,
    tryPutMVar,
    tryReadMVar,
    modifyMVar,
    modifyMVar_,
    withMVar,
  )
where

import Weft.Sys
