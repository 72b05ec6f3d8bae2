-- |
-- A watchdog of the program's managers: it says on standard error when a capability is held for longer than a bound, by a callback
-- that does not return or by a thread that lets no other run, and again when the capability is free.
--
-- > weft watchdog: capability 0 has been held for 1.012 s by a callback of descriptor 7
-- >   OS thread 4711 is busy in Main_parse_info + 0x24
-- > weft watchdog: capability 0 is free again, after 3.402 s
--
-- It is an OS thread that runs no Haskell code, so that a loop which never allocates, and therefore never lets another thread run, is
-- seen even on the only capability. It is off unless 'setWatchdog' or the environment variable @WEFT_WATCHDOG@ (seconds, as in @0.5@) sets a
-- bound. While it is on, dispatchers wake up once in that time, even if there is nothing to do, and the watchdog four times.
--
-- What it can know. A callback ("Weft.Event", 'Weft.Timer.schedule') is named by its descriptor, or as a timer. Of a thread, GHC tells no
-- other thread that it is the one that runs, and there are no stacks without profiling: the report names the code instead in which
-- the program's busy OS threads are at that moment (Linux, x86-64 and aarch64, symbols not stripped). A long garbage collection holds all
-- capabilities and is reported like that, and so is a machine that gives the program no processor.
--
-- Watched are the dispatchers, and managers of "Weft.Event" while they are in 'Weft.Event.loop' or 'Weft.Event.step'.
--
-- @since 0.1.0
module Weft.Watchdog
  ( setWatchdog,
    watchdogBound,

    -- * Figures
    WatchdogMetrics (..),
    watchdogMetrics,
  )
where

import Weft.Core.Manager (wakeManager)
import Weft.Core.Time (Duration (..))
import qualified Weft.FFI.Watchdog as FFI
import Weft.Runtime.Managers (managers)
import Weft.Watchdog.Bound (setBound)

-- | From now on report capabilities that are held for longer than this; 'Nothing' ends it. It goes before @WEFT_WATCHDOG@. What a
-- manager of "Weft.Event" does is seen from its next turn on. Throws a user error for a bound below a millisecond.
setWatchdog :: Maybe Duration -> IO ()
setWatchdog bound = do
  setBound bound
  managers >>= mapM_ wakeManager

-- | The bound, if there is one.
watchdogBound :: IO (Maybe Duration)
watchdogBound = (\ns -> if ns == 0 then Nothing else Just (Duration ns)) <$> FFI.watchdogBound

-- | What the watchdog has seen.
data WatchdogMetrics = WatchdogMetrics
  { -- | How often a capability was held for longer than the bound.
    watchdogStalls :: !Int,
    -- | The longest of these times.
    watchdogLongest :: !Duration
  }
  deriving (Eq, Show)

-- | Since the program was started.
watchdogMetrics :: IO WatchdogMetrics
watchdogMetrics = WatchdogMetrics . fromIntegral <$> FFI.watchdogStalls <*> (Duration <$> FFI.watchdogLongest)
