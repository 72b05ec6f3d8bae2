-- |
-- A back end for programs that are linked without @-threaded@. There a call that blocks stops all Haskell threads, so
-- the back end waits with the run-time system's select(2): the mechanism's own descriptor is readable when it has an
-- event. For "Weft.Backend".
module Weft.Backend.Unthreaded
  ( unthreaded,
    unthreadedReason,
  )
where

import Control.Concurrent (forkIOWithUnmask, killThread, newEmptyMVar, takeMVar, tryPutMVar)
import Control.Exception (SomeException, catch)
import Control.Monad (void)
import GHC.Conc (threadDelay, threadWaitRead)
import System.Posix.Types (Fd)
import Weft.Core.Backend
import Weft.Core.Time (Duration (..))

-- | A back end that blocks only the polling thread. The first argument is the descriptor of the mechanism itself. It
-- must be below 1,024, because of select(2).
unthreaded :: Fd -> Backend -> Backend
unthreaded fd backend = backend {backendPoll = \wait report -> block wait >> backendPoll backend NoWait report}
  where
    block NoWait = pure ()
    block Forever = threadWaitRead fd
    block (WaitFor (Duration ns))
      | ns <= 0 = pure ()
      | ns > 1000 * 1000000 * 3600 * 24 * 365 = threadWaitRead fd
      -- Rounded up: a wait is never too short.
      | otherwise = firstOf (threadWaitRead fd) (threadDelay (fromIntegral ((ns - 1) `div` 1000 + 1)))

-- | Wait until one of two actions ends. Not by 'System.Timeout.timeout', whose exception would not arrive: a
-- manager's turn is uninterruptible.
firstOf :: IO () -> IO () -> IO ()
firstOf a b = do
  ended <- newEmptyMVar
  let begin act = forkIOWithUnmask $ \unmask -> unmask act `catch` ignore >> void (tryPutMVar ended ())
  threads <- mapM begin [a, b]
  takeMVar ended
  mapM_ killThread threads
  where
    ignore :: SomeException -> IO ()
    ignore _ = pure ()

-- | The reason for which a mechanism that needs blocking calls beside running threads is not available.
unthreadedReason :: String
unthreadedReason = "this program is linked without -threaded"
