-- |
-- The connection table: what a server knows of its connections, to end the idle ones when it shuts down or has
-- too many. There is a table for each capability, so that connections on different ones share
-- nothing.
--
-- An idle connection is ended by an exception to its thread, which takes what its client sent meanwhile, answers it and
-- closes. Only a thread that waits for a request is interrupted: whoever ends it has moved its phase from
-- Fresh or Idle to Ending first, which the thread itself does not do, and a thread that finds Ending when its
-- request has come waits for the exception.
module Weft.Http.Table
  ( -- * Tables
    Table,
    newTable,
    enter,
    leave,
    Entry (..),

    -- * Ending
    EndIdle (..),
    endIdle,
    idleEntries,
    endEntry,
  )
where

import Control.Concurrent (ThreadId)
import Control.Exception
import Control.Monad (filterM, forM, forM_, join, when)
import Data.IORef
import qualified Data.Map.Strict as Map
import Weft.Http.Limits
import Weft.Http.Timeouts (shareOfTimeLeft)
import Weft.Http.Types
import Weft.IdleTimer (IdleTimer)
import Weft.Sys (AtomicWords, casWord, peekWord)

-- | A connection, as others see it.
data Entry = Entry
  { entryThread :: !ThreadId,
    entryCells :: !AtomicWords,
    entryDeadline :: !IdleTimer,
    -- | Begins the shutdown of a connection of HTTP\/2; any number of times. Written by its thread.
    entryShutdown :: !(IORef (IO ()))
  }

-- | The connections of a capability, by their threads, which enter and leave. Read by who ends connections.
newtype Table = Table (IORef (Map.Map ThreadId Entry))

-- | Without connections.
newTable :: IO Table
newTable = Table <$> newIORef Map.empty

-- | Put a connection into the table. Its thread takes it out again.
enter :: Table -> Entry -> IO ()
enter (Table ref) entry = atomicModifyIORef' ref (\m -> (Map.insert (entryThread entry) entry m, ()))

-- | Take a connection out.
leave :: Table -> Entry -> IO ()
leave (Table ref) entry = atomicModifyIORef' ref (\m -> (Map.delete (entryThread entry) m, ()))

-- | Thrown to a thread that waits for a request, when its connection is to end.
data EndIdle = EndIdle
  deriving (Show)

instance Exception EndIdle where
  toException = asyncExceptionToException
  fromException = asyncExceptionFromException

-- | End a connection if it waits for a request; did it?
endEntry :: Entry -> IO Bool
endEntry entry = do
  fresh <- casWord (entryCells entry) cellPhase phaseFresh phaseEnding
  idle <- if fresh == phaseFresh then pure phaseIdle else casWord (entryCells entry) cellPhase phaseIdle phaseEnding
  let mine = idle == phaseIdle
  when mine (throwTo (entryThread entry) EndIdle)
  pure mine

-- | End the connections that wait for a next request; with 'True' those too on which nothing has come yet. Those of HTTP\/2
-- take no more streams. To be repeated until there are none.
endIdle :: Bool -> Table -> IO ()
endIdle alsoFresh (Table ref) = do
  entries <- Map.elems <$> readIORef ref
  waiting <- filterM (fmap ends . phase) entries
  forM_ waiting endEntry
  forM_ entries (join . readIORef . entryShutdown)
  where
    phase entry = peekWord (entryCells entry) cellPhase
    ends p = p == phaseIdle || (alsoFresh && p == phaseFresh)

-- | The connections that wait for a request, with the share of their time that is left, from 1 downwards. Any thread.
idleEntries :: Limits -> Table -> IO [(Double, Entry)]
idleEntries limits (Table ref) = do
  entries <- Map.elems <$> readIORef ref
  found <- forM entries $ \entry -> do
    phase <- peekWord (entryCells entry) cellPhase
    if phase == phaseFresh || phase == phaseIdle
      then (\left -> [(left, entry)]) <$> shareOfTimeLeft limits (entryCells entry) (entryDeadline entry)
      else pure []
  pure (concat found)
