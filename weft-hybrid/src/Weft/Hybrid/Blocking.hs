-- |
-- Calls that block, for hybrid threads (2007, section 4.6): on the pool of OS threads
-- of "Weft.Blocking", or on a GHC thread of their own.
module Weft.Hybrid.Blocking
  ( blocking,
    blockingOr,
    onGhcThread,
  )
where

import Control.Concurrent (forkIOWithUnmask, killThread)
import Control.Exception (SomeException, try)
import Control.Monad (void, when)
import qualified Weft.Blocking as Pool
import Weft.Hybrid.Monad
import Weft.Hybrid.Park
import Weft.Hybrid.Trace
import Weft.Sys hiding (yield)

-- | Run a call that may block on the program's pool, and wait for it. Its exceptions are
-- raised here. If the thread is interrupted a call that has begun goes on, and what it
-- returns is dropped. (@sys_blio@)
blocking :: IO a -> Hybrid a
blocking = blockingOr (const (pure ()))

-- | The same with a way to dispose of a result that nobody waits for any more.
blockingOr :: (a -> IO ()) -> IO a -> Hybrid a
blockingOr dispose act = call $ \l ctx k -> outside l ctx k dispose $ \finish -> do
  Pool.submit Pool.programPool $ do
    wanted <- finish Nothing
    when wanted (try act >>= void . finish . Just)
  pure (pure ())

-- | Run an action that waits as GHC threads do (on an 'Control.Concurrent.MVar', a
-- @Handle@, another library) on a GHC thread of its own. It is killed if the thread is
-- interrupted.
onGhcThread :: IO a -> Hybrid a
onGhcThread act = call $ \l ctx k -> outside l ctx k (const (pure ())) $ \finish -> do
  t <- mask_ (forkIOWithUnmask (\unmask -> try (unmask act) >>= void . finish . Just))
  -- Killing waits for the thread to be killed, which may be busy.
  pure (void (forkIOWithUnmask (\_ -> killThread t)))

-- | Park a thread until somebody outside of the loops has a result for it. The last
-- argument starts that work, and returns what gives it up. The work calls its
-- argument with its result, or with nothing to ask whether it is still wanted.
--
-- The cell: 0 while under way, 1 when the result came, 2 when it was given up.
outside ::
  Loop ->
  Context ->
  (a -> Trace) ->
  (a -> IO ()) ->
  ((Maybe (Either SomeException a) -> IO Bool) -> IO (IO ())) ->
  IO Trace
outside l ctx k dispose begin = do
  cell <- newCells 1
  giveUp <- newRef (pure ())
  let withdraw = do
        found <- casCell cell 0 0 2
        if found /= 0 then pure False else True <$ (readRef giveUp >>= id)
      insert w = do
        stop <- begin (finish w)
        True <$ writeRef giveUp stop
      finish _ Nothing = (== 0) <$> readCell cell 0
      finish w (Just r) = do
        found <- casCell cell 0 0 1
        if found == 0
          then True <$ resume (toLoop l) w (\() -> either Throw k r)
          else False <$ either (const (pure ())) (guarded . dispose) r
  parkWith ctx withdraw insert (outside l ctx k dispose begin)
