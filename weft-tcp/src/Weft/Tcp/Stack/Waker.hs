-- |
-- Notification that an operation may succeed if it is tried again. At first there is nothing to
-- notify. When a thread has to wait for the first time, GHC's threads install a token and hybrid
-- threads install an action. Internal: see "Weft.Tcp.Socket" and "Weft.Tcp.Hybrid".
--
-- @
--   nobody  -> token    one of GHC's threads is going to wait ('tokenOf'); it first tries once more
--           -> action   the socket is handed over ('hand')
--   token   -> action   the socket is handed over ('hand')
-- @
--
-- A step changes the connection first and then notifies. A thread that is going to wait installs its token first and
-- then tries again. So either the thread's attempt finds the change, or the step finds the token.
--
-- @since 0.1.0
module Weft.Tcp.Stack.Waker
  ( Waker,
    newWaker,
    wake,
    lower,
    tokenOf,
    hand,
  )
where

import Control.Concurrent.MVar
import Control.Monad (void)
import Data.IORef

-- | The waker of one direction of a connection, or of a listener.
newtype Waker = Waker (IORef Target)

data Target
  = NoTarget
  | -- | Full when the waiting thread should try again.
    Token !(MVar ())
  | -- | The action must not block.
    Action !(IO ())

-- | A waker without a token or action.
newWaker :: IO Waker
newWaker = Waker <$> newIORef NoTarget

-- | Notify. May be called from any thread; does not block.
wake :: Waker -> IO ()
wake (Waker ref) = do
  target <- readIORef ref
  case target of
    NoTarget -> pure ()
    Token token -> void (tryPutMVar token ())
    Action act -> act

-- | Empty the token, if there is one. Called before an attempt, which sees the event that filled the token.
lower :: Waker -> IO ()
lower (Waker ref) = do
  target <- readIORef ref
  case target of
    Token token -> void (tryTakeMVar token)
    _ -> pure ()

-- | The token to wait for, and whether this call has created it; then the operation must be tried
-- once more before waiting. 'Nothing' if an action is installed.
tokenOf :: Waker -> IO (Maybe (MVar (), Bool))
tokenOf (Waker ref) = do
  target <- readIORef ref
  case target of
    Token token -> pure (Just (token, False))
    Action _ -> pure Nothing
    NoTarget -> do
      token <- newEmptyMVar
      ours <- atomicModifyIORef' ref (\now -> case now of NoTarget -> (Token token, True); _ -> (now, False))
      if ours then pure (Just (token, True)) else tokenOf (Waker ref)

-- | Install an action for all later notifications, unless one is installed already: then the result is 'False'. If
-- one of GHC's threads waits for the token, it is woken, and finds that the socket was handed over.
hand :: Waker -> IO () -> IO Bool
hand (Waker ref) act = do
  before <- atomicModifyIORef' ref $ \now -> case now of
    Action _ -> (now, now)
    _ -> (Action act, now)
  case before of
    NoTarget -> pure True
    Token token -> True <$ tryPutMVar token ()
    Action _ -> pure False
