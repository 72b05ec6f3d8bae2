-- |
-- Giving way before blocking. A thread that an event makes ready may make others ready: a reader gives a request to a
-- worker, the worker a response to a writer. These are behind the dispatcher in the capability's run queue. If it blocks
-- in the kernel while a thread is ready, GHC hands the capability to another OS thread, and takes it back at the next
-- event: three futex(2) and two context switches. So the dispatcher yields once for each thread of such a chain.
--
-- GHC does not tell whether a thread is ready. But a yield takes some 20 ns if none is, and longer otherwise. The length
-- of the chains is measured once in 'interval' turns. A yield can also take the time slices of threads that compute; new
-- events must not wait for them more than once. So no yield follows when 'limit' has passed.
module Weft.Core.Yield
  ( Chains,
    newChains,
    yieldToWoken,
  )
where

import Control.Monad (void)
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

-- | The yields after the first one, at most: one more than a chain of four threads needs. It shows how long a yield takes
-- if no thread is ready.
longest :: Int
longest = 4

-- | How long a turn may yield and then yield again, in ns. What a yield saves, some 10 us, is little compared with this.
limit :: Int64
limit = 200000

-- | Let the threads run that the last events have made ready, and those that they make ready in turn. A measurement that
-- the limit cuts off is repeated in the next turn.
yieldToWoken :: Chains -> IO ()
yieldToWoken chains@(Chains w) = do
  left <- peekWord w turns
  if left > 0
    then do
      pokeWord w turns (left - 1)
      n <- peekWord w links
      if n == 0 then yield else void (yields n)
    else yields longest >>= maybe (pokeWord w links 0) (measured chains)

-- | Yield, and that many times more. The times of these in ns; 'Nothing' if the limit has passed before they were done.
yields :: Int -> IO (Maybe [Int64])
yields n = do
  begun <- now
  let go k before = do
        yield
        t <- now
        let Duration took = until t before
            Duration sofar = until t begun
        case k of
          _ | sofar > limit -> pure Nothing
          0 -> pure (Just [took])
          _ -> fmap (took :) <$> go (k - 1 :: Int) t
  fmap (drop 1) <$> go n begun

-- | How many of the yields are worth repeating: all up to the last one that let a thread run.
measured :: Chains -> [Int64] -> IO ()
measured (Chains w) times = do
  before <- peekWord w least
  let shortest = minimum ([fromIntegral before | before > 0] <> map (max 1) times)
      ran t = t > 2 * shortest + 50
  pokeWord w turns (interval - 1)
  pokeWord w least (fromIntegral shortest)
  pokeWord w links (length (dropWhile (not . ran) (reverse times)))
