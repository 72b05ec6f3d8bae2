-- |
-- The event API (2010, section 6), public and stable: for programs, or parts of
-- them, that are driven by events. A manager watches descriptors and timers and
-- runs callbacks; any number of managers may live at once. Threads that only want
-- to wait for something are better served by "Weft.Thread" and "Weft.Socket".
--
-- > import Weft.Event
-- >
-- > main :: IO ()
-- > main = do
-- >   manager <- new
-- >   _ <- registerTimeout manager (milliseconds 500) (putStrLn "half a second" >> shutdown manager)
-- >   loop manager
--
-- Every function may be called from any thread, and from callbacks, while the
-- manager runs, with the exceptions that are named. Callbacks run on the thread
-- that runs the manager, one at a time. They must not block: while one runs, no
-- other event is seen. What a callback throws goes to the program's handler for
-- uncaught exceptions and harms nobody else.
--
-- Callbacks run with asynchronous exceptions masked. An exception that another thread throws at the one that runs the manager
-- ('Control.Concurrent.killThread') arrives between turns, so that no event is lost; a callback that blocks all the same
-- is interrupted by it. Whatever callback ends with such an exception ('Control.Exception.SomeAsyncException'), it ends
-- 'loop' after the turn.
--
-- @since 0.1.0
module Weft.Event
  ( -- * Managers
    EventManager,
    new,
    newWith,
    newDefaultBackend,
    managerBackendName,

    -- * Running one
    init,
    step,
    loop,
    shutdown,
    wakeManager,

    -- * Descriptors
    Events,
    evtRead,
    evtWrite,
    evtPeerClosed,
    evtHangup,
    evtUrgent,
    evtClose,
    includes,
    Lifetime (..),
    IOCallback,
    FdKey,
    keyFd,
    registerFd,
    registerFd_,
    unregisterFd,
    unregisterFd_,
    closeFd,

    -- * Timers
    TimeoutCallback,
    TimeoutKey,
    registerTimeout,
    updateTimeout,
    unregisterTimeout,

    -- * Back ends
    Backend,
    newBackend,

    -- * Durations
    module Weft.Duration,
  )
where

import Control.Monad (unless, void, when)
import Data.IORef (IORef, newIORef, readIORef, writeIORef)
import System.Posix.Types (Fd)
import Weft.Backend.Choice
import Weft.Core.Events
import qualified Weft.Core.Manager as Core
import Weft.Core.Registry (Placed (..), closeRegistered, register, unregister)
import Weft.Core.Time (after)
import Weft.Core.Timer (Timer, cancelTimer)
import Weft.Duration
import Weft.Sys (guarded, interruptiblyMasked, mask_, now)
import Weft.TimerQueue (newQueue)
import Weft.Watchdog.Bound (boundFromEnvironment)
import Prelude hiding (init)

-- | Watches descriptors and timers, and runs callbacks.
type EventManager = Core.Manager

-- | A manager over the best back end of the machine ('newDefaultBackend').
new :: IO EventManager
new = newWith =<< newDefaultBackend

-- | A manager over that back end, which belongs to it from now on.
newWith :: Backend -> IO EventManager
newWith backend = do
  boundFromEnvironment
  registry <- Core.registryFor
  queue <- newQueue
  Core.newManager (-1) registry queue (\_ _ -> pure ()) backend

-- | The name of its back end.
managerBackendName :: EventManager -> String
managerBackendName = backendName . Core.managerBackend

-- | Declare that the calling thread is going to run the manager with 'step';
-- 'loop' does it by itself. Throws a user error when a thread has done so before,
-- or the manager was shut down.
init :: EventManager -> IO ()
init m = do
  ok <- Core.initialize m
  unless ok (ioError (userError "Weft.Event.init: the manager is run already, or was shut down"))

-- | One turn: runs what is due and what is ready; if there is nothing, blocks
-- until there is, or until 'wakeManager'. 'False' when the manager was shut down
-- and has cleaned up: do not call it again. Only for the thread that called
-- 'init'. Interruptible between turns, not while it blocks: to stop it use
-- 'shutdown'.
step :: EventManager -> IO Bool
step = Core.step

-- | 'init', then turns until the manager is shut down. Best in an unbound thread
-- ('Control.Concurrent.forkIO', 'Control.Concurrent.runInUnboundThread'): each
-- change between a bound thread, such as @main@'s, and others changes OS threads.
-- A manager that was shut down already returns at once. A thread that is killed
-- here shuts its manager down; it can be killed here even where its caller has masked
-- exceptions, unless uninterruptibly, and not while it blocks in the kernel ('wakeManager').
loop :: EventManager -> IO ()
loop m = mask_ $ do
  ours <- Core.initialize m
  if ours
    then Core.loop m
    else Core.isAlive m >>= \alive -> when alive (init m)

