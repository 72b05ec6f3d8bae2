-- |
-- State that belongs to one process. A child of 'System.Posix.Process.forkProcess' gets the memory of its parent, and
-- none of its threads: a lock that one of them held is never given back, a place that one has taken stays taken, and
-- what one was about to make never comes. So the child begins with a state of its own.
--
-- The child also has copies of the parent's descriptors. What is behind them, a connection with its peer or a file, the
-- two processes share: so nothing is sent over them and none is shut down when a state is made anew. What it drops is
-- left to the collector, which closes the child's copies of sockets and files.
--
-- Any thread may call these functions.
module Weft.Core.PerProcess
  ( PerProcess,
    newPerProcess,
    newPerProcessFrom,
    ofThisProcess,
  )
where

import Weft.Sys

-- | A state of each process, and how a forked child makes its own out of its parent's.
--
-- > inherited                       -> inherited, and claimed (a thread that asks, which makes it anew)
-- > inherited, and claimed          -> made by this process (that thread), or inherited (that thread, which has failed)
-- > made by this process            used; inherited in a forked child of this one
--
-- The claim is changed by compare-and-swap; the state is written by the thread whose claim it is.
data PerProcess a = PerProcess !(a -> IO a) !(Ref (Made a)) !WordArray

-- | The 'forkGeneration' that it was made in. Both words begin with that of the process that has created them.
data Made a = Made !Int a

-- | A state that this action makes, now and in each forked child that uses it.
newPerProcess :: IO a -> IO (PerProcess a)
newPerProcess make = make >>= newPerProcessFrom (const make)

-- | A state, and what makes that of a forked child out of the one that it inherits: once, masked, in the first thread
-- that uses it there, while others wait. It must not wait: neither for locks of the inherited state, nor for anything
-- else. It may start threads.
newPerProcessFrom :: (a -> IO a) -> a -> IO (PerProcess a)
newPerProcessFrom renew a = do
  generation <- forkGeneration
  claim <- newWordArray 1
  writeWord claim 0 generation
  ref <- newRef (Made generation a)
  pure (PerProcess renew ref claim)

-- | The state of this process. Two memory reads, and the renewal where it is due, whose exceptions are thrown here; the
-- next call tries again then.
ofThisProcess :: PerProcess a -> IO a
ofThisProcess p@(PerProcess _ ref _) = do
  Made generation a <- readRef ref
  current <- forkGeneration
  if generation == current then pure a else inherited p current
{-# INLINE ofThisProcess #-}

inherited :: PerProcess a -> Int -> IO a
inherited p@(PerProcess renew ref claim) current = do
  -- Masked from the claim on: other threads wait for the one that has made it.
  mine <- mask_ $ do
    before <- readWord claim 0
    found <- if before == current then pure before else casWord claim 0 before current
    if before == current || found /= before
      then pure Nothing
      else do
        Made generation a <- readRef ref
        fresh <- renew a `onException` writeWord claim 0 generation
        Just fresh <$ writeRef ref (Made current fresh)
  maybe (yield >> ofThisProcess p) pure mine
{-# NOINLINE inherited #-}
