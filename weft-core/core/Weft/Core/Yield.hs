-- |
-- Giving way before blocking. A thread that an event makes ready may make others ready: a reader gives a request to a
-- worker, the worker a response to a writer. These are behind the dispatcher in the capability's run queue. If it
-- blocks in the kernel while a thread is ready, GHC hands the capability to another OS thread, and takes it back at the
-- next event: three futex(2) and a context switch more. So the dispatcher yields once for each thread of such a chain.
--
-- GHC does not tell whether a thread is ready. But a yield takes some 20 ns if none is, and longer otherwise. The
-- length of the chains is measured once in 'interval' turns. A yield can also take the time slices of threads that
-- compute; new events must not wait for them more than once. So no yield follows when 'limit' has passed.
module Weft.Core.Yield
  ( Chains,
    newChains,
    yieldToWoken,
  )
where

import Control.Monad (void)
import Weft.Core.Time (Instant (..))
import Weft.Sys

-- | What a dispatcher has found out about chains. Word 'turns': how many turns are left until it measures again. Word
-- 'links': how many yields let another thread run, after the first one, in each of the last two measurements. Word
-- 'latest': what the last one found. Word 'least': the shortest yield so far in ns, or 0. From word 'times' on: how
-- long the yields of the last turn took, in ns, without the first one. Used by the dispatcher's thread only.
newtype Chains = Chains WordArray

turns, links, latest, least, times :: Int
turns = 0
links = 1
latest = 2
least = 3
times = 4

-- | The first turn measures.
newChains :: IO Chains
newChains = Chains <$> newOwnWords (times + longest)

-- | The turns from one measurement to the next.
interval :: Int
interval = 32

-- | The yields after the first one, at most: one more than a chain of four threads needs. It shows how long a yield
-- takes if no thread is ready.
longest :: Int
longest = 4

-- | How long a turn may yield and then yield again, in ns. What a yield saves, some 10 us, is little compared with
-- this.
limit :: Int
limit = 200000

-- | Let the threads run that the last events have made ready, and those that they make ready in turn. A measurement
-- that the limit cuts off is repeated in the next turn.
yieldToWoken :: Chains -> IO ()
yieldToWoken chains@(Chains w) = do
  left <- peekWord w turns
  if left > 0
    then do
      pokeWord w turns (left - 1)
      n <- peekWord w links
      if n == 0 then yield else void (yields chains n)
    else do
      whole <- yields chains longest
      if whole then measured chains else pokeWord w links 0

-- | Yield, and that many times more. 'False' if the limit has passed before they were done.
yields :: Chains -> Int -> IO Bool
yields (Chains w) n = do
  Instant begun <- now
  yield
  Instant first <- now
  let go :: Int -> Int -> IO Bool
      go !k !before
        | before - fromIntegral begun > limit = pure False
        | k == n = pure True
        | otherwise = do
          yield
          Instant t <- now
          pokeWord w (times + k) (fromIntegral t - before)
          go (k + 1) (fromIntegral t)
  go 0 (fromIntegral first)

-- | How many of the yields are worth repeating: all up to the last one that let a thread run. The shortest run of a
-- thread that does something takes some 400 ns. A yield also takes long if it finds its code in no cache, or if the
-- kernel gives the core to another process meanwhile; so the smaller result of two measurements counts.
measured :: Chains -> IO ()
measured (Chains w) = do
  before <- peekWord w least
  shortest <- smallest 0 (if before == 0 then maxBound else before)
  found <- lastRun (2 * shortest + 200) longest
  previous <- peekWord w latest
  pokeWord w turns (interval - 1)
  pokeWord w links (min previous found)
  pokeWord w latest found
  pokeWord w least shortest
  where
    smallest :: Int -> Int -> IO Int
    smallest !k !so
      | k == longest = pure so
      | otherwise = peekWord w (times + k) >>= smallest (k + 1) . min so . max 1
    lastRun :: Int -> Int -> IO Int
    lastRun !bound !k
      | k == 0 = pure 0
      | otherwise = peekWord w (times + k - 1) >>= \t -> if t > bound then pure k else lastRun bound (k - 1)
