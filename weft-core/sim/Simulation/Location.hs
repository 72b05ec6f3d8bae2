{-# LANGUAGE PackageImports #-}

-- |
-- The present and earlier values of a shared location, for a memory in which a read may return an old
-- value ("Simulation.Memory"). The simulated machine ("Weft.Sys" of this directory, "Kernel") stores the
-- present value itself. At each access it calls one of these functions, after the scheduling point, and uses the value
-- that a read returns.
--
-- Which of the possible values a read returns is a choice of the schedule ('choose'). The present value is the
-- ordinary choice. Without 'weakMemory', and outside of a run, a read returns the present value, and no history is
-- kept.
module Simulation.Location
  ( weakMemory,

    -- * Locations
    History,
    newHistory,

    -- * Accesses
    readPlainly,
    readAtomically,
    writePlainly,
    writeReleasing,
    exchange,
    refuseExchange,
    synchronise,
  )
where

import Control.Monad (when)
import "base" Data.IORef
import qualified Data.IntMap.Strict as IntMap
import Simulation.Machine
import Simulation.Memory
import Simulation.World

-- | To be called at the beginning of a scenario: in each run, at most that number of reads may return an old value.
weakMemory :: Int -> IO ()
weakMemory n = do
  running <- readIORef current
  case running of
    SettingUp w -> writeIORef (worldMemory w) (weakMemoryWith n)
    _ -> pure ()

-- | The overwritten values of each array index: newest first, each with the instant at which it was written.
newtype History a = History (IORef (IntMap.IntMap [(Int, a)]))

-- | An empty history.
newHistory :: IO (History a)
newHistory = History <$> newIORef IntMap.empty

-- | How many old values of a location are kept.
depth :: Int
depth = 3

-- | Run the action with the thread's number if the run has a weak memory; otherwise return the first argument.
inWeak :: a -> (World -> Int -> Memory -> IO a) -> IO a
inWeak otherwise' act = do
  running <- readIORef current
  case running of
    Inside w a -> do
      m <- readIORef (worldMemory w)
      if isWeak m then act w (agentNumber a) m else pure otherwise'
    _ -> pure otherwise'

-- | Read an object: its present value, which is given with its index, or an older one.
readPlainly, readAtomically :: Object -> History a -> Int -> a -> IO a
readPlainly = readAs Plain
readAtomically = readAs Atomic

readAs :: ReadKind -> Object -> History a -> Int -> a -> IO a
readAs kind object (History h) i present = inWeak present $ \w thread m -> do
  older <- IntMap.findWithDefault [] i <$> readIORef h
  let lowest = earliest kind thread object m
      possible = takeWhile ((> lowest) . fst) older
      writtenAts = map fst older <> [0]
  k <- if staleLeft m > 0 then choose (1 + length possible) else pure 0
  when (k > 0) (note ("reads it early: what was there before " <> show k <> " writes"))
  let saw = sawValueOf kind thread object (writtenAts !! k)
  writeIORef (worldMemory w) (saw (if k > 0 then tookStale m else m))
  pure (if k > 0 then snd (possible !! (k - 1)) else present)

-- | To be called before a write, with the object's present value and its index.
writePlainly, writeReleasing, exchange :: Object -> History a -> Int -> a -> IO ()
writePlainly = replacing wrote
writeReleasing = replacing released
exchange = replacing exchanged

replacing :: (Int -> Object -> Memory -> Memory) -> Object -> History a -> Int -> a -> IO ()
replacing how object (History h) i old = inWeak () $ \w thread m -> do
  let m' = how thread object m
  writeIORef (worldMemory w) m'
  modifyIORef' h (IntMap.alter (Just . take depth . ((writtenAt object m', old) :) . maybe [] id) i)

-- | A compare-and-swap found another value than it expected.
refuseExchange :: Object -> IO ()
refuseExchange object = inWeak () (\w thread m -> writeIORef (worldMemory w) (refused thread object m))

-- | An exchange on an object without a history: the run-time system or the kernel took its lock.
synchronise :: Object -> IO ()
synchronise object = inWeak () (\w thread m -> writeIORef (worldMemory w) (exchanged thread object m))
