{-# LANGUAGE PackageImports #-}

-- | The calls of io_uring on the model kernel of the simulated machine ("Kernel"). "KernelRing" is the pure model of
-- one ring.
module KernelUring
  ( newUring,
    uringQueue,
    uringEnter,
    uringWait,
    uringCancelNow,
    uringHas,
    uringReap,
  )
where

import Control.Monad (when)
import "base" Data.IORef
import Data.Int (Int64)
import qualified Data.IntMap.Strict as IntMap
import Data.Maybe (fromMaybe)
import KernelRing (Completion (..), Ring, Submission (..))
import qualified KernelRing as Ring
import KernelState
import Simulation

-- | A ring with the given numbers of submission and completion entries.
newUring :: Int -> Int -> IO Int
newUring entries room = call "io_uring_setup" >> install (Uring (Ring.newRing entries room))

-- | A step on a ring, if the ring is open.
withRing :: Int -> a -> (Int -> Ring -> IO a) -> IO a
withRing n closed f = do
  k <- readIORef theKernel
  case fileOf k n of
    Just (i, Uring r) -> f i r
    _ -> closed <$ note "the ring is closed"

-- | Queue a request in shared memory: zero, or @-EAGAIN@ if the queue is full.
uringQueue :: Int -> Submission -> IO Int
uringQueue n s = do
  call ("queues " <> show s)
  withRing n (-9) $ \i r -> case Ring.enqueue s r of
    Nothing -> (-11) <$ note "the queue is full"
    Just r' -> 0 <$ setFile i (Uring r')

-- | io_uring_enter: the kernel takes the queued requests. With 'True' it also turns events into completions, and adds
-- the completions that it held back. Zero or a negated errno.
uringEnter :: Int -> Bool -> IO Int
uringEnter n bringing = do
  call ("io_uring_enter" <> if bringing then ", for completions" else "")
  withRing n (-9) $ \i _ -> do
    refused <- may faultRefuse (\x f -> f {faultRefuse = x})
    if refused
      then (-11) <$ note "it takes nothing"
      else do
        taken <- takeIn i
        when bringing (bringOut i)
        taken <$ sayRing i

-- | The kernel takes the queued requests; returns their number.
takeIn :: Int -> IO Int
takeIn i = do
  queued <- changeRing i Ring.takeQueue
  mapM_ submitted queued
  pure (length queued)
  where
    submitted s = do
      k <- readIORef theKernel
      case s of
        Watch n bits stays name -> change $ case fileOf k n of
          Nothing -> Ring.complete (Completion name (-9) False)
          Just (file, f) -> Ring.watch file bits stays name (levels k f)
        Cancel name -> do
          files <- filesOf
          -- If there is no such request, the kernel posts a completion with a name of its own.
          change (\r -> fromMaybe (Ring.complete (Completion (-1) (-2) False) r) (Ring.cancelWatch name r))
          letGo files
    change f = changeRing i ((,) () . f)
    filesOf = changeRing i (\r -> (Ring.watchedFiles r, r))

changeRing :: Int -> (Ring -> (a, Ring)) -> IO a
changeRing i f = do
  k <- readIORef theKernel
  case IntMap.lookup i (kernelFiles k) of
    Just (Uring r) -> let (a, r') = f r in a <$ setFile i (Uring r')
    _ -> ioError (userError "Kernel: no ring")

-- | Make completions of what has happened, and add those that were held back.
bringOut :: Int -> IO ()
bringOut i = do
  files <- changeRing i (\r -> (Ring.watchedFiles r, r))
  lost <- if null files then pure False else may faultSpurious (\x f -> f {faultSpurious = x})
  turned <- if length files < 2 then pure False else may faultReverse (\x f -> f {faultReverse = x})
  changeRing i (\r -> ((), Ring.bringOut turned (Ring.makeRoom (if lost then fromMaybe r (Ring.loseWatch r) else r))))
  when lost (note "the thread of its oldest request has exited")
  letGo files

sayRing :: Int -> IO ()
sayRing i = do
  k <- readIORef theKernel
  case IntMap.lookup i (kernelFiles k) of
    Just (Uring r) | (cs@(_ : _), _) <- Ring.reap maxBound r -> note ("the ring has " <> show cs)
    _ -> pure ()

-- | Enter for completions, and block until there is one; a negative time waits for ever. @-EINTR@, or @-ETIME@ if there
-- is none.
uringWait :: Int -> Int64 -> IO Int
uringWait n ns = do
  refused <- uringEnter n True
  if refused < 0
    then pure refused
    else do
      end <- if ns < 0 then pure maxBound else (+ ns) <$> virtualTime
      blockingCall some end ("io_uring_enter blocks" <> if ns < 0 then "" else ", until " <> show end)
      interrupted <- may faultInterrupt (\x f -> f {faultInterrupt = x})
      if interrupted
        then (-4) <$ note "io_uring_enter is interrupted by a signal"
        else withRing n (-9) $ \i _ -> do
          bringOut i
          sayRing i
          found <- changeRing i (\r -> (Ring.completed r, r))
          pure (if found then 0 else -62)
  where
    some = do
      k <- readIORef theKernel
      pure $ case fileOf k n of
        Just (_, Uring r) -> Ring.completed r || Ring.heldBack r || Ring.hasNews r
        _ -> True

-- | Cancel the submitted request with that name, synchronously. Zero, also if there is none; @-EINVAL@ if the kernel
-- cannot do that; @-EBUSY@ if the request has not ended yet.
uringCancelNow :: Int -> Int -> IO Int
uringCancelNow n name = do
  call ("cancels " <> show name <> " at once")
  withRing n (-9) $ \i r -> do
    refused <- may faultRefuse (\x f -> f {faultRefuse = x})
    unfinished <- if refused || Ring.isEnded name r then pure False else may faultUnfinished (\x f -> f {faultUnfinished = x})
    case () of
      _
        | refused -> (-22) <$ note "it cannot do that"
        | unfinished -> do
          setFile i (Uring (Ring.endLater name r))
          (-16) <$ note "it has not ended"
        | otherwise -> do
          setFile i (Uring (Ring.cancelNow name r))
          0 <$ letGo (Ring.watchedFiles r)

-- | Whether something is queued, held back, completed, or will complete when the kernel is entered.
uringHas :: Int -> IO (Bool, Bool, Bool, Bool)
uringHas n = do
  call "looks at the ring"
  withRing n (False, False, False, False) (\_ r -> pure (Ring.isQueued r, Ring.heldBack r, Ring.completed r, Ring.hasNews r))

-- | Take at most the given number of completions.
uringReap :: Int -> Int -> IO [Completion]
uringReap n most = do
  call "takes completions"
  withRing n [] (\i r -> let (taken, r') = Ring.reap most r in taken <$ setFile i (Uring r'))
