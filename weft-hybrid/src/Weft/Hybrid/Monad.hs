{-# LANGUAGE RankNTypes #-}

-- |
-- The monad of hybrid threads: continuations that end in a trace (Li and Zdancewic 2007,
-- section 3.2), and the system calls that the interpreter carries out by itself.
--
-- Between two system calls a thread is not interrupted, not even
-- by other hybrid threads of its loop.
module Weft.Hybrid.Monad
  ( Hybrid (..),
    taskOf,

    -- * System calls
    nonBlocking,
    fork,
    yield,
    ret,
    call,
    modifyExtra,

    -- * Exceptions
    throw,
    catchAny,
    getMask,
    withMask,
  )
where

import Control.Exception (SomeException, toException)
import qualified Control.Exception as E
import Control.Monad.Catch (ExitCase (..), MonadCatch (..), MonadMask (..), MonadThrow (..))
import Control.Monad.IO.Class (MonadIO (..))
import GHC.Exts (oneShot)
import Weft.Hybrid.Trace

-- | An action of a hybrid thread: it takes its continuation and returns the
-- trace of both.
newtype Hybrid a = Hybrid {unHybrid :: (a -> Trace) -> Trace}

-- Actions and continuations are declared to be used once ('oneShot'). GHC then gives a
-- recursive action its continuation as a second argument, and leaves what a
-- continuation does inside of it, where it would float it out as a thunk: 24 bytes and
-- an update for each system call of a loop.
instance Functor Hybrid where
  fmap f (Hybrid m) = Hybrid (oneShot (\k -> m (oneShot (\a -> k (f a)))))
  {-# INLINE fmap #-}
  a <$ Hybrid m = Hybrid (oneShot (\k -> m (oneShot (\_ -> k a))))
  {-# INLINE (<$) #-}

instance Applicative Hybrid where
  pure a = Hybrid (oneShot (\k -> k a))
  {-# INLINE pure #-}
  Hybrid mf <*> Hybrid ma = Hybrid (oneShot (\k -> mf (oneShot (\f -> ma (oneShot (\a -> k (f a)))))))
  {-# INLINE (<*>) #-}
  Hybrid m *> Hybrid n = Hybrid (oneShot (\k -> m (oneShot (\_ -> n k))))
  {-# INLINE (*>) #-}
  Hybrid m <* Hybrid n = Hybrid (oneShot (\k -> m (oneShot (\a -> n (oneShot (\_ -> k a))))))
  {-# INLINE (<*) #-}

instance Monad Hybrid where
  Hybrid m >>= f = Hybrid (oneShot (\k -> m (oneShot (\a -> unHybrid (f a) k))))
  {-# INLINE (>>=) #-}
  (>>) = (*>)
  {-# INLINE (>>) #-}

-- | 'nonBlocking'.
instance MonadIO Hybrid where
  liftIO = nonBlocking
  {-# INLINE liftIO #-}

instance MonadFail Hybrid where
  fail msg = throw (toException (userError msg))

instance MonadThrow Hybrid where
  throwM = throw . toException

-- | The handler runs with the masking of the place where it was set up.
instance MonadCatch Hybrid where
  catch body handler = catchAny body $ \e -> case E.fromException e of
    Just e' -> handler e'
    Nothing -> throw e

instance MonadMask Hybrid where
  mask = masking Masked
  uninterruptibleMask = masking Uninterruptible
  generalBracket acquire release use = mask $ \restore -> do
    resource <- acquire
    b <-
      restore (use resource) `catchAny` \e -> do
        _ <- release resource (ExitCaseException e)
        throw e
    c <- release resource (ExitCaseSuccess b)
    pure (b, c)

masking :: Mask -> ((forall a. Hybrid a -> Hybrid a) -> Hybrid b) -> Hybrid b
masking wanted body = do
  before <- getMask
  if before >= wanted
    then body id
    else withMask wanted (body (withMask before))

-- | The trace of a thread.
taskOf :: Hybrid () -> Task
taskOf (Hybrid m) = oneShot (\() -> m (\() -> Ret))
{-# INLINE taskOf #-}

-- System calls -----------------------------------------------------------------------

-- | Run an action that does not block, on the loop's thread. While it runs, no other
-- thread of the loop does. Its exceptions are raised in the hybrid thread. (@sys_nbio@)
nonBlocking :: IO a -> Hybrid a
nonBlocking io = Hybrid $ oneShot $ \k -> NonBlocking (io >>= \a -> pure $! k a)
{-# INLINE nonBlocking #-}

-- | Start a thread without an identity: it cannot be killed or waited for. It takes
-- a word in the queue and its closure. It inherits masking, priority and
-- thread-local values. If no other thread is ready, it starts when the caller waits next. (@sys_fork@)
fork :: Hybrid () -> Hybrid ()
fork m = Hybrid $ oneShot $ \k -> Fork (taskOf m) k
{-# INLINE fork #-}

-- | Let the other ready threads of the loop run. (@sys_yield@)
yield :: Hybrid ()
yield = Hybrid (oneShot (\k -> Yield k))
{-# INLINE yield #-}

-- | End the calling thread. Handlers do not run: inside 'Control.Monad.Catch.bracket'
-- throw an exception instead. (@sys_ret@)
ret :: Hybrid a
ret = Hybrid (const Ret)

-- | A system call in terms of the loop and the thread's context.
call :: (Loop -> Context -> (a -> Trace) -> IO Trace) -> Hybrid a
call f = Hybrid $ oneShot $ \k -> Call (\l ctx -> f l ctx k)
{-# INLINE call #-}

-- | Change the thread's context.
modifyExtra :: (Extra -> Extra) -> Hybrid ()
modifyExtra f = call $ \_ ctx k -> let !ctx' = withExtra (f (extraOf ctx)) in pure (Enter ctx' k)

-- Exceptions ----------------------------------------------------------------------------

-- | Raise an exception in the calling thread. (@sys_throw@)
throw :: SomeException -> Hybrid a
throw e = Hybrid (const (Throw e))

-- | Run the first action; if it throws, run the second one with the exception. (@sys_catch@)
catchAny :: Hybrid a -> (SomeException -> Hybrid a) -> Hybrid a
catchAny (Hybrid body) handler = Hybrid . oneShot $ \k ->
  Catch
    (oneShot (\() -> body (oneShot (\a -> Uncatch (oneShot (\() -> k a))))))
    (oneShot (\e -> unHybrid (handler e) k))

-- | The thread's masking.
getMask :: Hybrid Mask
getMask = call $ \_ ctx k -> pure $! k (contextMask ctx)

-- | Run an action under another masking.
withMask :: Mask -> Hybrid a -> Hybrid a
withMask during act = do
  before <- getMask
  modifyExtra (\x -> x {extraMask = during})
  a <- act
  modifyExtra (\x -> x {extraMask = before})
  pure a
