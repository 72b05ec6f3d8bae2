-- |
-- Values that are made in the background, with a share of one core, and kept in a cache: what is asked for is there
-- later, and nobody waits for it.
--
-- The states of a 'Background', and their successors. They are changed atomically:
--
-- @
--   Idle         -> Working [x]               (a thread that asks; it starts the worker)
--   Working xs   -> Working (xs <> [x])       (a thread that asks)
--   Working [x]  -> Idle                      (the worker, which ends)
--   Working xs   -> Working (tail xs)         (the worker, when the first is made)
-- @
--
-- The worker is the only thread that makes values. An idle 'Background' has no thread and no timer.
--
-- Any thread may call these functions.
module Weft.Static.Background
  ( Background,
    newBackground,
    lookupMade,
    makeLater,
    fits,
    backgroundMetrics,
  )
where

import Control.Concurrent (forkIOWithUnmask)
import Control.Exception (SomeException, mask_, try)
import Control.Monad (forM_, when)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Data.IORef
import Data.Sequence (Seq, ViewL (..), viewl, (|>))
import qualified Data.Sequence as Seq
import GHC.Conc (labelThread)
import Weft.Core.PerProcess
import Weft.Core.Time (Instant (..))
import Weft.Static.Cache
import Weft.Sys (now)
import Weft.Thread (threadDelay)

-- | Values by name.
data Background v = Background
  { backgroundCache :: !(Cache () v),
    -- | The memory that a value takes.
    backgroundSize :: v -> Int,
    -- | Changed atomically. A forked child, in which the worker does not exist, begins idle.
    backgroundState :: !(PerProcess (IORef (State v)))
  }

data State v
  = Idle
  | -- | The first one is being made.
    Working !(Seq (Job v))

data Job v = Job
  { jobName :: !ByteString,
    -- | Its argument gives way to others, and is run every millisecond or so. 'Nothing' if there is nothing to keep.
    jobMake :: IO () -> IO (Maybe v)
  }

-- | For values of the given sizes, which together take at most this number of bytes.
newBackground :: Int -> (v -> Int) -> IO (Background v)
newBackground limit size = (\cache -> Background cache size) <$> newCache limit <*> newPerProcess (newIORef Idle)

-- | The value of a name, if it has been made.
lookupMade :: Background v -> ByteString -> IO (Maybe v)
lookupMade background = lookupCache (backgroundCache background) (Instant minBound)

-- | Whether a value of this size can be kept.
fits :: Background v -> Int -> Bool
fits background = fitsCache (backgroundCache background)

-- | Have a value made that will take about this number of bytes, in place of the one that there is. Nothing happens if
-- others would have to be evicted for it and the name has not been asked for lately ("Weft.Static.Cache"), if it is
-- being made or waits to be, or if too many wait. A value that cannot be made is given up.
makeLater :: Background v -> ByteString -> Int -> (IO () -> IO (Maybe v)) -> IO ()
makeLater background given size make = do
  wanted <- admits (backgroundCache background) 2 given (Keep size)
  when wanted . mask_ $ do
    ref <- ofThisProcess (backgroundState background)
    first <- atomicModifyIORef' ref $ \state -> case state of
      Idle -> (Working (Seq.singleton job), True)
      Working jobs
        | Seq.length jobs > mostWaiting || any ((== given) . jobName) jobs -> (state, False)
        | otherwise -> (Working (jobs |> job), False)
    when first $ do
      thread <- forkIOWithUnmask (\unmask -> work background ref unmask)
      labelThread thread "weft static background"
  where
    -- Copied, since the name may be a slice of a larger string.
    job = Job (B.copy given) make

-- | Bounds the contents that waiting jobs hold. One that finds no place is asked for again by the next request.
mostWaiting :: Int
mostWaiting = 16

-- | Make values until there are none to make. The argument unmasks.
work :: Background v -> IORef (State v) -> (IO () -> IO ()) -> IO ()
work background ref unmask = do
  state <- readIORef ref
  case state of
    Working jobs | job :< _ <- viewl jobs -> do
      began <- now >>= newIORef
      ended <- try (unmask (keep job (giveWay background began)))
      -- What failed is asked for again. Nobody has this thread's identity, so nobody but the run-time system ends it.
      either (\e -> const (pure ()) (e :: SomeException)) pure ended
      more <- atomicModifyIORef' ref $ \s -> case s of
        Working others | rest <- Seq.drop 1 others, not (Seq.null rest) -> (Working rest, True)
        _ -> (Idle, False)
      when more (work background ref unmask)
    _ -> pure ()
  where
    keep job pause = do
      value <- jobMake job pause
      pause
      forM_ value $ \v ->
        fetch (backgroundCache background) (jobName job) (Keep . backgroundSize background) (\_ -> pure (Right (Changed (Instant 0) v)))

-- | Sleep in proportion to the time since the last call or the beginning, which the reference has. That is at least the
-- processor's time that was used: so the worker has at most an eighth of a core, and an eighth of that while each value
-- takes the place of another one, so that values which do not all fit do not keep a core busy for nothing.
giveWay :: Background v -> IORef Instant -> IO ()
giveWay background began = do
  Instant from <- readIORef began
  Instant to <- now
  full <- not <$> hasRoom (backgroundCache background)
  threadDelay (fromIntegral ((to - from) * (if full then 63 else 7) `div` 1000))
  now >>= writeIORef began

-- | The statistics of what was made.
backgroundMetrics :: Background v -> IO CacheMetrics
backgroundMetrics = cacheMetrics . backgroundCache
