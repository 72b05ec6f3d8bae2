{-# LANGUAGE PackageImports #-}

-- |
-- The part of the package stm that the server needs, on the simulated machine: a transaction is one step.
module Control.Concurrent.STM
  ( STM,
    TVar,
    atomically,
    newTVar,
    newTVarIO,
    readTVar,
    readTVarIO,
    writeTVar,
    modifyTVar,
    modifyTVar',
    swapTVar,
    retry,
    check,
    orElse,
    throwSTM,
  )
where

import "base" Control.Exception (Exception, SomeException, catch, throwIO, toException)
import "base" Control.Monad (ap, liftM)
import "base" Data.IORef
import Simulation

newtype TVar a = TVar (IORef a)
  deriving (Eq)

-- | A transaction. It gets a list in which it records how to undo its writes.
newtype STM a = STM (IORef [IO ()] -> IO (Ended a))

data Ended a = Done a | Retry | Thrown SomeException

instance Functor STM where
  fmap = liftM

instance Applicative STM where
  pure a = STM (\_ -> pure (Done a))
  (<*>) = ap

instance Monad STM where
  STM f >>= g = STM $ \undo -> do
    outcome <- f undo
    case outcome of
      Done a -> let STM h = g a in h undo
      Retry -> pure Retry
      Thrown e -> pure (Thrown e)

retry :: STM a
retry = STM (\_ -> pure Retry)

check :: Bool -> STM ()
check b = if b then pure () else retry

-- | The writes of the first one are undone if it retries. If it throws, the transaction does, which undoes all.
orElse :: STM a -> STM a -> STM a
orElse (STM f) (STM g) = STM $ \undo -> do
  mine <- newIORef []
  outcome <- f mine
  case outcome of
    Retry -> (readIORef mine >>= sequence_) >> g undo
    ended -> ended <$ (readIORef mine >>= \u -> modifyIORef' undo (u <>))

throwSTM :: Exception e => e -> STM a
throwSTM e = STM (\_ -> pure (Thrown (toException e)))

-- | Blocks until the transaction succeeds or throws.
atomically :: STM a -> IO a
atomically (STM f) = do
  blockOn (ends <$> trial) Anything "atomically"
  undo <- newIORef []
  outcome <- carryOut undo
  case outcome of
    Done a -> pure a
    Retry -> ioError (userError "atomically: there is nothing to wait for")
    Thrown e -> (readIORef undo >>= sequence_) >> throwIO e
  where
    trial = do
      undo <- newIORef []
      outcome <- carryOut undo
      outcome <$ (readIORef undo >>= sequence_)
    ends outcome = case outcome of
      Retry -> False
      _ -> True
    -- Pure code may throw as well.
    carryOut undo = f undo `catch` (pure . Thrown)

newTVar :: a -> STM (TVar a)
newTVar a = STM (\_ -> Done . TVar <$> newIORef a)

newTVarIO :: a -> IO (TVar a)
newTVarIO a = TVar <$> newIORef a

readTVar :: TVar a -> STM a
readTVar (TVar r) = STM (\_ -> Done <$> readIORef r)

readTVarIO :: TVar a -> IO a
readTVarIO (TVar r) = touch Anything "reads a TVar" >> readIORef r

writeTVar :: TVar a -> a -> STM ()
writeTVar (TVar r) a = STM $ \undo -> do
  old <- readIORef r
  modifyIORef' undo (writeIORef r old :)
  Done <$> writeIORef r a

modifyTVar, modifyTVar' :: TVar a -> (a -> a) -> STM ()
modifyTVar v f = readTVar v >>= writeTVar v . f
modifyTVar' v f = readTVar v >>= \a -> let b = f a in b `seq` writeTVar v b

swapTVar :: TVar a -> a -> STM a
swapTVar v a = readTVar v <* writeTVar v a
