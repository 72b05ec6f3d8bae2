{-# LANGUAGE PackageImports #-}

-- |
-- What a run of the simulator consists of: shared objects, threads and where each has stopped, and the state that
-- the scheduler ("Simulation.Run") and the running thread ("Simulation.Machine") hand to each other. Types and two
-- global references; no behaviour.
--
-- Either the scheduler or one simulated thread runs, never both: they take turns by the 'MVar's 'agentGo' and 'worldBack'.
-- So nothing here needs a lock.
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

-- | Something that threads may share, by its number within a run.
type Object = Int

-- | What an operation does to an object. It decides whether two operations are independent: their order makes no
-- difference.
data Access
  = Reads !Object
  | Writes !Object
  | -- | Depends on every other operation.
    Anything
  deriving (Eq, Show)

-- | All state of the kernel is one object, and counts as shared.
kernelObject :: Object
kernelObject = 1

-- | Whether the order of the two makes no difference.
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
    -- | The operation before which it has stopped; 'Nothing' when it has ended.
    agentWaits :: IORef (Maybe Stop),
    agentMasking :: IORef Masking,
    agentPending :: IORef [SomeException],
    -- | The number of objects it has made.
    agentMade :: IORef Int
  }

-- | Where a thread has stopped.
data Stop = Stop
  { -- | Whether it can go on now.
    stopReady :: IO Bool,
    -- | The virtual instant from which on it can go on in any case.
    stopUntil :: !Int64,
    stopAccess :: !Access,
    stopWhat :: String,
    stopKind :: !Kind
  }

data Kind
  = -- | An operation.
    Runs
  | -- | An operation after which others should run first.
    Yields
  | -- | An operation that may block, and is interruptible then.
    Blocks
  | -- | A system call that may block. An exception does not interrupt it.
    BlocksInKernel
  deriving (Eq)

-- | The number, in 'worldShared', of a thread at which others throw.
victim :: Int -> Int
victim n = negate (n + 1)

-- A run -------------------------------------------------------------------------------

-- | One run.
data World = World
  { worldAgents :: IORef [Agent],
    worldBack :: MVar Asked,
    worldTime :: IORef Int64,
    -- | Does the clock go on only when no thread can?
    worldPatient :: IORef Bool,
    -- | Objects that are known to be shared, and threads at which others are known to throw ('victim').
    worldShared :: !IntSet.IntSet,
    -- | Which threads used each other object: two bits a thread, one for reading and one for writing.
    worldUsed :: IORef (IntMap.IntMap Int),
    -- | The number of objects that the scenario made before its threads ran.
    worldSetUp :: IORef Int,
    -- | Newest first.
    worldStory :: IORef [String],
    -- | Which writes each thread has to see.
    worldMemory :: IORef Memory,
    -- | What a thread died of that was no asynchronous exception.
    worldFailure :: IORef (Maybe String)
  }

-- | Why a thread gives control back to the scheduler: it has stopped or ended, or it asks for an answer.
data Asked = Stopped | Which !Int (MVar Int)

-- | Who runs.
data Running
  = Outside
  | SettingUp World
  | Inside World Agent
  | -- | Something that is global to a process is made anew for this run: the number of its first object, and how many it has.
    MakingGlobal !Object (IORef Int)
  | -- | The run is over: a thread that goes on ends at its next operation.
    Over

-- | Written by the scheduler before it lets a thread go on; read by that thread.
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
