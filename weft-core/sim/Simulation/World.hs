{-# LANGUAGE PackageImports #-}

-- |
-- The state of a run of the simulator: shared objects, threads and where each has stopped, and what
-- the scheduler ("Simulation.Run") and the running thread ("Simulation.Machine") pass to each other. Types and
-- global references without behaviour.
--
-- Either the scheduler or one simulated thread runs, never both. They alternate by the 'MVar's 'agentGo' and
-- 'worldBack', so nothing here needs a lock.
module Simulation.World
  ( -- * Objects and operations
    Object,
    Access (..),
    kernelObject,
    objectOf,
    independent,

    -- * Threads
    Agent (..),
    Masking (..),
    Stop (..),
    Kind (..),
    victim,

    -- * A run
    World (..),
    Asked (..),
    Running (..),
    current,
    learnt,
    runsMade,
    RunIsOver (..),
  )
where

import "base" Control.Concurrent (MVar)
import "base" Control.Exception
import "base" Data.IORef
import Data.Int (Int64)
import qualified Data.IntMap.Strict as IntMap
import qualified Data.IntSet as IntSet
import Simulation.Memory (Memory)
import System.IO.Unsafe (unsafePerformIO)

-- Objects and operations -------------------------------------------------------------

-- | An object that threads may share: its number within a run.
type Object = Int

-- | How an operation accesses an object. It determines whether two operations are independent, that is, whether their
-- order makes no difference.
data Access
  = Reads !Object
  | Writes !Object
  | -- | An operation that depends on every other one.
    Anything
  deriving (Eq, Show)

-- | The whole state of the kernel is one object, and counts as shared.
kernelObject :: Object
kernelObject = 1

-- | Whether the order of two operations makes no difference.
independent :: Access -> Access -> Bool
independent (Reads _) (Reads _) = True
independent a b = case (objectOf a, objectOf b) of
  (Just x, Just y) -> x /= y
  _ -> False

objectOf :: Access -> Maybe Object
objectOf (Reads x) = Just x
objectOf (Writes x) = Just x
objectOf Anything = Nothing

-- Threads ----------------------------------------------------------------------------

-- | The three masking states: unmasked, masked (interruptible where it blocks), masked uninterruptibly.
data Masking = AllIn | WhereItBlocks | NoneIn
  deriving (Eq, Ord, Show)

-- | A simulated thread, as the scheduler sees it.
data Agent = Agent
  { agentNumber :: !Int,
    agentGo :: MVar (),
    -- | The operation before which it has stopped; 'Nothing' if it has ended.
    agentWaits :: IORef (Maybe Stop),
    agentMasking :: IORef Masking,
    -- | The exceptions that others have thrown at it and it has not received, newest first, each with its number in the
    -- run. The run-time system raises the newest one first, too.
    agentPending :: IORef [(Int, SomeException)],
    -- | The number of objects it has made.
    agentMade :: IORef Int,
    -- | How many operations in a row were no scheduling points.
    agentUnseen :: IORef Int
  }

-- | Where a thread has stopped.
data Stop = Stop
  { -- | Whether it can continue now.
    stopReady :: IO Bool,
    -- | The virtual instant from which on it can continue in any case.
    stopUntil :: !Int64,
    stopAccess :: !Access,
    stopWhat :: String,
    stopKind :: !Kind
  }

data Kind
  = -- | An operation that does not block.
    Runs
  | -- | An operation after which others should run first.
    Yields
  | -- | An operation that may block, and is interruptible then.
    Blocks
  | -- | A system call that may block. An exception does not interrupt it.
    BlocksInKernel
  deriving (Eq)

-- | The number in 'worldShared' that stands for a thread as the target of exceptions.
victim :: Int -> Int
victim n = negate (n + 1)

-- A run -------------------------------------------------------------------------------

-- | One run.
data World = World
  { worldAgents :: IORef [Agent],
    worldBack :: MVar Asked,
    worldTime :: IORef Int64,
    -- | Whether the clock advances only if no thread can continue.
    worldPatient :: IORef Bool,
    -- | Objects that are known to be shared, and threads that are known to be targets of exceptions ('victim').
    worldShared :: !IntSet.IntSet,
    -- | Which threads used each other object: two bits for each thread, for reading and for writing.
    worldUsed :: IORef (IntMap.IntMap Int),
    -- | The number of objects that the scenario made before its threads ran.
    worldSetUp :: IORef Int,
    -- | The trace, newest line first.
    worldStory :: IORef [String],
    -- | For each thread, the writes of others that its reads must see.
    worldMemory :: IORef Memory,
    -- | The number of exceptions that threads have thrown at each other.
    worldThrown :: IORef Int,
    -- | The exception that ended a thread, unless it was asynchronous.
    worldFailure :: IORef (Maybe String)
  }

-- | Why a thread returns control to the scheduler: it has stopped or ended, or it asks for a choice.
data Asked = Stopped | Which !Int (MVar Int)

-- | Whether this code runs outside of a simulation, in the set-up of one, or in a simulated thread.
data Running
  = Outside
  | SettingUp World
  | Inside World Agent
  | -- | A value that is global to a process is being created for this run: the number of its first object, and the
    -- count of its objects.
    MakingGlobal !Object (IORef Int)
  | -- | The run is over: a thread that continues ends at its next operation.
    Over

-- | Written by the scheduler before it lets a thread continue; read by that thread.
current :: IORef Running
current = unsafePerformIO (newIORef Outside)
{-# NOINLINE current #-}

-- | The objects and threads ('worldShared') that earlier runs of this search found to be shared. Written between runs.
learnt :: IORef IntSet.IntSet
learnt = unsafePerformIO (newIORef IntSet.empty)
{-# NOINLINE learnt #-}

-- | How many runs have begun in this process. Written as one begins.
runsMade :: IORef Int
runsMade = unsafePerformIO (newIORef 0)
{-# NOINLINE runsMade #-}

-- | Thrown in the threads of a run that is over, to end them.
data RunIsOver = RunIsOver
  deriving (Show)

instance Exception RunIsOver
