-- |
-- Hybrid threads as the scheduler sees them (Li and Zdancewic 2007, section 3): a trace, which is the sequence of a
-- thread's system calls, unfolded one node at a time; and a context, for threads that
-- have handlers, an identity and the like. The types are one recursive group, so they are in
-- one module. It has no behaviour.
--
-- A node holds its continuation as a function, not as a lazy trace: a function is
-- a word smaller than a thunk and needs no update, which would be a write to the old
-- generation.
--
-- Comments at shared fields name the writers. \"The loop\" is the thread that runs it.
module Weft.Hybrid.Trace
  ( -- * Traces
    Trace (..),
    Task,

    -- * Contexts
    Context (..),
    Handlers (..),
    Mask (..),
    Identity (..),
    Extra (..),
    extraOf,
    withExtra,
    contextIdentity,
    contextMask,
    contextPriority,
    contextHandlers,

    -- * Threads that have an identity
    Thread (..),
    ThreadState (..),
    Watchers (..),
    Watcher (..),
    Waiter (..),

    -- * Loops
    Loop (..),
    Owner (..),
    Ready (..),
    Fifo (..),
    Chunks (..),
    Queue (..),
    Inbox (..),
    Scheduler (..),
  )
where

import Control.Exception (SomeException)
import qualified Data.IntMap.Strict as IntMap
import GHC.Exts (Any)
import Weft.Core.Manager (Manager)
import Weft.Core.Time (Duration)
import Weft.Hybrid.Arrays (Arrays, SmallArray)
import Weft.Sys

-- Traces ------------------------------------------------------------------------

-- | The next system call of a thread. The monad makes these nodes, and the interpreter
-- ("Weft.Hybrid.Interpreter") runs them.
data Trace
  = -- | The thread has ended.
    Ret
  | -- | Let other threads run.
    Yield Task
  | -- | Start a thread; the second argument is the old one's continuation.
    Fork Task Task
  | -- | Run an action that does not block.
    NonBlocking (IO Trace)
  | -- | Any other system call, as a function of the loop and the thread's context: all
    -- that park a thread, and those that programs add. Its result is the next node.
    Call (Loop -> Context -> IO Trace)
  | -- | Raise an exception.
    Throw SomeException
  | -- | Run the first task with the second as its handler; the task ends with 'Uncatch'.
    Catch Task (SomeException -> Trace)
  | -- | The end of the part that has the handler.
    Uncatch Task
  | -- | Go on in another context.
    Enter Context Task
  | -- | Result of a 'Call': the thread is parked, and will be resumed.
    Parked
  | -- | What an empty queue returns.
    Idle

-- | A thread that can be run.
type Task = () -> Trace

-- Contexts ------------------------------------------------------------------------

-- | The state of a thread besides its trace. Immutable; the interpreter holds the running
-- thread's. Most threads have none, and share 'Plain'.
data Context
  = Plain
  | -- | Only handlers, as most threads of a server have: 64 bytes less than 'With'.
    Handling !Handlers
  | With !Extra

-- | All that a context may have.
data Extra = Extra
  { extraHandlers :: !Handlers,
    extraMask :: !Mask,
    extraThread :: !Identity,
    extraPriority :: !Int,
    -- | Thread-local values, by the number of their variable.
    extraLocals :: !(IntMap.IntMap Any)
  }

-- | The exception handlers in force, innermost first, each with the masking of the
-- place where it was set up.
data Handlers
  = NoHandlers
  | Handler (SomeException -> Trace) !Mask !Handlers

-- | Where exceptions from other threads may be raised.
data Mask
  = -- | At its next system call.
    Unmasked
  | -- | Only where it parks.
    Masked
  | -- | Not at all.
    Uninterruptible
  deriving (Eq, Ord, Show)

-- | Whether other threads can refer to the thread.
data Identity = Anonymous | Known !Thread

-- | The optional parts of a context.
extraOf :: Context -> Extra
extraOf (With x) = x
extraOf Plain = Extra NoHandlers Unmasked Anonymous 0 IntMap.empty
extraOf (Handling hs) = Extra hs Unmasked Anonymous 0 IntMap.empty

-- | The context that has this; the shared one if it is nothing.
withExtra :: Extra -> Context
withExtra (Extra hs Unmasked Anonymous 0 locals) | IntMap.null locals = handling hs
  where
    handling NoHandlers = Plain
    handling _ = Handling hs
withExtra x = With x

