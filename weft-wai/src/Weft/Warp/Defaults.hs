{-# LANGUAGE RankNTypes #-}

-- |
-- The settings to begin with.
module Weft.Warp.Defaults
  ( defaultSettings,
  )
where

import Control.Exception (interruptible)
import Network.Wai.Handler.Warp (Settings)
import qualified Network.Wai.Handler.Warp as Warp

-- | Warp's default settings, but for the way of forking: a connection is served on
-- the thread that Weft made for it on the capability that accepted it. Warp's own default
-- settings serve as well; with these a connection has a second thread, which the
-- run-time system places.
defaultSettings :: Settings
defaultSettings = Warp.setFork onThisThread Warp.defaultSettings

-- | \"Fork\" an action by running it. Called masked, as every way of forking.
onThisThread :: ((forall a. IO a -> IO a) -> IO ()) -> IO ()
onThisThread action = action interruptible
