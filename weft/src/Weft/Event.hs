-- |
-- The event API, for programs, or parts of them, that are driven by events (after section 6 of O'Sullivan and Tibell,
-- /Scalable Event Handling for GHC/, 2010). A manager watches descriptors and timers and
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
-- Some names are also those of other modules ('init' of "Prelude", 'new' of "Foreign", 'closeFd' of "System.Posix.IO"):
-- programs that use both import this module qualified.
--
-- Every function may be called from any thread, and from callbacks, while the
-- manager runs, unless its documentation says otherwise. Callbacks for events and timers run on the thread that runs
-- the manager, one at a time. Others run on the calling thread, possibly at the same time: that of a descriptor that
-- is always ready in 'registerFd', and those with 'evtClose' in 'closeFd', and in 'shutdown' if no turn is running.
-- Callbacks must not block: while one runs, no
-- other event is handled. An exception in a callback goes to the program's handler for
-- uncaught exceptions ('GHC.Conc.setUncaughtExceptionHandler'), in the order of the exceptions and on a thread of its
-- own; whatever the handler does, the manager goes on.
--
-- Close a descriptor by 'closeFd'. If a program closes a number by close(2) and a duplicate of it is open, the kernel
-- still reports events for the number, but may refuse it when the manager has to register what is left after an event
-- or after 'unregisterFd'. The registrations that are left then end, with 'evtClose'; the others of the manager go on.
--
-- Callbacks run with asynchronous exceptions masked. An exception that another thread throws at the one that runs the
-- manager ('Control.Concurrent.killThread') arrives between turns, so that no event is lost; but it interrupts a
-- callback that blocks. A callback that ends with an asynchronous exception ('Control.Exception.SomeAsyncException',
-- except @StackOverflow@) ends 'loop' after the turn.
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
import Data.IORef (IORef, atomicModifyIORef', newIORef, readIORef)
import System.Posix.Types (Fd)
import Weft.Backend.Choice
import Weft.Core.Boundary (guarded)
import Weft.Core.Events
import qualified Weft.Core.Manager as Core
import Weft.Core.Registry (Placed (..), closeRegistered, register, unregister)
import Weft.Core.Time (Instant, after)
import Weft.Core.Timer (Timer, cancelTimer, defuseTimer)
import Weft.Duration
import Weft.Sys (interruptiblyMasked, mask_, now)
import Weft.TimerQueue (newQueue)
import Weft.Watchdog.Bound (boundFromEnvironment)
import Prelude hiding (init)

-- | Watches descriptors and timers, and runs callbacks.
type EventManager = Core.Manager

-- | A manager over the best back end of the machine ('newDefaultBackend').
new :: IO EventManager
new = newWith =<< newDefaultBackend

-- | A manager over that back end. The manager owns it from now on and closes it.
newWith :: Backend -> IO EventManager
newWith backend = do
  boundFromEnvironment
  registry <- Core.newManagerRegistry
  queue <- newQueue
  Core.newManager (-1) registry queue (\t -> defuseTimer t (pure ()) (\_ -> pure ())) (pure backend)

-- | The name of its back end.
managerBackendName :: EventManager -> String
managerBackendName = backendName . Core.managerBackend

-- | Declare that the calling thread is going to run the manager with 'step'.
-- ('loop' includes this.) Throws a user error if a thread has done so before,
-- or the manager was shut down.
init :: EventManager -> IO ()
init m = do
  ok <- Core.initialize m
  unless ok (ioError (userError "Weft.Event.init: the manager is run already, or was shut down"))

-- | One turn: run the callbacks of timers that are due and of descriptors that are ready. If there are none, block
-- until there are, or until 'wakeManager'. 'False' means that the manager was shut down
-- and has cleaned up: do not call 'step' again. Only for the thread that called
-- 'init'. Interruptible between turns, not while it blocks: to stop it use
-- 'shutdown'.
step :: EventManager -> IO Bool
step = Core.step

-- | 'init', then turns until the manager is shut down. Use an unbound thread
-- ('Control.Concurrent.forkIO', 'Control.Concurrent.runInUnboundThread'): each
-- switch between a bound thread, such as @main@'s, and another one switches OS threads.
-- Returns at once if the manager was shut down already. If the thread is killed
-- here, the manager is shut down. It can be killed here even if its caller has masked
-- exceptions (unless uninterruptibly), but not while it blocks in the kernel; 'wakeManager' ends that.
loop :: EventManager -> IO ()
loop m = mask_ $ do
  ours <- Core.initialize m
  if ours
    then Core.loop m
    else Core.isAlive m >>= \alive -> when alive (init m)

-- | Stop a manager and release its kernel objects. Callbacks that are still registered
-- run with 'evtClose'; pending timers never fire. Returns when that is done. If it is called
-- from a callback, it returns at once, and 'loop' or 'step' does the work when the callback has ended. If no turn is
-- running, the calling thread does the work and runs the callbacks. Repeating it has no effect.
shutdown :: EventManager -> IO ()
shutdown = Core.shutdown

-- | Make a 'step' that blocks return. If none blocks, the next one does not block. Costs a system call only
-- if one blocks.
wakeManager :: EventManager -> IO ()
wakeManager = Core.wakeManager

-- Descriptors ----------------------------------------------------------------------

-- | A callback for a descriptor. It gets the key of its registration and the events that have
-- happened: of those that were asked for, and 'evtHangup' and 'evtClose'.
type IOCallback = FdKey -> Events -> IO ()

-- | A registration. It belongs to the manager that it was made with.
data FdKey = FdKey
  { -- | Its descriptor.
    keyFd :: !Fd,
    keyNumber :: !Int,
    keyManager :: !EventManager
  }

instance Eq FdKey where
  a == b = keyFd a == keyFd b && keyNumber a == keyNumber b && Core.sameManager (keyManager a) (keyManager b)

instance Show FdKey where
  showsPrec d k = showParen (d > 10) (showString "FdKey " . showsPrec 11 (keyFd k))

-- | Run a callback when a descriptor is ready. A descriptor may have several
-- registrations; an event runs the callbacks of all that asked for it.
--
-- A 'OneShot' registration ends with its first event. A 'MultiShot' one is
-- level-triggered: it runs at every turn for as long as the event holds.
--
-- If the descriptor is always ready (a regular file), the callback runs once, at
-- once, on the calling thread, and nothing is registered.
--
-- Throws an 'IOError' (@EBADF@) when the descriptor is negative or not open, on every back end, and a user error when
-- the manager was shut down. O(log n), one system call or two; the manager is woken if its back end needs it.
registerFd :: EventManager -> IOCallback -> Fd -> Events -> Lifetime -> IO FdKey
registerFd m callback fd evs lifetime = do
  -- 'evtOrphaned' is for Weft's own callbacks.
  let called number = interruptiblyMasked . callback (FdKey fd number m) . (`without` evtOrphaned)
  placed <- register (Core.managerRegistry m) m fd evs lifetime called
  case placed of
    Placed key -> pure (FdKey fd key m)
    ManagerGone -> ioError (userError "Weft.Event.registerFd: the manager was shut down")
    Ready -> do
      let key = FdKey fd (-1) m
      key <$ guarded (callback key (evs `common` (evtRead <> evtWrite)))

-- | 'registerFd' without the key.
registerFd_ :: EventManager -> IOCallback -> Fd -> Events -> Lifetime -> IO ()
registerFd_ m callback fd evs lifetime = void (registerFd m callback fd evs lifetime)

-- | End a registration. It does not throw. 'True' if it existed; no effect if it has ended, as a 'OneShot' has when its
-- callback begins. Its callback does not begin any more. If the manager's thread has begun it before, it may still be
-- running when this returns, or may not have got to its first action. Only a callback can be sure that no other one
-- runs: what they use is best released there. The manager is that of the registration, whichever is given. O(log n).
unregisterFd :: EventManager -> FdKey -> IO Bool
unregisterFd _ key = unregister (Core.managerRegistry (keyManager key)) (keyFd key) (keyNumber key)

-- | 'unregisterFd' without its result.
unregisterFd_ :: EventManager -> FdKey -> IO ()
unregisterFd_ m = void . unregisterFd m

-- | Close a descriptor by the given action. Its registrations end, and their
-- callbacks run with 'evtClose' on the calling thread. Meanwhile no thread can register the
-- descriptor, or a new one of the same number. An exception of the action is thrown after that.
closeFd :: EventManager -> (Fd -> IO ()) -> Fd -> IO ()
closeFd m close fd = closeRegistered (Core.managerRegistry m) fd (const (close fd))

-- Timers -----------------------------------------------------------------------------

-- | A callback for a timer.
type TimeoutCallback = IO ()

-- | A timer: its manager, what fires, and its present entry in the queue, which 'updateTimeout' replaces.
data TimeoutKey = TimeoutKey !EventManager TimeoutCallback !(IORef Entry)

-- | @
--   Unset      before the first timer is stored
--   Set        -> Set ('updateTimeout' has set another one), Gone
--   Gone       'unregisterTimeout' was called; for good
-- @
--
-- Changed atomically, by any thread. A timer that fires checks for 'Gone', since 'updateTimeout' sets the new timer
-- before it can store it.
data Entry = Unset | Set !Timer | Gone

-- | Run a callback after that time, never earlier, on the manager's thread. If the time is zero
-- or less, in the next turn; if it is 'maxBound', never. One compare-and-swap, and a wake-up only
-- if the manager would sleep too long.
registerTimeout :: EventManager -> Duration -> TimeoutCallback -> IO TimeoutKey
registerTimeout m d action = do
  entry <- newIORef Unset
  let key = TimeoutKey m (unlessGone entry) entry
  due <- after d <$> now
  key <$ setEntry key due
  where
    unlessGone entry = do
      found <- readIORef entry
      case found of
        Gone -> pure ()
        _ -> interruptiblyMasked action

-- | Set a timer and store it, unless the key was unregistered meanwhile. Masked, so that no timer is lost.
setEntry :: TimeoutKey -> Instant -> IO ()
setEntry (TimeoutKey m fire entry) due = mask_ $ do
  t <- Core.addTimer m due fire
  gone <- atomicModifyIORef' entry $ \found -> case found of
    Gone -> (Gone, True)
    _ -> (Set t, False)
  when gone (void (cancelTimer t))

-- | Let a timer fire after the given duration from now instead. No effect if it has fired. It stays with its manager,
-- whichever is given.
updateTimeout :: EventManager -> TimeoutKey -> Duration -> IO ()
updateTimeout _ key@(TimeoutKey _ _ entry) d = mask_ $ do
  due <- after d <$> now
  found <- readIORef entry
  case found of
    Set old -> cancelTimer old >>= \won -> when won (setEntry key due)
    _ -> pure ()

-- | Cancel a timer. No effect if it has fired. The manager is that of the timer, whichever is given: the argument is that
-- of the paper's interface, and of @GHC.Event@.
unregisterTimeout :: EventManager -> TimeoutKey -> IO ()
unregisterTimeout _ (TimeoutKey _ _ entry) = do
  found <- atomicModifyIORef' entry (\found -> (Gone, found))
  case found of
    Set t -> void (cancelTimer t)
    _ -> pure ()
