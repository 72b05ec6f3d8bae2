-- |
-- What a thread is to the scheduler (2007, section 3): a trace, the sequence of its
-- system calls, unfolded one node at a time; and beside it, for those threads that
-- have more than that, a context. The types are one recursive group, so they are in
-- one module; nothing here does anything.
--
-- A node holds what comes after it as a function, not as a lazy trace: a function is
-- a word smaller than a thunk, costs no update, and leaves nothing behind in the old
-- generation for the collector to follow.
--
-- Fields that are shared say who writes them. \"The loop\" is the thread that runs it.
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

-- | The next system call of a thread. The monad makes these nodes, the machine
-- ("Weft.Hybrid.Interpreter") consumes them.
data Trace
  = -- | The thread is done.
    Ret
  | -- | Let others run.
    Yield Task
  | -- | A new thread, and what the old one does next.
    Fork Task Task
  | -- | Run something that does not block.
    NonBlocking (IO Trace)
  | -- | Any other system call, in terms of the loop and the thread's context: all
    -- that park a thread, and those that programs add. The answer is the next node.
    Call (Loop -> Context -> IO Trace)
  | -- | Raise an exception.
    Throw SomeException
  | -- | Run the first with the second as handler; it ends with 'Uncatch'.
    Catch Task (SomeException -> Trace)
  | -- | The protected part is over.
    Uncatch Task
  | -- | Go on in another context.
    Enter Context Task
  | -- | Answer of a 'Call': the thread was put away, and somebody will resume it.
    Parked
  | -- | What a queue answers that has nothing to run.
    Idle

-- | A thread that can be run.
type Task = () -> Trace

-- Contexts ------------------------------------------------------------------------

-- | What a thread has beside its trace. Immutable; the machine holds the running
-- thread's. Most threads have nothing, and share one.
data Context
  = Plain
  | -- | Nothing but handlers, as a thread of a server has: 64 bytes less than the other.
    Handling !Handlers
  | With !Extra

-- | What there may be.
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

-- | When another thread's exception may be raised in a thread.
data Mask
  = -- | At its next system call.
    Unmasked
  | -- | Only where it parks.
    Masked
  | -- | Not at all.
    Uninterruptible
  deriving (Eq, Ord, Show)

-- | Can others name the thread?
data Identity = Anonymous | Known !Thread

-- | What a context has.
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

-- | Its priority.
contextPriority :: Context -> Int
contextPriority (With x) = extraPriority x
contextPriority _ = 0

-- | Its handlers.
contextHandlers :: Context -> Handlers
contextHandlers Plain = NoHandlers
contextHandlers (Handling hs) = hs
contextHandlers (With x) = extraHandlers x

-- Threads -------------------------------------------------------------------------

