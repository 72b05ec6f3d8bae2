-- |
-- Signals as events: within a block, some signals of the process are noted, and threads wait for them.
--
-- > withSignals [sigTERM, sigINT, sigHUP] $ \signals -> withServer settings handler $ \server ->
-- >   let go = do
-- >         signal <- waitSignal signals noDeadline
-- >         if signal == sigHUP then reload >> go else void (drainServer server (seconds 30))
-- >    in go
--
-- A wait is an ordinary one: it has a deadline, an exception interrupts it, and it may be a thread of a "Weft.Scope" or
-- one side of 'Weft.Scope.race'.
--
-- /Signals are merged./ A signal that comes again before it was waited for is noted once, as the kernel itself does
-- with one that is pending (signal(7)); so a signal says that something has happened since it was last waited for,
-- not how often. Different signals are noted in the order in which GHC runs their handlers, which is that of their
-- arrival if they come one at a time.
--
-- /Handlers that were there come back./ While the block runs, a handler that the program or a library has for such a
-- signal (@System.Posix.Signals@, or sigaction(2) in C) is not called; afterwards it is again, exactly as it was.
-- Blocks may be nested or overlap in any order: each one gets the signal, and the last one to end restores the
-- handler. A handler that is installed during the block takes the signal away, and is lost at its end. GHC's library
-- queues signals before it runs their handlers: what is in its queue when the last block ends goes to the handler
-- from before, or nowhere.
--
-- /A flood may lose signals./ That queue is a pipe of GHC's run-time system with room for some hundred signals, the same
-- one for all of them. One that comes while it is full is lost, whichever it is, and the run-time system says so on
-- standard error (@lost signal due to full pipe@).
--
-- A child of 'System.Posix.Process.forkProcess' inherits what the process does at signals. It can use blocks of its own.
-- Those of its parent do not end there, so that the handlers from before do not come back.
--
-- It is done with GHC's own handlers, and not by signalfd(2): that takes only signals which are blocked in every
-- thread, and threads that the run-time system and C libraries started before have masks of their own, as has every
-- program that would inherit such a mask. A signal takes the way of GHC's I\/O manager, some tens of microseconds.
--
-- @since 0.1.0
module Weft.Signal
  ( -- * Waiting
    Signals,
    withSignals,
    waitSignal,
    waitSignalSTM,

    -- * Signals
    Signal,
    sigHUP,
    sigINT,
    sigQUIT,
    sigTERM,
    sigUSR1,
    sigUSR2,
    sigCHLD,
    sigKILL,
    sigSTOP,
    sigCONT,
  )
where

import Control.Concurrent.MVar
import Control.Concurrent.STM
import Control.Exception
import Control.Monad (forM_, unless, void, when)
import Data.Dynamic (Dynamic, toDyn)
import Data.IORef
import qualified Data.IntMap.Strict as IntMap
import Data.List (delete, nub)
import Foreign.C.Error (Errno (..), eINVAL)
import Foreign.C.Types (CInt)
import Foreign.ForeignPtr (ForeignPtr, mallocForeignPtrBytes, withForeignPtr)
import Foreign.Ptr (nullPtr)
import GHC.Conc (HandlerFun, setHandler)
import System.IO.Unsafe (unsafePerformIO)
import System.Posix.Signals
import Weft.Core.PerProcess
import Weft.Deadline (Instant, atomicallyUntil, timeoutError)
import Weft.FFI.Errno (throwErrnoCode, throwIfNegative_)
import Weft.FFI.Signal

-- | The signals of a block that have been noted and not waited for, in order, each of them once. Handlers add to it,
-- and threads that wait take from it.
newtype Signals = Signals (TVar [Signal])
  deriving (Eq)

-- | What the process does at a signal instead of what it did before.
data Noting = Noting
  { -- | What it did before, for the kernel, the run-time system, and GHC's library.
    notingKernel :: !(ForeignPtr SigAction),
    notingRuntime :: !CInt,
    notingHandler :: !(Maybe (HandlerFun, Dynamic)),
    -- | The blocks that it is noted for; at least one.
    notingFor :: ![Signals]
  }

