{-# LANGUAGE PackageImports #-}

-- |
-- The back end of a loop on the simulated machine: the scenario says which ('useBackend').
module Weft.Backend.Choice
  ( newDefaultBackend,
    chooseBackend,
    useBackend,
  )
where

import Control.Monad (join)
import "base" Data.IORef
import System.IO.Unsafe (unsafePerformIO)
import qualified Weft.Backend.Epoll as Epoll
import Weft.Core.Backend (Backend)

-- | The one that was chosen last; epoll if none was.
newDefaultBackend :: IO Backend
newDefaultBackend = join chooseBackend

-- | The action that makes it.
chooseBackend :: IO (IO Backend)
chooseBackend = readIORef chosen

-- | Before a scheduler is started.
useBackend :: IO Backend -> IO ()
useBackend = writeIORef chosen

chosen :: IORef (IO Backend)
chosen = unsafePerformIO (newIORef Epoll.new)
{-# NOINLINE chosen #-}