-- | A thread that can be named.
data Thread = Thread
  { -- | Moved by compare-and-swap; see 'ThreadState'.
    threadState :: !(Ref ThreadState),
    -- | Written by anybody.
    threadLabel :: !(Ref String),
    -- | Who wants to hear of its end. Moved by compare-and-swap.
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
--               -> Waiting   the thread itself, when it parks: one number higher
--               -> Active    one exception more (anybody), or less (the thread)
--               -> Finished  the thread
--   Waiting   parked, with that number
--               -> Active    who resumes it, or who sends an exception and is about to
--                            withdraw the wait
--               -> Waiting   one exception more, when the thread does not take it there
--   Finished  it has ended
-- @
data ThreadState
  = Active !Int [SomeException]
  | -- | The context to go on in, and what withdraws the wait: 'False' when it is not there, as
    -- what it waits for has happened, and the result is on the way.
    Waiting !Int [SomeException] !Context (IO Bool)
  | Finished

-- | Who is to be told of a thread's end, by number; or how it ended.
data Watchers
  = Watchers !(IntMap.IntMap Watcher)
  | Ended (Either SomeException ())

-- | One of these: an action, or a thread that waits, with its loop.
data Watcher
  = Hears (Either SomeException () -> IO ())
  | Joins !Loop !Waiter (Either SomeException () -> Trace)

-- | A parked thread: the context to go on in; and which of its waits it is, or, if it has a context
-- but no identity, the number of its scheduler.
data Waiter = Waiter !Context !Int

-- Loops ---------------------------------------------------------------------------

-- | A scheduler of one capability: one GHC thread that runs traces, events and
-- timers.
data Loop = Loop
  { loopIndex :: !Int,
    -- | Its events and timers; run by the loop.
    loopManager :: !Manager,
    -- | Threads that are ready; the loop's alone.
    loopReady :: !Ready,
    -- | Threads that others have made ready. Pushed on by anybody, emptied by the
    -- loop.
    loopInbox :: !(Ref Inbox),
    -- | The running thread's context, for the case that it throws. The loop's alone.
    loopContext :: !(Ref Context),
    -- | The machine's pace (see there). The loop's alone.
    loopPace :: !AtomicWords,
    -- | It, as descriptors refer to it: 'Owner' and 'Moving', one of each, as they are compared
    -- by their addresses.
    loopOwner, loopMoving :: Owner,
    loopScheduler :: !Scheduler
  }

-- | The queue of a loop: the one that is built in, or another.
data Ready = RoundRobin !Fifo | Custom !Queue

-- | There is always room for one more. What is at which index: "Weft.Hybrid.Ready".
newtype Fifo = Fifo Arrays

-- | The chunks in between, closed: the next ones, and the last ones, the latest first; and an empty
-- one, open, if one was used up.
data Chunks = Chunks [SmallArray Task] [SmallArray Task] [SmallArray Task]

-- | A queue of threads that are ready, which is all that a scheduling policy is.
-- Used by one loop.
data Queue = Queue
  { -- | Put a thread in.
    queuePush :: !(Context -> Task -> IO ()),
    -- | Take the next one out; one that goes on as 'Idle' when there is none.
    queuePop :: !(IO Task),
    -- | How many there are.
    queueSize :: !(IO Int)
  }

-- | Whose manager reports a descriptor's events; or whose is going to, while a thread of that loop
-- is busy with it.
data Owner = Nobody | Owner !Loop | Moving !Loop

-- | The latest first.
data Inbox = NoMail | Mail !Context Task Inbox

-- | Loops that share their work.
data Scheduler = Scheduler
  { -- | Written before any loop runs.
    schedulerLoops :: !(Ref (BoxedArray Loop)),
    -- | Cell 0: how many loops sleep, or are about to; cell i+1: whether loop i does.
    -- Raised by the loop itself, taken back by whoever moves it by compare-and-swap.
    schedulerIdle :: !AtomicWords,
    -- | Cell 0: 1 when the loops are to end; anybody writes it, once. Cell 1: loops
    -- that still run; counted down by each.
    schedulerStop :: !AtomicWords,
    -- | Of the end, see "Weft.Hybrid.Shutdown": loops that know of it; loops that have told their
    -- threads; threads that were told and have not ended. Changed by atomic additions.
    schedulerEnding :: !AtomicWords,
    -- | Threads for which somebody outside of the loops works. Changed by atomic additions.
    schedulerOutside :: !AtomicWords,
    -- | How long the threads may take to end.
    schedulerGrace :: !Duration,
    -- | Full when all loops have ended.
    schedulerEnded :: !(MVar ()),
    -- | What is done about a thread that died of an exception: its label, if it has
    -- one.
    schedulerOnException :: !(Maybe String -> SomeException -> IO ()),
    -- | What is done about a labelled thread that nothing can wake.
    schedulerOnDeadlock :: !(String -> IO ()),
    -- | What is done about a step that has not ended for so long, of a thread with that label.
    schedulerOnStall :: !(Maybe String -> Duration -> IO ()),
    -- | Of the watchdog: 1 in cell 0 while it waits for 'schedulerRouse', as all loops sleep.
    schedulerWatched :: !AtomicWords,
    schedulerRouse :: !(MVar ()),
    -- | The process image that made it ('forkGeneration').
    schedulerGeneration :: !Int,
    -- | Tells it from others; not 0.
    schedulerNumber :: !Int
  }