-- | The thread's identity.
contextIdentity :: Context -> Identity
contextIdentity (With x) = extraThread x
contextIdentity _ = Anonymous
{-# INLINE contextIdentity #-}

-- | The thread's masking.
contextMask :: Context -> Mask
contextMask (With x) = extraMask x
contextMask _ = Unmasked
{-# INLINE contextMask #-}

-- | The priority of a context.
contextPriority :: Context -> Int
contextPriority (With x) = extraPriority x
contextPriority _ = 0

-- | The handlers of a context.
contextHandlers :: Context -> Handlers
contextHandlers Plain = NoHandlers
contextHandlers (Handling hs) = hs
contextHandlers (With x) = extraHandlers x

-- Threads -------------------------------------------------------------------------

-- | A thread with an identity.
data Thread = Thread
  { -- | Moved by compare-and-swap; see 'ThreadState'.
    threadState :: !(Ref ThreadState),
    -- | Written by any thread.
    threadLabel :: !(Ref String),
    -- | The watchers of its end. Changed by compare-and-swap.
    threadWatchers :: !(Ref Watchers),
    threadScheduler :: !Scheduler
  }

-- | Compares identities.
instance Eq Thread where
  a == b = threadState a == threadState b

-- | Each list: exceptions that were sent and are not raised yet, in order.
--
-- @
--   Active    it runs or is ready; the number counts how often it parked
--               -> Waiting   by the thread itself, when it parks: one number higher
--               -> Active    one exception more (by any thread), or less (by the thread)
--               -> Finished  by the thread
--   Waiting   parked, with that number
--               -> Active    by the thread that resumes it, or by one that sends an exception and is
--                            about to withdraw the wait
--               -> Waiting   one exception more, which its masking does not let in there
--   Finished  it has ended
-- @
data ThreadState
  = Active !Int [SomeException]
  | -- | The context to go on in, and the action that withdraws the wait. 'False' if the wait is over
    -- already, and the thread is about to be resumed.
    Waiting !Int [SomeException] !Context (IO Bool)
  | Finished

-- | The watchers of a thread's end, by number; or the result with which the thread has ended.
data Watchers
  = Watchers !(IntMap.IntMap Watcher)
  | Ended (Either SomeException ())

-- | An action, or a thread that waits, with its loop.
data Watcher
  = Hears (Either SomeException () -> IO ())
  | Joins !Loop !Waiter (Either SomeException () -> Trace)

-- | A parked thread: the context to go on in, and a number: of the wait ('Waiting'), or, if the thread has a context
-- but no identity, of its scheduler.
data Waiter = Waiter !Context !Int

-- Loops ---------------------------------------------------------------------------

-- | A loop: one GHC thread that runs the traces, events and timers of one capability.
data Loop = Loop
  { loopIndex :: !Int,
    -- | The manager of its events and timers, which the loop runs.
    loopManager :: !Manager,
    -- | Threads that are ready. Used by the loop only.
    loopReady :: !Ready,
    -- | Threads that other threads have made ready. Any thread pushes, the
    -- loop empties it.
    loopInbox :: !(Ref Inbox),
    -- | The running thread's context, for when it throws. Used by the loop only.
    loopContext :: !(Ref Context),
    -- | When the interpreter reads the clock (see there). Written by the loop.
    loopClock :: !WordArray,
    -- | The loop as an owner of descriptors: one 'Owner' and one 'Moving', since these are compared
    -- by their addresses.
    loopOwner, loopMoving :: Owner,
    loopScheduler :: !Scheduler
  }

-- | The queue of a loop: the built-in one, or that of a policy.
data Ready = RoundRobin !Fifo | Custom !Queue

-- | A first-in-first-out queue. Its last chunk always has room for one more. The indices are in "Weft.Hybrid.Ready".
newtype Fifo = Fifo Arrays

-- | The chunks between the first and the last one, frozen: those at the front in order, and those at the back, latest
-- first; and an empty one to be used again, or none.
data Chunks = Chunks [SmallArray Task] [SmallArray Task] [SmallArray Task]

-- | A queue of ready threads, as a scheduling policy defines it.
-- Used by one loop only.
data Queue = Queue
  { -- | Put a thread in.
    queuePush :: !(Context -> Task -> IO ()),
    -- | Take the next thread out. If there is none, a task that returns 'Idle'.
    queuePop :: !(IO Task),
    -- | The number of threads in it.
    queueSize :: !(IO Int)
  }

-- | The loop whose manager reports a descriptor's events; or the one that is going to, while one of its threads
-- registers it.
data Owner = Nobody | Owner !Loop | Moving !Loop

-- | The latest first.
data Inbox = NoMail | Mail !Context Task Inbox

-- | Loops that share their work.
data Scheduler = Scheduler
  { -- | Written before any loop runs.
    schedulerLoops :: !(Ref (BoxedArray Loop)),
    -- | Word 0: the number of loops that sleep, or are about to. Word i+1: 1 if loop i does; set by the loop, cleared
    -- by compare-and-swap, and whoever clears it decrements word 0.
    schedulerIdle :: !WordArray,
    -- | Word 0: 1 when the loops have to end; any thread writes it, once. Word 1: the number of loops
    -- that still run; each decrements it.
    schedulerStop :: !WordArray,
    -- | Counters of "Weft.Hybrid.Shutdown": loops that know of the end; loops that have killed their
    -- threads; threads that were killed and have not ended. Changed by atomic additions.
    schedulerEnding :: !WordArray,
    -- | The number of threads that wait for an external call. Changed by atomic additions.
    schedulerOutside :: !WordArray,
    -- | How long the threads may take to end.
    schedulerGrace :: !Duration,
    -- | Full when all loops have ended.
    schedulerEnded :: !(MVar ()),
    -- | 'Weft.Hybrid.Scheduler.settingsOnException'.
    schedulerOnException :: !(Maybe String -> SomeException -> IO ()),
    -- | 'Weft.Hybrid.Scheduler.settingsOnDeadlock'.
    schedulerOnDeadlock :: !(String -> IO ()),
    -- | 'Weft.Hybrid.Scheduler.settingsOnStall'.
    schedulerOnStall :: !(Maybe String -> Duration -> IO ()),
    -- | Word 0: 1 while the watchdog waits for 'schedulerWake', because all loops sleep.
    schedulerWatched :: !WordArray,
    schedulerWake :: !(MVar ()),
    -- | The process image that made it ('forkGeneration').
    schedulerGeneration :: !Int,
    -- | The scheduler's number, which no other scheduler has; not 0.
    schedulerNumber :: !Int
  }
