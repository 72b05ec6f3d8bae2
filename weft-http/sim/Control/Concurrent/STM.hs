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

import "base" Control.Exception (Exception, throwIO)
import "base" Data.IORef
import Simulation

newtype TVar a = TVar (IORef a)
  deriving (Eq)

-- | A transaction. It gets a list in which it records how to undo its writes; 'Nothing' means retry.
newtype STM a = STM (IORef [IO ()] -> IO (Maybe a))

instance Functor STM where
  fmap f (STM g) = STM (fmap (fmap f) . g)

instance Applicative STM where
  pure a = STM (\_ -> pure (Just a))
  STM f <*> STM g = STM (\undo -> f undo >>= maybe (pure Nothing) (\h -> fmap h <$> g undo))

instance Monad STM where
  STM f >>= g = STM (\undo -> f undo >>= maybe (pure Nothing) (\a -> let STM h = g a in h undo))

retry :: STM a
retry = STM (\_ -> pure Nothing)

check :: Bool -> STM ()
check b = if b then pure () else retry

orElse :: STM a -> STM a -> STM a
orElse (STM f) (STM g) = STM $ \undo -> do
  mine <- newIORef []
  r <- f mine
  case r of
    Just a -> Just a <$ (readIORef mine >>= \u -> modifyIORef' undo (u <>))
    Nothing -> (readIORef mine >>= sequence_) >> g undo

throwSTM :: Exception e => e -> STM a
throwSTM e = STM (\undo -> (readIORef undo >>= sequence_) >> throwIO e)

-- | Blocks until the transaction succeeds.
atomically :: STM a -> IO a
atomically (STM f) = do
  blockOn (could <$> trial) Anything "atomically"
  undo <- newIORef []
  f undo >>= maybe (ioError (userError "atomically: there is nothing to wait for")) pure
  where
    trial = do
      undo <- newIORef []
      r <- f undo
      r <$ (readIORef undo >>= sequence_)
    could = maybe False (const True)

newTVar :: a -> STM (TVar a)
newTVar a = STM (\_ -> Just . TVar <$> newIORef a)

newTVarIO :: a -> IO (TVar a)
newTVarIO a = TVar <$> newIORef a

readTVar :: TVar a -> STM a
readTVar (TVar r) = STM (\_ -> Just <$> readIORef r)

readTVarIO :: TVar a -> IO a
readTVarIO (TVar r) = touch Anything "reads a TVar" >> readIORef r

writeTVar :: TVar a -> a -> STM ()
writeTVar (TVar r) a = STM $ \undo -> do
  old <- readIORef r
  modifyIORef' undo (writeIORef r old :)
  Just <$> writeIORef r a

modifyTVar, modifyTVar' :: TVar a -> (a -> a) -> STM ()
modifyTVar v f = readTVar v >>= writeTVar v . f
modifyTVar' v f = readTVar v >>= \a -> let b = f a in b `seq` writeTVar v b

swapTVar :: TVar a -> a -> STM a
swapTVar v a = readTVar v <* writeTVar v a
