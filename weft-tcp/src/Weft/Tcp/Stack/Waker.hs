-- |
-- Who is told that an operation may be worth trying again: nobody until a thread has to wait
-- for the first time; then GHC's threads by a token, or threads of another kind by an action.
-- Internal: see "Weft.Tcp.Socket" and "Weft.Tcp.Hybrid".
--
-- @
--   nobody  -> token    a thread of GHC's is going to wait ('tokenOf'), and tries once more first
--           -> action   the socket is handed over ('hand')
--   token   -> action   the same
-- @
--
-- A step of a connection changes the connection first and looks for
-- whom to tell then; whoever is told for the first time enters itself first and tries then. So one
-- of the two sees the other.
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

-- | Of one direction of a connection, or of a listener.
newtype Waker = Waker (IORef Told)

data Told
  = Nobody
  | -- | Full when the thread that waits should look again.
    Token !(MVar ())
  | -- | Must not block.
    Action !(IO ())

-- | Nobody is told yet.
newWaker :: IO Waker
newWaker = Waker <$> newIORef Nobody

-- | Tell. From any thread; does not block.
wake :: Waker -> IO ()
wake (Waker ref) = do
  told <- readIORef ref
  case told of
    Nobody -> pure ()
    Token token -> void (tryPutMVar token ())
    Action act -> act

-- | Empty the token, if there is one: before an attempt, which sees what it told of.
lower :: Waker -> IO ()
lower (Waker ref) = do
  told <- readIORef ref
  case told of
    Token token -> void (tryTakeMVar token)
    _ -> pure ()

-- | The token to wait for, and whether it is there only now: then the operation has to be
-- tried once more before waiting. 'Nothing': others are told.
tokenOf :: Waker -> IO (Maybe (MVar (), Bool))
tokenOf (Waker ref) = do
  told <- readIORef ref
  case told of
    Token token -> pure (Just (token, False))
    Action _ -> pure Nothing
    Nobody -> do
      token <- newEmptyMVar
      ours <- atomicModifyIORef' ref (\now -> case now of Nobody -> (Token token, True); _ -> (now, False))
      if ours then pure (Just (token, True)) else tokenOf (Waker ref)

-- | Have an action run whenever there is news. A thread of GHC's that waits finds out. 'False':
-- an action is told already.
hand :: Waker -> IO () -> IO Bool
hand (Waker ref) act = do
  before <- atomicModifyIORef' ref $ \now -> case now of
    Action _ -> (now, now)
    _ -> (Action act, now)
  case before of
    Nobody -> pure True
    Token token -> True <$ tryPutMVar token ()
    Action _ -> pure False
