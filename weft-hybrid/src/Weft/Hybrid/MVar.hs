-- |
-- MVars for hybrid threads, with the semantics of "Control.Concurrent.MVar": waiting threads
-- are served first come, first served; a value that is put goes to all readers
-- and the first taker. Threads of all loops may use them.
--
-- One compare-and-swap an operation, whether it waits or not. A waiting thread can be
-- interrupted, and leaves nothing behind.
--
-- @since 0.1.0
module Weft.Hybrid.MVar
  ( MVar,
    newMVar,
    newEmptyMVar,
    newMVarIO,
    newEmptyMVarIO,

    -- * Waiting
    takeMVar,
    putMVar,
    readMVar,

    -- * Without waiting
    tryTakeMVar,
    tryPutMVar,
    tryPutMVarIO,
    tryReadMVar,
    tryReadMVarIO,

    -- * Exception safety
    withMVar,
    modifyMVar_,
    modifyMVar,
  )
where

import Control.Monad.Catch (mask, onException)
import qualified Data.IntMap.Strict as IntMap
import Weft.Hybrid.Monad
import Weft.Hybrid.Park
import Weft.Hybrid.Trace
import Weft.Sys (Ref, casRef, mask_, newRef, readRef)

-- | A place for one value, full or empty. Changed by compare-and-swap, by threads of any loop.
newtype MVar a = MVar (Ref (Contents a))

-- | The number is for the next thread that waits; odd if the MVar is registered ('numberedFrom').
data Contents a
  = Full a !Int !(Waiters (Putter a))
  | -- | Readers and takers.
    Empty !Int !(Waiters (Taker a)) !(Waiters (Taker a))

type Waiters = IntMap.IntMap

data Putter a = Putter !Waiter a Task

data Taker a = Taker !Waiter (a -> Trace)

instance Eq (MVar a) where
  MVar a == MVar b = a == b

-- | A full MVar.
newMVar :: a -> Hybrid (MVar a)
newMVar = nonBlocking . newMVarIO

-- | An empty MVar.
newEmptyMVar :: Hybrid (MVar a)
newEmptyMVar = nonBlocking newEmptyMVarIO

-- | 'newMVar' in IO.
newMVarIO :: a -> IO (MVar a)
newMVarIO a = MVar <$> newRef (Full a 0 IntMap.empty)

-- | 'newEmptyMVar' in IO.
newEmptyMVarIO :: IO (MVar a)
newEmptyMVarIO = MVar <$> newRef (Empty 0 IntMap.empty IntMap.empty)

-- Waiting ---------------------------------------------------------------------------