-- | By signal. Written by blocks that begin and end, one at a time ('changing'), which wait for nothing in between; read
-- by handlers.
notings :: IORef (IntMap.IntMap Noting)
notings = unsafePerformIO (newIORef IntMap.empty)
{-# NOINLINE notings #-}

-- | Held by a block that changes what the process does at a signal. Apart from 'notings', as a forked child keeps these,
-- and a thread of its parent may hold the lock at the fork.
changing :: PerProcess (MVar ())
changing = unsafePerformIO (newPerProcess (newMVar ()))
{-# NOINLINE changing #-}

changed :: (IntMap.IntMap Noting -> IO (IntMap.IntMap Noting)) -> IO ()
changed f = ofThisProcess changing >>= \lock -> withMVar lock (\_ -> readIORef notings >>= f >>= writeIORef notings)

-- | Note these signals while the action runs, and put back what was there before. What is noted and not waited for at
-- the end is dropped.
--
-- Throws @EINVAL@ if one of them cannot be handled (@SIGKILL@, @SIGSTOP@), or is not a signal. The action must not be
-- given up to a child of 'System.Posix.Process.forkProcess': its threads do not exist there, and the signals are noted
-- for nobody.
withSignals :: [Signal] -> (Signals -> IO a) -> IO a
withSignals wanted act = mask $ \restore -> do
  signals <- Signals <$> newTVarIO []
  let distinct = nub wanted
      end begun = uninterruptibleMask_ (forM_ begun (forget signals))
      beginAll begun left = case left of
        [] -> pure ()
        signal : rest -> do
          note signals signal `onException` end begun
          beginAll (signal : begun) rest
  beginAll [] distinct
  restore (act signals) `finally` end distinct

-- | Take the next signal; wait until there is one. Each noted signal is given to one of the threads that wait. If the
-- deadline passes first, it throws an error that satisfies 'Weft.Socket.isTimeout'. If it throws, it has taken nothing.
waitSignal :: Signals -> Instant -> IO Signal
waitSignal signals deadline =
  mask_ (atomicallyUntil deadline (waitSignalSTM signals)) >>= maybe (ioError (timeoutError "Weft.Signal.waitSignal")) pure

-- | 'waitSignal' in a transaction, together with other things that it may wait for.
waitSignalSTM :: Signals -> STM Signal
waitSignalSTM (Signals noted) = do
  found <- readTVar noted
  case found of
    [] -> retry
    signal : rest -> signal <$ writeTVar noted rest

-- Handlers ---------------------------------------------------------------------------

-- | GHC runs it in a thread of its own. One transaction, so that all blocks have noted it at once.
arrived :: Signal -> IO ()
arrived signal = do
  ofThisProcess changing >>= readMVar
  found <- IntMap.lookup (fromIntegral signal) <$> readIORef notings
  atomically . forM_ (maybe [] notingFor found) $ \(Signals noted) -> do
    before <- readTVar noted
    unless (signal `elem` before) (writeTVar noted (before <> [signal]))

note :: Signals -> Signal -> IO ()
note signals signal = changed $ \before -> do
  noting <- maybe (begin signal) pure (IntMap.lookup key before)
  pure (IntMap.insert key noting {notingFor = signals : notingFor noting} before)
  where
    key = fromIntegral signal

-- | The handler is in GHC's table before the kernel knows of it.
begin :: Signal -> IO Noting
begin signal = do
  kernel <- mallocForeignPtrBytes sigActionRoom
  throwIfNegative_ loc (withForeignPtr kernel (cSignalSave signal))
  -- This changes nothing, but that the kernel refuses it for signals which cannot be handled; the run-time system would
  -- print a line.
  throwIfNegative_ loc (withForeignPtr kernel (cSignalRestore signal))
  handler <- setHandler signal (Just (const (arrived signal), toDyn (arrived signal)))
  runtime <- cSignalInstall signal installed nullPtr
  when (runtime == refused) (setHandler signal handler >> throwErrnoCode loc invalid)
  pure (Noting kernel runtime handler [])
  where
    loc = "Weft.Signal.withSignals"
    Errno invalid = eINVAL

forget :: Signals -> Signal -> IO ()
forget signals signal = changed $ \before -> case IntMap.lookup key before of
  Nothing -> pure before
  Just noting
    | null left -> IntMap.delete key before <$ putBack noting
    | otherwise -> pure (IntMap.insert key noting {notingFor = left} before)
    where
      left = delete signals (notingFor noting)
  where
    key = fromIntegral signal
    putBack noting = do
      _ <- cSignalInstall signal (notingRuntime noting) nullPtr
      _ <- withForeignPtr (notingKernel noting) (cSignalRestore signal)
      void (setHandler signal (notingHandler noting))
