-- |
-- Giving way before blocking. A thread that an event makes ready may make others ready: a reader gives a request to a
-- worker, the worker a response to a writer. These are behind the dispatcher in the capability's run queue. If it blocks
-- in the kernel while a thread is ready, GHC hands the capability to another OS thread, and takes it back at the next
-- event: three futex(2) and two context switches. So the dispatcher yields once for each thread of such a chain.
--
-- GHC does not tell whether a thread is ready. But a yield takes some 20 ns if none is, and longer otherwise. The length
-- of the chains is measured once in 'interval' turns.
module Weft.Core.Yield
  ( Chains,
    newChains,
    yieldToWoken,
  )
where

import Control.Monad (replicateM_)
import Data.Int (Int64)
import Weft.Core.Time (Duration (..), until)
import Weft.Sys
import Prelude hiding (until)

-- | What a dispatcher has found out about chains. Word 'turns': how many turns are left until it measures again. Word
-- 'links': how many yields let another thread run, after the first one. Word 'least': the shortest yield so far in ns, or
-- 0. Used by the dispatcher's thread only.
newtype Chains = Chains AtomicWords

turns, links, least :: Int
turns = 0
links = 1
least = 2

-- | The first turn measures.
newChains :: IO Chains
newChains = Chains <$> newAtomicWords 3

-- | The turns from one measurement to the next.
interval :: Int
interval = 32

-- | Let the threads run that the last events have made ready, and those that they make ready in turn.
yieldToWoken :: Chains -> IO ()
yieldToWoken chains@(Chains w) = do
  yield
  left <- peekWord w turns
  if left > 0
    then do
      pokeWord w turns (left - 1)
      n <- peekWord w links
      replicateM_ n yield
    else do
      pokeWord w turns (interval - 1)
      times <- measured (3 :: Int)
      pokeWord w links =<< linksOf chains times

-- | The times of that many yields in ns. It ends with one that takes more than a millisecond: threads compute then, and
-- new events must not wait for another round of their time slices.
measured :: Int -> IO [Int64]
measured n = now >>= go n
  where
    go 0 _ = pure []
    go k before = do
      yield
      t <- now
      let Duration took = until t before
      (took :) <$> if took > 1000000 then pure [] else go (k - 1) t

-- | How many of the yields are worth repeating: all up to the last one that let a thread run, but none if threads compute.
linksOf :: Chains -> [Int64] -> IO Int
linksOf (Chains w) times = do
  before <- peekWord w least
  let shortest = minimum ([fromIntegral before | before > 0] <> map (max 1) times)
      ran t = t > 2 * shortest + 50
  pokeWord w least (fromIntegral shortest)
  pure $ if any (> 1000000) times then 0 else length (dropWhile (not . ran) (reverse times))
