-- | A watchdog of the program's managers. It prints a line on standard error when a capability has been occupied for
-- longer than a bound, by a callback that does not return or by a thread that lets no other run; and another one when
-- the capability is free again.
--
-- > weft watchdog: capability 0 has been held for 1.012 s by a callback of descriptor 7
-- >   OS thread 4711 is busy in Main_parse_info + 0x24
-- > weft watchdog: capability 0 is free again, after 3.402 s
--
-- It is an OS thread that runs no Haskell code. So it sees a loop that never allocates, and so never lets another
-- thread run, even on the only capability. It is off unless 'setWatchdog' or the environment variable @WEFT_WATCHDOG@
-- (seconds, as in @0.5@) sets a bound. What is held for the bound and a quarter of it is always reported, and the times
-- in the reports are right within that quarter. While it is on, an idle dispatcher wakes up five times within the
-- bound, and the watchdog once, and at least every 250 ms.
--
-- What it reports: a callback ("Weft.Event", 'Weft.Timer.schedule') by its descriptor, or as a timer. A Haskell
-- thread cannot be named, since GHC does not tell which one is running; instead the report names the code that the
-- program's busy OS threads are running at that moment (Linux, x86-64 and aarch64, symbols not stripped). Local
-- functions have no symbol: @code before Main_parse_info@ precedes that function, which in most cases uses it. A long
-- garbage collection occupies all capabilities and is reported too, and so is a machine that gives the program no
-- processor.
--
-- It watches the dispatchers, and managers of "Weft.Event" while they are in 'Weft.Event.loop' or 'Weft.Event.step'.
-- The dispatchers of all capabilities start with 'setWatchdog', and with the first wait of a program that has the
-- variable. Of a capability that is added later, the dispatcher starts with the first wait there.
--
-- @since 0.1.0
module Weft.Watchdog
  ( setWatchdog,
    watchdogBound,

    -- * Metrics
    WatchdogMetrics (..),
    watchdogMetrics,
  )
where

import Control.Monad (when)
import Data.Maybe (isJust)
import Weft.Core.Manager (wakeManager)
import Weft.Core.Time (Duration (..))
import qualified Weft.FFI.Watchdog as FFI
import Weft.Runtime.Managers (managers, startAll)
import Weft.Watchdog.Bound (setBound)

-- | Report capabilities that are occupied for longer than this from now on; 'Nothing' turns the watchdog off.
-- Overrides @WEFT_WATCHDOG@. A manager of "Weft.Event" is watched from its next turn on. Throws a user error if the
-- bound is below a millisecond.
setWatchdog :: Maybe Duration -> IO ()
setWatchdog bound = do
  setBound bound
  managers >>= mapM_ wakeManager
  when (isJust bound) startAll

-- | The bound, if there is one.
watchdogBound :: IO (Maybe Duration)
watchdogBound = (\ns -> if ns == 0 then Nothing else Just (Duration ns)) <$> FFI.watchdogBound

-- | Counters of the watchdog.
data WatchdogMetrics = WatchdogMetrics
  { -- | How often a capability was occupied for longer than the bound.
    watchdogStalls :: !Int,
    -- | The longest of these times.
    watchdogLongest :: !Duration
  }
  deriving (Eq, Show)

-- | The counters since the program was started.
watchdogMetrics :: IO WatchdogMetrics
watchdogMetrics = WatchdogMetrics . fromIntegral <$> FFI.watchdogStalls <*> (Duration <$> FFI.watchdogLongest)