operate :: MVar a -> (Loop -> (b -> Trace) -> Contents a -> Step (Contents a)) -> Hybrid b
operate (MVar ref) step = call $ \l ctx k -> transact (queueOf ref) l ctx (step l k)
{-# INLINE operate #-}

queueOf :: Ref (Contents a) -> WaitQueue (Contents a)
queueOf ref =
  WaitQueue
    { queueState = ref,
      queueRemove = const remove,
      queueWaiters = \contents -> case contents of
        Full _ _ ps -> [(n, w) | (n, Putter w _ _) <- IntMap.toList ps]
        Empty _ rs ts -> [(n, w) | (n, Taker w _) <- IntMap.toList rs <> IntMap.toList ts],
      queueRegistered = \contents -> case contents of
        Full _ next _ -> odd next
        Empty next _ _ -> odd next,
      queueSetRegistered = \b contents -> case contents of
        Full a next ps -> Full a (numberedFrom b next) ps
        Empty next rs ts -> Empty (numberedFrom b next) rs ts
    }
{-# INLINE queueOf #-}

remove :: Int -> Contents a -> Maybe (Contents a, IO ())
remove n contents = case contents of
  Full a next ps | IntMap.member n ps -> Just (Full a next (IntMap.delete n ps), pure ())
  Empty next rs ts
    | IntMap.member n rs -> Just (Empty next (IntMap.delete n rs) ts, pure ())
    | IntMap.member n ts -> Just (Empty next rs (IntMap.delete n ts), pure ())
  _ -> Nothing

-- | Take the value; wait until there is one.
takeMVar :: MVar a -> Hybrid a
takeMVar m = operate m $ \l k contents -> case contents of
  Full a next ps -> taken l (k a) next ps
  Empty next rs ts -> Wait next (\w -> Empty (next + 2) rs (IntMap.insert next (Taker w k) ts))

-- | The value has been taken. If a thread waits to put one, its value takes the place.
taken :: Loop -> Trace -> Int -> Waiters (Putter a) -> Step (Contents a)
taken l t next ps = case IntMap.minView ps of
  Nothing -> Go (Empty next IntMap.empty IntMap.empty) (pure t)
  Just (Putter w b k, ps') -> Go (Full b next ps') (t <$ resume (onLoop l) w k)
{-# INLINE taken #-}

-- | Put a value; wait until the MVar is empty.
putMVar :: MVar a -> a -> Hybrid ()
putMVar m a = operate m $ \l k contents -> case contents of
  Full b next ps -> Wait next (\w -> Full b (next + 2) (IntMap.insert next (Putter w a k) ps))
  Empty next rs ts -> let (contents', serve) = given (onLoop l) a next rs ts in Go contents' (serve >> pure (k ()))

-- | The state after a value was put, and the action that resumes the threads that get it.
given :: Place -> a -> Int -> Waiters (Taker a) -> Waiters (Taker a) -> (Contents a, IO ())
given place a next rs ts = case IntMap.minView ts of
  Nothing
    | IntMap.null rs -> (Full a next IntMap.empty, pure ())
    | otherwise -> (Full a next IntMap.empty, mapM_ wakeUp rs)
  Just (first, ts') -> (Empty next IntMap.empty ts', mapM_ wakeUp rs >> wakeUp first)
  where
    wakeUp (Taker w k) = resume place w (\() -> k a)
{-# INLINE given #-}

-- | Read the value without taking it; wait until there is one. Atomic: no other thread takes the value in between.
readMVar :: MVar a -> Hybrid a
readMVar m = operate m $ \_ k contents -> case contents of
  Full a _ _ -> Go contents (pure (k a))
  Empty next rs ts -> Wait next (\w -> Empty (next + 2) (IntMap.insert next (Taker w k) rs) ts)

-- Without waiting ---------------------------------------------------------------------

-- | Take the value; 'Nothing' if there is none.
tryTakeMVar :: MVar a -> Hybrid (Maybe a)
tryTakeMVar m = operate m $ \l k contents -> case contents of
  Full a next ps -> taken l (k (Just a)) next ps
  Empty {} -> Go contents (pure (k Nothing))

-- | Put a value; 'False' if the MVar was full.
tryPutMVar :: MVar a -> a -> Hybrid Bool
tryPutMVar m a = operate m $ \l k contents -> case contents of
  Full {} -> Go contents (pure (k False))
  Empty next rs ts -> let (contents', serve) = given (onLoop l) a next rs ts in Go contents' (serve >> pure (k True))

-- | 'tryPutMVar' for GHC threads and callbacks. Threads that get the value go on in the given
-- scheduler.
tryPutMVarIO :: Scheduler -> MVar a -> a -> IO Bool
tryPutMVarIO scheduler (MVar ref) a = mask_ go
  where
    go = do
      contents <- readRef ref
      case contents of
        Full {} -> pure False
        Empty next rs ts -> do
          place <- placeIn scheduler
          let (contents', serve) = given place a next rs ts
          ok <- casRef ref contents $! contents'
          if ok then True <$ serve else go

-- | Read the value without taking it; 'Nothing' if there is none.
tryReadMVar :: MVar a -> Hybrid (Maybe a)
tryReadMVar m = operate m $ \_ k contents -> case contents of
  Full a _ _ -> Go contents (pure (k (Just a)))
  Empty {} -> Go contents (pure (k Nothing))

-- | 'tryReadMVar' for GHC threads and callbacks.
tryReadMVarIO :: MVar a -> IO (Maybe a)
tryReadMVarIO (MVar ref) = do
  contents <- readRef ref
  pure $ case contents of
    Full a _ _ -> Just a
    Empty {} -> Nothing

-- Exception safety ----------------------------------------------------------------------

-- | Run an action with the value, which is put back when the action ends, also by an exception.
withMVar :: MVar a -> (a -> Hybrid b) -> Hybrid b
withMVar m act = mask $ \restore -> do
  a <- takeMVar m
  b <- restore (act a) `onException` putMVar m a
  putMVar m a
  pure b

-- | Replace the value by the action's result. If the action throws, the old one is put back.
modifyMVar_ :: MVar a -> (a -> Hybrid a) -> Hybrid ()
modifyMVar_ m act = modifyMVar m (fmap (\a -> (a, ())) . act)

-- | 'modifyMVar_' with a result.
modifyMVar :: MVar a -> (a -> Hybrid (a, b)) -> Hybrid b
modifyMVar m act = mask $ \restore -> do
  a <- takeMVar m
  (a', b) <- restore (act a) `onException` putMVar m a
  putMVar m a'
  pure b
