{-# LANGUAGE RankNTypes #-}

-- |
-- Warp's machinery, driven from outside. Warp keeps the code that serves one
-- connection to itself (all versions but the newest); what can be had is a loop that asks for a
-- connection, makes the action that serves it, and hands that to a function that
-- is to fork it. An engine is a thread in this loop: a connection's own thread, which Weft
-- has made on the capability that accepted it, asks its engine for the action and runs it
-- itself.
--
-- There is one engine a capability, so that connections on different capabilities
-- share none of what Warp keeps beside the loop (timeouts, the date, caches).
module Weft.Warp.Engine
  ( Engine,
    withEngines,
    engineBook,
    serveConnection,
  )
where

import Control.Concurrent
import Control.Exception
import Control.Monad (forM)
import Data.IORef
import GHC.Conc (labelThread)
import Network.Wai (Application)
import Network.Wai.Handler.Warp.Internal
  ( Connection,
    Settings (..),
    Transport,
    runSettingsConnectionMakerSecure,
  )
import Weft.Socket (SockAddr, Socket)
import Weft.Warp.Activity
import Weft.Warp.Connection (openConnection)
import Weft.Warp.Http2 (limitHeads)
import Weft.Warp.Options (Options (..))
import Weft.Warp.Patience (warpTimeouts)

-- | Makes the actions that serve connections.
data Engine = Engine
  { -- | What the loop takes next. Put by connection threads, taken by the loop.
    engineInbox :: !(MVar Job),
    engineBook :: !Book,
    engineSettings :: !Settings,
    engineOptions :: !Options
  }

-- | A connection that asks for its action: how to open it, its peer, and where the
-- action goes.
data Job = Job (IO (Connection, Transport)) SockAddr (MVar Action)

-- | What Warp would fork; it begins masked, and is given the way to unmask.
newtype Action = Action ((forall a. IO a -> IO a) -> IO ())

-- | Run so many engines beside an action, the nth on the nth capability. The
-- reference becomes true when the server is to end.
withEngines :: Int -> Settings -> Options -> IORef Bool -> Application -> ([Engine] -> IO a) -> IO a
withEngines n settings options draining app act =
  bracket (forM [0 .. n - 1] start) (mapM_ (killThread . snd)) (act . map fst)
  where
    start i = do
      engine <- (\inbox book -> Engine inbox book settings options) <$> newEmptyMVar <*> newBook draining
      t <- forkOnWithUnmask i (\unmask -> unmask (turn engine app) `catch` stopped)
      labelThread t ("weft warp " <> show i)
      pure (engine, t)
    stopped :: AsyncException -> IO ()
    stopped _ = pure ()

-- | Warp's loop. It ends with the exception that stops its thread.
turn :: Engine -> Application -> IO ()
turn engine app = do
  asking <- newIORef =<< newEmptyMVar
  settings <- warpTimeouts (engineSettings engine)
  runSettingsConnectionMakerSecure (hooked settings asking) (next asking) (track (engineBook engine) limited)
  where
    limited = maybe app (\limits -> limitHeads limits (optionOnRefused options) app) (optionLimits options)
    options = engineOptions engine
    next asking = do
      Job open peer box <- takeMVar (engineInbox engine)
      writeIORef asking box
      pure (open, peer)
    hooked settings asking =
      settings
        { settingsBeforeMainLoop = pure (),
          settingsFork = \action -> readIORef asking >>= \box -> putMVar box (Action action)
        }

-- | Serve a connection, to its end, on the thread that the settings' way of forking
-- provides: by default the calling one. Throws nothing but what Warp's handler for
-- exceptions throws.
serveConnection :: Engine -> Socket -> SockAddr -> IO ()
serveConnection engine sock peer = do
  box <- newEmptyMVar
  putMVar (engineInbox engine) (Job (openConnection settings (engineOptions engine) book sock peer) peer box)
  Action action <- takeMVar box
  done <- newEmptyMVar
  mask_ $ settingsFork settings (\unmask -> action unmask `finally` (leave book >> putMVar done ()))
  takeMVar done
  where
    book = engineBook engine
    settings = engineSettings engine
