-- |
-- What the scopes of both kinds of threads have in common: settings, what is forked, and what they throw. For
-- "Weft.Scope" (GHC's threads) and "Weft.Hybrid.Scope" (hybrid threads), which export all of it. No effects.
module Weft.Scope.Types
  ( -- * Settings
    ScopeSettings (..),
    defaultScopeSettings,
    Overdue (..),

    -- * What is forked
    Child (..),
    Kind (..),
    Place (..),
    work,
    daemon,

    -- * Exceptions
    ScopeEnded (..),
  )
where

import Control.Exception (Exception)
import Weft.Core.Time (Duration, seconds)
import Weft.StandardError (reportLine)

-- | Settings of a scope. Begin with 'defaultScopeSettings'.
data ScopeSettings = ScopeSettings
  { -- | How long the end of the scope waits for threads that were told to end before it calls 'scopeOnOverdue'. 'maxBound':
    -- for ever.
    scopePatience :: Duration,
    -- | Called with the labels and numbers of threads that have not ended within 'scopePatience' of being told to: they mask
    -- exceptions, clean up slowly, or handle the exception and go on. Decides whether to wait on, or to leave them,
    -- which gives up the first guarantee. It runs masked and cannot be interrupted; what it throws is thrown by the
    -- scope, and the threads are left. For hybrid threads it runs on the loop's thread and must not block.
    scopeOnOverdue :: [String] -> IO Overdue
  }

-- | After ten seconds the threads are named on standard error, and the scope waits on.
defaultScopeSettings :: ScopeSettings
defaultScopeSettings =
  ScopeSettings
    { scopePatience = seconds 10,
      scopeOnOverdue = \left -> WaitOn <$ reportLine ("weft: told to end with their scope, and still running: " <> unwords left)
    }

-- | What to do about threads that do not end although they have been told to.
data Overdue
  = -- | Wait on, until they have ended.
    WaitOn
  | -- | Leave them to themselves. They may still run afterwards.
    Leave
  deriving (Eq, Show)

-- | What to fork. Begin with 'work' or 'daemon'.
data Child = Child
  { -- | Whether the scope's end waits until the thread has ended by itself.
    childKind :: !Kind,
    -- | Where it runs.
    childPlace :: !Place,
    -- | The thread's label, for 'scopeOnOverdue'; of GHC's threads also for the event log, of hybrid threads for the
    -- reports of the scheduler. Labelling takes longer than forking.
    childLabel :: !(Maybe String)
  }

-- | Whether the owner waits for a thread's work, or only for its end once it has been told to end.
data Kind = Work | Daemon
  deriving (Eq, Show)

-- | The capability of a thread.
data Place
  = -- | That of the thread that starts it, at first. The run-time system, or the loop, may move it.
    Here
  | -- | This one, modulo their number: for good, if it is one of GHC's threads. A hybrid thread begins on this loop of
    -- its scheduler, and may be given to a loop that is idle.
    On !Int
  deriving (Eq, Show)

-- | A thread whose work is awaited, on the capability of the one that forks it, without a label.
work :: Child
work = Child Work Here Nothing

-- | A thread that is ended with its scope.
daemon :: Child
daemon = work {childKind = Daemon}

-- | Thrown by @fork@ in a scope that has ended or is ending, and by @await@ for a thread that was told to end, by its
-- scope or by @cancelTask@.
data ScopeEnded = ScopeEnded
  deriving (Eq, Show)

instance Exception ScopeEnded
