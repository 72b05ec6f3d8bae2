{-# LANGUAGE MagicHash #-}
{-# LANGUAGE UnboxedTuples #-}
-- Without optimization the functions have another arity, and nothing is redirected.
{-# OPTIONS_GHC -O #-}

-- |
-- The replacements of GHC's own functions. Each has the type and the arity of its
-- original, a function of @base@ that is not exported. (@cbits\/relink.c@ has their names and
-- callers.) Arities and kinds of arguments are compared when
-- the program starts. No function here may be inlined, as the linker redirects the calls.
--
-- @since 0.1.0
module Weft.Relink.Entry
  ( threadWait,
    threadWaitSTM,
    closeFdWith,
    threadDelay,
    registerDelay,
    timeout,
    timeoutExported,
    timeoutUnboxed,
    ensureIOManagerIsRunning,
  )
where

import Control.Concurrent (rtsSupportsBoundThreads)
import Control.Exception (IOException, catch, try)
import Control.Monad (join, when)
import Foreign.C.Error (Errno (..), ePERM)
import Foreign.C.Types (CInt (..))
import GHC.Conc (STM, TVar)
import GHC.Event (Event, evtWrite)
import GHC.Exts (Int (I#), Int#, Ptr (..), RealWorld, State#, addrToAny#, oneShot)
import GHC.IO (unIO)
import System.IO.Error (ioeGetErrorString, ioeSetLocation)
import System.Posix.Types (Fd)
import Weft.Backend (Choice (..), backendChoice)
import Weft.Core.Events (Events)
import qualified Weft.Core.Events as Weft
import Weft.FFI.Errno (throwErrnoCode)
import Weft.Runtime (startManager)
import Weft.StandardError (reportLine)
import qualified Weft.Thread as W
import Weft.Thread.Wait (Ends (..))
import qualified Weft.Thread.Wait as Wait

-- | An action, as the compiler has it.
type Compiled a = State# RealWorld -> (# State# RealWorld, a #)

-- | An action as a function of the state. The lambda of 'oneShot' makes the state a parameter of the function that is
-- defined by it, also if the compiler does not know how many the functions behind it have (@weft@ compiled without
-- optimization).
compiled :: IO a -> Compiled a
compiled action = oneShot (unIO action)
{-# INLINE compiled #-}

-- | Replaces the function of @GHC.Event.Thread@ behind @threadWaitRead@ and @threadWaitWrite@.
threadWait :: Event -> Fd -> Compiled ()
threadWait event fd = compiled (Wait.threadWait (endsLike "threadWait") (eventsOf event) fd)
{-# NOINLINE threadWait #-}

-- | Replaces the function of @GHC.Event.Thread@ behind the STM forms.
threadWaitSTM :: Event -> Fd -> Compiled (STM (), IO ())
threadWaitSTM event fd = compiled (Wait.threadWaitSTM (endsLike "threadWaitSTM") (eventsOf event) fd)
{-# NOINLINE threadWaitSTM #-}

-- | How a wait of GHC's function of that name ends: the errors have GHC's text, and a descriptor that is always ready,
-- such as that of a regular file, is an error, which epoll_ctl(2) gives GHC. (With the back end io_uring it is ready
-- if its number was that of another descriptor that was waited for, and was closed by close(2).)
endsLike :: String -> Ends
endsLike name =
  Ends
    { endRefused = (`ioeSetLocation` "modifyFdOnce"),
      endAlwaysReady = let Errno e = ePERM in throwErrnoCode "modifyFdOnce" e,
      endClosed = name
    }

eventsOf :: Event -> Events
eventsOf event = if event == evtWrite then Weft.evtWrite else Weft.evtRead

-- | @GHC.Event.Thread.closeFdWith@.
closeFdWith :: (Fd -> IO ()) -> Fd -> Compiled ()
closeFdWith close fd = compiled (W.closeFdWith close fd)
{-# NOINLINE closeFdWith #-}

-- | @GHC.Event.Thread.threadDelay@; in microseconds.
threadDelay :: Int -> Compiled ()
threadDelay us = compiled (W.threadDelay us)
{-# NOINLINE threadDelay #-}

-- | @GHC.Event.Thread.registerDelay@; in microseconds.
registerDelay :: Int -> Compiled (TVar Bool)
registerDelay us = compiled (W.registerDelay us)
{-# NOINLINE registerDelay #-}

-- | Of "System.Timeout". A program without @-threaded@ has no dispatchers: it keeps
-- GHC's, as it does for all else here, which is asked for by its threaded run-time system only.
timeout :: Int -> IO a -> Compiled (Maybe a)
timeout us act = compiled (if rtsSupportsBoundThreads then W.timeout us act else originally cOriginalTimeout >>= \f -> f us act)
{-# NOINLINE timeout #-}

-- | 'timeout' for callers that use its exported name.
timeoutExported :: Int -> IO a -> Compiled (Maybe a)
timeoutExported us act = timeout us act
{-# NOINLINE timeoutExported #-}

-- | 'timeout' for callers that use the worker into which the compiler split it.
timeoutUnboxed :: Int# -> IO a -> Compiled (Maybe a)
timeoutUnboxed us act = timeout (I# us) act
{-# NOINLINE timeoutUnboxed #-}

-- | Called as the program starts, in each forked child, and when a signal handler is installed. It is not replaced but
-- preceded: with @WEFT_VERBOSE@ the program says what it runs on, the first time; and Weft's manager starts, as GHC's
-- does, since later there may be no descriptors for it. Nothing that this throws may keep GHC's manager, which runs the
-- signal handlers, from starting: the back end's name may be unknown.
ensureIOManagerIsRunning :: Compiled ()
ensureIOManagerIsRunning = compiled $ do
  verbose <- cVerbose
  when (verbose /= 0) report
  startManager `catch` ignored
  join (originally cOriginalEnsure)
  where
    ignored :: IOException -> IO ()
    ignored _ = pure ()
{-# NOINLINE ensureIOManagerIsRunning #-}

-- | Print the back end, or why there is none. Throws no 'IOException'.
report :: IO ()
report = do
  found <- try backendChoice
  reportLine $ case found of
    Left e -> ioeGetErrorString e
    Right chosen
      | rtsSupportsBoundThreads ->
        "weft: back end " <> choiceBackend chosen <> concat [" (" <> name <> " is not available: " <> why <> ")" | Just (name, why) <- [choiceRefused chosen]]
      | otherwise -> "weft: this program was linked without -threaded: GHC's own manager serves it"

-- | A function of @base@ from the address of its closure, which is static.
originally :: IO (Ptr ()) -> IO a
originally address = do
  Ptr a <- address
  case addrToAny# a of (# f #) -> pure f

foreign import ccall unsafe "weft_relink_verbose" cVerbose :: IO CInt

foreign import ccall unsafe "weft_relink_original_timeout" cOriginalTimeout :: IO (Ptr ())

foreign import ccall unsafe "weft_relink_original_ensure" cOriginalEnsure :: IO (Ptr ())
