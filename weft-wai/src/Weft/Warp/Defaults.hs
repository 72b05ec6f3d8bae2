-- |
-- Warp's default settings, in a place of our own.
module Weft.Warp.Defaults
  ( defaultSettings,
  )
where

import Network.Wai.Handler.Warp (Settings)
import qualified Network.Wai.Handler.Warp as Warp

-- | Warp's default settings. Begin with these rather than with the same value
-- from Warp: by their way of forking Weft sees that 'Warp.setFork' was not
-- used, so that connections may keep the threads that they were accepted on. (From there GHC may
-- inline the function, and a copy cannot be told from one of the user's own.)
defaultSettings :: Settings
defaultSettings = Warp.defaultSettings
{-# NOINLINE defaultSettings #-}