-- | Stop a manager and give back its kernel objects: callbacks still registered
-- run with 'evtClose', timers that were set never fire. Returns when that is done,
-- or at once when called from a callback: the 'loop' or the next 'step' then does
-- it. Repeating it has no effect.
shutdown :: EventManager -> IO ()
shutdown = Core.shutdown

-- | Make a 'step' that blocks, or the next one, return. Costs a system call only
-- when it does block.
wakeManager :: EventManager -> IO ()
wakeManager = Core.wakeManager

-- Descriptors ----------------------------------------------------------------------

-- | A callback for a descriptor. It is given the key of its registration, and those events
-- that were asked for and have happened, with 'evtHangup' or 'evtClose'.
type IOCallback = FdKey -> Events -> IO ()

-- | A registration.
data FdKey = FdKey
  { -- | Its descriptor.
    keyFd :: !Fd,
    keyNumber :: !Int
  }
  deriving (Eq)

instance Show FdKey where
  showsPrec d k = showParen (d > 10) (showString "FdKey " . showsPrec 11 (keyFd k))

-- | Have a callback run when a descriptor is ready. Several registrations of one
-- descriptor stand beside each other; an event runs all that it concerns.
--
-- A 'OneShot' registration ends with its first event. A 'MultiShot' one is
-- level-triggered: it runs at every turn for as long as the event holds.
--
-- On a descriptor that is always ready (a regular file) the callback runs at
-- once, on the calling thread, once, and nothing is registered.
--
-- Throws an 'IOError' (@EBADF@) when the descriptor is negative or not open, on
-- every back end, and a user error when the manager was shut down. O(log n), one system call or two; the manager is woken if its
-- back end needs it.
registerFd :: EventManager -> IOCallback -> Fd -> Events -> Lifetime -> IO FdKey
registerFd m callback fd evs lifetime = do
  placed <- register (Core.managerRegistry m) m fd evs lifetime (\number -> interruptiblyMasked . callback (FdKey fd number))
  case placed of
    Placed key -> pure (FdKey fd key)
    ManagerGone -> ioError (userError "Weft.Event.registerFd: the manager was shut down")
    Ready -> do
      let key = FdKey fd (-1)
      key <$ guarded (callback key (evs `common` (evtRead <> evtWrite)))

-- | 'registerFd' without the key.
registerFd_ :: EventManager -> IOCallback -> Fd -> Events -> Lifetime -> IO ()
registerFd_ m callback fd evs lifetime = void (registerFd m callback fd evs lifetime)

-- | Take a registration back. Its callback does not start any more, though one
-- that has begun may still be running. 'True' if the registration was still there; no effect on one that has ended. O(log n).
unregisterFd :: EventManager -> FdKey -> IO Bool
unregisterFd m key = unregister (Core.managerRegistry m) (keyFd key) (keyNumber key)

-- | 'unregisterFd' without its result.
unregisterFd_ :: EventManager -> FdKey -> IO ()
unregisterFd_ m = void . unregisterFd m

-- | Close a descriptor with the given action; its registrations end, and their
-- callbacks run with 'evtClose' on the calling thread. Nobody can register the
-- descriptor, or a new one of its number, while that is going on. What the
-- action throws is thrown when all is done.
closeFd :: EventManager -> (Fd -> IO ()) -> Fd -> IO ()
closeFd m close fd = closeRegistered (Core.managerRegistry m) fd (close fd)

-- Timers -----------------------------------------------------------------------------

-- | A callback for a timer.
type TimeoutCallback = IO ()

-- | A timer that was set: what it does, and its present place in the queue. Written
-- by whoever moves it.
data TimeoutKey = TimeoutKey TimeoutCallback !(IORef Timer)

-- | Run a callback after that time, on the manager's thread; never earlier. With
-- a time of zero or less, in the next turn. 'maxBound' never comes. One
-- compare-and-swap, and a wake-up only when the manager would sleep too long.
registerTimeout :: EventManager -> Duration -> TimeoutCallback -> IO TimeoutKey
registerTimeout m d action = do
  due <- after d <$> now
  t <- Core.addPlainTimer m due callback
  TimeoutKey callback <$> newIORef t
  where
    callback = interruptiblyMasked action

-- | Let a timer that has not fired fire after that time, from now.
updateTimeout :: EventManager -> TimeoutKey -> Duration -> IO ()
updateTimeout m (TimeoutKey callback ref) d = do
  due <- after d <$> now
  old <- readIORef ref
  won <- cancelTimer old
  when won (Core.addPlainTimer m due callback >>= writeIORef ref)

-- | Cancel a timer. No effect when it has fired.
unregisterTimeout :: EventManager -> TimeoutKey -> IO ()
unregisterTimeout _ (TimeoutKey _ ref) = do
  won <- cancelTimer =<< readIORef ref
  -- Somebody may be moving it at this moment.
  unless won (void (cancelTimer =<< readIORef ref))
