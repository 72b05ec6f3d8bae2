{-# LANGUAGE ExistentialQuantification #-}
{-# LANGUAGE PackageImports #-}
{-# LANGUAGE RankNTypes #-}

-- |
-- "Control.Exception" of base, on the simulated machine, with the handlers and masking states of "Simulation".
module Control.Exception
  ( module Base,
    catch,
    catches,
    Handler (..),
    catchJust,
    handle,
    handleJust,
    try,
    tryJust,
    mask,
    mask_,
    uninterruptibleMask,
    uninterruptibleMask_,
    bracket,
    bracket_,
    bracketOnError,
    finally,
    onException,
    throwTo,
    interruptible,
    allowInterrupt,
  )
where

import "base" Control.Exception as Base hiding
  ( Handler (..),
    allowInterrupt,
    bracket,
    bracketOnError,
    bracket_,
    catch,
    catchJust,
    catches,
    finally,
    getMaskingState,
    handle,
    handleJust,
    interruptible,
    mask,
    mask_,
    onException,
    throwTo,
    try,
    tryJust,
    uninterruptibleMask,
    uninterruptibleMask_,
  )
import Simulation (Masking (..), catching, getMasking, withMasking)
import Weft.Sys (ThreadId, interruptible, throwToThread)

allowInterrupt :: IO ()
allowInterrupt = interruptible (pure ())

catch :: Exception e => IO a -> (e -> IO a) -> IO a
catch act handler = act `catching` \e -> maybe (throwIO e) handler (fromException e)

data Handler a = forall e. Exception e => Handler (e -> IO a)

catches :: IO a -> [Handler a] -> IO a
catches act handlers = act `catching` \e -> foldr (\(Handler h) other -> maybe other h (fromException e)) (throwIO e) handlers

catchJust :: Exception e => (e -> Maybe b) -> IO a -> (b -> IO a) -> IO a
catchJust p act handler = act `catch` \e -> maybe (throwIO e) handler (p e)

handle :: Exception e => (e -> IO a) -> IO a -> IO a
handle = flip catch

handleJust :: Exception e => (e -> Maybe b) -> (b -> IO a) -> IO a -> IO a
handleJust p = flip (catchJust p)

try :: Exception e => IO a -> IO (Either e a)
try act = (Right <$> act) `catch` (pure . Left)

tryJust :: Exception e => (e -> Maybe b) -> IO a -> IO (Either b a)
tryJust p act = (Right <$> act) `catch` \e -> maybe (throwIO e) (pure . Left) (p e)

mask :: ((forall a. IO a -> IO a) -> IO b) -> IO b
mask act = do
  before <- getMasking
  withMasking (max WhereItBlocks before) (act (withMasking before))

mask_ :: IO a -> IO a
mask_ act = do
  before <- getMasking
  withMasking (max WhereItBlocks before) act

uninterruptibleMask :: ((forall a. IO a -> IO a) -> IO b) -> IO b
uninterruptibleMask act = do
  before <- getMasking
  withMasking NoneIn (act (withMasking before))

uninterruptibleMask_ :: IO a -> IO a
uninterruptibleMask_ = withMasking NoneIn

onException :: IO a -> IO b -> IO a
onException act end = act `catching` \e -> end >> throwIO e

bracket :: IO a -> (a -> IO b) -> (a -> IO c) -> IO c
bracket before after thing = mask $ \restore -> do
  a <- before
  r <- restore (thing a) `onException` after a
  r <$ after a

bracket_ :: IO a -> IO b -> IO c -> IO c
bracket_ before after thing = bracket before (const after) (const thing)

bracketOnError :: IO a -> (a -> IO b) -> (a -> IO c) -> IO c
bracketOnError before after thing = mask $ \restore -> do
  a <- before
  restore (thing a) `onException` after a

finally :: IO a -> IO b -> IO a
finally act end = mask $ \restore -> do
  r <- restore act `onException` end
  r <$ end

throwTo :: Exception e => ThreadId -> e -> IO ()
throwTo = throwToThread
